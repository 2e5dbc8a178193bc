//! Keys of issuers: fetched, cached and refreshed, one set per issuer.
//!
//! * Fresh keys (`ISSUER_KEYS_REFRESH`, or the hint of a SPIFFE bundle) are used without a fetch.
//! * Older keys are refreshed by one request; concurrent requests use the cached ones.
//! * An unknown `kid` causes a fetch, because the issuer may have rotated.
//! * After a fetch, a source is not fetched again for `ISSUER_KEYS_RETRY_PAUSE`, or for its refresh interval if that is shorter;
//!   after an abandoned fetch, for `ISSUER_KEYS_ABANDONED_PAUSE`. The size of this negative cache does not depend on input.
//! * A failed fetch or malformed document changes nothing until `ISSUER_KEYS_STALE_MAX`; then this issuer is refused.

mod credentials;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use reqwest::Url;
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio::sync::Mutex;

use super::client::{self, Client, FetchCredentials};
use crate::clock::Clock;
use crate::telemetry::Metrics;
use crate::token::issuer::{FetchFiles, KeySource};
use crate::token::jws::Algorithm;
use crate::token::key_set::{self, KeySet, Purpose, VerifyingKey};
use crate::{json, limits, token};

/// No key for a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No key in the issuer's set fits the token.
    #[error(transparent)]
    Key(#[from] token::Error),
    /// The issuer's keys were never fetched, or not confirmed for too long.
    #[error("keys of the issuer are not available")]
    Unavailable,
}

/// Failure of a key source.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error("fetch keys: {0}")]
    Fetch(#[from] client::Error),
    #[error("read key file: {0}")]
    File(#[from] std::io::Error),
    #[error("key file is too large")]
    FileTooLarge,
    #[error(transparent)]
    Credentials(#[from] credentials::FileError),
    #[error(
        "jwks_uri of the discovery document is at another origin, to which bearer_token_file is not sent: set keys_url"
    )]
    OtherOrigin,
    #[error("discovery document is malformed")]
    DiscoveryMalformed,
    #[error("discovery document is of another issuer")]
    DiscoveryIssuerMismatch,
    #[error(transparent)]
    Document(#[from] key_set::Error),
    #[error("spiffe_sequence went backwards")]
    SequenceWentBack,
}

/// The keys of the configured issuers, by `iss`.
#[derive(Debug)]
pub struct IssuerKeys {
    client: Client,
    clock: Clock,
    metrics: Metrics,
    by_iss: HashMap<String, Source>,
}

/// Key source of one issuer and its cached keys. All times are [`Clock::boot`].
#[derive(Debug)]
struct Source {
    iss: String,
    keys: KeySource,
    files: FetchFiles,
    current: ArcSwapOption<Fetched>,
    /// Locked by the request that fetches; the earliest time of the next fetch.
    next_fetch: Mutex<Duration>,
}

#[derive(Debug)]
struct Fetched {
    keys: KeySet,
    at: Duration,
}

impl Fetched {
    fn age(&self, boot: Duration) -> Duration {
        boot.saturating_sub(self.at)
    }

    fn is_fresh(&self, boot: Duration) -> bool {
        self.age(boot) < fresh_for(&self.keys)
    }

    fn is_usable(&self, boot: Duration) -> bool {
        self.age(boot) < limits::ISSUER_KEYS_STALE_MAX
    }
}

/// SPIFFE bundle §4.1.2: the refresh hint, within our own bounds.
fn fresh_for(keys: &KeySet) -> Duration {
    key_set::refresh_interval(keys.refresh_hint())
}

impl IssuerKeys {
    /// Keys of these issuers, each with its `iss`, source and files. Nothing is fetched before it is needed.
    #[must_use]
    pub fn new<'a>(
        issuers: impl IntoIterator<Item = (&'a str, &'a KeySource, Option<&'a FetchFiles>)>,
        client: Client,
        clock: Clock,
        metrics: Metrics,
    ) -> Self {
        let source = |(iss, keys, files): (&str, &KeySource, Option<&FetchFiles>)| {
            let source = Source {
                iss: iss.to_owned(),
                keys: keys.clone(),
                files: files.cloned().unwrap_or_default(),
                current: ArcSwapOption::empty(),
                next_fetch: Mutex::default(),
            };
            (iss.to_owned(), source)
        };
        Self { client, clock, metrics, by_iss: issuers.into_iter().map(source).collect() }
    }

    /// The key of the issuer `iss` that must verify a token with this `kid` and `algorithm`.
    ///
    /// # Errors
    /// [`Error::Key`] as [`KeySet::select`], also for an unknown issuer; [`Error::Unavailable`].
    pub async fn key_for(
        &self,
        iss: &str,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<VerifyingKey>, Error> {
        let source = self.by_iss.get(iss).ok_or(token::Error::UnknownIssuer)?;
        let boot = self.clock.boot();
        let before = source.current.load_full().filter(|fetched| fetched.is_usable(boot));
        if let Some(fetched) = &before {
            match fetched.keys.select(kid, algorithm) {
                Err(token::Error::UnknownKey) => {}
                selected if fetched.is_fresh(boot) => return Ok(selected?),
                selected => {
                    // The request that gets the lock fetches; the others do not wait.
                    let Ok(next_fetch) = source.next_fetch.try_lock() else { return Ok(selected?) };
                    self.refresh(source, next_fetch).await;
                    return self.select_cached(source, kid, algorithm);
                }
            }
        }
        // Without a usable key it waits for the request that fetches.
        let next_fetch = source.next_fetch.lock().await;
        let during = source.current.load_full().filter(|fetched| fetched.is_usable(self.clock.boot()));
        if before.as_ref().map(Arc::as_ptr) == during.as_ref().map(Arc::as_ptr) {
            self.refresh(source, next_fetch).await;
        }
        self.select_cached(source, kid, algorithm)
    }

    /// Whether the keys of `iss` are from a fetch that began at `boot` ([`Clock::boot`]) or later: then an absent key is
    /// withdrawn.
    #[must_use]
    pub fn is_known_since(&self, iss: &str, boot: Duration) -> bool {
        let fetched = self.by_iss.get(iss).and_then(|source| source.current.load_full());
        fetched.is_some_and(|fetched| fetched.at >= boot)
    }

    /// The result from the cached keys.
    fn select_cached(
        &self,
        source: &Source,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<VerifyingKey>, Error> {
        let boot = self.clock.boot();
        let fetched = source.current.load_full().filter(|fetched| fetched.is_usable(boot));
        Ok(fetched.ok_or(Error::Unavailable)?.keys.select(kid, algorithm)?)
    }

    /// Fetches once, if the pause of the source is over. A failure is logged and changes nothing.
    async fn refresh(&self, source: &Source, mut next_fetch: tokio::sync::MutexGuard<'_, Duration>) {
        let begun = self.clock.boot();
        if begun < *next_fetch {
            return;
        }
        // If this request is cancelled, the next one waits only briefly.
        *next_fetch = begun + limits::ISSUER_KEYS_ABANDONED_PAUSE;
        let outcome = self.fetch(source).await.and_then(|keys| {
            let current = source.current.load();
            let sequence = current.as_ref().and_then(|fetched| fetched.keys.sequence());
            // SPIFFE bundle §4.1.1: a lower number is an older bundle.
            if keys.sequence() < sequence { Err(SourceError::SequenceWentBack) } else { Ok(keys) }
        });
        let ended = self.clock.boot();
        match outcome {
            Ok(keys) => {
                *next_fetch = ended + fresh_for(&keys).min(limits::ISSUER_KEYS_RETRY_PAUSE);
                self.metrics.issuer_key_fetches.inc(["fetched"]);
                tracing::debug!(issuer = source.iss, keys = keys.len(), "issuer keys fetched");
                // The age counts from the start of the fetch: the document may have been created then.
                source.current.store(Some(Arc::new(Fetched { keys, at: begun })));
            }
            Err(error) => {
                *next_fetch = ended + limits::ISSUER_KEYS_RETRY_PAUSE;
                self.metrics.issuer_key_fetches.inc(["failed"]);
                tracing::warn!(issuer = source.iss, %error, "failed to refresh issuer keys");
            }
        }
    }

    async fn fetch(&self, source: &Source) -> Result<KeySet, SourceError> {
        let credentials = credentials::read(&source.files).await?;
        let (document, purpose) = match &source.keys {
            KeySource::File(path) => (read_file(path).await?, Purpose::Issuer),
            KeySource::Url(url) => (self.client.fetch_with(url, &credentials).await?, Purpose::Issuer),
            KeySource::Discovery => {
                // OpenID Connect Discovery §4: a terminating slash is removed before the path is appended.
                let base = source.iss.strip_suffix('/').unwrap_or(&source.iss);
                let address = format!("{base}/.well-known/openid-configuration");
                (self.discover(&source.iss, &address, &credentials).await?, Purpose::Issuer)
            }
            KeySource::TransmitterMetadata => {
                let address = transmitter_metadata_of(&source.iss);
                (self.discover(&source.iss, &address, &credentials).await?, Purpose::Issuer)
            }
            KeySource::SpiffeBundleFile(path) => (read_file(path).await?, Purpose::SpiffeBundle),
            KeySource::SpiffeBundleEndpoint(url) => {
                (self.client.fetch_with(url, &credentials).await?, Purpose::SpiffeBundle)
            }
        };
        Ok(KeySet::parse(&document, purpose)?)
    }

    /// The document at the `jwks_uri` of the discovery document at `address`.
    async fn discover(
        &self,
        iss: &str,
        address: &str,
        credentials: &FetchCredentials,
    ) -> Result<Vec<u8>, SourceError> {
        #[derive(Deserialize)]
        struct Discovery {
            issuer: String,
            jwks_uri: String,
        }
        let document = self.client.fetch_with(address, credentials).await?;
        let discovery: Discovery = json::read(&document).map_err(|_| SourceError::DiscoveryMalformed)?;
        // OpenID Connect Discovery §4.3: "MUST be identical to the Issuer URL that was used as the prefix";
        // SSF 1.0 §7.2.4 demands the same.
        if discovery.issuer != iss {
            return Err(SourceError::DiscoveryIssuerMismatch);
        }
        if credentials.authorization.is_some() && !is_same_origin(address, &discovery.jwks_uri) {
            return Err(SourceError::OtherOrigin);
        }
        Ok(self.client.fetch_with(&discovery.jwks_uri, credentials).await?)
    }
}

/// Whether two URLs have the same scheme, host and port.
fn is_same_origin(one: &str, other: &str) -> bool {
    let origin = |text: &str| Url::parse(text).ok().map(|url| url.origin()).filter(url::Origin::is_tuple);
    origin(one).is_some() && origin(one) == origin(other)
}

/// SSF 1.0 §7.2.1: the well-known part is inserted before the path of the issuer.
fn transmitter_metadata_of(iss: &str) -> String {
    const WELL_KNOWN: &str = "/.well-known/ssf-configuration";
    let base = iss.strip_suffix('/').unwrap_or(iss);
    let authority = base.find("://").map_or(0, |at| at + "://".len());
    let path = base[authority..].find('/').map_or(base.len(), |at| authority + at);
    format!("{}{WELL_KNOWN}{}", &base[..path], &base[path..])
}

async fn read_file(path: &Path) -> Result<Vec<u8>, SourceError> {
    let file = tokio::fs::File::open(path).await?;
    let mut document = Vec::new();
    let limit = limits::FETCH_BYTES_MAX as u64 + 1;
    file.take(limit).read_to_end(&mut document).await?;
    if document.len() > limits::FETCH_BYTES_MAX { Err(SourceError::FileTooLarge) } else { Ok(document) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::{Value, json};
    use wiremock::matchers::path;
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;
    use crate::clock::Timestamp;
    use crate::outbound::client::CallLimits;
    use crate::outbound::guard::{Guard, Rules};
    use crate::token::signing_key::SigningKey;

    const ES256: Algorithm = Algorithm::Es256;
    const UNKNOWN: Error = Error::Key(token::Error::UnknownKey);

    fn jwks(kids: &[&str]) -> Value {
        let key = |kid: &&str| {
            let mut jwk = SigningKey::generate().expect("key").public_jwk().clone();
            jwk["kid"] = (*kid).into();
            jwk
        };
        json!({"keys": kids.iter().map(key).collect::<Vec<_>>()})
    }

    /// A client that may fetch from this host.
    fn local(limits: CallLimits) -> Client {
        let rules = Rules { allow_loopback_http: true, ..Rules::default() };
        Client::new(limits, Guard::new(rules)).expect("client")
    }

    /// `iss` and key source.
    type Issuer = (String, KeySource);

    fn issuer(iss: &str, keys: KeySource) -> Issuer {
        (iss.to_owned(), keys)
    }

    fn keys_of(issuers: &[Issuer], client: Client, clock: &Clock) -> IssuerKeys {
        let issuers = issuers.iter().map(|(iss, keys)| (iss.as_str(), keys, None));
        IssuerKeys::new(issuers, client, clock.clone(), Metrics::new().expect("metrics"))
    }

    /// Keys of one issuer with a local source.
    struct Harness {
        server: MockServer,
        clock: Clock,
        keys: IssuerKeys,
        iss: String,
    }

    impl Harness {
        async fn of(issuer_at: impl FnOnce(&str) -> Issuer) -> Self {
            let server = MockServer::start().await;
            let issuer = issuer_at(&server.uri());
            let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
            let client = local(CallLimits { timeout: Duration::from_secs(1), ..CallLimits::default() });
            let keys = keys_of(std::slice::from_ref(&issuer), client, &clock);
            Self { server, clock, keys, iss: issuer.0 }
        }

        async fn of_url() -> Self {
            Self::of(|uri| issuer("https://issuer.example", KeySource::Url(format!("{uri}/keys")))).await
        }

        async fn of_bundle() -> Self {
            Self::of(|uri| {
                issuer("spiffe://trust.example", KeySource::SpiffeBundleEndpoint(format!("{uri}/keys")))
            })
            .await
        }

        async fn answers(&self, response: ResponseTemplate) {
            self.server.reset().await;
            Mock::given(path("/keys")).respond_with(response).mount(&self.server).await;
        }

        async fn serves(&self, document: &Value) {
            self.answers(ResponseTemplate::new(200).set_body_json(document)).await;
        }

        async fn requests(&self) -> usize {
            self.server.received_requests().await.map_or(0, |requests| requests.len())
        }

        async fn key(&self, kid: &str) -> Result<(), Error> {
            self.keys.key_for(&self.iss, Some(kid), ES256).await.map(|_| ())
        }
    }

    #[tokio::test]
    async fn fresh_keys_are_not_fetched_again() {
        let harness = Harness::of_url().await;
        harness.serves(&jwks(&["a"])).await;
        for _ in 0..5 {
            assert_eq!(harness.key("a").await, Ok(()));
        }
        assert_eq!(harness.requests().await, 1);
        harness.clock.advance(limits::ISSUER_KEYS_REFRESH);
        assert_eq!(harness.key("a").await, Ok(()));
        assert_eq!(harness.requests().await, 2);
    }

    #[tokio::test]
    async fn concurrent_requests_cause_one_fetch() {
        let harness = Harness::of_url().await;
        let slow =
            ResponseTemplate::new(200).set_body_json(jwks(&["a"])).set_delay(Duration::from_millis(50));
        harness.answers(slow).await;
        let (a, b, c, d) =
            tokio::join!(harness.key("a"), harness.key("a"), harness.key("x"), harness.key("a"));
        assert_eq!((a, b, c, d), (Ok(()), Ok(()), Err(UNKNOWN), Ok(())));
        assert_eq!(harness.requests().await, 1);
    }

    #[tokio::test]
    async fn unknown_kids_cause_one_fetch_per_interval() {
        let harness = Harness::of_url().await;
        harness.serves(&jwks(&["a"])).await;
        assert_eq!(harness.key("a").await, Ok(()));
        for kid in 0..50 {
            assert_eq!(harness.key(&format!("../{kid}")).await, Err(UNKNOWN));
        }
        assert_eq!(harness.requests().await, 1);
        // The issuer rotates: its new key is found as soon as the next fetch is allowed.
        harness.clock.advance(limits::ISSUER_KEYS_RETRY_PAUSE);
        harness.serves(&jwks(&["a", "b"])).await;
        assert_eq!(harness.key("b").await, Ok(()));
        assert_eq!(harness.key("c").await, Err(UNKNOWN));
        assert_eq!(harness.requests().await, 1);
    }

    #[tokio::test]
    async fn withdrawn_key_is_refused_after_the_next_fetch() {
        let harness = Harness::of_url().await;
        harness.serves(&jwks(&["a", "b"])).await;
        assert_eq!(harness.key("a").await, Ok(()));
        harness.serves(&jwks(&["b"])).await;
        harness.clock.advance(limits::ISSUER_KEYS_REFRESH);
        assert_eq!(harness.key("a").await, Err(UNKNOWN));
    }

    #[tokio::test]
    async fn malformed_document_never_replaces_a_valid_one() {
        for wrong in [
            ResponseTemplate::new(200).set_body_string("<html>sign in</html>"),
            ResponseTemplate::new(200).set_body_string("{\"keys\":"),
            ResponseTemplate::new(200).set_body_json(json!({"keys": [{"kty": "oct", "k": "AAAA"}]})),
            ResponseTemplate::new(200).set_body_bytes(vec![b' '; limits::FETCH_BYTES_MAX + 1]),
            ResponseTemplate::new(302).insert_header("location", "/keys"),
            ResponseTemplate::new(404),
            ResponseTemplate::new(200).set_delay(Duration::from_mins(1)),
        ] {
            let harness = Harness::of_url().await;
            harness.serves(&jwks(&["a"])).await;
            assert_eq!(harness.key("a").await, Ok(()));
            harness.answers(wrong).await;
            harness.clock.advance(limits::ISSUER_KEYS_REFRESH);
            assert_eq!(harness.key("a").await, Ok(()));
            assert_eq!(harness.key("a").await, Ok(()));
            assert_eq!(harness.requests().await, 1);
            harness.clock.advance(limits::ISSUER_KEYS_STALE_MAX.saturating_sub(limits::ISSUER_KEYS_REFRESH));
            assert_eq!(harness.key("a").await, Err(Error::Unavailable));
        }
    }

    #[tokio::test]
    async fn failed_source_is_not_fetched_again_for_a_while() {
        let harness = Harness::of_url().await;
        harness.answers(ResponseTemplate::new(500)).await;
        for _ in 0..5 {
            assert_eq!(harness.key("a").await, Err(Error::Unavailable));
        }
        assert_eq!(harness.requests().await, 1);
        harness.serves(&jwks(&["a"])).await;
        harness.clock.advance(limits::ISSUER_KEYS_RETRY_PAUSE);
        assert_eq!(harness.key("a").await, Ok(()));
    }

    #[tokio::test]
    async fn cancelled_fetch_delays_others_only_briefly() {
        let harness = Harness::of_url().await;
        harness.answers(ResponseTemplate::new(200).set_delay(Duration::from_mins(1))).await;
        let abandoned = tokio::time::timeout(Duration::from_millis(20), harness.key("a")).await;
        assert!(abandoned.is_err());
        harness.serves(&jwks(&["a"])).await;
        harness.clock.advance(limits::ISSUER_KEYS_ABANDONED_PAUSE);
        assert_eq!(harness.key("a").await, Ok(()));
    }

    #[tokio::test]
    async fn discovery_requires_the_issuers_own_document() {
        let harness = Harness::of(|uri| issuer(uri, KeySource::Discovery)).await;
        let uri = harness.server.uri();
        let publish = async |issuer: &str| {
            harness.server.reset().await;
            let document = json!({"issuer": issuer, "jwks_uri": format!("{uri}/keys")});
            Mock::given(path("/.well-known/openid-configuration"))
                .respond_with(ResponseTemplate::new(200).set_body_json(document))
                .mount(&harness.server)
                .await;
            Mock::given(path("/keys"))
                .respond_with(ResponseTemplate::new(200).set_body_json(jwks(&["a"])))
                .mount(&harness.server)
                .await;
        };
        for other in [format!("{uri}/"), "https://evil.example".to_owned()] {
            publish(&other).await;
            assert_eq!(harness.key("a").await, Err(Error::Unavailable));
            assert_eq!(harness.requests().await, 1);
            harness.clock.advance(limits::ISSUER_KEYS_RETRY_PAUSE);
        }
        publish(&uri).await;
        assert_eq!(harness.key("a").await, Ok(()));
    }

    #[tokio::test]
    async fn transmitter_keys_require_its_own_metadata() {
        for (iss, address) in [
            ("https://t.example", "https://t.example/.well-known/ssf-configuration"),
            ("https://t.example/", "https://t.example/.well-known/ssf-configuration"),
            ("https://t.example:1/a/b", "https://t.example:1/.well-known/ssf-configuration/a/b"),
        ] {
            assert_eq!(transmitter_metadata_of(iss), address);
        }
        let harness =
            Harness::of(|uri| issuer(&format!("{uri}/tenant"), KeySource::TransmitterMetadata)).await;
        let uri = harness.server.uri();
        for (stated, outcome) in [(uri.clone(), Err(Error::Unavailable)), (format!("{uri}/tenant"), Ok(()))] {
            harness.serves(&jwks(&["a"])).await;
            let document = json!({"issuer": stated, "jwks_uri": format!("{uri}/keys")});
            Mock::given(path("/.well-known/ssf-configuration/tenant"))
                .respond_with(ResponseTemplate::new(200).set_body_json(document))
                .mount(&harness.server)
                .await;
            assert_eq!(harness.key("a").await, outcome, "{stated}");
            harness.clock.advance(limits::ISSUER_KEYS_RETRY_PAUSE);
        }
    }

    #[tokio::test]
    async fn two_issuers_may_share_a_kid() {
        let server = MockServer::start().await;
        for name in ["/a", "/b"] {
            let response = ResponseTemplate::new(200).set_body_json(jwks(&["k"]));
            Mock::given(path(name)).respond_with(response).mount(&server).await;
        }
        let at = |name: &str| {
            issuer(&format!("https://{name}"), KeySource::Url(format!("{}/{name}", server.uri())))
        };
        let (a, b) = (at("a"), at("b"));
        let client = local(CallLimits::default());
        let keys = keys_of(&[a, b], client, &Clock::manual(Timestamp::from_secs(1)));
        let key_a = keys.key_for("https://a", Some("k"), ES256).await.expect("key");
        let key_b = keys.key_for("https://b", Some("k"), ES256).await.expect("key");
        assert_ne!(key_a.thumbprint(), key_b.thumbprint());
        let refused = keys.key_for("https://c", Some("k"), ES256).await.err();
        assert_eq!(refused, Some(Error::Key(token::Error::UnknownIssuer)));
    }

    #[tokio::test]
    async fn bundle_follows_its_hint_and_sequence() {
        let bundle = |kid: &str, sequence: u64| {
            let mut document = jwks(&[kid]);
            document["keys"][0]["use"] = "jwt-svid".into();
            document["spiffe_sequence"] = sequence.into();
            document["spiffe_refresh_hint"] = 1.into();
            document
        };
        let harness = Harness::of_bundle().await;
        harness.serves(&bundle("a", 2)).await;
        assert_eq!(harness.key("a").await, Ok(()));
        harness.clock.advance(limits::SPIFFE_REFRESH_MIN.saturating_sub(Duration::from_millis(1)));
        assert_eq!(harness.key("a").await, Ok(()));
        assert_eq!(harness.requests().await, 1);
        harness.clock.advance(Duration::from_millis(1));
        harness.serves(&bundle("old", 1)).await;
        assert_eq!(harness.key("a").await, Ok(()));
        assert_eq!(harness.key("old").await, Err(UNKNOWN));
        assert_eq!(harness.requests().await, 1);
        harness.clock.advance(limits::ISSUER_KEYS_RETRY_PAUSE);
        harness.serves(&bundle("b", 3)).await;
        assert_eq!(harness.key("b").await, Ok(()));
        assert_eq!(harness.key("a").await, Err(UNKNOWN));
    }

    #[tokio::test]
    async fn key_file_is_reread_on_the_same_schedule() {
        let mut file = tempfile::NamedTempFile::new().expect("file");
        write!(file, "{}", jwks(&["a"])).expect("written");
        let iss = "https://issuer.example";
        let clock = Clock::manual(Timestamp::from_secs(1));
        let client = local(CallLimits::default());
        let keys = keys_of(&[issuer(iss, KeySource::File(file.path().to_owned()))], client, &clock);
        assert!(keys.key_for(iss, Some("a"), ES256).await.is_ok());
        std::fs::write(file.path(), jwks(&["b"]).to_string()).expect("written");
        assert_eq!(keys.key_for(iss, Some("b"), ES256).await.err(), Some(UNKNOWN));
        clock.advance(limits::ISSUER_KEYS_RETRY_PAUSE);
        assert!(keys.key_for(iss, Some("b"), ES256).await.is_ok());
        std::fs::write(file.path(), vec![b' '; limits::FETCH_BYTES_MAX + 1]).expect("written");
        clock.advance(limits::ISSUER_KEYS_REFRESH);
        assert!(keys.key_for(iss, Some("b"), ES256).await.is_ok());
        clock.advance(limits::ISSUER_KEYS_STALE_MAX);
        assert_eq!(keys.key_for(iss, Some("b"), ES256).await.err(), Some(Error::Unavailable));
    }
}
