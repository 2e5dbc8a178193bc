//! Which URLs may be called, said before anything is: the one set of rules for pushes and for issuers' keys.
//!
//! A URL is parsed once, and what was parsed is what is called. One that has a second spelling is refused with the
//! one that is meant, because two who read it could read two things. A host that is an address is judged
//! here, one that is a name where it is connected to ([`super::resolver`]): then each address it has, each time.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use url::{Host, Url};

use super::address::{self, Calls, Kind, Network};
use crate::limits;

/// The ports of this product: of every node, whatever this one listens on.
const RESERVED_PORTS: [u16; 3] = [8693, 8694, 8695];

/// What the configuration says of calls to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether issuers' keys may be fetched over plain HTTP from `localhost`, `127.0.0.1` and `[::1]`.
    pub allow_loopback_http: bool,
    /// Whether pushes may go to `localhost` and `127.0.0.1`, also over plain HTTP.
    pub allow_loopback_push: bool,
    /// Networks that are called although they are not public.
    pub allowed_networks: Vec<Network>,
    /// Never called on this machine.
    pub own_ports: BTreeSet<u16>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            allow_loopback_http: false,
            allow_loopback_push: true,
            allowed_networks: Vec::new(),
            own_ports: RESERVED_PORTS.into(),
        }
    }
}

/// Why a URL is not called. What it says is for whoever wrote the URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Longer than [`limits::URI_BYTES_MAX`].
    #[error("must have at most {} bytes", limits::URI_BYTES_MAX)]
    TooLong,
    /// Nothing that a URL parser takes.
    #[error("must be an absolute URL: {0}")]
    Malformed(url::ParseError),
    /// Neither `https` nor, where that is allowed, `http`.
    #[error("{0}")]
    Scheme(&'static str),
    /// More than an address: a secret in it would be kept and shown, and a fragment is not sent.
    #[error("must have no user name, password or fragment")]
    NotOnlyAddress,
    /// There is another way to write it, and only one may be meant.
    #[error("must be spelled as {0}")]
    NotCanonical(String),
    /// No DNS name: no resolver knows it, and who reads it may see something else in it.
    #[error("must have a host that is a DNS name or an address")]
    Host,
    /// The host is an address that is not called.
    #[error("must not name {0} as its host")]
    Address(Kind),
    /// This node itself.
    #[error("must not name a port of this node itself")]
    OwnPort,
}

/// Judges URLs and addresses. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Guard {
    rules: Arc<Rules>,
}

/// A URL that pushes may go to. Only [`Guard::push_url`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushUrl {
    text: String,
    url: Url,
}

impl PushUrl {
    /// As it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }
}

/// No address of a name is one that may be called; what the first of them is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host has {0}")]
pub(super) struct Refused(pub Kind);

impl Guard {
    /// A guard by these rules.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self { rules: Arc::new(rules) }
    }

    /// `text` as a URL that a stream may name. Whether it is pushed to is judged for each push ([`Guard::may_push`]):
    /// one of this machine only while that is allowed.
    ///
    /// # Errors
    /// As [`UrlError`] says, in its order.
    pub fn push_url(&self, text: &str) -> Result<PushUrl, UrlError> {
        let url = self.checked(text, Calls::Push)?;
        Ok(PushUrl { text: text.to_owned(), url })
    }

    /// Whether a URL that a stream names is pushed to now.
    ///
    /// # Errors
    /// As [`UrlError`] says.
    pub fn may_push(&self, url: &PushUrl) -> Result<(), UrlError> {
        self.judge(&url.url, Calls::Push)
    }

    /// Whether keys may be fetched from `text`.
    ///
    /// # Errors
    /// As [`UrlError`] says, in its order.
    pub fn check_keys_url(&self, text: &str) -> Result<(), UrlError> {
        self.checked(text, Calls::Keys).map(drop)
    }

    /// In order: length, syntax, nothing but an address, one spelling, then whom it names.
    pub(super) fn checked(&self, text: &str, calls: Calls) -> Result<Url, UrlError> {
        if text.len() > limits::URI_BYTES_MAX {
            return Err(UrlError::TooLong);
        }
        let url = Url::parse(text).map_err(UrlError::Malformed)?;
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(UrlError::NotOnlyAddress);
        }
        if !is_canonical(text, &url, calls) {
            return Err(UrlError::NotCanonical(url.into()));
        }
        self.judge_by(&url, calls, calls == Calls::Push || self.has_exemption(calls))?;
        Ok(url)
    }

    /// Whether a URL that was checked may be called by these rules.
    pub(super) fn judge(&self, url: &Url, calls: Calls) -> Result<(), UrlError> {
        self.judge_by(url, calls, self.has_exemption(calls))
    }

    fn judge_by(&self, url: &Url, calls: Calls, has_exemption: bool) -> Result<(), UrlError> {
        let Some(host) = url.host() else { return Err(UrlError::Scheme("must be an https URL with a host")) };
        let is_own_port = url.port_or_known_default().is_none_or(|port| self.rules.own_ports.contains(&port));
        let is_exempt = has_exemption && is_exempt(&host, calls);
        match (url.scheme(), calls) {
            ("http", _) | ("https", Calls::Push) if is_exempt => {
                return if is_own_port { Err(UrlError::OwnPort) } else { Ok(()) };
            }
            ("https", _) => {}
            _ => return Err(UrlError::Scheme(rule_of_scheme(&host, calls))),
        }
        let is_local = match host {
            Host::Ipv4(address) => self.judge_address(address.into(), calls)?,
            Host::Ipv6(address) => self.judge_address(address.into(), calls)?,
            // RFC 6761 §6.3: always this machine, whatever a resolver says.
            Host::Domain(name) if is_localhost(name) => {
                self.judge_address(Ipv4Addr::LOCALHOST.into(), calls)?
            }
            Host::Domain(name) if !is_dns_name(name) => return Err(UrlError::Host),
            // Where it leads is seen when it is resolved, which does not know of ports.
            Host::Domain(_) => self.may_call_loopback(),
        };
        if is_local && is_own_port { Err(UrlError::OwnPort) } else { Ok(()) }
    }

    /// Of the addresses that `name` has, those that may be called.
    pub(super) fn filter(
        &self,
        name: &str,
        addresses: impl IntoIterator<Item = IpAddr>,
        calls: Calls,
    ) -> Result<Vec<IpAddr>, Refused> {
        let (mut permitted, mut refused, mut count) = (Vec::new(), None, 0_usize);
        for address in addresses {
            match address::judge(address, calls, &self.rules.allowed_networks) {
                Ok(()) => permitted.push(address),
                Err(kind) => {
                    count += 1;
                    refused = refused.or(Some((address, kind)));
                }
            }
        }
        let Some((address, kind)) = refused else { return Ok(permitted) };
        // However many there are: whoever has the name says how many.
        tracing::warn!(host = name, first = %address, %kind, count, "addresses of a host are not called");
        if permitted.is_empty() { Err(Refused(kind)) } else { Ok(permitted) }
    }

    /// The address of `localhost`, which is not asked for. Only a URL that was checked leads here: one of the
    /// exemption, or one by a network that is allowed.
    pub(super) fn localhost(&self, calls: Calls) -> Result<IpAddr, Refused> {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if self.has_exemption(calls) {
            return Ok(address);
        }
        address::judge(address, calls, &self.rules.allowed_networks).map_err(Refused)?;
        Ok(address)
    }

    /// Whether it is this machine; an error if it is not called.
    fn judge_address(&self, address: IpAddr, calls: Calls) -> Result<bool, UrlError> {
        address::judge(address, calls, &self.rules.allowed_networks).map_err(UrlError::Address)?;
        Ok(Kind::of(address) == Some(Kind::Loopback))
    }

    fn may_call_loopback(&self) -> bool {
        let is_loopback = |network: &Network| Kind::of(network.address()) == Some(Kind::Loopback);
        self.rules.allowed_networks.iter().any(is_loopback)
    }

    fn has_exemption(&self, calls: Calls) -> bool {
        match calls {
            Calls::Push => self.rules.allow_loopback_push,
            Calls::Keys => self.rules.allow_loopback_http,
        }
    }
}

fn rule_of_scheme(host: &Host<&str>, calls: Calls) -> &'static str {
    match calls {
        Calls::Push => "must be https; plain http is for localhost and 127.0.0.1 only",
        Calls::Keys if is_exempt(host, calls) => "must be https, or outbound.allow_loopback_http = true",
        Calls::Keys => "must be https",
    }
}

/// The hosts of this machine that may be called: of pushes those that the specification names, letter by letter.
fn is_exempt(host: &Host<&str>, calls: Calls) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(address) => *address == Ipv4Addr::LOCALHOST,
        Host::Ipv6(address) => calls == Calls::Keys && *address == Ipv6Addr::LOCALHOST,
    }
}

/// RFC 1035 §2.3.4, with the underscore that names in use have.
fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    name.len() <= 253 && name.split('.').all(is_label)
}

fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name == "localhost" || name.ends_with(".localhost")
}

/// Whether there is no other spelling; the slash of an empty path may be left out (RFC 3986 §6.2.3). Keys may also
/// name the usual port: it is what Kubernetes writes into its own documents, and nobody can change those.
fn is_canonical(text: &str, url: &Url, calls: Calls) -> bool {
    let canonical = url.as_str();
    if text == canonical {
        return true;
    }
    let (authority, path) = match text.find("://").map(|at| at + "://".len()) {
        Some(at) => text.split_at(text[at..].find('/').map_or(text.len(), |slash| at + slash)),
        None => return false,
    };
    let usual_port = if url.scheme() == "https" { ":443" } else { ":80" };
    let authority = match calls {
        Calls::Keys => authority.strip_suffix(usual_port).unwrap_or(authority),
        Calls::Push => authority,
    };
    let path = if path.is_empty() { "/" } else { path };
    canonical.strip_prefix(authority).is_some_and(|rest| rest == path)
}

#[cfg(test)]
mod tests;
