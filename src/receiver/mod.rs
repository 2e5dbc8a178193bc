//! Receiver of signals (RFC 8417, SSF 1.0): verifies a SET, decides it by policy and revokes in the whole
//! cluster before it is acknowledged.
//!
//! The order is form → issuer → token → authority → policy → effects → log; [`Receiver::receive`] runs it.
//! Calls to issuers' keys and to the log are in this file; the other files are pure.

mod authority;
mod effects;
mod error;
mod issuers;
pub(crate) mod relay;

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};

pub(crate) use authority::{Authority, Parties, SubjectFacts};
pub(crate) use error::{Error, RejectedSignal};
pub(crate) use issuers::{CredentialIssuers, DuplicateIssuer, SignalIssuer, SignalIssuers};

use crate::clock::{Clock, Timestamp};
use crate::json;
use crate::outbound::issuer_keys::{self, IssuerKeys};
use crate::policy::signals::{Allow, PolicyInput, SetInput};
use crate::policy::{Bundle, Denial, Point};
use crate::state::{self, Awaited, CallContext, CallerFacts, Effect, LeaseProof, Refusal, Signal, State};
use crate::telemetry::Metrics;
use crate::token::jws::Compact;
use crate::token::lineage::Fact;
use crate::token::security_event::{self, Rules, SecurityEventToken, UncheckedSet};
use crate::token::subject_id;

/// Receives signals.
pub struct Receiver {
    pub own_issuer: String,
    /// Issuers of the peer fabrics, whose events are not relayed: each fabric sends its own events to its streams.
    pub peer_issuers: BTreeSet<String>,
    /// The issuers whose signals are received.
    pub issuers: SignalIssuers,
    /// The facts of all callers with `cluster.admin`.
    pub operators: CallerFacts,
    pub issuer_keys: IssuerKeys,
    /// The issuers whose credentials are accepted.
    pub credential_issuers: CredentialIssuers,
    pub state: State,
    pub policy: Arc<ArcSwapOption<Bundle>>,
    pub clock: Clock,
    pub metrics: Metrics,
}

/// A security event token as received.
#[derive(Clone, Copy)]
pub enum Form<'b> {
    /// A plain JSON SET: the caller vouches for it.
    Object(&'b [u8]),
    /// A compact JWS (RFC 8935 §2.1): its issuer vouches for it, whichever caller sends it.
    Signed(&'b [u8]),
}

/// Result of a received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Status {
    /// Its effects are applied.
    Accepted,
    /// The issuer sent it before; nothing changed.
    Duplicate,
    /// It has no effect. It is recorded, unless it came back through the chain of its issuers.
    Ignored,
}

/// An accepted signal, for the response and the log.
#[derive(Clone, Debug)]
pub struct Received {
    pub status: Status,
    pub iss: String,
    pub jti: String,
    /// Number of watermarks, blocks and lifts.
    pub effects: usize,
    /// `None` for a duplicate and for a loop.
    pub decided: Option<Decided>,
    /// The awaited peers.
    pub awaited: Awaited,
}

/// The logged details of a signal that policy allowed.
#[derive(Clone, Debug)]
pub struct Decided {
    /// Types of its events.
    pub events: Vec<String>,
    /// Format of its subject.
    pub format: String,
    pub txn: Option<String>,
    /// Digest of the policy that allowed it.
    pub policy_digest: String,
    /// Fields of `sub_id` from which no accepted credential can derive.
    pub unaccepted: Vec<String>,
    /// Whether its events may be relayed to streams.
    pub may_relay: bool,
}

/// Issuer and `jti`, as far as they are verified.
#[derive(Default)]
struct ClaimedId {
    iss: String,
    jti: String,
}

impl Receiver {
    /// Receives one signal. In development mode an anonymous caller may send for every issuer. Returns once
    /// no node of the cluster accepts a revoked credential. A refused signal changes nothing and may be sent
    /// again.
    pub async fn receive(&self, form: Form<'_>, caller: &CallContext) -> Result<Received, RejectedSignal> {
        let mut claimed = ClaimedId::default();
        let received = self.verify_and_apply(form, caller, &mut claimed).await;
        let result = match &received {
            Ok(received) => received.status.into_str(),
            Err(error) => error.label(),
        };
        self.metrics.signals.inc([result]);
        received.map_err(|error| RejectedSignal { error, iss: claimed.iss, jti: claimed.jti })
    }

    async fn verify_and_apply(
        &self,
        form: Form<'_>,
        caller: &CallContext,
        claimed: &mut ClaimedId,
    ) -> Result<Received, Error> {
        if self.issuers.is_empty() {
            return Err(Error::NotConfigured);
        }
        // Before any revocation lookup (design §4): a caller that was revoked before the request may not send it.
        let fresh = self.state.fresh().await.map_err(|error| self.map_error(error))?;
        let (issuer, sent) = match form {
            Form::Object(object) => self.verify_plain(&fresh, object, caller.id(), claimed)?,
            Form::Signed(token) => self.verify_signed(&fresh, token, claimed).await?,
        };
        claimed.jti.clone_from(&sent.jti);
        let (iss, jti, content) = (sent.iss.clone(), sent.jti.clone(), sent.content);
        let now = self.state.cluster_time();
        let set = sent.check(&rules(issuer, now))?;
        // A duplicate is acknowledged even if authority or policy changed since.
        let known = self.state.has_signal(&iss, &jti, &content).await;
        if let Some(awaited) = known.map_err(|error| self.map_error(error))? {
            return Ok(without_effect(Status::Duplicate, iss, jti, awaited));
        }
        if relay::is_loop(&set, &self.own_issuer) {
            return Ok(without_effect(Status::Ignored, iss, jti, Awaited::default()));
        }
        self.signal_policy()?;
        // An issuer revokes only subjects over which it has authority (contract §6). Checked also without effects: the
        // event must not be relayed in that issuer's name either.
        let own_issuer = self.own_issuer.as_str();
        let parties = Parties { iss: &issuer.iss, own_issuer, credential_issuers: &self.credential_issuers };
        let facts = issuer.authority.facts(&set.subject, parties)?;
        let allow = self.decide(&set, caller.id(), matches!(form, Form::Signed(_)))?;
        let effects = effects::effects(&set, &allow, &facts, now)?;
        check_blocks(&effects, issuer, form, &caller.facts, &self.operators)?;
        let may_relay = facts.may_relay && !self.peer_issuers.contains(&issuer.iss);
        let events = match may_relay.then(|| relay::events(&set, now)).transpose() {
            // Each hop adds to `svc_via`. The effects of a signal do not depend on whether another hop is possible.
            Err(error) if !set.via.is_empty() => {
                tracing::warn!(%error, iss = issuer.iss, "a relayed signal is not relayed again");
                None
            }
            events => events?,
        };
        let may_relay = events.is_some();

        let count = effects.len();
        let signal = Signal {
            issuer: set.iss.clone(),
            jti: set.jti.clone(),
            issued_at: set.iat,
            quota: issuer.revocations_per_minute,
            effects,
            reason: effects::reason(&set),
            content,
            events: events.unwrap_or_default(),
            subject: subject_id::text(&subject_id::relayed(&set.sub_id, None)),
        };
        let state = self.state.on_behalf_of(caller);
        let accepted = state.accept_signal(signal).await;
        let (is_new, awaited) = accepted.map_err(|error| self.map_error(error))?;
        if !is_new {
            // Another caller sent it concurrently.
            return Ok(without_effect(Status::Duplicate, iss, jti, awaited));
        }
        let decided = Decided {
            events: set.events.iter().map(|event| event.uri.clone()).collect(),
            format: set.subject.format().to_owned(),
            txn: set.txn,
            policy_digest: allow.policy_digest().to_owned(),
            unaccepted: facts.unaccepted,
            may_relay,
        };
        Ok(Received {
            status: if count == 0 { Status::Ignored } else { Status::Accepted },
            iss,
            jti,
            effects: count,
            decided: Some(decided),
            awaited,
        })
    }

    /// The policy, if it has a rule for signals.
    fn signal_policy(&self) -> Result<Guard<Option<Arc<Bundle>>>, Error> {
        let policy = self.policy.load();
        match policy.as_ref() {
            None => Err(Error::NoPolicy),
            Some(bundle) if !bundle.decides_signals() => Err(Error::NoRule),
            Some(_) => Ok(policy),
        }
    }

    /// "A plain JSON SET is accepted only from an mTLS caller allowed to speak for that `iss` (or with TLS
    /// off)" (contract §6), and not from one that was blocked, or revoked after `iat`.
    fn verify_plain(
        &self,
        fresh: &LeaseProof,
        object: &[u8],
        caller: Option<&str>,
        claimed: &mut ClaimedId,
    ) -> Result<(&SignalIssuer, UncheckedSet), Error> {
        let value = json::parse(object)?;
        SecurityEventToken::stated_issuer(&value)?.clone_into(&mut claimed.iss);
        let issuer = self.issuers.get(&claimed.iss).ok_or(Error::SpeakerNotAllowed)?;
        let speaker = caller.map(|caller| issuer.callers.iter().find(|id| id.as_str() == caller));
        if speaker == Some(None) {
            return Err(Error::SpeakerNotAllowed);
        }
        let sent = UncheckedSet::unsigned(value, &rules(issuer, self.state.cluster_time()))?;
        if let Some(id) = speaker.flatten()
            && self.state.revokes_sender(fresh, &Fact::workload(id), sent.iat)
        {
            return Err(Error::SpeakerRevoked);
        }
        Ok((issuer, sent))
    }

    /// "A signed one is checked against that issuer's keys" (contract §6); the key must not be revoked.
    async fn verify_signed(
        &self,
        fresh: &LeaseProof,
        token: &[u8],
        claimed: &mut ClaimedId,
    ) -> Result<(&SignalIssuer, UncheckedSet), Error> {
        let not_compact = || security_event::Error::from(crate::token::Error::NotCompact);
        let text = std::str::from_utf8(token).map_err(|_| not_compact())?;
        let token = Compact::parse(text).map_err(security_event::Error::from)?;
        claimed.iss = SecurityEventToken::unverified_issuer(&token)?;
        let issuer = self.issuers.get(&claimed.iss).ok_or(security_event::Error::Issuer)?;
        let header = token.header();
        // An algorithm that the issuer does not use is no reason to fetch its keys.
        if !issuer.algorithms.contains(&header.algorithm) {
            return Err(security_event::Error::Key(crate::token::Error::AlgorithmNotAllowed).into());
        }
        let requested_at = self.clock.boot();
        let key = self.issuer_keys.key_for(&issuer.iss, header.kid.as_deref(), header.algorithm).await;
        let key = key.map_err(|error| match error {
            // The key source is in its refetch pause and may have the key by now: not final.
            issuer_keys::Error::Key(crate::token::Error::UnknownKey)
                if issuer.keys.is_some() && !self.issuer_keys.is_known_since(&issuer.iss, requested_at) =>
            {
                Error::IssuerUnavailable
            }
            issuer_keys::Error::Key(error) => security_event::Error::from(error).into(),
            issuer_keys::Error::Unavailable => Error::IssuerUnavailable,
        })?;
        let sent = UncheckedSet::verify(&token, &key, &rules(issuer, self.state.cluster_time()))?;
        let kid = Fact::signing_key(&issuer.iss, key.kid().unwrap_or(key.thumbprint()));
        if self.state.revokes_sender(fresh, &kid, sent.iat) {
            return Err(security_event::Error::Key(crate::token::Error::Revoked).into());
        }
        Ok((issuer, sent))
    }

    fn decide(
        &self,
        set: &SecurityEventToken,
        caller: Option<&str>,
        is_signed: bool,
    ) -> Result<Allow, Error> {
        let policy = self.signal_policy()?;
        let policy = policy.as_ref().ok_or(Error::NoPolicy)?;
        let decision = policy.decide_signal(&PolicyInput { set: set_input(set), caller, is_signed });
        let result = decision.as_ref().map_or_else(Denial::label, |_| "allow");
        self.metrics.policy_decisions.inc([Point::Signals.into_str(), result]);
        decision.map_err(Error::from)
    }

    fn map_error(&self, error: state::Error) -> Error {
        match error {
            state::Error::Refused(Refusal::RevocationQuota) => {
                // The quota counts per minute of elapsed time.
                let second = self.state.elapsed_time().secs().rem_euclid(60);
                Error::Quota { retry_after_secs: u32::try_from(60 - second).unwrap_or(60) }
            }
            other => Error::State(other),
        }
    }
}

/// Lock-out rules: a caller does not block itself, and blocking an operator needs `may_block_operators`.
fn check_blocks(
    effects: &[Effect],
    issuer: &SignalIssuer,
    form: Form<'_>,
    caller: &CallerFacts,
    operators: &CallerFacts,
) -> Result<(), Error> {
    let blocked = effects.iter().filter_map(|effect| match effect {
        Effect::Block { fact, .. } => Some(fact.digest()),
        Effect::Watermark(_) | Effect::Lift { .. } => None,
    });
    for fact in blocked {
        // A signed token is its issuer's statement; the caller that sends it may be the one to block.
        if matches!(form, Form::Object(_)) && caller.contain(&fact) {
            return Err(Error::Invalid {
                field: "sub_id".to_owned(),
                rule: "must not name the caller itself",
            });
        }
        if !issuer.may_block_operators && operators.contain(&fact) {
            return Err(Error::BlocksOperator);
        }
    }
    Ok(())
}

fn rules(issuer: &SignalIssuer, now: Timestamp) -> Rules<'_> {
    Rules { audiences: &issuer.audiences, algorithms: &issuer.algorithms, iss: &issuer.iss, now }
}

fn without_effect(status: Status, iss: String, jti: String, awaited: Awaited) -> Received {
    Received { status, iss, jti, effects: 0, decided: None, awaited }
}

/// The policy input for a token.
#[must_use]
pub fn set_input(set: &SecurityEventToken) -> SetInput<'_> {
    SetInput {
        iss: &set.iss,
        jti: &set.jti,
        iat: set.iat.secs(),
        aud: &set.aud,
        txn: set.txn.as_deref(),
        sub_id: &set.sub_id,
        events: set.events.iter().map(|event| (event.uri.as_str(), &event.claims)).collect(),
    }
}
