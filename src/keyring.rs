//! Signing keys of this node: private halves in files, public halves in the replicated state.
//!
//! A private half never leaves the data directory (directory 0700, files 0600; contract §3, Keys). The log decides
//! which key signs: the oldest active one of this node. There are keys for tokens and, on a node that transmits,
//! keys for security event tokens; neither is ever used for the other.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use moka::sync::Cache;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Mutex;
use tokio::time::{Interval, MissedTickBehavior};

use crate::clock::Timestamp;
use crate::state::{self, Awaited, CallContext, Index, Refusal, SigningKeyRecord, SigningKeyState, State};
use crate::token::key_set::VerifyingKey;
use crate::token::lineage;
use crate::token::signing_key;
use crate::token::signing_key::{EventSigningKey, SigningAlgorithm, SigningKey, StoredKey};
use crate::{limits, text};

/// Extension of a file with a private half (PKCS #8 in DER).
const EXTENSION: &str = "p8";

/// Reason why an operation of the keyring failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Access to a file or the directory failed.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A file to which other users have access.
    #[error(
        "{}: mode {mode:o} is too open, a private key is 0600 in a directory of 0700{}",
        path.display(), text::fs_group_advice(*mode)
    )]
    TooOpen {
        /// Path of the file.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// A file without a usable key.
    #[error(
        "{}: {source}; restore the file from a copy, or remove it and start again: the node then publishes \
         another key, and until that key is active it signs with its other keys",
        path.display()
    )]
    Key {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: signing_key::Error,
    },
    /// Generating a key failed.
    #[error("failed to generate a signing key: {0}")]
    Generate(signing_key::Error),
    /// The state refused the write, or could not be written.
    #[error(transparent)]
    State(#[from] state::Error),
    /// The successor of a key is not old enough to sign, or this node has none.
    #[error(
        "no successor of this signing key is old enough to sign{}",
        .usable_at.map(|at| format!(": the next one is from {}", at.to_rfc3339())).unwrap_or_default()
    )]
    SuccessorTooYoung {
        /// Log time from which the next successor signs.
        usable_at: Option<Timestamp>,
    },
    /// No key of this node for an algorithm is active.
    #[error("this node has no active {0} signing key")]
    NoUsableKey(SigningAlgorithm),
    /// This node has no keys for an algorithm and generates none.
    #[error("this node has no {0} signing keys: it does not transmit security events")]
    DoesNotTransmit(SigningAlgorithm),
}

/// Generates a key for security event tokens outside the threads that serve requests: finding two primes takes a
/// tenth of a second, sometimes many.
pub type GenerateEventKey = Arc<
    dyn Fn() -> Pin<Box<dyn Future<Output = Result<EventSigningKey, signing_key::Error>> + Send>>
        + Send
        + Sync,
>;

/// Keys per algorithm: one that signs, and its successor.
const KEYS_PER_ALGORITHM: usize = 2;

/// The keys of this node. Cheap to clone. Their states are determined by elapsed time.
#[derive(Clone)]
pub struct Keyring {
    directory: Arc<Path>,
    private: Arc<ArcSwap<BTreeMap<String, StoredKey>>>,
    public: Cache<String, Arc<VerifyingKey>>,
    state: State,
    /// `None` on a node that does not transmit.
    generate_event_key: Option<GenerateEventKey>,
    /// Keys of this process that the log may not know yet, whatever the result of publishing them. The lock makes
    /// [`Keyring::ensure`] run once at a time: two runs would both find the same key missing.
    unpublished: Arc<Mutex<Vec<StoredKey>>>,
}

/// The keys of this node for an algorithm, as of one instant.
struct OwnKeys {
    private: Guard<Arc<BTreeMap<String, StoredKey>>>,
    index: Guard<Arc<Index>>,
    algorithm: SigningAlgorithm,
}

impl OwnKeys {
    /// Those with a private half.
    fn records(&self) -> impl Iterator<Item = &SigningKeyRecord> {
        self.of_algorithm().filter(|key| self.has_half(key))
    }

    /// Live keys of `node_id` without a private half.
    fn lost(&self, node_id: u64) -> impl Iterator<Item = &SigningKeyRecord> {
        self.of_algorithm().filter(move |key| key.node_id == node_id && key.is_live() && !self.has_half(key))
    }

    fn of_algorithm(&self) -> impl Iterator<Item = &SigningKeyRecord> {
        self.index.signing_keys.values().filter(|key| key.algorithm == self.algorithm)
    }

    fn has_half(&self, key: &SigningKeyRecord) -> bool {
        self.private.get(&key.kid).is_some_and(|half| half.algorithm() == self.algorithm)
    }
}

impl Keyring {
    /// Reads the private halves in `directory`, which is created if it is missing. Keys for security event tokens are
    /// generated with `generate_event_key`; a node without it does not transmit. Keys from a time when the node
    /// transmitted stay published until they are retired or tainted.
    ///
    /// # Errors
    /// A file is not a key, or other users have access to it.
    pub fn open(
        directory: &Path,
        state: State,
        generate_event_key: Option<GenerateEventKey>,
    ) -> Result<Self, Error> {
        let private = read_directory(directory)?;
        Ok(Self {
            directory: directory.into(),
            private: Arc::new(ArcSwap::from_pointee(private)),
            public: Cache::new(limits::SIGNING_KEYS_MAX as u64),
            state,
            generate_event_key,
            unpublished: Arc::default(),
        })
    }

    /// Runs [`Keyring::ensure`] until the node stops: a request that retires or taints a key may be cancelled before
    /// the successor is published, or publishing may fail.
    pub async fn run(self) {
        self.run_with(tokio::time::interval(limits::SIGNING_KEY_CHECK_INTERVAL)).await;
    }

    async fn run_with(self, mut ticks: Interval) {
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Each change of a key is in the feed; `ensure` runs only if the keys did change.
        let mut feed_end = self.state.feed_end();
        let mut seen = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => seen = None,
                changed = feed_end.changed() => if changed.is_err() {
                    // The state is closed.
                    return std::future::pending().await;
                },
            }
            let keys = Arc::clone(&self.state.index().signing_keys);
            if seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &keys)) {
                seen = Some(keys);
                self.replace_keys().await;
            }
        }
    }

    /// Ensures that this node has a key that signs and a pending successor, for tokens and, if it transmits, for
    /// security event tokens; deletes the private halves that are neither, and retires the keys whose private half is lost.
    pub async fn ensure(&self) -> Result<(), Error> {
        let mut unpublished = self.unpublished.lock().await;
        loop {
            // A key may have been published after its request was cancelled.
            unpublished.retain(|key| !self.state.index().signing_keys.contains_key(key.kid()));
            self.destroy_unused(&unpublished)?;
            let Some(missing) = self.missing() else {
                self.retire_lost().await;
                return Ok(());
            };
            let generated = unpublished.iter().find(|key| key.algorithm() == missing).cloned();
            let key = match generated {
                Some(key) => key,
                None => self.generate(missing, &mut unpublished).await?,
            };
            let (kid, jwk) = (key.kid().to_owned(), key.public_jwk().to_string());
            self.state.publish_signing_key(kid, jwk, missing).await?;
        }
    }

    /// Retires the keys of this node whose private half is lost, once it signs with another one. A failure is repeated with
    /// the next check.
    async fn retire_lost(&self) {
        let elapsed = self.state.elapsed_time();
        for algorithm in SigningAlgorithm::ALL {
            if self.active_key(algorithm, elapsed).is_none() {
                continue;
            }
            let own = self.own(algorithm);
            let lost: Vec<String> =
                own.lost(self.state.cluster().node_id()).map(|key| key.kid.clone()).collect();
            drop(own);
            for kid in lost {
                match self.state.as_node().retire_signing_key(kid.clone()).await {
                    Ok(()) => tracing::warn!(kid, "retired a signing key whose private half is lost"),
                    Err(error) => {
                        tracing::warn!(kid, %error, "failed to retire a signing key whose private half is lost");
                    }
                }
            }
        }
    }

    /// The algorithm of a key that this node needs and does not have.
    fn missing(&self) -> Option<SigningAlgorithm> {
        SigningAlgorithm::ALL.into_iter().find(|&algorithm| {
            let is_needed = algorithm == SigningAlgorithm::Es256 || self.generate_event_key.is_some();
            is_needed && self.live(algorithm) < KEYS_PER_ALGORITHM
        })
    }

    fn live(&self, algorithm: SigningAlgorithm) -> usize {
        self.own(algorithm).records().filter(|key| key.is_live()).count()
    }

    /// Deletes private halves that never sign again: retired, tainted, or unknown to the log because of a crash
    /// before publication.
    fn destroy_unused(&self, unpublished: &[StoredKey]) -> Result<(), Error> {
        let mut live: Vec<String> = unpublished.iter().map(|key| key.kid().to_owned()).collect();
        for algorithm in SigningAlgorithm::ALL {
            let own = self.own(algorithm);
            live.extend(own.records().filter(|key| key.is_live()).map(|key| key.kid.clone()));
        }
        let unused: Vec<String> =
            self.private.load().keys().filter(|kid| !live.contains(kid)).cloned().collect();
        for kid in unused {
            let path = self.directory.join(format!("{kid}.{EXTENSION}"));
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::File { path, source });
                }
                _ => drop(self.private.rcu(|private| {
                    let mut private = BTreeMap::clone(private);
                    private.remove(&kid);
                    private
                })),
            }
        }
        Ok(())
    }

    /// This node's keys for `algorithm` with a private half.
    fn own(&self, algorithm: SigningAlgorithm) -> OwnKeys {
        OwnKeys { private: self.private.load(), index: self.state.index(), algorithm }
    }

    /// The key that signs tokens at `elapsed`: the oldest active one.
    pub fn signing_key(&self, elapsed: Timestamp) -> Result<Arc<SigningKey>, Error> {
        match self.active_key(SigningAlgorithm::Es256, elapsed) {
            Some(StoredKey::Tokens(key)) => Ok(key),
            _ => Err(Error::NoUsableKey(SigningAlgorithm::Es256)),
        }
    }

    /// The key that signs security event tokens at `elapsed`: the oldest active one. [`Error::NoUsableKey`] also if this
    /// node does not transmit and never did.
    pub fn event_signing_key(&self, elapsed: Timestamp) -> Result<Arc<EventSigningKey>, Error> {
        match self.active_key(SigningAlgorithm::Rs256, elapsed) {
            Some(StoredKey::Sets(key)) => Ok(key),
            _ => Err(Error::NoUsableKey(SigningAlgorithm::Rs256)),
        }
    }

    /// The `kid` of the key that signs by `algorithm` at `elapsed`.
    #[must_use]
    pub fn signing_kid(&self, algorithm: SigningAlgorithm, elapsed: Timestamp) -> Option<String> {
        self.active_key(algorithm, elapsed).map(|key| key.kid().to_owned())
    }

    fn active_key(&self, algorithm: SigningAlgorithm, elapsed: Timestamp) -> Option<StoredKey> {
        let own = self.own(algorithm);
        let active = own.records().filter(|key| key.state(elapsed) == SigningKeyState::Active);
        let oldest = active.min_by(|a, b| (a.usable_from, &a.kid).cmp(&(b.usable_from, &b.kid)))?;
        own.private.get(&oldest.kid).cloned()
    }

    /// The key of any node of this cluster with this `kid`, if its signatures are accepted at `elapsed`. A key for
    /// security event tokens verifies no token: nothing that it signed is a credential.
    #[must_use]
    pub fn verifying_key(&self, kid: &str, elapsed: Timestamp) -> Option<Arc<VerifyingKey>> {
        let index = self.state.index();
        let record = index.signing_keys.get(kid).filter(|key| key.verifies(elapsed))?;
        if record.algorithm != SigningAlgorithm::Es256 {
            return None;
        }
        if let Some(key) = self.public.get(kid) {
            return Some(key);
        }
        let jwk: Value = crate::json::parse(record.jwk.as_bytes()).ok()?;
        let key = Arc::new(VerifyingKey::from_jwk(&jwk).ok()?);
        self.public.insert(kid.to_owned(), Arc::clone(&key));
        Some(key)
    }

    /// The JWK Set of all nodes at `elapsed` (RFC 7517 §5).
    #[must_use]
    pub fn jwks(&self, elapsed: Timestamp) -> Value {
        jwks(&self.state, elapsed)
    }

    /// Retires the key that signs by `algorithm` in favour of its successor, and publishes the next one. Returns the
    /// `kid` of the retired key.
    ///
    /// # Errors
    /// [`Error::SuccessorTooYoung`] if the successor is still pending; [`Error::DoesNotTransmit`] if there is no
    /// key to rotate.
    pub async fn rotate(
        &self,
        algorithm: SigningAlgorithm,
        elapsed: Timestamp,
        caller: &CallContext,
    ) -> Result<String, Error> {
        // Completes an earlier rotation first if that failed after its entry.
        self.ensure().await?;
        if self.live(algorithm) == 0 {
            return Err(Error::DoesNotTransmit(algorithm));
        }
        let retired = self.signing_kid(algorithm, elapsed).ok_or(Error::NoUsableKey(algorithm))?;
        // `apply` checks the same, but cannot know which private halves this node has lost.
        let is_active = |key: &&SigningKeyRecord| key.state(elapsed) == SigningKeyState::Active;
        if self.own(algorithm).records().filter(is_active).count() < 2 {
            return Err(self.successor_too_young(algorithm, elapsed));
        }
        match self.state.on_behalf_of(caller).retire_signing_key(retired.clone()).await {
            Err(state::Error::Refused(Refusal::NoAgedSuccessor)) => {
                return Err(self.successor_too_young(algorithm, elapsed));
            }
            retired => retired?,
        }
        self.replace_keys().await;
        Ok(retired)
    }

    fn successor_too_young(&self, algorithm: SigningAlgorithm, elapsed: Timestamp) -> Error {
        let own = self.own(algorithm);
        let pending = own.records().filter(|key| key.state(elapsed) == SigningKeyState::Pending);
        Error::SuccessorTooYoung { usable_at: pending.map(SigningKeyRecord::usable_at).min() }
    }

    /// Taints a key of any node: none of its signatures is accepted any more.
    ///
    /// # Errors
    /// `Refusal::UnknownSigningKey`, [`state::Error::PeersSilent`].
    pub async fn taint(&self, kid: &str, iss: &str, caller: &CallContext) -> Result<Awaited, Error> {
        let state = self.state.on_behalf_of(caller);
        let awaited = state.taint_signing_key(kid.to_owned(), lineage::signing_key(iss, kid)).await?;
        self.replace_keys().await;
        Ok(awaited)
    }

    /// Replaces a retired or tainted key of this node. The change that caused it is applied already: a successor that
    /// cannot be published now is published later by [`Keyring::run`].
    pub async fn replace_keys(&self) {
        if let Err(error) = self.ensure().await {
            tracing::error!(%error, "failed to publish a successor of the signing key");
        }
    }

    /// Generates a key. Its private half is on disk before the log learns of the key.
    async fn generate(
        &self,
        algorithm: SigningAlgorithm,
        unpublished: &mut Vec<StoredKey>,
    ) -> Result<StoredKey, Error> {
        let key = match algorithm {
            SigningAlgorithm::Es256 => {
                StoredKey::Tokens(Arc::new(SigningKey::generate().map_err(Error::Generate)?))
            }
            SigningAlgorithm::Rs256 => {
                let make = self.generate_event_key.as_ref().ok_or(Error::DoesNotTransmit(algorithm))?;
                StoredKey::Sets(Arc::new(make().await.map_err(Error::Generate)?))
            }
        };
        let der = key.to_pkcs8().map_err(Error::Generate)?;
        let path = self.directory.join(format!("{}.{EXTENSION}", key.kid()));
        write_private(&path, &der).await.map_err(|source| Error::File { path, source })?;
        self.private.rcu(|private| {
            let mut private = BTreeMap::clone(private);
            private.insert(key.kid().to_owned(), key.clone());
            private
        });
        unpublished.push(key.clone());
        Ok(key)
    }
}

/// The JWK Set of all nodes at `elapsed` (RFC 7517 §5).
#[must_use]
pub fn jwks(state: &State, elapsed: Timestamp) -> Value {
    let index = state.index();
    let keys: Vec<Value> = index
        .signing_keys
        .values()
        .filter(|key| key.verifies(elapsed))
        .filter_map(|key| crate::json::parse(key.jwk.as_bytes()).ok())
        .collect();
    serde_json::json!({ "keys": keys })
}

fn read_directory(directory: &Path) -> Result<BTreeMap<String, StoredKey>, Error> {
    let file_error = |source| Error::File { path: directory.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(file_error)?;
    // Without this sync, a power failure may remove keys that the log has published.
    crate::cluster::sync_name_of(directory).map_err(file_error)?;
    check_mode(directory)?;
    let mut private = BTreeMap::new();
    for item in fs::read_dir(directory).map_err(file_error)? {
        let path = item.map_err(file_error)?.path();
        if path.extension().is_none_or(|extension| extension != EXTENSION) {
            continue;
        }
        check_mode(&path)?;
        let der = fs::read(&path).map_err(|source| Error::File { path: path.clone(), source })?;
        let key = StoredKey::from_pkcs8(&der).map_err(|source| Error::Key { path, source })?;
        private.insert(key.kid().to_owned(), key);
    }
    Ok(private)
}

fn check_mode(path: &Path) -> Result<(), Error> {
    let metadata = fs::metadata(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 == 0 { Ok(()) } else { Err(Error::TooOpen { path: path.to_owned(), mode }) }
}

/// A crash leaves either the whole file or none with the extension of a key. Asynchronous, so that a slow disk blocks
/// no requests.
async fn write_private(path: &Path, der: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut options = tokio::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh).await?;
    file.write_all(der).await?;
    // tokio reports the result of a write at the next flush.
    file.flush().await?;
    file.sync_all().await?;
    tokio::fs::rename(&fresh, path).await?;
    let parent = path.parent().ok_or_else(|| io::Error::other("a key file has a directory"))?;
    tokio::fs::File::open(parent).await?.sync_all().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::future::join_all;

    use super::*;
    use crate::state::testing::TestNode;

    const RS256: SigningAlgorithm = SigningAlgorithm::Rs256;

    impl Keyring {
        fn live_kids(&self, algorithm: SigningAlgorithm) -> Vec<String> {
            let own = self.own(algorithm);
            let mut live: Vec<_> = own.records().filter(|key| key.is_live()).collect();
            live.sort_by_key(|key| key.usable_from);
            live.into_iter().map(|key| key.kid.clone()).collect()
        }
    }

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    /// A keyring that generates its keys for security events with `make`.
    fn keyring_with(
        node: &TestNode,
        make: impl Fn() -> Result<EventSigningKey, signing_key::Error> + Send + Sync + 'static,
    ) -> Keyring {
        let make: GenerateEventKey = Arc::new(move || Box::pin(std::future::ready(make())));
        Keyring::open(&node.directory.path().join("keys"), node.state.clone(), Some(make)).expect("opens")
    }

    /// Waits until this node has the keys it needs, none of them `but`.
    async fn until_replaced(keyring: &Keyring, algorithm: SigningAlgorithm, but: &str) {
        let mut feed_end = keyring.state.feed_end();
        while keyring.live(algorithm) < KEYS_PER_ALGORITHM
            || keyring.live_kids(algorithm).contains(&but.to_owned())
        {
            feed_end.changed().await.expect("state is open");
        }
    }

    /// The successor of a tainted key was generated by the request that tainted it: if that was cancelled, the node
    /// had one key left, and the next taint left it with none for ten minutes.
    #[tokio::test]
    async fn key_tainted_by_a_cancelled_request_gets_a_successor() {
        let node = TestNode::start(NOW).await;
        let keyring = keyring_with(&node, EventSigningKey::generate);
        keyring.ensure().await.expect("keys");
        for algorithm in SigningAlgorithm::ALL {
            let kid = keyring.live_kids(algorithm).remove(0);
            let tainted = async {
                // A cancelled request leaves only its entry.
                let digest = lineage::signing_key("https://f", &kid);
                node.state.as_node().taint_signing_key(kid.clone(), digest).await.expect("tainted");
                until_replaced(&keyring, algorithm, &kid).await;
            };
            tokio::select! {
                // The first run of `ensure` comes before the taint.
                biased;
                () = keyring.clone().run() => panic!("ended"),
                () = tainted => {}
            }
        }
        drop(keyring);
        node.end().await;
    }

    #[tokio::test]
    async fn failed_generation_of_a_successor_is_retried() {
        let node = TestNode::start(NOW).await;
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let keyring = keyring_with(&node, move || match counted.fetch_add(1, Ordering::SeqCst) {
            0..3 => Err(signing_key::Error::Generation),
            _ => EventSigningKey::generate(),
        });
        assert!(matches!(keyring.ensure().await, Err(Error::Generate(_))));
        tokio::select! {
            () = keyring.clone().run_with(tokio::time::interval(Duration::from_millis(1))) => panic!("ended"),
            () = until_replaced(&keyring, RS256, "none") => {}
        }
        assert_eq!(calls.load(Ordering::SeqCst), 5, "three failures, two keys");
        drop(keyring);
        node.end().await;
    }

    /// Simulates a request that is cancelled while its key is being published: the log may learn of the key later, so
    /// its private half must not be deleted.
    #[tokio::test]
    async fn unpublished_key_is_retained_and_reused() {
        let node = TestNode::start(NOW).await;
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let keyring = keyring_with(&node, move || {
            counted.fetch_add(1, Ordering::SeqCst);
            EventSigningKey::generate()
        });
        // Fills the log's limit except for the two token keys.
        let others = (0..limits::SIGNING_KEYS_MAX - KEYS_PER_ALGORITHM)
            .map(|at| node.state.publish_signing_key(format!("other-{at}"), "{}".to_owned(), RS256));
        for published in join_all(others).await {
            published.expect("published");
        }
        for _ in 0..3 {
            assert!(matches!(keyring.ensure().await, Err(Error::State(_))));
        }
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let generated = keyring.unpublished.lock().await.first().expect("retained").kid().to_owned();
        assert!(keyring.directory.join(format!("{generated}.{EXTENSION}")).exists());
        drop(keyring);
        node.end().await;
    }

    /// Such a key stayed in the JWK Set, and counted as the key with which the node signs.
    #[tokio::test]
    async fn key_without_a_private_half_is_retired_once_another_signs() {
        let node = TestNode::start(NOW).await;
        let keyring = keyring_with(&node, EventSigningKey::generate);
        keyring.ensure().await.expect("keys");
        let lost = keyring.live_kids(RS256).remove(0);
        keyring.private.rcu(|private| {
            let mut private = BTreeMap::clone(private);
            private.remove(&lost);
            private
        });
        let is_live = || node.state.index().signing_keys.get(&lost).is_some_and(SigningKeyRecord::is_live);
        keyring.ensure().await.expect("keys");
        assert!(is_live(), "no other key of the node is old enough to sign");
        node.clock.advance(limits::KEY_PUBLISH_AHEAD);
        keyring.ensure().await.expect("keys");
        assert!(!is_live());
        assert_eq!(keyring.live(RS256), KEYS_PER_ALGORITHM);
        drop(keyring);
        node.end().await;
    }

    /// The kubelet widens the directory of the keys and the keys alike.
    #[tokio::test]
    async fn key_opened_to_a_group_is_refused_with_advice() {
        let outer = tempfile::tempdir().expect("directory");
        let directory = outer.path().join("keys");
        read_directory(&directory).expect("new");
        let key = directory.join(format!("key.{EXTENSION}"));
        write_private(&key, b"").await.expect("written");
        for (path, mode, has_advice) in [
            (&directory, 0o2770, true),
            (&key, 0o660, true),
            (&key, 0o640, false),
            (&directory, 0o777, false),
        ] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
            let refused = read_directory(&directory).expect_err("refused").to_string();
            assert!(refused.contains("too open"), "{refused}");
            assert!(refused.starts_with(&path.display().to_string()), "{refused}");
            assert_eq!(refused.contains("chmod -R g-rwxs"), has_advice, "{refused}");
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).expect("mode");
        }
    }
}
