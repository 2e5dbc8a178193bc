//! The collector of mistakes, and the rules that several sections share.

use std::collections::HashMap;
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use url::Url;

use super::Mistake;
use crate::limits;

/// Collects mistakes; knows the source of each setting.
pub(super) struct Checker {
    file: Option<String>,
    origins: HashMap<String, String>,
    pub(super) mistakes: Vec<Mistake>,
}

impl Checker {
    pub(super) fn new(file: Option<&Path>) -> Self {
        let file = file.map(|path| path.display().to_string());
        Self { file, origins: HashMap::new(), mistakes: Vec::new() }
    }

    /// Records that `setting` was set by an environment variable or a flag.
    pub(super) fn set_by(&mut self, setting: &str, origin: &str) {
        self.origins.insert(setting.to_owned(), origin.to_owned());
    }

    /// A mistake in `setting`, with its source.
    pub(super) fn mistake(&self, setting: &str, rule: impl Display) -> Mistake {
        let origin = self.origins.get(setting).or(self.file.as_ref()).cloned();
        Mistake { setting: setting.to_owned(), rule: rule.to_string(), origin }
    }

    /// The value; or `None`, and the mistake is recorded.
    pub(super) fn keep<T>(&mut self, setting: &str, outcome: Result<T, impl Display>) -> Option<T> {
        outcome.map_err(|rule| self.mistakes.push(self.mistake(setting, rule))).ok()
    }

    /// The value of a required setting.
    pub(super) fn require<'k, T: ?Sized>(&mut self, setting: &str, value: Option<&'k T>) -> Option<&'k T> {
        if value.is_none() {
            self.mistakes.push(Mistake {
                setting: setting.to_owned(),
                rule: "must be set".to_owned(),
                origin: None,
            });
        }
        value
    }
}

/// RFC 8414 §2: an `https` URL without query and fragment; here also without a trailing slash, so that there is one
/// spelling. Plain `http` for loopback hosts only. Applies to every URL of this fabric.
pub(super) fn own_address(text: &str) -> Result<String, String> {
    let url = web_address(text)?;
    if url.query().is_some() || text.ends_with('/') || text.contains('?') {
        return Err("must have no query, no fragment and no trailing slash".to_owned());
    }
    if url.scheme() == "http" && !is_loopback_host(&url) {
        return Err("must be https; plain http is for localhost, 127.0.0.1 and [::1] only".to_owned());
    }
    // A URL that its parser would rewrite has two spellings, and `iss` is compared byte for byte.
    if url.as_str().trim_end_matches('/') == text {
        Ok(text.to_owned())
    } else {
        Err(format!("must be spelled as {}", url.as_str().trim_end_matches('/')))
    }
}

/// Our `iss`. Its metadata is served at the root of its host only: RFC 8414 §3.1 would put that of an issuer with a path
/// at `/.well-known/…/<path>`.
pub(super) fn own_issuer(text: &str) -> Result<String, String> {
    let address = own_address(text)?;
    match Url::parse(&address) {
        Ok(url) if url.path() == "/" => Ok(address),
        _ => Err("must have no path: metadata and routes are served at the root of the host".to_owned()),
    }
}

/// An absolute `http` or `https` URL without user name and fragment.
fn web_address(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("must be an absolute URL: {error}"))?;
    let plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    if text.len() > limits::URI_BYTES_MAX {
        Err(format!("must have at most {} bytes", limits::URI_BYTES_MAX))
    } else if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        Err("must be an https or http URL with a host".to_owned())
    } else if plain {
        Ok(url)
    } else {
        Err("must have no user name, password or fragment".to_owned())
    }
}

/// Hosts for which plain HTTP does not leave the machine.
fn is_loopback_host(url: &Url) -> bool {
    matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"))
}

/// A duration such as `30s`, within bounds.
pub(super) fn duration(text: &str, shortest: Duration, longest: Duration) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text)
        .map_err(|_| "must be a duration with its unit, such as 100ms, 30s or 24h".to_owned())?;
    if (shortest..=longest).contains(&duration) {
        Ok(duration)
    } else {
        let bounds = [shortest, longest].map(humantime::format_duration);
        Err(format!("must be {} to {}", bounds[0], bounds[1]))
    }
}
