//! Signals that come in: a security event token (RFC 8417, SSF 1.0) is judged, and what it revokes is
//! revoked in the whole cluster before it is answered.
//!
//! form → issuer → token → authority → policy → effects → the log. [`Receiver::receive`] is that line; what
//! reaches out (issuers' keys, the log) is in this file, what decides is not.

mod authority;
mod effects;
mod error;
mod issuers;
pub mod revoke;

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};

pub use authority::{Authority, Parties};
pub use error::Error;
pub use issuers::{Duplicate, SignalIssuer, SignalIssuers};

use crate::clock::Clock;
use crate::json;
use crate::outbound::issuer_keys::{self, IssuerKeys};
use crate::policy::signals::{Permit, Question};
use crate::policy::{Bundle, Denial, Point};
use crate::state::{self, Signal, State};
use crate::telemetry::Metrics;
use crate::token::jws::Compact;
use crate::token::set::{self, Rules, Set};

/// Everything that the receipt of signals needs.
pub struct Receiver {
    /// Our `iss`.
    pub own_issuer: String,
    /// Whose signals are received.
    pub issuers: SignalIssuers,
    /// Their keys.
    pub issuer_keys: IssuerKeys,
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
    /// The same issuer sent one with this `jti` before; nothing changed, and what that one revoked stays so.
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
}

impl Receiver {
    /// Receives one signal of `caller`, which is `None` for nobody: only development mode knows nobody, and
    /// lets it speak for every issuer. Answers once no node of the cluster accepts what it revokes.
    ///
    /// # Errors
    /// As [`Error`] says. A refused signal changes nothing, and may come again.
    pub async fn receive(&self, form: Form<'_>, caller: Option<&str>) -> Result<Received, Error> {
        let received = self.judge(form, caller).await;
        let result = received.as_ref().map_or_else(Error::label, |received| received.status.as_str());
        self.metrics.signal(result);
        received
    }

    async fn judge(&self, form: Form<'_>, caller: Option<&str>) -> Result<Received, Error> {
        self.configured()?;
        let (issuer, set) = match form {
            Form::Object(object) => self.vouched_for(object, caller)?,
            Form::Signed(token) => self.signed(token).await?,
        };
        // Contract §6: "An issuer may revoke only subjects it has authority over." Asked also for what has
        // no effect: it must not be passed on as that issuer's word either.
        let parties = Parties { iss: &issuer.iss, own_issuer: &self.own_issuer };
        let facts = issuer.authority.facts(&set.subject, parties)?;
        let permit = self.decide(&set, caller, matches!(form, Form::Signed(_)))?;
        let effects = effects::effects(&set, &permit, &facts)?;

        let count = effects.len();
        let signal = Signal {
            issuer: set.iss.clone(),
            jti: set.jti.clone(),
            quota: issuer.revocations_per_minute,
            effects,
            reason: effects::reason(&set),
        };
        let is_new = self.state.accept_signal(signal).await.map_err(|error| self.refusal(error))?;
        let status = match (is_new, count) {
            (false, _) => Status::Duplicate,
            (true, 0) => Status::Ignored,
            (true, _) => Status::Accepted,
        };
        Ok(Received { status, iss: set.iss, jti: set.jti, effects: count })
    }

    /// The policy, if anything can be received by it.
    fn configured(&self) -> Result<Guard<Option<Arc<Bundle>>>, Error> {
        if self.issuers.is_empty() {
            return Err(Error::NotConfigured);
        }
        let policy = self.policy.load();
        match policy.as_ref() {
            None => Err(Error::NoPolicy),
            Some(bundle) if !bundle.decides_signals() => Err(Error::NoRule),
            Some(_) => Ok(policy),
        }
    }

    /// "A plain JSON SET is accepted only from an mTLS caller allowed to speak for that `iss` (or with TLS
    /// off)" (contract §6).
    fn vouched_for(&self, object: &[u8], caller: Option<&str>) -> Result<(&SignalIssuer, Set), Error> {
        let value = json::parse(object)?;
        let issuer = self.issuers.of(Set::stated_issuer(&value)?).ok_or(Error::NotItsSpeaker)?;
        let is_speaker = caller.is_none_or(|caller| issuer.callers.iter().any(|id| id.as_str() == caller));
        if !is_speaker {
            return Err(Error::NotItsSpeaker);
        }
        Ok((issuer, Set::from_json(value, &self.rules(issuer))?))
    }

    /// "A signed one is checked against that issuer's keys."
    async fn signed(&self, token: &[u8]) -> Result<(&SignalIssuer, Set), Error> {
        let not_text = || set::Error::from(crate::token::Error::NotCompact);
        let text = std::str::from_utf8(token).map_err(|_| not_text())?;
        let token = Compact::parse(text).map_err(set::Error::from)?;
        let issuer = self.issuers.of(&Set::unverified_issuer(&token)?).ok_or(set::Error::Issuer)?;
        let header = token.header();
        // An algorithm that its issuer does not use is no reason to ask for a key.
        if !issuer.algorithms.contains(&header.algorithm) {
            return Err(set::Error::Key(crate::token::Error::AlgorithmNotAllowed).into());
        }
        let key = self.issuer_keys.key_for(&issuer.iss, header.kid.as_deref(), header.algorithm).await;
        let key = key.map_err(|error| match error {
            issuer_keys::Error::Key(error) => set::Error::from(error).into(),
            issuer_keys::Error::Unavailable => Error::IssuerUnavailable,
        })?;
        let set = Set::verify(&token, &key, &self.rules(issuer))?;
        Ok((issuer, set))
    }

    fn rules<'a>(&self, issuer: &'a SignalIssuer) -> Rules<'a> {
        Rules {
            audiences: &issuer.audiences,
            algorithms: &issuer.algorithms,
            iss: &issuer.iss,
            now: self.clock.now(),
        }
    }

    fn decide(&self, set: &Set, caller: Option<&str>, is_signed: bool) -> Result<Permit, Error> {
        let policy = self.configured()?;
        let policy = policy.as_ref().ok_or(Error::NoPolicy)?;
        let decision = policy.decide_signal(&Question { set: set.asked(), caller, is_signed });
        let result = decision.as_ref().map_or_else(Denial::label, |_| "permit");
        self.metrics.policy_decision(Point::Signals.as_str(), result);
        decision.map_err(Error::Denied)
    }

    fn refusal(&self, error: state::Error) -> Error {
        match error {
            state::Error::RevocationQuota => {
                // The quota is of a minute of log time.
                let second = self.state.not_before_log(self.clock.now()).secs().rem_euclid(60);
                Error::Quota { retry_after_secs: u32::try_from(60 - second).unwrap_or(60) }
            }
            state::Error::TooManyRevocations => Error::TooManyRevocations,
            state::Error::Write(error) => Error::Write(error),
            other => Error::Internal(other),
        }
    }
}
