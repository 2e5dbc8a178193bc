//! Authentication and authorization of callers, once, at the edge: by client certificate, by bearer token, or anonymous.
//! Every handler states in its signature which [`Caller`] it takes; [`super::routes`] enforces it.
//!
//! Of the request's headers only `Authorization` counts: no header of a proxy names a caller or an address.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use serde::{Deserialize, Serialize};

use super::authorization_header::{bearer, is_basic, verify_bearer};
pub use super::capability::Capability;
use super::connect_info::{Channel, ClientConnection};
use super::error::{Error, Refusal};
use super::rate_limit::Key;
use super::request_context::RequestContext;
use super::{App, idempotency};
use crate::breaks::Break;
use crate::clock::Timestamp;
use crate::federation::peers::{Peer, Peers};
use crate::id::WorkloadId;
use crate::state::{CallContext, CallerFacts};
use crate::tls::PeerCertificate;
use crate::token::CertificateDigest;
use crate::token::foreign::Credential;

/// Capabilities of client certificates, by SPIFFE ID, which is compared byte for byte. A certificate that is not in the
/// table has none.
#[derive(Clone, Debug, Default)]
pub struct Callers(BTreeMap<WorkloadId, BTreeSet<Capability>>);

impl Callers {
    /// A table of these rows.
    #[must_use]
    pub fn new(rows: BTreeMap<WorkloadId, BTreeSet<Capability>>) -> Self {
        Self(rows)
    }

    /// Callers with `cluster.admin`.
    pub fn operators(&self) -> impl Iterator<Item = &WorkloadId> {
        self.0.keys().filter(|id| self.may(id, Capability::ClusterAdmin))
    }

    /// Whether a caller has a capability.
    #[must_use]
    pub fn may(&self, caller: &WorkloadId, capability: Capability) -> bool {
        self.0.get(caller).is_some_and(|capabilities| capabilities.contains(&capability))
    }
}

/// Access to `/metrics` (contract §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricsAccess {
    /// Connections from loopback.
    #[default]
    Loopback,
    /// Callers with `metrics.read`.
    Authenticated,
    /// Every connection.
    Public,
}

/// The requirement of a route on its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None; served also under overload.
    Health,
    /// None.
    Public,
    /// A join token in the body, so that the connection must be TLS.
    JoinToken,
    /// A client certificate with this capability.
    Certificate(Capability),
    /// A client certificate or a bearer token with this capability.
    Credential(Capability),
    /// A client certificate or a bearer token; no capability.
    Authenticated,
    /// A bearer token; no capability, because the request concerns its own subject.
    Bearer,
    /// As [`MetricsAccess`] is configured.
    Metrics,
    /// A client certificate of a node of a peer fabric that may read our ledger.
    Peer,
    /// The same, or a client certificate or a bearer token with `cluster.admin`.
    PeerOrOperator,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Health => write!(f, "health"),
            Self::Public => write!(f, "public"),
            Self::JoinToken => write!(f, "join token"),
            Self::Certificate(capability) => write!(f, "certificate {capability}"),
            Self::Credential(capability) => write!(f, "certificate or bearer {capability}"),
            Self::Authenticated => write!(f, "certificate or bearer"),
            Self::Bearer => write!(f, "bearer"),
            Self::Metrics => write!(f, "metrics"),
            Self::Peer => write!(f, "peer"),
            Self::PeerOrOperator => write!(f, "peer, or certificate or bearer cluster.admin"),
        }
    }
}

/// A route's requirement as a type, so that a handler's signature and the route table cannot disagree.
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
    /// No requirement; served also under overload.
    Health = Access::Health;
    /// No requirement.
    Public = Access::Public;
    /// A join token in the body.
    JoinTokenHolder = Access::JoinToken;
    /// Certificate with `exchange`.
    Exchange = Access::Certificate(Capability::Exchange);
    /// Certificate with `identity.issue`.
    IssueIdentity = Access::Certificate(Capability::IdentityIssue);
    /// Certificate with `signals.send`.
    SendSignals = Access::Certificate(Capability::SignalsSend);
    /// Certificate with `streams.manage`: a stream is created by a workload that can be held to account.
    CreateStream = Access::Certificate(Capability::StreamsManage);
    /// `streams.manage`, for existing streams.
    ManageStreams = Access::Credential(Capability::StreamsManage);
    /// `streams.read`.
    ReadStreams = Access::Credential(Capability::StreamsRead);
    /// `identity.issue`, to read and revoke the caller's agents.
    Identities = Access::Credential(Capability::IdentityIssue);
    /// The agent's own bearer token.
    OwnToken = Access::Bearer;
    /// An authenticated caller, without a capability.
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
    /// As [`MetricsAccess`] is configured.
    Metrics = Access::Metrics;
    /// A node of a peer fabric.
    PeerNode = Access::Peer;
    /// A node of a peer fabric, or `cluster.admin`.
    LedgerReader = Access::PeerOrOperator;
}

/// An authorized caller for need `N`. Only this module constructs it.
#[derive(Clone, Debug, derive_more::Deref)]
pub struct Caller<N> {
    #[deref]
    context: CallContext,
    credential: Option<Arc<Credential>>,
    peer: Option<Arc<Peer>>,
    need: PhantomData<N>,
}

/// The principal that was authenticated.
#[derive(Clone, Debug)]
enum Principal {
    /// None; only public routes and development mode allow it.
    Anonymous,
    /// The holder of a client certificate.
    Workload(WorkloadId),
    /// The subject of a bearer token.
    Bearer(Arc<Credential>),
    /// A node of a peer fabric.
    Peer(WorkloadId, Arc<Peer>),
    /// A workload of a peer fabric that may call the exchange.
    CallerOfPeer(WorkloadId),
}

impl Principal {
    fn id(&self) -> Option<&WorkloadId> {
        match self {
            Self::Anonymous => None,
            Self::Workload(id) | Self::Peer(id, _) | Self::CallerOfPeer(id) => Some(id),
            Self::Bearer(credential) => Some(&credential.sub),
        }
    }
}

impl<N> Caller<N> {
    /// Its verified bearer token.
    #[must_use]
    pub fn credential(&self) -> Option<&Credential> {
        self.credential.as_deref()
    }

    /// The peer fabric whose node it is.
    #[must_use]
    pub fn peer(&self) -> Option<&Arc<Peer>> {
        self.peer.as_ref()
    }

    /// Adds the `Idempotency-Key` of its request.
    ///
    /// # Errors
    /// 400 if the key is invalid.
    pub fn with_key(mut self, parts: &Parts, body: &[u8]) -> Result<Self, Error> {
        let target = (&parts.method, &parts.uri);
        self.context.idempotency = idempotency::idempotency(&parts.headers, self.id(), target, body)?;
        Ok(self)
    }
}

impl<N: Need> FromRequestParts<App> for Caller<N> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let (Some(connection), Some(context)) =
            (parts.extensions.get::<Arc<ClientConnection>>(), parts.extensions.get::<Arc<RequestContext>>())
        else {
            return Err(Error::internal("a request lacks its connection"));
        };
        let Authorized { principal, certificate, facts } =
            decide(app, connection, &parts.headers, N::ACCESS).await?;
        if let Some(id) = principal.id() {
            context.set_caller(id.clone());
        }
        // A certificate was counted before the handler; the subject of a bearer token is known only now.
        if let Principal::Bearer(credential) = &principal {
            let permit = app.rate_limits.acquire(Key::Workload(credential.sub.clone())).permit;
            context.hold(permit.inspect_err(|_| app.metrics.requests_refused.inc(["rate"]))?);
        }
        if N::ACCESS != Access::Health {
            let id = principal.id().map(WorkloadId::as_str);
            super::middleware::reach_min_index(app, &parts.headers, id).await?;
        }
        let is_operator = may(app, &principal, Capability::ClusterAdmin);
        let id = principal.id().map(|id| id.as_str().to_owned());
        let (credential, fabric) = match principal {
            Principal::Bearer(credential) => (Some(credential), None),
            Principal::Peer(_, fabric) => (None, Some(fabric)),
            Principal::Anonymous | Principal::Workload(_) | Principal::CallerOfPeer(_) => (None, None),
        };
        let actor = credential.as_deref().and_then(|bearer| bearer.act.as_ref()).map(|act| act.sub.clone());
        let request_id = super::request_id::current();
        let context =
            CallContext { request_id, id, actor, is_operator, certificate, facts, idempotency: None };
        Ok(Self { context, credential, peer: fabric, need: PhantomData })
    }
}

/// The credentials of a request, to be verified again while its response goes on.
pub struct PresentedCredentials {
    connection: Arc<ClientConnection>,
    headers: HeaderMap,
}

impl PresentedCredentials {
    /// The credentials of a request; `None` without a connection, which does not happen.
    #[must_use]
    pub fn with(parts: &Parts) -> Option<Self> {
        let connection = Arc::clone(parts.extensions.get::<Arc<ClientConnection>>()?);
        let mut headers = HeaderMap::new();
        for value in parts.headers.get_all(header::AUTHORIZATION) {
            headers.append(header::AUTHORIZATION, value.clone());
        }
        Some(Self { connection, headers })
    }

    /// Verifies and authorizes them again for need `N`.
    ///
    /// # Errors
    /// Those of the first decision.
    pub async fn verify<N: Need>(&self, app: &App) -> Result<(), Error> {
        decide(app, &self.connection, &self.headers, N::ACCESS).await.map(drop)
    }

    /// The end of the connection's certificate.
    #[must_use]
    pub fn certificate_ends(&self) -> Option<Timestamp> {
        match &self.connection.channel {
            Channel::Tls(certificate) => certificate.as_ref().map(|certificate| certificate.not_after),
            Channel::Plain => None,
        }
    }
}

struct Authorized {
    principal: Principal,
    certificate: Option<CertificateDigest>,
    facts: CallerFacts,
}

/// Whether a caller has a capability: by its bearer token, by the table of callers, or because development mode gives
/// an anonymous caller all.
fn may(app: &App, principal: &Principal, capability: Capability) -> bool {
    match principal {
        Principal::Anonymous => !app.requires_tls,
        Principal::Workload(id) => app.callers.may(id, capability),
        Principal::Peer(..) => false,
        Principal::CallerOfPeer(_) => capability == Capability::Exchange,
        Principal::Bearer(credential) => {
            let granted = credential.capabilities.as_deref().unwrap_or_default();
            granted.iter().any(|granted| granted == capability.into_str())
        }
    }
}

/// Decides, in this order:
///
/// 1. outside development mode, plain HTTP serves open routes only, and none that takes a secret
/// 2. an open route needs no credential; a valid certificate still identifies the caller, but not that of a peer fabric
/// 3. a client certificate must not have expired since the handshake
/// 4. a certificate of a peer fabric identifies, alone, a caller of federation routes, if that peer may read, or of the
///    exchange, if it is listed for it
/// 5. a bearer token must be ours, for our audience, valid, and bound to this connection if it has `cnf`
/// 6. without a bearer token the client certificate identifies the caller
/// 7. otherwise the caller is anonymous: 401, or in development mode every capability, but no route of `Access::Bearer`
/// 8. this node holds a freshness lease, and the caller, also an operator, is neither blocked nor revoked
/// 9. the caller has the capability of the route
///
/// # Errors
/// 401 if it is not authenticated, 403 if it is blocked or lacks the capability, 501 for a route of peers without
/// federation, 503 without a lease.
async fn decide(
    app: &App,
    connection: &ClientConnection,
    headers: &HeaderMap,
    access: Access,
) -> Result<Authorized, Error> {
    let is_open = is_open(app, connection, access)?;
    let needs_tls = !is_open || access == Access::JoinToken;
    if app.requires_tls && matches!(connection.channel, Channel::Plain) && needs_tls {
        return Err(Error::forbidden("this route is served over TLS only, on port 8694"));
    }
    let certificate = match certificate_in_force(app, &connection.channel) {
        // An open route ignores an expired certificate.
        Err(_) if is_open => None,
        outcome => outcome?,
    };
    let digest = certificate.map(|certificate| CertificateDigest::from_bytes(certificate.thumbprint));
    let peers = app.federation.peers();
    let by_certificate = match certificate.map(|certificate| &certificate.spiffe_id) {
        Some(id) if !peers.have(id.trust_domain()) => Principal::Workload(id.clone()),
        Some(id) if !is_open => of_peer_fabric(peers, id, access)?,
        _ => Principal::Anonymous,
    };
    if is_open {
        let facts = CallerFacts::default();
        return Ok(Authorized { principal: by_certificate, certificate: digest, facts });
    }
    if access == Access::Certificate(Capability::Exchange) && is_basic(headers) {
        return Err(Error::basic_authentication());
    }
    let principal = match (bearer(headers)?, access, by_certificate) {
        (Some(_), Access::Certificate(_) | Access::Peer, _)
        | (Some(_), _, Principal::Peer(..) | Principal::CallerOfPeer(_)) => {
            let text = "this route accepts a client certificate and no Authorization header";
            return Err(Error::unauthenticated(text));
        }
        (Some(text), ..) => Principal::Bearer(Arc::new(verify_bearer(app, text, digest.as_ref()).await?)),
        (None, Access::Bearer, _) => {
            return Err(Error::unauthenticated("the agent's own bearer token is required"));
        }
        (None, _, by_certificate) => by_certificate,
    };
    if matches!(principal, Principal::Anonymous) && app.requires_tls {
        let text = match access {
            Access::Certificate(_) => "a client certificate is required",
            Access::Peer => "a client certificate of a peer fabric is required",
            _ => "a client certificate or a bearer token is required",
        };
        return Err(Error::unauthenticated(text));
    }
    let facts = match &principal {
        Principal::Anonymous => CallerFacts::default(),
        Principal::Workload(id) | Principal::Peer(id, _) | Principal::CallerOfPeer(id) => {
            CallerFacts::of_certificate(&app.issuer, id)
        }
        Principal::Bearer(credential) => CallerFacts::of_bearer(credential),
    };
    let fresh = app.state.fresh_unless([Break::AdmitWithoutLease, Break::LeaseAfterLookup]).await?;
    if app.state.refuses(&fresh, &facts) {
        return Err(Error::forbidden("the caller is blocked"));
    }
    authorize(app, &principal, access)?;
    Ok(Authorized { principal, certificate: digest, facts })
}

/// Whether a route needs no credential.
///
/// # Errors
/// 403 if metrics are served on loopback only, and the connection is from elsewhere.
fn is_open(app: &App, connection: &ClientConnection, access: Access) -> Result<bool, Error> {
    match access {
        Access::Health | Access::Public | Access::JoinToken => Ok(true),
        Access::Metrics => match app.metrics_access {
            MetricsAccess::Public => Ok(true),
            MetricsAccess::Loopback if connection.address.ip().is_loopback() => Ok(true),
            MetricsAccess::Loopback => Err(Error::forbidden("metrics are served on loopback only")),
            MetricsAccess::Authenticated => Ok(false),
        },
        Access::Certificate(_)
        | Access::Credential(_)
        | Access::Authenticated
        | Access::Bearer
        | Access::Peer
        | Access::PeerOrOperator => Ok(false),
    }
}

/// Checks the capability that the route requires.
///
/// # Errors
/// 403 if the caller lacks the capability of the route, or is no peer on a route of peers; 501 for a route of peers
/// without federation.
fn authorize(app: &App, principal: &Principal, access: Access) -> Result<(), Error> {
    let needed = match (access, principal) {
        (Access::Peer | Access::PeerOrOperator, Principal::Peer(..)) => return Ok(()),
        (Access::Peer, _) if !app.federation.peers().is_configured() => {
            return Err(Error::new(Refusal::NotConfigured, "federation is not configured"));
        }
        (Access::Peer, _) => return Err(Error::forbidden("this route is for the nodes of peer fabrics")),
        (Access::PeerOrOperator, _) => Capability::ClusterAdmin,
        (Access::Certificate(capability) | Access::Credential(capability), _) => capability,
        (Access::Metrics, _) => Capability::MetricsRead,
        _ => return Ok(()),
    };
    if may(app, principal, needed) { Ok(()) } else { Err(Error::insufficient(needed.into_str())) }
}

/// The principal of a certificate of a peer's trust domain.
///
/// # Errors
/// 403 on routes that are not for peers, for a workload that is not a configured node or caller, and for a peer without
/// `serve`.
fn of_peer_fabric(peers: &Peers, id: &WorkloadId, access: Access) -> Result<Principal, Error> {
    if access == Access::Certificate(Capability::Exchange) && peers.may_exchange(id) {
        return Ok(Principal::CallerOfPeer(id.clone()));
    }
    if !matches!(access, Access::Peer | Access::PeerOrOperator) {
        let text = "a certificate of a peer fabric is accepted on federation routes, and for exchange if `callers` lists it";
        return Err(Error::forbidden(text));
    }
    match peers.by_id(id) {
        Some(peer) if peer.serve => Ok(Principal::Peer(id.clone(), Arc::clone(peer))),
        _ => Err(Error::forbidden("no peer fabric that may read the ledger has a node of this SPIFFE ID")),
    }
}

fn certificate_in_force<'p>(app: &App, channel: &'p Channel) -> Result<Option<&'p PeerCertificate>, Error> {
    let Channel::Tls(Some(certificate)) = channel else { return Ok(None) };
    if app.clock.now() < certificate.not_after {
        return Ok(Some(certificate));
    }
    Err(Error::unauthenticated("the client certificate has expired"))
}
