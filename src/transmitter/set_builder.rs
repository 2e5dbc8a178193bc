//! The security event token of an event for a stream (RFC 8417, SSF 1.0 §4): what it says, and its signature.
//!
//! Everything in it comes from the log, so that whoever makes it again makes the same: `jti` names the event's
//! place in the log, `iat` is the time of the entry. RS256 has no randomness either, so a repetition is the
//! same text for as long as the same key signs.

use std::collections::BTreeMap;
use std::sync::Arc;

use moka::sync::Cache;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::clock::Timestamp;
use crate::id::Incarnation;
use crate::keyring::{self, Keyring};
use crate::limits;
use crate::state::{EventId, OutboxEvent, SecurityEvent, State, Stream, VERIFICATION};
use crate::token::signing_key;
use crate::token::signing_key::SetSigningKey;

/// `typ` (RFC 8417 §2.3).
const TYP: &str = "secevent+jwt";

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This node has no key that signs such tokens now.
    #[error("no security event token can be signed now")]
    NoKey(#[source] keyring::Error),
    /// The key did not sign.
    #[error("no security event token can be signed now")]
    Signature(#[source] signing_key::Error),
    /// Nothing in the log names its places yet.
    #[error("the cluster is not bootstrapped")]
    NotBootstrapped,
}

/// Which token was signed: of which stream, which event, and by which key.
type Signed = (String, EventId, String);

/// Makes the tokens. Cheap to clone.
#[derive(Clone)]
pub struct SetMaker {
    issuer: String,
    keyring: Keyring,
    state: State,
    signed: Cache<Signed, Arc<str>>,
}

/// What a token says. Neither `sub` nor `exp`: it must be no ID token and no access token for anybody.
#[derive(Serialize)]
struct Claims<'e> {
    iss: &'e str,
    jti: &'e str,
    iat: i64,
    aud: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    txn: Option<&'e str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    svc_via: &'e [String],
    sub_id: &'e Value,
    events: BTreeMap<&'e str, &'e Map<String, Value>>,
}

impl SetMaker {
    /// `issuer` is our `iss`.
    #[must_use]
    pub fn new(issuer: String, keyring: Keyring, state: State) -> Self {
        Self { issuer, keyring, state, signed: cache() }
    }

    /// Our `iss`.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// `jti` of an event for a stream.
    #[must_use]
    pub fn jti(incarnation: Incarnation, stream_id: &str, id: EventId) -> String {
        format!("{incarnation}-{id}-{stream_id}")
    }

    /// The event that a `jti` names, if it is one that this cluster has made for this stream: letter by letter, so
    /// that no two spellings name one event.
    #[must_use]
    pub fn id_of(&self, jti: &str, stream_id: &str) -> Option<EventId> {
        id_of(self.incarnation().ok()?, jti, stream_id)
    }

    /// The signed token of an event for a stream, by the key that signs at `passed`, in elapsed time. A signature takes the better part of a millisecond: who makes
    /// many lets others have their turn in between.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn make(&self, stream: &Stream, event: &OutboxEvent, passed: Timestamp) -> Result<Arc<str>, Error> {
        let config = &stream.config;
        let jti = Self::jti(self.incarnation()?, &config.stream_id, event.id);
        let key = self.keyring.set_signing_key(passed).map_err(Error::NoKey)?;
        let which = (config.stream_id.clone(), event.id, key.kid().to_owned());
        if let Some(set) = self.signed.get(&which) {
            return Ok(set);
        }
        let set = sign(&key, &self.issuer, &jti, &config.aud, event).map_err(Error::Signature)?;
        self.signed.insert(which, Arc::clone(&set));
        Ok(set)
    }

    /// A verification event for a stream (SSF 1.0 §8.1.4) that is in no outbox: with it the transmitter finds out
    /// whether a receiver takes anything. `drawn` must not have been used for this stream before; `at` is its `iat`, and
    /// `passed` elapsed time, as in [`SetMaker::make`].
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn verification(
        &self,
        stream: &Stream,
        drawn: u128,
        at: Timestamp,
        passed: Timestamp,
    ) -> Result<Arc<str>, Error> {
        let config = &stream.config;
        let jti = format!("{}-v{drawn:032x}-{}", self.incarnation()?, config.stream_id);
        let event = OutboxEvent {
            id: EventId::default(),
            event: SecurityEvent::of_stream(VERIFICATION, &config.stream_id, Map::new()),
            at,
            elapsed: passed,
            stream_id: Some(config.stream_id.clone()),
        };
        let key = self.keyring.set_signing_key(passed).map_err(Error::NoKey)?;
        sign(&key, &self.issuer, &jti, &config.aud, &event).map_err(Error::Signature)
    }

    /// Which life of the cluster its tokens belong to.
    ///
    /// # Errors
    /// [`Error::NotBootstrapped`].
    pub fn incarnation(&self) -> Result<Incarnation, Error> {
        self.state.index().incarnation.ok_or(Error::NotBootstrapped)
    }
}

/// Bounded by bytes, those of the names among them.
fn cache() -> Cache<Signed, Arc<str>> {
    let weight = |(stream_id, _, kid): &Signed, set: &Arc<str>| {
        let bytes = stream_id.len() + size_of::<EventId>() + kid.len() + set.len();
        u32::try_from(bytes).unwrap_or(u32::MAX)
    };
    Cache::builder().max_capacity(limits::SETS_CACHED_BYTES_MAX).weigher(weight).build()
}

fn sign(
    key: &SetSigningKey,
    iss: &str,
    jti: &str,
    aud: &str,
    event: &OutboxEvent,
) -> Result<Arc<str>, signing_key::Error> {
    let said = &event.event;
    let claims = Claims {
        iss,
        jti,
        iat: event.at.secs(),
        aud,
        txn: said.txn.as_deref(),
        svc_via: &said.via,
        sub_id: &said.sub_id,
        events: BTreeMap::from([(said.event_type.as_str(), &said.claims)]),
    };
    key.sign(&claims, TYP).map(Into::into)
}

fn id_of(incarnation: Incarnation, jti: &str, stream_id: &str) -> Option<EventId> {
    let id = jti.strip_prefix(&format!("{incarnation}-"))?.strip_suffix(&format!("-{stream_id}"))?;
    id.parse().ok()
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    use super::*;
    use crate::receiver::relay;
    use crate::state::SecurityEvent;
    use crate::token::event_types::EVENTS_SUPPORTED;
    use crate::token::jws::Compact;
    use crate::token::key_set::VerifyingKey;
    use crate::token::security_event::{EventClaims, SecurityEventToken};
    use crate::token::subject_id::SubjectId;

    const ISS: &str = "https://fabric.example";
    const AUD: &str = "https://receiver.example";
    const REVOKED: &str = "https://schemas.openid.net/secevent/caep/event-type/session-revoked";

    fn incarnation() -> Incarnation {
        Incarnation::from_bytes([0xab; 16])
    }

    fn event() -> OutboxEvent {
        let claims = json!({"event_timestamp": 1_799_999_999, "reason_admin": {"en": "leaked"}});
        OutboxEvent {
            id: EventId { index: 12, number: 3 },
            event: SecurityEvent {
                event_type: REVOKED.to_owned(),
                sub_id: json!({"format": "email", "email": "a@b.example"}),
                claims: claims.as_object().cloned().expect("object"),
                txn: Some("t-1".to_owned()),
                via: vec!["https://idp.example".to_owned()],
            },
            at: Timestamp::from_millis(1_800_000_000_999),
            elapsed: Timestamp::default(),
            stream_id: None,
        }
    }

    fn part(set: &str, at: usize) -> Value {
        let text = URL_SAFE_NO_PAD.decode(set.split('.').nth(at).expect("three parts")).expect("base64url");
        serde_json::from_slice(&text).expect("JSON")
    }

    #[test]
    fn a_token_has_the_claims_of_the_profile_and_no_others() {
        let key = SetSigningKey::generate().expect("key");
        let set = sign(&key, ISS, "the-jti", AUD, &event()).expect("signed");
        assert_eq!(part(&set, 0), json!({"alg": "RS256", "typ": "secevent+jwt", "kid": key.kid()}));
        let claims = json!({
            "iss": ISS, "jti": "the-jti", "iat": 1_800_000_000, "aud": AUD, "txn": "t-1", "svc_via": ["https://idp.example"],
            "sub_id": {"format": "email", "email": "a@b.example"},
            "events": {
                REVOKED: {"event_timestamp": 1_799_999_999, "reason_admin": {"en": "leaked"}},
            },
        });
        assert_eq!(part(&set, 1), claims);
        let public = VerifyingKey::from_jwk(key.public_jwk()).expect("public");
        Compact::parse(&set).expect("compact").verify(&public).expect("a good signature");
        assert_eq!(sign(&key, ISS, "the-jti", AUD, &event()).expect("signed"), set, "the same again");
        let mut silent = event();
        silent.event.txn = None;
        silent.event.via.clear();
        let set = sign(&key, ISS, "the-jti", AUD, &silent).expect("signed");
        assert!(part(&set, 1).get("txn").is_none() && part(&set, 1).get("svc_via").is_none());
    }

    /// Whatever others have a say in is as long as it may be, and is escaped where it can be.
    #[test]
    fn the_largest_event_makes_a_token_that_a_receiver_takes() {
        let uri = EVENTS_SUPPORTED.into_iter().max_by_key(|uri| uri.len()).expect("a type");
        let incoming = |claims: usize| SecurityEventToken {
            iss: "https://idp.example".to_owned(),
            jti: "1".to_owned(),
            iat: Timestamp::from_secs(100),
            aud: Vec::new(),
            txn: Some("\"".repeat(limits::OPAQUE_BYTES_MAX)),
            via: Vec::new(),
            subject: SubjectId::Email("a@b.example".to_owned()),
            sub_id: json!({"format": "email", "email": "a@b.example"}),
            events: vec![EventClaims {
                uri: uri.to_owned(),
                claims: json!({"a": "x".repeat(claims)}).as_object().cloned().expect("object"),
                happened_at: None,
            }],
        };
        let fits = |claims: usize| relay::events(&incoming(claims)).is_ok();
        let spare = (0..limits::EVENT_SAID_BYTES_MAX).rev().find(|claims| fits(*claims)).expect("fits");
        assert!(!fits(spare + 1));
        let said = relay::events(&incoming(spare)).expect("fits").remove(0);
        let id = EventId { index: u64::MAX, number: u32::MAX };
        let event = OutboxEvent { id, event: said, ..event() };
        let iss = format!("https://{}", "i".repeat(limits::URI_BYTES_MAX - "https://".len()));
        let aud = "\"".repeat(limits::URI_BYTES_MAX);
        let jti = SetMaker::jti(incarnation(), &"f".repeat(32), id);
        let key = SetSigningKey::generate().expect("key");
        let set = sign(&key, &iss, &jti, &aud, &event).expect("signed");
        assert!(Compact::parse(&set).is_ok(), "{} bytes", set.len());
        // The limit is not much less than it could be.
        assert!(set.len() > limits::TOKEN_BYTES_MAX - 1024, "{} bytes", set.len());
    }

    #[test]
    fn a_jti_names_one_event_of_one_stream_and_is_read_letter_by_letter() {
        let (stream, other) = ("0".repeat(32), "f".repeat(32));
        for (index, number) in [(0, 0), (12, 3), (u64::MAX, u32::MAX)] {
            let id = EventId { index, number };
            let jti = SetMaker::jti(incarnation(), &stream, id);
            assert_eq!(id_of(incarnation(), &jti, &stream), Some(id));
            assert_eq!(id_of(incarnation(), &jti, &other), None, "another stream's");
            let elsewhere = Incarnation::from_bytes([0xac; 16]);
            assert_eq!(id_of(elsewhere, &jti, &stream), None, "another cluster's");
        }
        let incarnation_text = incarnation().to_string();
        let good = format!("{incarnation_text}-12-3-{stream}");
        assert!(id_of(incarnation(), &good, &stream).is_some());
        for bad in [
            String::new(),
            incarnation_text.clone(),
            format!("{incarnation_text}-12-{stream}"),
            format!("{incarnation_text}-12-3"),
            format!("{incarnation_text}-12-3-"),
            format!("{incarnation_text}-12-3-4-{stream}"),
            format!("{incarnation_text}-+12-3-{stream}"),
            format!("{incarnation_text}-012-3-{stream}"),
            format!("{incarnation_text}-12-03-{stream}"),
            format!("{incarnation_text}--12-3-{stream}"),
            format!("{incarnation_text}- 12-3-{stream}"),
            format!("{incarnation_text}-12-4294967296-{stream}"),
            format!("{incarnation_text}-18446744073709551616-3-{stream}"),
            format!("{incarnation_text}-12-3-{stream}0"),
            format!(" {good}"),
            format!("{good} "),
            good.to_uppercase(),
        ] {
            assert_eq!(id_of(incarnation(), &bad, &stream), None, "{bad}");
        }
    }

    #[test]
    fn signed_tokens_are_kept_to_a_number_of_bytes() {
        let kept = cache();
        let set: Arc<str> = "a".repeat(100 * 1024).into();
        for at in 0..400 {
            kept.insert(
                ("s".repeat(32), EventId { index: at, number: 0 }, "kid".to_owned()),
                Arc::clone(&set),
            );
            kept.run_pending_tasks();
            assert!(kept.weighted_size() <= limits::SETS_CACHED_BYTES_MAX, "{}", kept.weighted_size());
        }
        let each = 100 * 1024 + 64;
        assert!(kept.weighted_size() > limits::SETS_CACHED_BYTES_MAX - 2 * each, "it is used");
    }
}
