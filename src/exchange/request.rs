//! Validation of the exchange request.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::token::CertificateDigest;
use crate::token::foreign::Kind;
use crate::{limits, text};

use super::Error;
use super::execution_scope::ExecutionScope;

/// `grant_type` of RFC 8693 §2.1.
pub const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";

/// Parameters as received, JSON or form; not validated.
#[derive(Clone, Debug, Default)]
pub struct ExchangeInput {
    /// Must be [`GRANT_TYPE`].
    pub grant_type: Option<String>,
    /// Subject token.
    pub subject_token: Option<String>,
    /// URI of its type.
    pub subject_token_type: Option<String>,
    /// Every `audience`: target trust domain or service.
    pub audience: Vec<String>,
    /// Every `resource`: target URI (RFC 8707).
    pub resource: Vec<String>,
    /// Space-separated scope words.
    pub scope: Option<String>,
    /// Actor token.
    pub actor_token: Option<String>,
    /// URI of its type.
    pub actor_token_type: Option<String>,
    /// `…:jwt` or `…:access_token`.
    pub requested_token_type: Option<String>,
    /// Binds the token to one action.
    pub execution_scope: Option<ExecutionScope>,
    /// Binds the token to the caller's certificate.
    pub req_cnf: Option<RequestedConfirmation>,
    /// Form only: RFC 8693 §2.1 requires `actor_token_type` with `actor_token`.
    pub actor_token_type_required: bool,
}

/// Validated request.
#[derive(Clone, Debug)]
pub struct ExchangeRequest {
    /// Subject token.
    pub subject_token: String,
    /// Its stated type.
    pub subject_token_type: Kind,
    /// Actor token and its stated type.
    pub actor: Option<(String, Option<Kind>)>,
    /// Requested audience.
    pub audience: Option<String>,
    /// Requested scope words; empty requests all that is granted.
    pub scope: Vec<String>,
    /// Binds the token to one action.
    pub execution_scope: Option<ExecutionScope>,
    /// Certificate to bind the token to.
    pub confirmation: Option<CertificateDigest>,
}

/// `req_cnf` (RFC 9201 §3.1) with the only supported confirmation method. Unknown fields are refused: the caller would
/// believe the token to be bound.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestedConfirmation {
    /// SHA-256 of the caller's certificate in DER, base64url (RFC 8705 §3.1).
    #[serde(rename = "x5t#S256")]
    pub certificate_digest: String,
}

impl ExchangeRequest {
    /// Checks the parameters in the order of RFC 8693 §2.1, `grant_type` first.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn read(input: ExchangeInput) -> Result<Self, Error> {
        match input.grant_type.as_deref() {
            None => return Err(Error::Invalid { field: "grant_type", rule: "is required" }),
            Some(GRANT_TYPE) => {}
            Some(_) => return Err(Error::UnsupportedGrantType),
        }
        let subject_token = token_text("subject_token", input.subject_token)?
            .ok_or(Error::Invalid { field: "subject_token", rule: "is required" })?;
        let subject_token_type = input
            .subject_token_type
            .ok_or(Error::Invalid { field: "subject_token_type", rule: "is required" })?
            .parse()
            .map_err(|_| Error::UnsupportedSubjectTokenType)?;
        requested_token_type(input.requested_token_type.as_deref())?;
        Ok(Self {
            subject_token,
            subject_token_type,
            actor: actor(
                token_text("actor_token", input.actor_token)?,
                input.actor_token_type.as_deref(),
                input.actor_token_type_required,
            )?,
            audience: audience(input.audience, input.resource)?,
            scope: input.scope.as_deref().map(scope).transpose()?.unwrap_or_default(),
            execution_scope: input.execution_scope.map(ExecutionScope::check).transpose()?,
            confirmation: input.req_cnf.map(|requested| confirmation(&requested)).transpose()?,
        })
    }
}

fn confirmation(requested: &RequestedConfirmation) -> Result<CertificateDigest, Error> {
    let rule = "must be 32 bytes in base64url without padding";
    requested.certificate_digest.parse().map_err(|_| Error::Invalid { field: "req_cnf.x5t#S256", rule })
}

/// Bounds the size before anything is decoded.
fn token_text(field: &'static str, text: Option<String>) -> Result<Option<String>, Error> {
    match text {
        Some(text) if text.is_empty() => Err(Error::Invalid { field, rule: "is empty" }),
        Some(text) if text.len() > limits::TOKEN_BYTES_MAX => {
            Err(Error::Invalid { field, rule: "is larger than 16 KiB" })
        }
        text => Ok(text),
    }
}

/// RFC 8693 §2.1: the minted JWT is also an access token.
fn requested_token_type(requested: Option<&str>) -> Result<(), Error> {
    match requested {
        None
        | Some("urn:ietf:params:oauth:token-type:jwt" | "urn:ietf:params:oauth:token-type:access_token") => {
            Ok(())
        }
        Some(_) => Err(Error::Invalid {
            field: "requested_token_type",
            rule: "must be urn:ietf:params:oauth:token-type:jwt or :access_token",
        }),
    }
}

fn actor(
    token: Option<String>,
    token_type: Option<&str>,
    type_required: bool,
) -> Result<Option<(String, Option<Kind>)>, Error> {
    let kind = token_type
        .map(|text| text.parse::<Kind>().map_err(|_| Error::UnsupportedActorTokenType))
        .transpose()?;
    match (token, kind) {
        (Some(_), None) if type_required => {
            Err(Error::Invalid { field: "actor_token_type", rule: "is required with actor_token" })
        }
        (Some(token), kind) => Ok(Some((token, kind))),
        // RFC 8693 §2.1: "This parameter MUST NOT be included when the actor_token is not."
        (None, Some(_)) => {
            Err(Error::Invalid { field: "actor_token_type", rule: "is allowed only with actor_token" })
        }
        (None, None) => Ok(None),
    }
}

fn audience(audiences: Vec<String>, resources: Vec<String>) -> Result<Option<String>, Error> {
    for resource in &resources {
        // RFC 8707 §2: "MUST be an absolute URI", "MUST NOT include a fragment component".
        if !text::is_absolute_uri(resource) {
            return Err(Error::Invalid {
                field: "resource",
                rule: "must be an absolute URI without a fragment",
            });
        }
    }
    let mut all: Vec<String> = audiences.into_iter().chain(resources).collect();
    all.dedup();
    let only = all.pop();
    if !all.is_empty() {
        return Err(Error::SeveralAudiences);
    }
    match only {
        Some(audience) if !text::is_printable(&audience, limits::URI_BYTES_MAX) => {
            Err(Error::Invalid { field: "audience", rule: "must be 1 to 2048 printable ASCII characters" })
        }
        only => Ok(only),
    }
}

/// Distinct words of a scope (RFC 6749 §3.3).
fn scope(text: &str) -> Result<Vec<String>, Error> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !text::is_scope_word(word) {
            return Err(Error::Invalid {
                field: "scope",
                rule: "must be words of up to 128 printable ASCII characters, separated by spaces",
            });
        }
        if !words.iter().any(|other| other == word) {
            words.push(word.to_owned());
        }
    }
    if words.is_empty() {
        return Err(Error::Invalid { field: "scope", rule: "must have a word, or be absent" });
    }
    if words.len() > limits::CAPABILITIES_MAX {
        return Err(Error::Invalid { field: "scope", rule: "has more than 128 words" });
    }
    Ok(words)
}
