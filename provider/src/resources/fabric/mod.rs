//! `svc_fabric`: a custom resource `Fabric` in Kubernetes, by server-side apply. It does not call the fabric.
//!
//! A field of the object belongs to the managers that have applied it. This one owns what its configuration
//! states, leaves alone what others have added, and takes a field of another manager only if the
//! configuration requests it.

mod document;

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value as Json, json};
use trust_fabric_spec::crd;

use crate::cluster::{Call, Credential, Failure};
use crate::diagnostic::Diagnostic;
use crate::kubernetes::Server;
use crate::kubernetes::api::{Error, Request};
use crate::private::Private;
use crate::resource::{Found, Operation, Planned, Resource, Route, Unfinished, invalid};
use crate::schema::{Attribute, TIMEOUTS, Table, Type};
use crate::value::{Object, Value};
use crate::{failure, limits, rules};

/// The name under which this provider applies.
pub const MANAGER: &str = "terraform-provider-svc";

/// The resource type.
pub struct Fabric;

static TABLE: Table = Table {
    name: "svc_fabric",
    summary: "The desired state of a Trust Fabric in Kubernetes: a custom resource `Fabric`. The chart `trust-fabric` takes \
              its values from `values_yaml`.",
    attributes: &[
        Attribute::required("name", Type::Text, "Name of the object.").replaces().rule(rules::object_name),
        Attribute::optional_computed(
            "namespace",
            Type::Text,
            "Namespace of the object, which must exist; by default that of the provider.",
        )
        .replaces()
        .rule(rules::namespace),
        Attribute::required(
            "spec",
            Type::Text,
            "The fabric, as YAML or JSON: the value `fabric` of the chart. `yamlencode` writes it. Another text of the same \
             document is no change.",
        ),
        Attribute::optional("labels", Type::TextMap, "Labels of the object; those of others are left alone."),
        Attribute::optional("annotations", Type::TextMap, "Annotations of the object; those of others are left alone."),
        Attribute::optional(
            "force_conflicts",
            Type::Bool,
            "Whether a field that another manager owns is taken over. Otherwise it is an error that names both managers.",
        ),
        Attribute::optional(
            "wait_for_phase",
            Type::Text,
            "`Pending` or `Converged`: create and update wait until `status` has this phase, or a later one, for the applied \
             object. It takes a controller that writes the status. If the phase is not reached in time, an update fails, and a \
             create ends with a warning, because Terraform replaces what it failed to create. By default nothing is waited for.",
        )
        .rule(rules::waited_phase),
        Attribute::computed("id", Type::Text, "`<namespace>/<name>`.").rule(rules::object_path),
        Attribute::computed("uid", Type::Text, "Identifier of this object: another one with its name has another."),
        Attribute::computed("generation", Type::Number, "Number of changes of `spec`.").volatile(),
        Attribute::computed("observed_generation", Type::Number, "The generation that the status describes.").volatile(),
        Attribute::computed("phase", Type::Text, "`Pending`, `Converging`, `Converged` or `Degraded`.").volatile(),
        Attribute::computed("conditions", Type::Objects(CONDITION), "Conditions of the status.").volatile(),
        Attribute::computed("spec_hash", Type::Text, "Digest of the `spec` that is in effect, by the status.").volatile(),
        Attribute::computed(
            "values_yaml",
            Type::Text,
            "Values of the chart `trust-fabric` with this fabric. They are known while a plan is made, if `spec` is.",
        ),
        TIMEOUTS,
    ],
    import: Some("id"),
    example: include_str!("../../../examples/svc_fabric.tf"),
    notes: include_str!("../../../examples/svc_fabric.md"),
};

const CONDITION: &[Attribute] = &[
    Attribute::computed("type", Type::Text, "`Ready`, `QuorumHealthy`, `ConfigApplied` or `PolicyApplied`."),
    Attribute::computed("status", Type::Text, "`True`, `False` or `Unknown`."),
    Attribute::computed("reason", Type::Text, "The reason as one word."),
    Attribute::computed("message", Type::Text, "The reason in words."),
];

#[tonic::async_trait]
impl Resource for Fabric {
    fn table(&self) -> &'static Table {
        &TABLE
    }

    fn noun(&self) -> &'static str {
        "fabric"
    }

    fn route(&self, _operation: Operation) -> Route {
        Route { credential: Credential::Kubernetes, name: "the API server of Kubernetes" }
    }

    fn validate(&self, config: &Object) -> Vec<Diagnostic> {
        let broken = config.text("spec").map(|spec| document::broken_rules(spec, None));
        broken.unwrap_or_default().into_iter().map(|rule| invalid("spec", rule)).collect()
    }

    fn plan(&self, prior: Option<&Object>, _config: &Object, planned: &mut Planned) {
        let values = match planned.state.value("spec") {
            Value::Text(spec) => document::values(spec).map_or(Value::Unknown, Value::Text),
            _ => Value::Unknown,
        };
        planned.state.set("values_yaml", values);
        let Some(prior) = prior else { return };
        let specs = prior.text("spec").zip(planned.state.text("spec"));
        if specs.is_some_and(|(before, after)| document::is_equivalent(before, after)) {
            for name in ["spec", "values_yaml"] {
                planned.state.set(name, prior.value(name).clone());
            }
            let is_same = |attribute: &Attribute| {
                !attribute.is_configurable()
                    || prior.value(attribute.name) == planned.state.value(attribute.name)
            };
            if TABLE.attributes.iter().all(is_same) {
                planned.state = prior.clone();
            }
        }
    }

    fn refused(&self, prior: Option<&Object>, planned: &Object) -> Vec<Diagnostic> {
        let is_another = |name| prior.is_some_and(|prior| prior.value(name) != planned.value(name));
        // A replacement has no prior object.
        let prior = prior.filter(|_| !is_another("name") && !is_another("namespace"));
        let (Some(before), Some(after)) = (prior.and_then(|prior| prior.text("spec")), planned.text("spec"))
        else {
            return Vec::new();
        };
        let broken = document::broken_rules(after, Some(before)).into_iter();
        broken.map(|rule| invalid("spec", rule)).collect()
    }

    async fn create(&self, call: &Call<'_>, planned: &Object) -> Result<Found, Unfinished> {
        let server = call.server()?;
        let namespace = planned.text("namespace").unwrap_or(&server.namespace).to_owned();
        let name = planned.text("name").unwrap_or_default();
        if let Some(found) = get(call, server, &namespace, name).await? {
            let uid = found["metadata"]["uid"].as_str().unwrap_or_default();
            let rule = format!(
                "name: {namespace}/{name} exists already (uid {uid}), and is not managed here: import it or choose another \
                 name"
            );
            return Err(Failure::Invalid { attribute: "name", rule }.into());
        }
        let written = written(call, server, &namespace, planned, None).await;
        // An error would taint an object that exists, and the next apply would delete the fabric.
        written.or_else(|Unfinished { failure, found }| {
            let Some(mut found) = found else { return Err(failure.into()) };
            let Diagnostic { summary, detail, .. } = failure::diagnostic(self, Operation::Create, &failure);
            found.warnings.push(Diagnostic::warning(summary, detail));
            Ok(*found)
        })
    }

    async fn read(&self, call: &Call<'_>, state: &Object) -> Result<Option<Found>, Failure> {
        let (namespace, name) = place(state);
        let live = get(call, call.server()?, namespace, name).await?;
        Ok(live.map(|live| found(&live, Some(state))))
    }

    async fn update(
        &self,
        call: &Call<'_>,
        prior: &Object,
        planned: &Object,
        _private: &Private,
    ) -> Result<Found, Unfinished> {
        let (namespace, _) = place(prior);
        written(call, call.server()?, namespace, planned, prior.text("uid")).await
    }

    async fn delete(&self, call: &Call<'_>, state: &Object) -> Result<bool, Failure> {
        let server = call.server()?;
        let ((namespace, name), uid) = (place(state), state.text("uid").unwrap_or_default());
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background", "preconditions": {"uid": uid},
        });
        let path = path(namespace, name);
        let mut request = request(Method::DELETE, &path);
        request.body = Some(options);
        match call.send_to(server, &request).await {
            Ok(_) => {}
            Err(failure) if is_absent(&failure, name) => return Ok(false),
            Err(failure) => return Err(failure),
        }
        // A finalizer may delay the end.
        while let Some(live) = get(call, server, namespace, name).await?
            && live["metadata"]["uid"] == uid
        {
            await_change(call, "The fabric is marked for deletion, and a finalizer keeps it").await?;
        }
        Ok(true)
    }
}

/// Namespace and name of a state.
fn place(state: &Object) -> (&str, &str) {
    state.text("id").and_then(|id| id.split_once('/')).unwrap_or_default()
}

fn path<'p>(namespace: &'p str, name: &'p str) -> [&'p str; 7] {
    ["apis", crd::GROUP, crd::VERSION, "namespaces", namespace, "fabrics", name]
}

fn request<'r>(method: Method, path: &'r [&'r str]) -> Request<'r> {
    Request { method, path, query: &[], content_type: "application/json", body: None }
}

/// Whether the object, and not its namespace or its kind, does not exist.
fn is_absent(failure: &Failure, name: &str) -> bool {
    match failure {
        Failure::Kubernetes(error) => match &**error {
            Error::Refused { code: 404, details, .. } => {
                details["name"] == name && details["kind"] == "fabrics"
            }
            _ => false,
        },
        _ => false,
    }
}

async fn get(call: &Call<'_>, server: &Server, namespace: &str, name: &str) -> Result<Option<Json>, Failure> {
    match call.send_to(server, &request(Method::GET, &path(namespace, name))).await {
        Ok(live) => Ok(Some(live)),
        Err(failure) if is_absent(&failure, name) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Applies the planned object, and waits for its phase. With a `uid`, only to the object that has it.
async fn written(
    call: &Call<'_>,
    server: &Server,
    namespace: &str,
    planned: &Object,
    uid: Option<&str>,
) -> Result<Found, Unfinished> {
    let name = planned.text("name").unwrap_or_default();
    let is_forced = *planned.value("force_conflicts") == Value::Bool(true);
    let query = [
        ("fieldManager", MANAGER),
        ("fieldValidation", "Strict"),
        ("force", if is_forced { "true" } else { "false" }),
    ];
    let rule = |rule: String| Failure::Invalid { attribute: "spec", rule: format!("spec: {rule}") };
    let spec = document::parse(planned.text("spec").unwrap_or_default()).map_err(rule)?;
    let mut metadata = json!({"name": name, "namespace": namespace});
    for (key, value) in [("labels", planned.value("labels")), ("annotations", planned.value("annotations"))] {
        if let Some(stated) = crate::value::json::encode(value) {
            metadata[key] = stated;
        }
    }
    if let Some(uid) = uid {
        metadata["uid"] = uid.into();
    }
    let api_version = format!("{}/{}", crd::GROUP, crd::VERSION);
    let path = path(namespace, name);
    let request = Request {
        query: &query,
        // JSON is YAML.
        content_type: "application/apply-patch+yaml",
        body: Some(json!({"apiVersion": api_version, "kind": "Fabric", "metadata": metadata, "spec": spec})),
        ..request(Method::PATCH, &path)
    };
    let mut live = call.send_to(server, &request).await?;
    let Some(wanted) = planned.text("wait_for_phase") else { return Ok(found(&live, Some(planned))) };
    while !is_reached(&live, wanted) {
        let text = phase_text(&live, wanted);
        let next = match await_change(call, &text).await {
            Ok(()) => get(call, server, namespace, name).await,
            Err(failure) => Err(failure),
        };
        live = match next {
            Ok(Some(next)) => next,
            Ok(None) => {
                return Err(not_reached("The fabric was deleted while its phase was waited for").into());
            }
            Err(failure) => {
                return Err(Unfinished { failure, found: Some(Box::new(found(&live, Some(planned)))) });
            }
        };
    }
    Ok(found(&live, Some(planned)))
}

/// Waits before the object is read again; `text` states why, for the end of the time.
async fn await_change(call: &Call<'_>, text: &str) -> Result<(), Failure> {
    if call.ends_within(limits::PHASE_INTERVAL) {
        let secs = call.timeout().as_secs();
        return Err(not_reached(format!("{text}, at the end of the timeout of the operation ({secs} s).")));
    }
    call.pause(limits::PHASE_INTERVAL).await
}

fn not_reached(text: impl Into<String>) -> Failure {
    Failure::Kubernetes(Box::new(Error::NotReached(text.into())))
}

/// Whether the status describes this generation, in the phase or a later one. A degraded fabric is past `Pending` only.
fn is_reached(live: &Json, wanted: &str) -> bool {
    let rank = |phase: &str| {
        ["Pending", "Degraded", "Converging", "Converged"].iter().position(|known| *known == phase)
    };
    let status = &live["status"];
    let is_current = status["observedGeneration"].as_i64() >= live["metadata"]["generation"].as_i64();
    let reached = status["phase"].as_str().and_then(rank);
    is_current && reached.is_some() && reached >= rank(wanted)
}

fn phase_text(live: &Json, wanted: &str) -> String {
    let status = &live["status"];
    let Some(phase) = status["phase"].as_str() else {
        return format!(
            "{wanted} is waited for, and the fabric has no phase: is there a controller that writes its status"
        );
    };
    let generations = (&live["metadata"]["generation"], &status["observedGeneration"]);
    let failing =
        status["conditions"].as_array().into_iter().flatten().filter(|found| found["status"] != "True");
    let texts = failing.map(|found| format!("; {}: {}", found["type"], found["message"]));
    format!(
        "{wanted} is waited for, and the phase is {phase} (generation {}, observed {}){}",
        generations.0,
        generations.1,
        texts.collect::<String>()
    )
}

/// Step 5: an object as attributes, beside the state or plan that it belongs to.
fn found(live: &Json, stated: Option<&Object>) -> Found {
    let text = |value: &Json| value.as_str().map_or(Value::Null, Value::text);
    let number = |value: &Json| value.as_i64().map_or(Value::Null, Value::Number);
    let (metadata, status) = (&live["metadata"], &live["status"]);
    let part = |key: &str| metadata[key].as_str().unwrap_or_default();
    let spec_before = stated.and_then(|stated| stated.text("spec"));
    let spec = spec_of(live, spec_before);
    let condition = |found: &Json| {
        let members = CONDITION.iter().map(|attribute| (attribute.name, text(&found[attribute.name])));
        Value::Object(members.fold(Object::default(), |object, (name, value)| object.with(name, value)))
    };
    let conditions = status["conditions"].as_array().map(|all| all.iter().map(condition).collect());
    let observed = Object::default()
        .with("id", Value::Text(format!("{}/{}", part("namespace"), part("name"))))
        .with("name", text(&metadata["name"]))
        .with("namespace", text(&metadata["namespace"]))
        .with("values_yaml", document::values(&spec).map_or(Value::Null, Value::Text))
        .with("spec", Value::Text(spec))
        .with("labels", own_texts(live, "labels", stated))
        .with("annotations", own_texts(live, "annotations", stated))
        .with("uid", text(&metadata["uid"]))
        .with("generation", number(&metadata["generation"]))
        .with("observed_generation", number(&status["observedGeneration"]))
        .with("phase", text(&status["phase"]))
        .with("conditions", conditions.map_or(Value::Null, Value::List))
        .with("spec_hash", text(&status["specHash"]));
    Found { observed, ..Found::default() }
}

/// The text of `spec`: as stated if the object has all that it states, otherwise with the values of the object.
fn spec_of(live: &Json, stated: Option<&str>) -> String {
    let live = &live["spec"];
    match stated.and_then(|text| Some((text, document::parse(text).ok()?))) {
        Some((text, document)) => {
            let now = document::projected(&document, live);
            if now == document { text.to_owned() } else { document::text(&now) }
        }
        None => document::text(live),
    }
}

/// The labels or annotations that the state has or this manager owns.
fn own_texts(live: &Json, key: &'static str, stated: Option<&Object>) -> Value {
    let entries = live["metadata"]["managedFields"].as_array().into_iter().flatten();
    let mut owned = entries.filter(|entry| entry["manager"] == MANAGER && entry["operation"] == "Apply");
    let owned = owned.next().map(|entry| &entry["fieldsV1"]["f:metadata"][format!("f:{key}")]);
    let is_owned = |name: &str| owned.is_some_and(|fields| fields.get(format!("f:{name}")).is_some());
    let before = stated.map_or(&Value::Null, |stated| stated.value(key));
    let is_stated = |name: &str| matches!(before, Value::Map(members) if members.contains_key(name));
    let all = live["metadata"][key].as_object().into_iter().flatten();
    let own = all.filter(|(name, _)| is_owned(name) || is_stated(name));
    let own: BTreeMap<String, Value> =
        own.map(|(name, value)| (name.clone(), Value::text(value.as_str().unwrap_or_default()))).collect();
    if before.is_null() && own.is_empty() { Value::Null } else { Value::Map(own) }
}
