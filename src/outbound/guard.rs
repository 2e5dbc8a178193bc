//! URLs that may be called: one set of rules for pushes and for issuer keys, applied before the call.
//!
//! A URL is parsed once, and the parsed URL is called. A non-canonical spelling is refused, because two parsers could
//! read it differently. A literal address is checked here; the addresses of a name are checked when it is connected to
//! ([`super::resolver`]), each time.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use url::{Host, Url};

use super::address::{self, Kind, Network, Purpose};
use crate::limits;

/// Default ports of this product, refused independent of this node's listeners.
const RESERVED_PORTS: [u16; 3] = [8693, 8694, 8695];

/// Settings for outbound calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether issuer keys may be fetched over plain HTTP from `localhost`, `127.0.0.1` and `[::1]`.
    pub allow_loopback_http: bool,
    /// Whether pushes may go to `localhost` and `127.0.0.1`, also over plain HTTP.
    pub allow_loopback_push: bool,
    /// Networks that may be called although they are not public.
    pub allowed_networks: Vec<Network>,
    /// Ports of this host that are never called.
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

/// Refusal of a URL, for its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Longer than [`limits::URI_BYTES_MAX`].
    #[error("must have at most {} bytes", limits::URI_BYTES_MAX)]
    TooLong,
    #[error("must be an absolute URL: {0}")]
    Malformed(url::ParseError),
    /// Not `https` nor, where allowed, `http`.
    #[error("{0}")]
    Scheme(&'static str),
    /// A secret in it would be stored and shown, and a fragment is not sent.
    #[error("must have no user name, password or fragment")]
    NotOnlyAddress,
    /// A path or query where only an address of a host belongs.
    #[error("must have no path and no query")]
    Path,
    /// Not in canonical spelling.
    #[error("must be spelled as {0}")]
    NotCanonical(String),
    /// Not a DNS name: it resolves nowhere, or is displayed as something else.
    #[error("must have a host that is a DNS name or an address")]
    Host,
    /// The host is a refused address.
    #[error("must not name {0} as its host")]
    Address(Kind),
    /// A port of this node.
    #[error("must not name a port of this node")]
    OwnPort,
}

/// Checks URLs and addresses. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Guard {
    rules: Arc<Rules>,
}

/// A URL that pushes may go to. Only [`Guard::push_url`] creates one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushUrl {
    text: String,
    url: Url,
}

impl PushUrl {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }
}

/// No address of a name is allowed; the kind of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host has {0}")]
pub(super) struct BlockedAddress(pub Kind);

impl Guard {
    /// A guard with these rules.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self { rules: Arc::new(rules) }
    }

    /// `text` as the push URL of a stream. Each push checks it again ([`Guard::may_push`]), so that a loopback URL is
    /// called only while that is allowed.
    pub fn push_url(&self, text: &str) -> Result<PushUrl, UrlError> {
        let url = self.checked(text, Purpose::Push)?;
        Ok(PushUrl { text: text.to_owned(), url })
    }

    /// Whether the push URL of a stream may be called now.
    pub fn may_push(&self, url: &PushUrl) -> Result<(), UrlError> {
        self.check(&url.url, Purpose::Push)
    }

    /// Whether keys may be fetched from `text`.
    pub fn check_keys_url(&self, text: &str) -> Result<(), UrlError> {
        self.checked(text, Purpose::Keys).map(drop)
    }

    /// Length, syntax, no other parts, canonical spelling, then scheme and host.
    pub(super) fn checked(&self, text: &str, purpose: Purpose) -> Result<Url, UrlError> {
        if text.len() > limits::URI_BYTES_MAX {
            return Err(UrlError::TooLong);
        }
        let url = Url::parse(text).map_err(UrlError::Malformed)?;
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(UrlError::NotOnlyAddress);
        }
        if !is_canonical(text, &url, purpose) {
            return Err(UrlError::NotCanonical(url.into()));
        }
        self.judge_by(&url, purpose, purpose == Purpose::Push || self.has_exemption(purpose))?;
        Ok(url)
    }

    /// Whether a checked URL may be called under these rules.
    pub(super) fn check(&self, url: &Url, purpose: Purpose) -> Result<(), UrlError> {
        self.judge_by(url, purpose, self.has_exemption(purpose))
    }

    fn judge_by(&self, url: &Url, purpose: Purpose, has_exemption: bool) -> Result<(), UrlError> {
        let Some(host) = url.host() else { return Err(UrlError::Scheme("must be an https URL with a host")) };
        // Peers of one host have the ports of this product, and this node's certificate is not that of a peer.
        let is_own_port = purpose != Purpose::Peer
            && url.port_or_known_default().is_none_or(|port| self.rules.own_ports.contains(&port));
        let is_exempt = has_exemption && is_exempt(&host, purpose);
        match (url.scheme(), purpose) {
            ("http", _) | ("https", Purpose::Push) if is_exempt => {
                return if is_own_port { Err(UrlError::OwnPort) } else { Ok(()) };
            }
            ("https", _) => {}
            _ => return Err(UrlError::Scheme(rule_of_scheme(&host, purpose))),
        }
        let is_local = match host {
            Host::Ipv4(address) => self.check_address(address.into(), purpose)?,
            Host::Ipv6(address) => self.check_address(address.into(), purpose)?,
            // RFC 6761 §6.3: always loopback, whatever a resolver answers.
            Host::Domain(name) if is_localhost(name) => {
                self.check_address(Ipv4Addr::LOCALHOST.into(), purpose)?
            }
            Host::Domain(name) if !is_dns_name(name) => return Err(UrlError::Host),
            // Its addresses are checked when it is resolved, where the port is unknown.
            Host::Domain(_) => self.may_call_loopback(),
        };
        if is_local && is_own_port { Err(UrlError::OwnPort) } else { Ok(()) }
    }

    /// The allowed addresses of `name`.
    pub(super) fn filter(
        &self,
        name: &str,
        addresses: impl IntoIterator<Item = IpAddr>,
        purpose: Purpose,
    ) -> Result<Vec<IpAddr>, BlockedAddress> {
        let (mut permitted, mut refused, mut count) = (Vec::new(), None, 0_usize);
        for address in addresses {
            match address::check(address, purpose, &self.rules.allowed_networks) {
                Ok(()) => permitted.push(address),
                Err(kind) => {
                    count += 1;
                    refused = refused.or(Some((address, kind)));
                }
            }
        }
        let Some((address, kind)) = refused else { return Ok(permitted) };
        // One line for all addresses: their number is chosen by the owner of the name.
        tracing::warn!(host = name, first = %address, %kind, count, "refused addresses of a host");
        if permitted.is_empty() { Err(BlockedAddress(kind)) } else { Ok(permitted) }
    }

    /// The address of `localhost`, which is not resolved. Only a checked URL gets here: loopback is exempt or an allowed
    /// network.
    pub(super) fn localhost(&self, purpose: Purpose) -> Result<IpAddr, BlockedAddress> {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if self.has_exemption(purpose) {
            return Ok(address);
        }
        address::check(address, purpose, &self.rules.allowed_networks).map_err(BlockedAddress)?;
        Ok(address)
    }

    /// Whether it is this host; an error if it is refused.
    fn check_address(&self, address: IpAddr, purpose: Purpose) -> Result<bool, UrlError> {
        address::check(address, purpose, &self.rules.allowed_networks).map_err(UrlError::Address)?;
        Ok(Kind::of(address) == Some(Kind::Loopback))
    }

    fn may_call_loopback(&self) -> bool {
        let is_loopback = |network: &Network| Kind::of(network.address()) == Some(Kind::Loopback);
        self.rules.allowed_networks.iter().any(is_loopback)
    }

    fn has_exemption(&self, purpose: Purpose) -> bool {
        match purpose {
            Purpose::Push => self.rules.allow_loopback_push,
            Purpose::Keys => self.rules.allow_loopback_http,
            Purpose::Peer => false,
        }
    }
}

fn rule_of_scheme(host: &Host<&str>, purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Push => "must be https; plain http is for localhost and 127.0.0.1 only",
        Purpose::Keys if is_exempt(host, purpose) => "must be https, or outbound.allow_loopback_http = true",
        Purpose::Keys | Purpose::Peer => "must be https",
    }
}

/// Loopback hosts that may be called: for pushes exactly those of the specification.
fn is_exempt(host: &Host<&str>, purpose: Purpose) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(address) => *address == Ipv4Addr::LOCALHOST,
        Host::Ipv6(address) => purpose == Purpose::Keys && *address == Ipv6Addr::LOCALHOST,
    }
}

/// RFC 1035 §2.3.4, and the underscore, which is in use.
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

/// Whether the spelling is canonical; the slash of an empty path may be absent (RFC 3986 §6.2.3). A URL of keys may
/// have the default port: Kubernetes writes it into its documents.
fn is_canonical(text: &str, url: &Url, purpose: Purpose) -> bool {
    let canonical = url.as_str();
    if text == canonical {
        return true;
    }
    let (authority, path) = match text.find("://").map(|at| at + "://".len()) {
        Some(at) => text.split_at(text[at..].find('/').map_or(text.len(), |slash| at + slash)),
        None => return false,
    };
    let usual_port = if url.scheme() == "https" { ":443" } else { ":80" };
    let authority = match purpose {
        Purpose::Keys => authority.strip_suffix(usual_port).unwrap_or(authority),
        Purpose::Push | Purpose::Peer => authority,
    };
    let path = if path.is_empty() { "/" } else { path };
    canonical.strip_prefix(authority).is_some_and(|rest| rest == path)
}

#[cfg(test)]
mod tests;
