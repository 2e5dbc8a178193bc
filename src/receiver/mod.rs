//! Signals that come in: a security event token (RFC 8417, SSF 1.0) is judged, and what it revokes is
//! revoked in the whole cluster before it is answered.
//!
//! form → issuer → token → authority → policy → effects → the log. [`Receiver::receive`] is that line; what
//! reaches out (issuers' keys, the log) is in this file, what decides is not.

mod authority;
mod effects;
mod error;
mod issuers;
pub mod relay;

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};

pub use authority::{Authority, Facts, Parties};
pub use error::{Error, Refused};
pub use issuers::{CredentialIssuers, Duplicate, SignalIssuer, SignalIssuers};

use crate::clock::{Clock, Timestamp};
use crate::json;
use crate::outbound::issuer_keys::{self, IssuerKeys};
use crate::policy::signals::{Allow, PolicyInput, SetInput};
use crate::policy::{Bundle, Denial, Point};
use crate::state::{self, CallerFacts, Effect, LeaseProof, Signal, State};
use crate::telemetry::Metrics;
use crate::token::jws::Compact;
use crate::token::lineage::Fact;
use crate::token::security_event;
use crate::token::security_event::{Rules, SecurityEventToken, UncheckedSet};
use crate::token::subject_id;

/// Everything that the receipt of signals needs.
pub struct Receiver {
    /// Our `iss`.
    pub own_issuer: String,
    /// Whose signals are received.
    pub issuers: SignalIssuers,
    /// The facts by which the operators of the table of callers are judged.
    pub operators: CallerFacts,
    /// Their keys.
    pub issuer_keys: IssuerKeys,
    /// Whose credentials are accepted here.
    pub credential_issuers: CredentialIssuers,
    /// The replicated state.
    pub state: State,
    /// The current policy, compiled.
    pub policy: Arc<ArcSwapOption<Bundle>>,
    /// Time.
    pub clock: Clock,
    /// Counters.
    pub metrics: Metrics,
}

/// A security event token as it came.
#[derive(Clone, Copy)]
pub enum Form<'b> {
    /// The JSON object of the specification: the caller vouches for it.
    Object(&'b [u8]),
    /// A compact JWS (RFC 8935 §2.1): its issuer vouches for it, whoever brings it.
    Signed(&'b [u8]),
}

/// What became of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// What it revokes is revoked.
    Accepted,
    /// The same issuer sent it before; nothing changed, and what it revoked stays so.
    Duplicate,
    /// It is remembered, and had no effect.
    Ignored,
}

impl Status {
    /// As it is answered and counted.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Duplicate => "duplicate",
            Self::Ignored => "ignored",
        }
    }
}

/// A signal that was received, for the answer and the log.
#[derive(Clone, Debug)]
pub struct Received {
    /// What became of it.
    pub status: Status,
    /// `iss`.
    pub iss: String,
    /// `jti`.
    pub jti: String,
    /// How much it revokes, blocks or lifts.
    pub effects: usize,
    /// What was judged of it; `None` of a duplicate.
    pub judged: Option<Judged>,
}

/// What the log says of a signal that was judged.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The types of its events.
    pub events: Vec<String>,
    /// The format of its subject.
    pub format: String,
    /// `txn`.
    pub txn: Option<String>,
    /// Digest of the policy that permitted it.
    pub policy_digest: String,
    /// The members of `sub_id` that name what no credential derives from that is accepted here.
    pub unheard: Vec<String>,
    /// Whether streams may be told of its subject.
    pub is_tellable: bool,
}

/// Who a token is from, as far as is known.
#[derive(Default)]
struct Named {
    iss: String,
    jti: String,
}

impl Receiver {
    /// Receives one signal of `caller`, which is `None` for nobody: only development mode knows nobody, and
    /// lets it speak for every issuer. Answers once no node of the cluster accepts what it revokes.
    ///
    /// # Errors
    /// As [`Refused`] says. A refused signal changes nothing, and may come again.
    pub async fn receive(
        &self,
        form: Form<'_>,
        caller: Option<&str>,
        facts: &CallerFacts,
    ) -> Result<Received, Refused> {
        let mut named = Named::default();
        let received = self.check(form, (caller, facts), &mut named).await;
        let result = match &received {
            Ok(received) => received.status.as_str(),
            Err(error) => error.label(),
        };
        self.metrics.signal(result);
        received.map_err(|error| Refused { error, iss: named.iss, jti: named.jti })
    }

    async fn check(
        &self,
        form: Form<'_>,
        (caller, caller_facts): (Option<&str>, &CallerFacts),
        named: &mut Named,
    ) -> Result<Received, Error> {
        if self.issuers.is_empty() {
            return Err(Error::NotConfigured);
        }
        // Before anything is looked up (design §4): whoever was revoked before this came may not send it.
        let fresh = self.state.fresh().await.map_err(|error| self.refusal(error))?;
        let (issuer, sent) = match form {
            Form::Object(object) => self.vouched_for(&fresh, object, caller, named)?,
            Form::Signed(token) => self.signed(&fresh, token, named).await?,
        };
        named.jti.clone_from(&sent.jti);
        let (iss, jti, content) = (sent.iss.clone(), sent.jti.clone(), sent.content);
        let now = self.state.cluster_time();
        let set = sent.check(&rules(issuer, now))?;
        // A repetition is acknowledged whatever authority and policy have become since the first.
        if self.state.has_signal(&iss, &jti, &content).await.map_err(|error| self.refusal(error))? {
            return Ok(duplicate(iss, jti));
        }
        if relay::is_loop(&set, &self.own_issuer) {
            return Ok(Received { status: Status::Ignored, iss, jti, effects: 0, judged: None });
        }
        let events = relay::events(&set)?;
        self.configured()?;
        // Contract §6: "An issuer may revoke only subjects it has authority over." Asked also for what has
        // no effect: it must not be passed on as that issuer's word either.
        let own_issuer = self.own_issuer.as_str();
        let parties = Parties { iss: &issuer.iss, own_issuer, known: &self.credential_issuers };
        let facts = issuer.authority.facts(&set.subject, parties)?;
        let permit = self.decide(&set, caller, matches!(form, Form::Signed(_)))?;
        let effects = effects::effects(&set, &permit, &facts, now)?;
        check_blocks(&effects, issuer, form, caller_facts, &self.operators)?;
        let events = if facts.is_tellable { events } else { Vec::new() };

        let count = effects.len();
        let signal = Signal {
            issuer: set.iss.clone(),
            jti: set.jti.clone(),
            issued_at: set.iat,
            quota: issuer.revocations_per_minute,
            effects,
            reason: effects::reason(&set),
            content,
            events,
            subject: subject_id::text(&set.sub_id),
        };
        let state = self.state.on_behalf_of(caller_facts);
        if !state.accept_signal(signal).await.map_err(|error| self.refusal(error))? {
            // Another caller brought it meanwhile.
            return Ok(duplicate(iss, jti));
        }
        let judged = Judged {
            events: set.events.iter().map(|event| event.uri.clone()).collect(),
            format: set.subject.format().to_owned(),
            txn: set.txn,
            policy_digest: permit.policy_digest().to_owned(),
            unheard: facts.unheard,
            is_tellable: facts.is_tellable,
        };
        Ok(Received {
            status: if count == 0 { Status::Ignored } else { Status::Accepted },
            iss,
            jti,
            effects: count,
            judged: Some(judged),
        })
    }

    /// The policy, if signals can be received by it.
    fn configured(&self) -> Result<Guard<Option<Arc<Bundle>>>, Error> {
        let policy = self.policy.load();
        match policy.as_ref() {
            None => Err(Error::NoPolicy),
            Some(bundle) if !bundle.decides_signals() => Err(Error::NoRule),
            Some(_) => Ok(policy),
        }
    }

    /// "A plain JSON SET is accepted only from an mTLS caller allowed to speak for that `iss` (or with TLS
    /// off)" (contract §6). One that was blocked, or revoked after it was said, may not.
    fn vouched_for(
        &self,
        fresh: &LeaseProof,
        object: &[u8],
        caller: Option<&str>,
        named: &mut Named,
    ) -> Result<(&SignalIssuer, UncheckedSet), Error> {
        let value = json::parse(object)?;
        SecurityEventToken::stated_issuer(&value)?.clone_into(&mut named.iss);
        let issuer = self.issuers.of(&named.iss).ok_or(Error::NotItsSpeaker)?;
        let speaker = caller.map(|caller| issuer.callers.iter().find(|id| id.as_str() == caller));
        if speaker == Some(None) {
            return Err(Error::NotItsSpeaker);
        }
        let sent = UncheckedSet::unsigned(value, &rules(issuer, self.state.cluster_time()))?;
        if let Some(id) = speaker.flatten()
            && self.state.revokes(fresh, &[Fact::workload(id).digest()], None, sent.iat)
        {
            return Err(Error::SpeakerRevoked);
        }
        Ok((issuer, sent))
    }

    /// "A signed one is checked against that issuer's keys", and none of them may be revoked.
    async fn signed(
        &self,
        fresh: &LeaseProof,
        token: &[u8],
        named: &mut Named,
    ) -> Result<(&SignalIssuer, UncheckedSet), Error> {
        let not_text = || security_event::Error::from(crate::token::Error::NotCompact);
        let text = std::str::from_utf8(token).map_err(|_| not_text())?;
        let token = Compact::parse(text).map_err(security_event::Error::from)?;
        named.iss = SecurityEventToken::unverified_issuer(&token)?;
        let issuer = self.issuers.of(&named.iss).ok_or(security_event::Error::Issuer)?;
        let header = token.header();
        // An algorithm that its issuer does not use is no reason to ask for a key.
        if !issuer.algorithms.contains(&header.algorithm) {
            return Err(security_event::Error::Key(crate::token::Error::AlgorithmNotAllowed).into());
        }
        let asked_at = self.clock.boot();
        let key = self.issuer_keys.key_for(&issuer.iss, header.kid.as_deref(), header.algorithm).await;
        let key = key.map_err(|error| match error {
            // Its source may not be asked again yet, and may have the key by now: no last word.
            issuer_keys::Error::Key(crate::token::Error::UnknownKey)
                if issuer.keys.is_some() && !self.issuer_keys.is_known_since(&issuer.iss, asked_at) =>
            {
                Error::IssuerUnavailable
            }
            issuer_keys::Error::Key(error) => security_event::Error::from(error).into(),
            issuer_keys::Error::Unavailable => Error::IssuerUnavailable,
        })?;
        let sent = UncheckedSet::verify(&token, &key, &rules(issuer, self.state.cluster_time()))?;
        let kid = Fact::signing_key(&issuer.iss, key.kid().unwrap_or(key.thumbprint()));
        if self.state.revokes(fresh, &[kid.digest()], None, sent.iat) {
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
        let policy = self.configured()?;
        let policy = policy.as_ref().ok_or(Error::NoPolicy)?;
        let decision = policy.decide_signal(&PolicyInput { set: set_input(set), caller, is_signed });
        let result = decision.as_ref().map_or_else(Denial::label, |_| "permit");
        self.metrics.policy_decision(Point::Signals.as_str(), result);
        decision.map_err(Error::from)
    }

    fn refusal(&self, error: state::Error) -> Error {
        match error {
            state::Error::RevocationQuota => {
                // The quota is of a minute of elapsed time.
                let second = self.state.elapsed_time().secs().rem_euclid(60);
                Error::Quota { retry_after_secs: u32::try_from(60 - second).unwrap_or(60) }
            }
            state::Error::JtiReused => Error::JtiReused,
            state::Error::TooManyRevocations => Error::TooManyRevocations,
            state::Error::CallerRefused => Error::CallerRefused,
            state::Error::Write(error) => Error::Write(error),
            state::Error::Stale(error) => Error::Stale(error),
            other => Error::Internal(other),
        }
    }
}

/// Rules against a lock-out: a caller does not block itself, and only an issuer that may do so blocks an operator.
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
        // A signed token is its issuer's statement; its bearer may be the one to be blocked.
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

fn duplicate(iss: String, jti: String) -> Received {
    Received { status: Status::Duplicate, iss, jti, effects: 0, judged: None }
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
