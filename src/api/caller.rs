//! Who calls, decided once at the edge: by client certificate, by bearer token, or nobody in
//! particular. Every handler states in its signature which [`Caller`] it takes, and [`super::routes`]
//! does not accept a handler that states none.
//!
//! Nothing that a request says of itself counts here but its `Authorization` header: no header of a
//! proxy names a caller or an address.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};

use super::App;
pub use super::capability::Capability;
use super::connect_info::{Channel, Peer};
use super::error::Error;
use super::rate_limit::Key;
use super::request_context::Notes;
use crate::clock::Timestamp;
use crate::id::WorkloadId;
use crate::state::CallerFacts;
use crate::tls::PeerCertificate;
use crate::token;
use crate::token::CertificateDigest;
use crate::token::foreign::Credential;
use crate::token::jws::Compact;

/// The table of callers: what the holder of a client certificate may do, by its SPIFFE ID. An
/// identifier is compared byte for byte; who is not in the table may do nothing.
#[derive(Clone, Debug, Default)]
pub struct Callers(BTreeMap<WorkloadId, BTreeSet<Capability>>);

impl Callers {
    /// From its rows.
    #[must_use]
    pub fn new(rows: BTreeMap<WorkloadId, BTreeSet<Capability>>) -> Self {
        Self(rows)
    }

    /// Those with `cluster.admin`.
    pub fn operators(&self) -> impl Iterator<Item = &WorkloadId> {
        self.0.keys().filter(|id| self.may(id, Capability::ClusterAdmin))
    }

    /// Whether a caller has a capability.
    #[must_use]
    pub fn may(&self, caller: &WorkloadId, capability: Capability) -> bool {
        self.0.get(caller).is_some_and(|capabilities| capabilities.contains(&capability))
    }
}

/// Who may read metrics (contract §2, "own setting").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MetricsAccess {
    /// Whoever connects from this machine.
    #[default]
    Loopback,
    /// Who has `metrics.read`.
    Authenticated,
    /// Anybody.
    Public,
}

/// What a route asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing, and it answers also when everything else is refused for overload.
    Health,
    /// Nothing.
    Public,
    /// A client certificate with this capability.
    Certificate(Capability),
    /// A client certificate or a bearer token with this capability.
    Credential(Capability),
    /// A client certificate or a bearer token, whatever either may do.
    Authenticated,
    /// A bearer token, whatever it may do: what its subject asks concerns itself.
    Bearer,
    /// What [`MetricsAccess`] says.
    Metrics,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Health => write!(f, "health"),
            Self::Public => write!(f, "public"),
            Self::Certificate(capability) => write!(f, "certificate {capability}"),
            Self::Credential(capability) => write!(f, "certificate or bearer {capability}"),
            Self::Authenticated => write!(f, "certificate or bearer"),
            Self::Bearer => write!(f, "bearer"),
            Self::Metrics => write!(f, "metrics"),
        }
    }
}

/// A route's need, as a type, so that a handler's signature and the route table cannot disagree.
pub trait Need: Clone + Copy + Send + Sync + 'static {
    /// The same as a value.
    const ACCESS: Access;
}

macro_rules! needs {
    ($($(#[$doc:meta])* $name:ident = $access:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Need for $name {
            const ACCESS: Access = $access;
        }
    )*};
}

needs! {
    /// Anybody, at any time.
    Health = Access::Health;
    /// Anybody.
    Public = Access::Public;
    /// "mTLS (spec)", `exchange`.
    Exchange = Access::Certificate(Capability::Exchange);
    /// "mTLS (spec)", `identity.issue`.
    IssueIdentity = Access::Certificate(Capability::IdentityIssue);
    /// "mTLS (spec)", `signals.send`.
    SendSignals = Access::Certificate(Capability::SignalsSend);
    /// "mTLS (spec)", `streams.manage`: a stream is made by whoever can be held to it.
    CreateStream = Access::Certificate(Capability::StreamsManage);
    /// `streams.manage`, for the streams that are there.
    ManageStreams = Access::Credential(Capability::StreamsManage);
    /// `streams.read`.
    ReadStreams = Access::Credential(Capability::StreamsRead);
    /// `identity.issue`, to see and revoke what was issued.
    Identities = Access::Credential(Capability::IdentityIssue);
    /// "bearer = the agent's own token (spec)".
    OwnToken = Access::Bearer;
    /// Anybody who is known.
    Authenticated = Access::Authenticated;
    /// `tools.manage`.
    ManageTools = Access::Credential(Capability::ToolsManage);
    /// `tools.read`.
    ReadTools = Access::Credential(Capability::ToolsRead);
    /// `tools.verify`.
    VerifyTools = Access::Credential(Capability::ToolsVerify);
    /// `audit.read`.
    ReadAudit = Access::Credential(Capability::AuditRead);
    /// `events.read`.
    ReadEvents = Access::Credential(Capability::EventsRead);
    /// `cluster.admin`.
    ClusterAdmin = Access::Credential(Capability::ClusterAdmin);
    /// As configured.
    Metrics = Access::Metrics;
}

/// A caller that may do what `N` needs. Made by the edge only.
#[derive(Clone, Debug)]
pub struct Caller<N> {
    identity: Identity,
    certificate: Option<CertificateDigest>,
    is_operator: bool,
    facts: Arc<CallerFacts>,
    need: PhantomData<N>,
}

/// Who a caller is.
#[derive(Clone, Debug)]
enum Identity {
    /// Nobody has said; in development mode that is everybody.
    Anonymous,
    /// The holder of a client certificate.
    Workload(WorkloadId),
    /// The subject of a bearer token.
    Bearer(Arc<Credential>),
}

impl Identity {
    fn id(&self) -> Option<&WorkloadId> {
        match self {
            Self::Anonymous => None,
            Self::Workload(id) => Some(id),
            Self::Bearer(credential) => Some(credential.sub()),
        }
    }
}

impl<N> Caller<N> {
    /// Its identifier; `None` if nobody has said.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.identity.id().map(WorkloadId::as_str)
    }

    /// Who acts for it, if its bearer token says so (RFC 8693 §4.1).
    #[must_use]
    pub fn actor(&self) -> Option<&str> {
        self.credential().and_then(Credential::act).map(|act| act.sub.as_str())
    }

    /// Its bearer token, if it showed one.
    #[must_use]
    pub fn credential(&self) -> Option<&Credential> {
        match &self.identity {
            Identity::Bearer(credential) => Some(credential),
            Identity::Anonymous | Identity::Workload(_) => None,
        }
    }

    /// Whether it also has `cluster.admin`, and so may change what others own.
    #[must_use]
    pub fn is_operator(&self) -> bool {
        self.is_operator
    }

    /// The facts by which its commands are judged when they are applied; none of an anonymous caller.
    #[must_use]
    pub fn facts(&self) -> &CallerFacts {
        &self.facts
    }

    /// The same, for a use-case that keeps them.
    #[must_use]
    pub fn shared_facts(&self) -> Arc<CallerFacts> {
        Arc::clone(&self.facts)
    }

    /// The certificate of its connection.
    #[must_use]
    pub fn certificate(&self) -> Option<CertificateDigest> {
        self.certificate
    }
}

impl<N: Need> FromRequestParts<App> for Caller<N> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let (Some(peer), Some(notes)) =
            (parts.extensions.get::<Arc<Peer>>(), parts.extensions.get::<Arc<Notes>>())
        else {
            return Err(Error::internal("a request without its connection"));
        };
        let Known { identity, certificate, facts } = decide(app, peer, &parts.headers, N::ACCESS).await?;
        if let Some(id) = identity.id() {
            notes.set_caller(id.clone());
        }
        // A certificate was counted with its connection; a token is known only now.
        if let Identity::Bearer(credential) = &identity {
            let place = app.rates.take(Key::Workload(credential.sub().clone())).place;
            notes.hold(place.inspect_err(|_| app.metrics.request_refused("rate"))?);
        }
        if N::ACCESS != Access::Health {
            let may_wait = identity.id().is_some() || !app.requires_tls;
            super::middleware::reach_min_index(app, &parts.headers, may_wait).await?;
        }
        let is_operator = may(app, &identity, Capability::ClusterAdmin);
        Ok(Self { identity, certificate, is_operator, facts: Arc::new(facts), need: PhantomData })
    }
}

/// What a caller showed, to be judged again while its answer goes on.
pub struct Shown {
    peer: Arc<Peer>,
    headers: HeaderMap,
}

impl Shown {
    /// What came with a request; `None` without its connection, which no request is.
    #[must_use]
    pub fn with(parts: &Parts) -> Option<Self> {
        let peer = Arc::clone(parts.extensions.get::<Arc<Peer>>()?);
        let mut headers = HeaderMap::new();
        for value in parts.headers.get_all(header::AUTHORIZATION) {
            headers.append(header::AUTHORIZATION, value.clone());
        }
        Some(Self { peer, headers })
    }

    /// Judges it again by every rule, for a need of `N`.
    ///
    /// # Errors
    /// As of the request itself.
    pub async fn judge<N: Need>(&self, app: &App) -> Result<(), Error> {
        decide(app, &self.peer, &self.headers, N::ACCESS).await.map(drop)
    }

    /// When the certificate of its connection counts no more.
    #[must_use]
    pub fn certificate_ends(&self) -> Option<Timestamp> {
        match &self.peer.channel {
            Channel::Tls(certificate) => certificate.as_ref().map(|certificate| certificate.not_after),
            Channel::Plain => None,
        }
    }
}

struct Known {
    identity: Identity,
    certificate: Option<CertificateDigest>,
    facts: CallerFacts,
}

/// Whether a caller has a capability: by its bearer token, by the table of callers, or because in
/// development mode everybody has every one.
fn may(app: &App, identity: &Identity, capability: Capability) -> bool {
    match identity {
        Identity::Anonymous => !app.requires_tls,
        Identity::Workload(id) => app.callers.may(id, capability),
        Identity::Bearer(credential) => {
            let granted = credential.capabilities().unwrap_or_default();
            granted.iter().any(|granted| granted == capability.as_str())
        }
    }
}

/// Decides, in this order:
///
/// 1. over plain HTTP, while there is TLS, only what is public is served
/// 2. public routes ask nothing more; a certificate that is still in force says who it is
/// 3. a client certificate counts until it expires, whatever connection it opened
/// 4. a bearer token is ours, meant for us, in force, and bound to this connection if it is bound
/// 5. without one, the client certificate says who calls
/// 6. without either: nobody, which development mode lets do everything but speak for an agent
/// 7. the node holds a freshness lease, and by its state the caller is neither blocked nor revoked; operators are no
///    exception
/// 8. the capability that the route needs
///
/// # Errors
/// 401 if nobody is authenticated, 403 if the caller is blocked or lacks the capability, 503 without a lease.
async fn decide(app: &App, peer: &Peer, headers: &HeaderMap, access: Access) -> Result<Known, Error> {
    let is_open = match access {
        Access::Health | Access::Public => true,
        Access::Metrics => match app.metrics_access {
            MetricsAccess::Public => true,
            MetricsAccess::Loopback if peer.address.ip().is_loopback() => true,
            MetricsAccess::Loopback => return Err(Error::forbidden("metrics are for this machine only")),
            MetricsAccess::Authenticated => false,
        },
        Access::Certificate(_) | Access::Credential(_) | Access::Authenticated | Access::Bearer => false,
    };
    if app.requires_tls && matches!(peer.channel, Channel::Plain) && !is_open {
        return Err(Error::forbidden("served on 8694, over TLS"));
    }
    let certificate = match certificate_in_force(app, &peer.channel) {
        // Public is public, also for whoever is no longer known.
        Err(_) if is_open => None,
        outcome => outcome?,
    };
    let digest = certificate.map(|certificate| CertificateDigest::from_bytes(certificate.thumbprint));
    let by_certificate = certificate
        .map_or(Identity::Anonymous, |certificate| Identity::Workload(certificate.spiffe_id.clone()));
    if is_open {
        let facts = CallerFacts::default();
        return Ok(Known { identity: by_certificate, certificate: digest, facts });
    }
    let identity = match (bearer(headers)?, access) {
        (Some(_), Access::Certificate(_)) => {
            let text = "this route takes a client certificate and no Authorization header";
            return Err(Error::unauthenticated(text));
        }
        (Some(text), _) => Identity::Bearer(Arc::new(verified(app, text, digest.as_ref()).await?)),
        (None, Access::Bearer) => {
            return Err(Error::unauthenticated("the bearer token of the agent itself is needed"));
        }
        (None, _) => by_certificate,
    };
    if matches!(identity, Identity::Anonymous) && app.requires_tls {
        let text = match access {
            Access::Certificate(_) => "a client certificate is needed",
            _ => "a client certificate or a bearer token is needed",
        };
        return Err(Error::unauthenticated(text));
    }
    let facts = match &identity {
        Identity::Anonymous => CallerFacts::default(),
        Identity::Workload(id) => CallerFacts::of_certificate(&app.issuer, id),
        Identity::Bearer(credential) => CallerFacts::of_bearer(credential),
    };
    let fresh = app.state.fresh().await?;
    if app.state.refuses(&fresh, &facts) {
        return Err(Error::forbidden("the caller is blocked"));
    }
    let needed = match access {
        Access::Certificate(capability) | Access::Credential(capability) => Some(capability),
        Access::Metrics => Some(Capability::MetricsRead),
        Access::Health | Access::Public | Access::Authenticated | Access::Bearer => None,
    };
    match needed {
        Some(capability) if !may(app, &identity, capability) => Err(Error::insufficient(capability.as_str())),
        _ => Ok(Known { identity, certificate: digest, facts }),
    }
}

fn certificate_in_force<'p>(app: &App, channel: &'p Channel) -> Result<Option<&'p PeerCertificate>, Error> {
    let Channel::Tls(Some(certificate)) = channel else { return Ok(None) };
    if app.clock.now() < certificate.not_after {
        return Ok(Some(certificate));
    }
    Err(Error::unauthenticated("the client certificate has expired"))
}

/// RFC 6750 §2.1: `Authorization: Bearer <token>`, the scheme in any case (RFC 9110 §11.1). Another
/// scheme is refused: whoever sends it believes that it counts.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Error> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let credentials = value.to_str().ok().and_then(|text| text.split_once(' '));
    match (credentials, values.next()) {
        (Some((scheme, token)), None) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token)),
        _ => Err(Error::invalid_bearer("Authorization: must be one Bearer token")),
    }
}

/// One text for every bearer that is not acceptable; the log has the reason.
async fn verified(
    app: &App,
    text: &str,
    certificate: Option<&CertificateDigest>,
) -> Result<Credential, Error> {
    let invalid =
        |error: token::Error| Error::invalid_bearer("the bearer token is not valid").with_detail(error);
    let token = Compact::parse(text).map_err(invalid)?;
    let fresh = app.state.fresh().await?;
    app.state.check_clock(&fresh)?;
    app.own_tokens.verify(&fresh, &token, certificate, app.clock.now()).map_err(invalid)
}
