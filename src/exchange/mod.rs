//! Token exchange (RFC 8693), in the order of [`Exchange::exchange`]: request, subject, actor, pair, policy,
//! narrowing, nonce, mint.
//!
//! Steps with I/O (issuers' keys, the log) are in this file; pure steps have a file each.

mod delegation;
mod error;
mod execution_scope;
mod mint;
mod narrow;
mod request;

use std::sync::Arc;

use arc_swap::ArcSwapOption;

pub use delegation::{DelegationPair, Pair, pair};
pub use error::Error;
pub(crate) use execution_scope::ExecutionScope;
pub use narrow::{Grant, GrantContent, narrow};
pub(crate) use request::{ExchangeInput, ExchangeRequest, GRANT_TYPE, RequestedConfirmation};

use crate::clock::{Clock, Timestamp};
use crate::id::{Digest128, DigestKind, LogPosition, TrustDomain, WorkloadId};
use crate::keyring::Keyring;
use crate::limits;
use crate::outbound::issuer_keys::{self, IssuerKeys};
use crate::own_tokens::OwnTokens;
use crate::peer_tokens::{self, PeerTokens};
use crate::policy::blast_radius::Containment;
use crate::policy::exchange::{Allow, Party, PolicyInput, RequestedGrant};
use crate::policy::{Bundle, Denial, Point};
use crate::state::{self, CallContext, Idempotency, LeaseProof, MintedToken, State};
use crate::telemetry::Metrics;
use crate::token::fabric_peers::Role;
use crate::token::foreign;
use crate::token::foreign::{Credential, Kind};
use crate::token::issuer::Issuers;
use crate::token::jws::{Compact, IssuerHint};
use crate::token::signature_cache::SignatureCache;
use crate::token::{self, CertificateDigest, lineage};

/// Dependencies of the exchange.
pub struct Exchange {
    /// Verifies our own tokens, presented as credentials.
    pub own_tokens: OwnTokens,
    /// Verifies tokens of peer fabrics.
    pub peer_tokens: PeerTokens,
    /// Trust domain of our agents.
    pub trust_domain: TrustDomain,
    /// Configured issuers.
    pub issuers: Issuers,
    /// Keys of the configured issuers.
    pub issuer_keys: IssuerKeys,
    pub keyring: Keyring,
    pub state: State,
    /// Cache of verified signatures.
    pub signatures: SignatureCache,
    /// Order of blast radii.
    pub containment: Containment,
    /// Compiled active policy.
    pub policy: Arc<ArcSwapOption<Bundle>>,
    pub clock: Clock,
    pub metrics: Metrics,
}

/// An `Idempotency-Key` and the body of its request. They are hashed here, because an anonymous caller's key is scoped
/// to the subject.
#[derive(Clone, Copy, Debug)]
pub struct RetryKey<'r> {
    pub key: &'r str,
    pub body: &'r [u8],
}

/// A minted token and the fields of its response.
#[derive(Clone)]
pub struct Minted {
    pub access_token: String,
    /// Lifetime in seconds.
    pub expires_in_secs: u64,
    /// Granted scope.
    pub scope: String,
    /// Audience, for the live feed.
    pub aud: String,
    /// Its `jti`, for the log.
    pub jti: String,
    /// Its subject, for the log.
    pub sub: String,
    /// Issuers of the peer fabrics through which it came, for the log.
    pub via: Vec<String>,
}

impl Exchange {
    /// Estimated memory of the cached signatures of all tokens, in bytes.
    #[must_use]
    pub fn signature_cache_bytes(&self) -> u64 {
        self.signatures.memory_bytes()
    }

    /// Exchanges a credential for a token. `token_subject` is set to the subject once its credential is verified, also if
    /// the exchange is refused after that.
    ///
    /// A refused exchange changes nothing, except that its nonce stays spent if signing failed or the token is too large.
    ///
    /// # Errors
    /// [`Error`]: each variant is one rule.
    pub async fn exchange(
        &self,
        request: &ExchangeRequest,
        caller: &CallContext,
        retry: Option<RetryKey<'_>>,
        token_subject: &mut Option<WorkloadId>,
    ) -> Result<Minted, Error> {
        // The lease is checked before any lookup (design §4): lookups then see every revocation acknowledged before
        // the request, however long the fetch of an issuer's keys takes.
        let fresh = self.state.fresh().await?;
        self.state.check_clock(&fresh)?;
        // Likewise the position: a revocation applied after it covers this token.
        let position = self.state.position().ok_or(Error::NotBootstrapped)?;
        let now = self.clock.now();
        if self.state.refuses(&fresh, &caller.facts) {
            return Err(Error::CallerBlocked);
        }

        let requested = requested_confirmation(request, caller)?;
        let subject = self.subject(&fresh, request, caller, now).await?;
        *token_subject = Some(subject.sub.clone());
        let actor = self.actor(&fresh, request, caller, now).await?;
        // A binding survives the exchange: a token derived from a bound token is bound to the same certificate.
        let is_bound = subject.is_bound || actor.as_ref().is_some_and(|actor| actor.is_bound);
        let confirmation = requested.or(caller.certificate.filter(|_| is_bound));
        let pair = pair(subject, actor)?;
        self.check_caller_of_peer(caller, &pair)?;
        let allow = self.decide(&pair, request, caller)?;
        let grant = narrow(allow, pair, &request.scope, &self.containment)?;

        let key = self.keyring.signing_key(self.state.elapsed_time()).map_err(Error::CannotSign)?;
        let token = mint::new_token(now, request.execution_scope.is_some());
        // No tool call passes with an execution-scoped token that has ended by log time.
        let ends_after = request.execution_scope.as_ref().map_or(now, |_| self.state.not_before_log(now));
        if ends_after.secs() >= token.exp {
            return Err(state::Error::Refused(state::Refusal::TokenEnded).into());
        }
        let token = self.record(&grant, request, caller, retry, token).await?;
        self.check_not_ended(&fresh, &token, ends_after, position)?;
        let context = mint::MintContext {
            iss: self.own_tokens.issuer(),
            caller: caller.id(),
            confirmation,
            token,
            position,
            txn: uuid::Uuid::new_v4().to_string(),
        };
        let claims = mint::claims(&grant, request.execution_scope.as_ref(), context)?;
        let access_token =
            token::mint::sign_access_token(&claims, &key).map_err(|error| Error::Internal(error.into()))?;
        if access_token.len() > limits::TOKEN_BYTES_MAX {
            return Err(Error::TokenTooLarge);
        }
        Ok(Minted {
            access_token,
            expires_in_secs: u64::try_from(claims.exp - now.secs()).unwrap_or(0),
            scope: claims.scope.unwrap_or_default(),
            aud: claims.aud,
            jti: claims.jti,
            sub: claims.sub,
            via: claims.via,
        })
    }

    async fn subject(
        &self,
        fresh: &LeaseProof,
        request: &ExchangeRequest,
        caller: &CallContext,
        now: Timestamp,
    ) -> Result<Credential, Error> {
        let (text, kind) = (&request.subject_token, request.subject_token_type);
        let subject = self.credential(fresh, text, (kind, Role::Subject), caller, now).await;
        subject.map_err(|unverified| unverified.of(Error::SubjectToken))
    }

    /// The default of `actor_token_type` is JWT.
    async fn actor(
        &self,
        fresh: &LeaseProof,
        request: &ExchangeRequest,
        caller: &CallContext,
        now: Timestamp,
    ) -> Result<Option<Credential>, Error> {
        let Some((text, kind)) = &request.actor else { return Ok(None) };
        let kind = kind.unwrap_or(Kind::Jwt);
        let actor = self.credential(fresh, text, (kind, Role::Actor), caller, now).await;
        actor.map(Some).map_err(|unverified| unverified.of(Error::ActorToken))
    }

    async fn credential(
        &self,
        fresh: &LeaseProof,
        text: &str,
        (kind, role): (Kind, Role),
        caller: &CallContext,
        now: Timestamp,
    ) -> Result<Credential, Unverified> {
        let token = Compact::parse(text)?;
        let hint = token.unverified_issuer()?;
        let certificate = caller.certificate.as_ref();
        // RFC 8693 §3: our own token is a JWT too. One that is presented as `jwt` is verified as our own.
        let is_ours = hint.iss.as_deref() == Some(self.own_tokens.issuer());
        if kind == Kind::AgentA2a || (kind == Kind::Jwt && is_ours) {
            return self.of_a_fabric(fresh, (&token, hint, role), certificate, now).await;
        }
        self.state.check_clock_for_foreign(fresh).map_err(Error::from)?;
        let issuer = self.issuers.choose(kind, &hint)?;
        let header = token.header();
        let key = self.issuer_keys.key_for(&issuer.iss, header.kid.as_deref(), header.algorithm).await?;
        let credential = foreign::verify_foreign(&token, issuer, &key, &self.signatures, certificate, now)?;
        // An agent without a record would have no ancestors, no expiry and no revocation. An agent of a peer
        // has its record there, and its credential is a token of the peer.
        let chain = credential.act.iter().flat_map(token::act::Act::chain);
        let actors = chain.filter_map(|act| act.sub.parse::<WorkloadId>().ok());
        if actors.chain([credential.sub.clone()]).any(|id| self.is_agent(&id)) {
            return Err(token::Error::SubjectReserved.into());
        }
        if self.state.revokes(fresh, &credential.lineage, None, credential.iat) {
            return Err(token::Error::Revoked.into());
        }
        Ok(credential)
    }

    /// Whether it names an agent of this fabric or of a peer.
    fn is_agent(&self, id: &WorkloadId) -> bool {
        let domain = id.trust_domain();
        id.is_agent_of(domain)
            && (*domain == self.trust_domain || self.peer_tokens.of_domain(domain).is_some())
    }

    /// A token of this fabric or of a peer. The unverified `iss` chooses the keys that verify it.
    async fn of_a_fabric(
        &self,
        fresh: &LeaseProof,
        (token, hint, role): (&Compact<'_>, IssuerHint, Role),
        certificate: Option<&CertificateDigest>,
        now: Timestamp,
    ) -> Result<Credential, Unverified> {
        if let Some(peer) = hint.iss.and_then(|iss| self.peer_tokens.peer(&iss)) {
            self.state.check_clock_for_foreign(fresh).map_err(Error::from)?;
            return Ok(self.peer_tokens.verify(fresh, (token, peer, role), certificate, now)?);
        }
        Ok(self.own_tokens.verify_chained(fresh, (token, role), certificate, now).await?)
    }

    /// A token that a peer's workload obtains is judged by that peer's ledger, which also has the blocks on that workload.
    fn check_caller_of_peer(&self, caller: &CallContext, pair: &DelegationPair) -> Result<(), Error> {
        let id: Option<WorkloadId> = caller.id().and_then(|id| id.parse().ok());
        let peer = id.and_then(|id| self.peer_tokens.of_domain(id.trust_domain()));
        match peer {
            Some(peer) if !pair.via.contains(&peer.issuer) => Err(Error::CallerOfPeer(peer.name.clone())),
            _ => Ok(()),
        }
    }

    fn decide(
        &self,
        pair: &DelegationPair,
        request: &ExchangeRequest,
        caller: &CallContext,
    ) -> Result<Allow, Error> {
        let policy = self.policy.load();
        let policy = policy.as_ref().ok_or(Error::NoPolicy)?;
        let subject_act = actors(&pair.subject);
        let actor_act = pair.actor.as_ref().map(actors).unwrap_or_default();
        let execution = request.execution_scope.as_ref();
        let decision = policy.decide_exchange(&PolicyInput {
            subject: self.party(&pair.subject, &subject_act),
            actor: pair.actor.as_ref().map(|actor| self.party(actor, &actor_act)),
            request: RequestedGrant {
                audience: request.audience.as_deref(),
                scope: &request.scope,
                execution: execution.is_some(),
                htm: execution.and_then(|scope| scope.htm.as_deref()),
                htu: execution.and_then(|scope| scope.htu.as_deref()),
                exec_act: execution.and_then(ExecutionScope::operation),
                target: execution.and_then(ExecutionScope::operation_target),
            },
            caller: caller.id(),
        });
        let result = decision.as_ref().map_or_else(Denial::label, |_| "allow");
        self.metrics.policy_decisions.inc([Point::Exchange.into_str(), result]);
        decision.map_err(Error::from)
    }

    fn party<'a>(&'a self, credential: &'a Credential, act: &'a [String]) -> Party<'a> {
        let kubernetes = credential.kubernetes.as_ref();
        Party {
            id: credential.sub.as_str(),
            trust_domain: credential.sub.trust_domain().as_str(),
            issuer: &credential.iss,
            fabric: self.peer_tokens.peer(&credential.iss).map(|peer| peer.name.as_str()),
            via: self.peer_tokens.labels(credential),
            kind: match credential.kind {
                Kind::Jwt => "jwt",
                Kind::SpiffeSvid => "spiffe-svid",
                Kind::AgentA2a => "agent-a2a",
            },
            original_sub: &credential.original_sub,
            email: credential.email.as_deref(),
            namespace: kubernetes.map(|kubernetes| kubernetes.namespace.as_str()),
            service_account: kubernetes.map(|kubernetes| kubernetes.service_account.as_str()),
            capabilities: credential.capabilities.as_deref(),
            scope: credential.scope.as_deref(),
            blast_radius: credential.blast_radius.as_deref(),
            delegation_depth: credential.delegation_depth,
            act,
        }
    }

    /// With an execution scope: spends the nonce, once per subject in the whole cluster, and records the minted `jti`
    /// and times. A retry under the same `Idempotency-Key` gets the recorded `jti`: both tokens together pass one
    /// verification.
    async fn record(
        &self,
        grant: &Grant,
        request: &ExchangeRequest,
        caller: &CallContext,
        retry: Option<RetryKey<'_>>,
        token: MintedToken,
    ) -> Result<MintedToken, Error> {
        let Some(scope) = &request.execution_scope else { return Ok(token) };
        let subject = grant.pair.subject.sub.as_str();
        let caller_id = caller.id().unwrap_or(subject);
        let owner = state::owner(caller_id);
        let idempotency = retry.map(|RetryKey { key, body }| Idempotency {
            key: Digest128::of(DigestKind::IdempotencyKey, caller_id.as_bytes(), key.as_bytes()),
            request: Digest128::of(DigestKind::RequestBody, caller_id.as_bytes(), body),
            owner,
        });
        let nonce = scope.nonce.as_deref();
        let nonce = nonce.map(|nonce| Digest128::of(DigestKind::Nonce, subject.as_bytes(), nonce.as_bytes()));
        if nonce.is_none() && idempotency.is_none() {
            return Ok(token);
        }
        let state = self.state.on_behalf_of(caller).once(idempotency);
        Ok(state.record_exchange(nonce, owner, token).await?)
    }

    /// A retry gets no token that has expired or whose `jti` was revoked.
    fn check_not_ended(
        &self,
        fresh: &LeaseProof,
        token: &MintedToken,
        now: Timestamp,
        position: LogPosition,
    ) -> Result<(), Error> {
        let (digest, iat) =
            (lineage::token(self.own_tokens.issuer(), &token.jti), Timestamp::from_secs(token.iat));
        let is_revoked = self.state.revokes(fresh, &[digest], Some(position), iat);
        if is_revoked || now.secs() >= token.exp { Err(Error::TokenEnded) } else { Ok(()) }
    }
}

/// `req_cnf` (RFC 9201 §3.1) may name only the certificate of this connection: a caller cannot bind a token to a key
/// that it does not hold.
fn requested_confirmation(
    request: &ExchangeRequest,
    caller: &CallContext,
) -> Result<Option<CertificateDigest>, Error> {
    match request.confirmation {
        requested if requested.is_none() || requested == caller.certificate => Ok(requested),
        _ => Err(Error::Invalid {
            field: "req_cnf",
            rule: "must be the x5t#S256 of this connection's client certificate",
        }),
    }
}

/// Reason for which a credential was not verified.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Unverified {
    /// The credential is not valid; the caller maps it to its parameter.
    Token(#[from] token::Error),
    Other(#[from] Error),
}

impl Unverified {
    /// The error of an exchange in which the credential has this parameter.
    fn of(self, parameter: fn(token::Error) -> Error) -> Error {
        match self {
            Self::Token(error) => parameter(error),
            Self::Other(error) => error,
        }
    }
}

impl From<peer_tokens::Refused> for Unverified {
    fn from(refused: peer_tokens::Refused) -> Self {
        match refused {
            peer_tokens::Refused::Token(error) => Self::Token(error),
            refused => Self::Other(Error::Peer(refused)),
        }
    }
}

impl From<issuer_keys::Error> for Unverified {
    fn from(error: issuer_keys::Error) -> Self {
        match error {
            issuer_keys::Error::Key(error) => Self::Token(error),
            issuer_keys::Error::Unavailable => Self::Other(Error::IssuerUnavailable),
        }
    }
}

fn actors(credential: &Credential) -> Vec<String> {
    let chain = credential.act.iter().flat_map(token::act::Act::chain);
    chain.map(|act| act.sub.clone()).take(limits::ACT_DEPTH_MAX).collect()
}
