//! Security event token of an event for a stream (RFC 8417, SSF 1.0 §4): claims and signature.
//!
//! Its claims come from the log alone, so that every node builds the same: `jti` contains the event id, `iat` is the
//! time of the log entry. RS256 is deterministic, so that a retry has the same bytes while the same key signs.

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
use crate::token::signing_key::EventSigningKey;

/// `typ` (RFC 8417 §2.3).
const TYP: &str = "secevent+jwt";

/// Why no token was built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This node has no active key for SETs.
    #[error("no security event token can be signed now")]
    NoKey(#[source] keyring::Error),
    /// Signing failed.
    #[error("no security event token can be signed now")]
    Signature(#[source] signing_key::Error),
    /// No incarnation exists yet, so that there is no `jti`.
    #[error("the cluster is not bootstrapped")]
    NotBootstrapped,
}

/// Cache key: stream, event, `kid`.
type CacheKey = (String, EventId, String);

/// Builds tokens. Cheap to clone.
#[derive(Clone)]
pub struct SetBuilder {
    issuer: String,
    keyring: Keyring,
    state: State,
    cache: Cache<CacheKey, Arc<str>>,
}

/// Claims of a token. Without `sub` and `exp`, so that it passes neither as ID token nor as access token.
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

impl SetBuilder {
    pub fn new(issuer: String, keyring: Keyring, state: State) -> Self {
        Self { issuer, keyring, state, cache: cache() }
    }

    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// `jti` of an event for a stream.
    pub fn jti(incarnation: Incarnation, stream_id: &str, id: EventId) -> String {
        format!("{incarnation}-{id}-{stream_id}")
    }

    /// The event that a `jti` of this cluster and stream names. Only the canonical spelling is accepted, so that an
    /// event has one `jti`.
    pub fn event_id(&self, jti: &str, stream_id: &str) -> Option<EventId> {
        id_of(self.incarnation().ok()?, jti, stream_id)
    }

    /// The signed token of an event for a stream, with the key that is active at `elapsed`, in elapsed time. A
    /// signature takes almost a millisecond: callers that build many yield in between.
    pub fn build(&self, stream: &Stream, event: &OutboxEvent, elapsed: Timestamp) -> Result<Arc<str>, Error> {
        let config = &stream.config;
        let jti = Self::jti(self.incarnation()?, &config.stream_id, event.id);
        let key = self.keyring.event_signing_key(elapsed).map_err(Error::NoKey)?;
        let cache_key = (config.stream_id.clone(), event.id, key.kid().to_owned());
        if let Some(set) = self.cache.get(&cache_key) {
            return Ok(set);
        }
        let set = sign(&key, &self.issuer, &jti, &config.aud, event).map_err(Error::Signature)?;
        self.cache.insert(cache_key, Arc::clone(&set));
        Ok(set)
    }

    /// A verification event (SSF 1.0 §8.1.4) outside the outbox, with which the transmitter probes a failing receiver.
    /// `nonce` must be unused for this stream; `at` is its `iat`, `elapsed` as in [`SetBuilder::build`].
    pub fn verification(
        &self,
        stream: &Stream,
        nonce: u128,
        at: Timestamp,
        elapsed: Timestamp,
    ) -> Result<Arc<str>, Error> {
        let config = &stream.config;
        let jti = format!("{}-v{nonce:032x}-{}", self.incarnation()?, config.stream_id);
        let event = OutboxEvent {
            id: EventId::default(),
            event: SecurityEvent::of_stream(VERIFICATION, &config.stream_id, Map::new()),
            at,
            elapsed,
            stream_id: Some(config.stream_id.clone()),
        };
        let key = self.keyring.event_signing_key(elapsed).map_err(Error::NoKey)?;
        sign(&key, &self.issuer, &jti, &config.aud, &event).map_err(Error::Signature)
    }

    /// The incarnation in every `jti`.
    pub fn incarnation(&self) -> Result<Incarnation, Error> {
        self.state.index().incarnation.ok_or(Error::NotBootstrapped)
    }
}

/// Bounded by bytes, including the cache keys.
fn cache() -> Cache<CacheKey, Arc<str>> {
    let weight = |(stream_id, _, kid): &CacheKey, set: &Arc<str>| {
        let bytes = stream_id.len() + size_of::<EventId>() + kid.len() + set.len();
        u32::try_from(bytes).unwrap_or(u32::MAX)
    };
    Cache::builder().max_capacity(limits::SETS_CACHED_BYTES_MAX).weigher(weight).build()
}

fn sign(
    key: &EventSigningKey,
    iss: &str,
    jti: &str,
    aud: &str,
    event: &OutboxEvent,
) -> Result<Arc<str>, signing_key::Error> {
    let event_claims = &event.event;
    let claims = Claims {
        iss,
        jti,
        iat: event.at.secs(),
        aud,
        txn: event_claims.txn.as_deref(),
        svc_via: &event_claims.via,
        sub_id: &event_claims.sub_id,
        events: BTreeMap::from([(event_claims.event_type.as_str(), &event_claims.claims)]),
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
    use crate::state::SecurityEvent;
    use crate::token::event_types::EVENTS_SUPPORTED;
    use crate::token::jws::Compact;
    use crate::token::key_set::VerifyingKey;

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
    fn token_has_exactly_the_claims_of_the_profile() {
        let key = EventSigningKey::generate().expect("key");
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
        assert_eq!(sign(&key, ISS, "the-jti", AUD, &event()).expect("signed"), set, "deterministic");
        let mut silent = event();
        silent.event.txn = None;
        silent.event.via.clear();
        let set = sign(&key, ISS, "the-jti", AUD, &silent).expect("signed");
        assert!(part(&set, 1).get("txn").is_none() && part(&set, 1).get("svc_via").is_none());
    }

    /// Every part that others choose is as long as relayed events may be, and escaped where possible.
    #[test]
    fn largest_event_fits_in_a_token_that_receivers_accept() {
        let event_type = EVENTS_SUPPORTED.into_iter().max_by_key(|uri| uri.len()).expect("a type").to_owned();
        let txn = "\"".repeat(limits::OPAQUE_BYTES_MAX);
        let empty = SecurityEvent { event_type, txn: Some(txn.clone()), ..event().event };
        let used = [&empty.sub_id, &json!(txn), &json!(empty.via), &json!({"a": ""})];
        let used: usize = used.map(|part| part.to_string().len()).iter().sum();
        let claims = json!({"a": "x".repeat(limits::RELAYED_EVENT_BYTES_MAX - used)});
        let largest = SecurityEvent { claims: claims.as_object().cloned().expect("object"), ..empty };
        let id = EventId { index: u64::MAX, number: u32::MAX };
        let event = OutboxEvent { id, event: largest, ..event() };
        let iss = format!("https://{}", "i".repeat(limits::URI_BYTES_MAX - "https://".len()));
        let aud = "\"".repeat(limits::URI_BYTES_MAX);
        let jti = SetBuilder::jti(incarnation(), &"f".repeat(32), id);
        let key = EventSigningKey::generate().expect("key");
        let set = sign(&key, &iss, &jti, &aud, &event).expect("signed");
        assert!(Compact::parse(&set).is_ok(), "{} bytes", set.len());
        // The limit is close to the possible maximum.
        assert!(set.len() > limits::TOKEN_BYTES_MAX - 1024, "{} bytes", set.len());
    }

    #[test]
    fn jti_names_one_event_in_one_spelling() {
        let (stream, other) = ("0".repeat(32), "f".repeat(32));
        for (index, number) in [(0, 0), (12, 3), (u64::MAX, u32::MAX)] {
            let id = EventId { index, number };
            let jti = SetBuilder::jti(incarnation(), &stream, id);
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
    fn token_cache_is_bounded_by_bytes() {
        let cache = cache();
        let set: Arc<str> = "a".repeat(100 * 1024).into();
        for at in 0..400 {
            cache.insert(
                ("s".repeat(32), EventId { index: at, number: 0 }, "kid".to_owned()),
                Arc::clone(&set),
            );
            cache.run_pending_tasks();
            assert!(cache.weighted_size() <= limits::SETS_CACHED_BYTES_MAX, "{}", cache.weighted_size());
        }
        let each = 100 * 1024 + 64;
        assert!(cache.weighted_size() > limits::SETS_CACHED_BYTES_MAX - 2 * each, "it is used");
    }
}
