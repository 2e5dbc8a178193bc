//! Failures of a request.

use std::io;
use std::iter;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use serde_json::Value;

use crate::limits;

/// A request has no usable response.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An endpoint is not an `http` or `https` URL of a host alone.
    #[error("{0}: must be http://host:port or https://host:port")]
    AddressMalformed(String),
    /// No endpoint, or more than [`limits::ENDPOINTS_MAX`].
    #[error("1 to {} servers must be given", limits::ENDPOINTS_MAX)]
    EndpointCount,
    /// The HTTP client could not be built with the certificates of the machine.
    #[error("http client could not be prepared")]
    Unprepared,
    /// A file of certificates or a private key cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file or text lacks its PEM content.
    #[error("{}: holds no {holds} in PEM", path.display())]
    NotPem {
        /// The file, or the name of the setting that holds the text.
        path: PathBuf,
        /// The expected content.
        holds: &'static str,
    },
    /// A certificate was given without its private key, or the reverse.
    #[error("{given} was given without {missing}: a certificate and its private key go together")]
    HalfIdentity {
        /// The one that was given.
        given: &'static str,
        /// The one that was not.
        missing: &'static str,
    },
    /// The files were read, and cannot be used together.
    #[error("certificates cannot be used: {0}")]
    Certificates(String),
    /// The TLS handshake failed.
    #[error("{server}: no TLS connection: {reason}")]
    Handshake {
        /// The node.
        server: Url,
        /// The reason that TLS gives.
        reason: String,
    },
    /// No connection was made; nothing was sent.
    #[error("{server} cannot be reached: {reason}")]
    Unreachable {
        /// The node.
        server: Url,
        /// The reason that the operating system or the resolver gives.
        reason: String,
    },
    /// The connection broke. The request may have been carried out.
    #[error("{0} closed the connection before it responded")]
    Interrupted(Url),
    /// No response in time. The request may have been carried out.
    #[error("{0} did not respond in time")]
    TimedOut(Url),
    /// The response is no JSON, or too large: another program listens there.
    #[error("{0} does not answer like a node of the Trust Fabric")]
    Foreign(Url),
    /// A list is longer than [`limits::LIST_ROWS_MAX`].
    #[error("there are more than {} rows", limits::LIST_ROWS_MAX)]
    TooManyRows,
    /// A header value cannot be sent: a bearer token, an `Idempotency-Key`, an entity tag or an event id.
    #[error("{0}: must not contain characters that a header value cannot have")]
    Header(&'static str),
    /// The live feed sent nothing, not even a heartbeat.
    #[error("{0} has sent nothing for {secs} s", secs = limits::EVENTS_SILENCE_TIMEOUT.as_secs())]
    Silent(Url),
    /// The node refused the request.
    #[error("{}", .0.description)]
    Refused(Box<Refusal>),
}

/// The error object of a node (RFC 6749 §5.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The node.
    pub server: Url,
    /// HTTP status.
    pub status: u16,
    /// `error`; empty if the body has none.
    pub code: String,
    /// `error_description`, else the status in words.
    pub description: String,
    /// `Retry-After` in seconds.
    pub retry_after: Option<Duration>,
    /// The whole body.
    pub body: Value,
}

impl Error {
    /// HTTP status of a refusal.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused(refusal) => Some(refusal.status),
            _ => None,
        }
    }

    /// Whether another node may be able to respond.
    pub(crate) fn is_of_node(&self) -> bool {
        matches!(
            self,
            Self::Handshake { .. }
                | Self::Unreachable { .. }
                | Self::Interrupted(_)
                | Self::TimedOut(_)
                | Self::Foreign(_)
        ) || self.status() == Some(503)
    }

    /// This error of a node or the `earlier` one of another, whichever says more about the outcome: a node that responded 503
    /// may have carried out the request, one that cannot be reached has not.
    pub(crate) fn or_of_another(self, earlier: Option<Self>) -> Self {
        let weight = |error: &Self| match error {
            Self::Refused(_) => 3,
            Self::Unreachable { .. } => 1,
            Self::Handshake { .. } => 0,
            _ => 2,
        };
        earlier.filter(|earlier| weight(earlier) > weight(&self)).unwrap_or(self)
    }

    /// Whether the request was certainly not carried out.
    pub(crate) fn is_before_request(&self) -> bool {
        matches!(self, Self::Handshake { .. } | Self::Unreachable { .. })
    }
}

/// The error of a request to `server` that has no response.
pub(crate) fn of_request(server: Url, error: &reqwest::Error) -> Error {
    if error.is_timeout() {
        Error::TimedOut(server)
    } else if let Some(reason) = tls_reason(error) {
        Error::Handshake { server, reason }
    } else if error.is_connect() {
        Error::Unreachable { server, reason: innermost(error).to_string() }
    } else {
        Error::Interrupted(server)
    }
}

/// The reason for which TLS ended the connection, if it did: rustls reports it as invalid data of the stream.
fn tls_reason(error: &reqwest::Error) -> Option<String> {
    let is_invalid = |error: &Cause<'_>| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
    };
    let invalid = iter::successors(Some(error as Cause<'_>), |error| cause(*error)).find(is_invalid)?;
    Some(innermost(invalid).to_string())
}

type Cause<'e> = &'e (dyn std::error::Error + 'static);

pub(crate) fn innermost(error: Cause<'_>) -> Cause<'_> {
    iter::successors(Some(error), |error| cause(*error)).last().unwrap_or(error)
}

/// The cause of `error`. `source` of an [`io::Error`] skips the error that it wraps.
fn cause(error: Cause<'_>) -> Option<Cause<'_>> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}
