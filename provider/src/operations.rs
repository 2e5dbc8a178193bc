//! The operations of Terraform on any resource: which one a change is, its credential and timeout, and the meaning of its
//! outcome for the state.
//!
//! "Gone" and "failed" are never confused: only an object that the identity which created it does not find is gone, or one
//! that the fabric states to be ended.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::cluster::{Call, Credential, Target};
use crate::diagnostic::Diagnostic;
use crate::failure;
use crate::kubernetes;
use crate::private::Private;
use crate::resource::{Found, Operation, Resource, Unfinished, applied_state, invalid, refreshed_state};
use crate::schema::Table;
use crate::settings::Access;
use crate::value::{Object, Value};

/// A resource type and the access to the fabric.
pub struct Session {
    pub resource: &'static dyn Resource,
    pub access: Arc<Access>,
    pub kubernetes: Arc<kubernetes::Access>,
    pub stopped: CancellationToken,
}

/// A change: from nothing or a state to nothing or a planned state.
#[derive(Clone, Copy)]
pub struct Change<'o> {
    pub before: Option<&'o Object>,
    pub after: Option<&'o Object>,
}

/// The data that Terraform stores: the state, `None` if there is no object, and the private state.
#[derive(Default)]
pub struct Kept {
    pub state: Option<Object>,
    pub private: Private,
}

type Outcome = (Kept, Vec<Diagnostic>);

impl Change<'_> {
    /// The operation that the change is; `None` if nothing changes.
    fn operation(self) -> Option<Operation> {
        match (self.before, self.after) {
            (None, None) => None,
            (None, Some(_)) => Some(Operation::Create),
            (Some(_), None) => Some(Operation::Delete),
            (Some(before), Some(after)) => (before != after).then_some(Operation::Update),
        }
    }
}

impl Session {
    fn is_of_kubernetes(&self) -> bool {
        self.resource.route(Operation::Read).credential == Credential::Kubernetes
    }

    /// Whether the party to call becomes known only while other resources are applied.
    fn is_not_known(&self) -> bool {
        if self.is_of_kubernetes() {
            matches!(*self.kubernetes, kubernetes::Access::NotKnown(_))
        } else {
            matches!(*self.access, Access::NotKnown(_))
        }
    }

    fn target(&self) -> Result<Target<'_>, Diagnostic> {
        if self.is_of_kubernetes() { self.server() } else { fabric(&self.access) }
    }

    fn server(&self) -> Result<Target<'_>, Diagnostic> {
        match &*self.kubernetes {
            kubernetes::Access::Ready(server) => Ok(Target::Kubernetes(server)),
            kubernetes::Access::Unusable(reason) => Err(reason.clone()),
            kubernetes::Access::NotKnown(name) => {
                let detail = format!("{name} is not known yet: it depends on a resource that is not applied");
                Err(Diagnostic::error("The provider is not configured", detail))
            }
        }
    }

    /// The message of a failed operation, with both identities if the object is that of another.
    fn failed(
        &self,
        call: &Call<'_>,
        operation: Operation,
        failure: &crate::cluster::Failure,
        private: &Private,
    ) -> Diagnostic {
        let mut message = failure::diagnostic(self.resource, operation, failure);
        if failure.status() == Some(403)
            && let Some(owners) = self.other_identity(call, operation, private)
        {
            message.detail = format!("{}\n\n{owners}", message.detail);
        }
        message
    }

    /// Both identities, if the object was created by another one.
    fn other_identity(&self, call: &Call<'_>, operation: Operation, private: &Private) -> Option<String> {
        let owner = private.owner.as_ref()?;
        let current = call.identity(self.resource.route(operation).credential);
        let noun = self.resource.noun();
        let current_text = current.as_deref().unwrap_or("none");
        (current.as_ref() != Some(owner)).then(|| {
            format!("The {noun} was created by {owner}; the identity of the provider is now {current_text}.")
        })
    }

    /// Whether an object that was not found is gone; otherwise the error.
    fn gone(&self, call: &Call<'_>, operation: Operation, private: &Private) -> Result<(), Diagnostic> {
        match self.other_identity(call, operation, private) {
            Some(owners) if self.resource.is_hidden_from_others() => {
                let noun = self.resource.noun();
                let detail = format!(
                    "{owners} The fabric shows a {noun} to its creator and to operators only. Configure the identity \
                     that created it."
                );
                Err(Diagnostic::error(format!("The {noun} cannot be seen by this identity"), detail))
            }
            _ => Ok(()),
        }
    }
}

/// The fabric, if the configuration of the provider suffices.
///
/// # Errors
/// The missing part of the configuration.
pub fn fabric(access: &Access) -> Result<Target<'_>, Diagnostic> {
    let detail = match access {
        Access::Ready(cluster) => return Ok(Target::Fabric(cluster)),
        Access::NotKnown(name) => {
            format!("{name} is not known yet: it depends on a resource that is not applied")
        }
        Access::NoEndpoint => {
            "endpoint is not set: state endpoint or endpoints in the provider configuration, or set \
             TRUST_FABRIC_ENDPOINTS"
                .to_owned()
        }
    };
    Err(Diagnostic::error("The provider is not configured", detail))
}

/// The errors of a plan that need no request: a missing endpoint or credential. A write-only value is a credential of its
/// own.
#[must_use]
pub fn check(session: &Session, change: Change<'_>, config: &Object) -> Vec<Diagnostic> {
    let Some(operation) = change.operation() else { return Vec::new() };
    let refused = change.after.map(|planned| session.resource.refused(change.before, planned));
    let refused = refused.unwrap_or_default();
    if session.is_not_known() || !refused.is_empty() {
        return refused;
    }
    let route = session.resource.route(operation);
    let mut own = session.resource.table().attributes.iter().filter(|attribute| attribute.is_write_only);
    if route.credential == Credential::Token && own.any(|own| !config.value(own.name).is_null()) {
        return Vec::new();
    }
    let lacks = |target: Target<'_>| match target {
        Target::Fabric(cluster) => cluster.missing_credential(route.credential, route.name),
        Target::Kubernetes(_) => None,
    };
    match session.target().map(lacks) {
        Ok(None) => Vec::new(),
        Ok(Some(detail)) => {
            let (verb, noun) = (operation.verb(), session.resource.noun());
            vec![Diagnostic::error(format!("No credential to {verb} the {noun}"), detail)]
        }
        Err(refused) => vec![refused],
    }
}

/// Reads the object of a state. If a value of the provider configuration is not known, the state stays as it is.
pub async fn read(session: &Session, before: Kept) -> Outcome {
    if session.is_not_known() {
        return (before, Vec::new());
    }
    let target = match session.target() {
        Ok(target) => target,
        Err(refused) => return (before, vec![refused]),
    };
    let state = before.state.clone().unwrap_or_default();
    let operation = Operation::Read;
    let call = Call::begin(target, &session.stopped, operation.timeout(&state));
    match session.resource.read(&call, &state).await {
        Ok(Some(found)) if found.is_ended => (Kept::default(), found.warnings),
        Ok(Some(found)) => {
            let credential = session.resource.route(operation).credential;
            let private = kept_private(found.private, before.private, || call.identity(credential));
            let state = refreshed_state(session.resource.table().attributes, &state, &found.observed);
            (Kept { state: Some(state), private }, found.warnings)
        }
        Ok(None) => match session.gone(&call, operation, &before.private) {
            Ok(()) => (Kept::default(), Vec::new()),
            Err(refused) => (before, vec![refused]),
        },
        Err(failure) => {
            let message = session.failed(&call, operation, &failure, &before.private);
            (before, vec![message])
        }
    }
}

/// Carries out a change. After a failure the state is the one before, or that of the object if it exists.
pub async fn apply(session: &Session, change: Change<'_>, private: Private) -> Outcome {
    let before = Kept { state: change.before.cloned(), private };
    let Some(operation) = change.operation() else { return (before, Vec::new()) };
    let target = match session.target() {
        Ok(target) => target,
        Err(refused) => return (before, vec![refused]),
    };
    let begin = |stated| Call::begin(target, &session.stopped, operation.timeout(stated));
    let resource = session.resource;
    let (call, planned) = match change {
        Change { before: Some(prior), after: None } => {
            // A deletion has no configuration.
            return delete(session, &begin(prior), prior, before).await;
        }
        Change { after: Some(planned), .. } => (begin(planned), planned),
        Change { before: None, after: None } => return (before, Vec::new()),
    };
    let written = match change.before {
        None => resource.create(&call, planned).await,
        Some(prior) => resource.update(&call, prior, planned, &before.private).await,
    };
    let (found, failed) = match written {
        Ok(found) => (Some(found), None),
        Err(Unfinished { failure, found }) => {
            (found.map(|found| *found), Some(session.failed(&call, operation, &failure, &before.private)))
        }
    };
    let Some(Found { observed, private, warnings, .. }) = found else {
        return (before, failed.into_iter().collect());
    };
    // An unfinished object has the values of the fabric, not those of the plan.
    let attributes = resource.table().attributes;
    let state = if failed.is_some() {
        refreshed_state(attributes, planned, &observed)
    } else {
        applied_state(attributes, planned, &observed)
    };
    let private = kept_private(private, before.private, || None);
    (Kept { state: Some(known(state)), private }, warnings.into_iter().chain(failed).collect())
}

async fn delete(session: &Session, call: &Call<'_>, state: &Object, before: Kept) -> Outcome {
    let operation = Operation::Delete;
    match session.resource.delete(call, state).await {
        Ok(true) => (Kept::default(), Vec::new()),
        Ok(false) => match session.gone(call, operation, &before.private) {
            Ok(()) => (Kept::default(), Vec::new()),
            Err(refused) => (before, vec![refused]),
        },
        Err(failure) => {
            let message = session.failed(call, operation, &failure, &before.private);
            (before, vec![message])
        }
    }
}

/// The state of an object that is to be imported by `id`; a read completes it.
///
/// # Errors
/// The rule that `id` breaks.
pub fn import(table: &Table, id: &str) -> Result<Object, Diagnostic> {
    let attribute = table.attributes.iter().find(|attribute| Some(attribute.name) == table.import);
    let Some(attribute) = attribute else {
        return Err(Diagnostic::error("This resource cannot be imported", table.name));
    };
    let value = Value::text(id);
    match attribute.broken_rules(&value).into_iter().next() {
        Some(rule) => Err(invalid(attribute.name, rule)),
        None => Ok(Object::default().with(attribute.name, value.clone()).with("id", value)),
    }
}

/// The private state after an operation: the owner that the fabric states, else the one that is known, else `identity`.
fn kept_private(found: Private, before: Private, identity: impl FnOnce() -> Option<String>) -> Private {
    Private { etag: found.etag, owner: found.owner.or(before.owner).or_else(identity) }
}

/// A state without unknown values, which Terraform would refuse.
fn known(state: Object) -> Object {
    state.map(|value| if value == Value::Unknown { Value::Null } else { value })
}
