//! Ephemeral resources: opened for one run of Terraform, in neither plan nor state, and closed at its end.
//!
//! A result never changes while it is open, so none is renewed. Terraform does not close one whose users failed; the plugin
//! closes it when Terraform ends the plugin.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Call, Failure};
use crate::diagnostic::Diagnostic;
use crate::failure::{self, Aim};
use crate::schema::{Attribute, Table};
use crate::settings::Access;
use crate::value::Object;
use crate::{limits, operations};

/// One type of ephemeral resources.
#[tonic::async_trait]
pub trait Ephemeral: Send + Sync {
    fn table(&self) -> &'static Table;

    /// Verb, participle and noun of the opening, for messages: `issue`, `issued`, `agent`.
    fn opening(&self) -> [&'static str; 3];

    /// Rules between values.
    fn validate(&self, _config: &Object) -> Vec<Diagnostic> {
        Vec::new()
    }

    /// The corrective action of a refusal of the opening, instead of the common one.
    fn advice(&self, _status: u16) -> Option<&'static str> {
        None
    }

    async fn open(&self, call: &Call<'_>, config: &Object) -> Result<Opened, Failure>;

    /// Ends the object that `open` retained.
    async fn close(&self, _call: &Call<'_>, _kept: &str) -> Result<(), Failure> {
        Ok(())
    }
}

/// An open ephemeral resource.
#[derive(Debug)]
pub struct Opened {
    /// The attributes that the fabric states.
    pub observed: Object,
    /// For `close`, without a secret; `None`: there is nothing to close.
    pub kept: Option<String>,
}

/// The ephemeral resources of a plugin that are not closed yet, of those that have something to close.
#[derive(Default)]
pub struct OpenResources(Mutex<Vec<OpenResource>>);

struct OpenResource {
    ephemeral: &'static dyn Ephemeral,
    access: Arc<Access>,
    kept: String,
}

impl OpenResources {
    pub fn add(&self, ephemeral: &'static dyn Ephemeral, access: Arc<Access>, kept: String) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.push(OpenResource { ephemeral, access, kept });
    }

    pub fn remove(&self, kept: &str) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|resource| resource.kept != kept);
    }

    /// Closes those that are left, within [`limits::CLOSE_AT_END_MAX`]; the messages of failures.
    pub async fn close_all(&self) -> Vec<Diagnostic> {
        let open = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut closing = JoinSet::new();
        for OpenResource { ephemeral, access, kept } in open {
            closing.spawn(async move { close(ephemeral, &access, &CancellationToken::new(), &kept).await });
        }
        let closed = timeout(limits::CLOSE_AT_END_MAX, closing.join_all()).await;
        closed.unwrap_or_default().into_iter().filter_map(Result::err).collect()
    }
}

/// Opens an ephemeral resource: its values, and the text for [`close`].
///
/// # Errors
/// The message for the user.
pub async fn open(
    ephemeral: &dyn Ephemeral,
    access: &Access,
    stopped: &CancellationToken,
    config: &Object,
) -> Result<(Object, Option<String>), Diagnostic> {
    let call = Call::begin(operations::fabric(access)?, stopped, limits::OPERATION_TIMEOUT);
    let attributes = ephemeral.table().attributes;
    let stated = attributes.iter().fold(Object::default(), |stated, attribute| {
        stated.with(attribute.name, configured(attribute, config))
    });
    let opened = ephemeral.open(&call, &stated).await.map_err(|failure| {
        let [verb, participle, noun] = ephemeral.opening();
        let aim = Aim { verb, participle, noun, attributes };
        failure::message(aim, |status| ephemeral.advice(status), &failure)
    })?;
    let result = attributes.iter().fold(stated, |result, attribute| {
        let is_left_out = result.value(attribute.name).is_null();
        let observed = opened.observed.value(attribute.name);
        if is_left_out { result.with(attribute.name, observed.clone()) } else { result }
    });
    Ok((result, opened.kept))
}

/// The configured value, otherwise the default.
fn configured(attribute: &Attribute, config: &Object) -> crate::value::Value {
    let stated = config.value(attribute.name);
    match attribute.default {
        Some(default) if stated.is_null() => default(),
        _ => stated.clone(),
    }
}

/// Closes an ephemeral resource that kept this text.
///
/// # Errors
/// The message for the user.
pub async fn close(
    ephemeral: &dyn Ephemeral,
    access: &Access,
    stopped: &CancellationToken,
    kept: &str,
) -> Result<(), Diagnostic> {
    let call = Call::begin(operations::fabric(access)?, stopped, limits::OPERATION_TIMEOUT);
    let [_, _, noun] = ephemeral.opening();
    let aim = Aim { verb: "revoke", participle: "revoked", noun, attributes: ephemeral.table().attributes };
    ephemeral.close(&call, kept).await.map_err(|failure| {
        let message = failure::message(aim, |_| None, &failure);
        Diagnostic {
            detail: format!("{}\n\nThe {noun} {kept} is still active: revoke it by hand.", message.detail),
            ..message
        }
    })
}
