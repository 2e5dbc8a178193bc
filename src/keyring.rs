//! This node's signing keys: private halves in files, public halves in the replicated state.
//!
//! A private half never leaves the data directory (directory 0700, files 0600; contract §3, Keys).
//! Which key signs is decided by the log: the oldest of this node's that may. There are keys for tokens and,
//! on a node that transmits, keys for security event tokens; neither is ever used for the other.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwap;
use moka::sync::Cache;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Mutex;
use tokio::time::{Interval, MissedTickBehavior};

use crate::clock::Timestamp;
use crate::limits;
use crate::state::{self, CallerFacts, SigningKeyFacts, SigningKeyState, State};
use crate::token::key_set::VerifyingKey;
use crate::token::lineage;
use crate::token::signing_key;
use crate::token::signing_key::{SetSigningKey, SigningAlgorithm, SigningKey, StoredKey};

/// Of a file with a private half, PKCS #8 in DER.
const EXTENSION: &str = "p8";

/// Why the keyring cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or the directory.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that others than its owner can read.
    #[error("{}: mode {mode:o} is too open, a private key is 0600 in a directory of 0700", path.display())]
    TooOpen {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file that holds no usable key.
    #[error(
        "{}: {source}; put the file back from a copy, or remove it and start again: the node then publishes \
         another key, and until that is old enough it signs with those that are left",
        path.display()
    )]
    Key {
        /// Which.
        path: PathBuf,
        /// Why.
        source: signing_key::Error,
    },
    /// A new key could not be made.
    #[error("generate a signing key: {0}")]
    Generate(signing_key::Error),
    /// The state refused, or could not be written.
    #[error(transparent)]
    State(#[from] state::Error),
    /// None of this node's keys of an algorithm may sign now.
    #[error("this node has no {0} signing key that is old enough to sign")]
    NoUsableKey(SigningAlgorithm),
    /// This node has no keys of an algorithm, and makes none.
    #[error("this node has no {0} signing keys: it does not transmit security events")]
    DoesNotTransmit(SigningAlgorithm),
}

/// Makes a key for security event tokens where that holds nobody up: finding two primes takes a tenth of a
/// second, now and then many.
pub type MakeSetKey = Arc<
    dyn Fn() -> Pin<Box<dyn Future<Output = Result<SetSigningKey, signing_key::Error>> + Send>> + Send + Sync,
>;

/// Of each algorithm: one that signs, and its successor.
const KEYS_OF_EACH: usize = 2;

/// The keys of this node. Cheap to clone. What they are good for is judged by elapsed time.
#[derive(Clone)]
pub struct Keyring {
    directory: Arc<Path>,
    private: Arc<ArcSwap<BTreeMap<String, StoredKey>>>,
    public: Cache<String, Arc<VerifyingKey>>,
    state: State,
    /// Only of a node that transmits.
    make_set_key: Option<MakeSetKey>,
    /// The keys of this process that the log does not know yet, whatever became of publishing them. Two who make
    /// keys at once would each find the same one missing.
    unpublished: Arc<Mutex<Vec<StoredKey>>>,
}

impl Keyring {
    /// Reads the private halves in `directory`, which is made if it is not there. Keys for security event
    /// tokens are made with `make_set_key`, and none without it: then the node does not transmit. Those that it
    /// made when it did stay published until they are retired or tainted.
    ///
    /// # Errors
    /// If a file is not a key, or is open to others.
    pub fn open(directory: &Path, state: State, make_set_key: Option<MakeSetKey>) -> Result<Self, Error> {
        let private = read_directory(directory)?;
        Ok(Self {
            directory: directory.into(),
            private: Arc::new(ArcSwap::from_pointee(private)),
            public: Cache::new(limits::SIGNING_KEYS_MAX as u64),
            state,
            make_set_key,
            unpublished: Arc::default(),
        })
    }

    /// Sees to it until the node ends that [`Keyring::ensure`] holds: whoever retires or taints a key may go away
    /// before there is a successor, or it could not be published.
    pub async fn keep(self) {
        self.keep_by(tokio::time::interval(limits::SIGNING_KEYS_LOOK_INTERVAL)).await;
    }

    async fn keep_by(self, mut looks: Interval) {
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Whatever is done to a key is told; it is looked at only if it was done to one.
        let mut told = self.state.feed_end();
        let mut seen = None;
        loop {
            tokio::select! {
                _ = looks.tick() => seen = None,
                changed = told.changed() => if changed.is_err() {
                    // There is no more state.
                    return std::future::pending().await;
                },
            }
            let keys = Arc::clone(&self.state.index().signing_keys);
            if seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &keys)) {
                seen = Some(keys);
                self.ensure_later().await;
            }
        }
    }

    /// Makes sure that this node has a key that signs and a successor that ages, for tokens and, if it
    /// transmits, for security event tokens, and destroys the private halves that have no part in that any
    /// more.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn ensure(&self) -> Result<(), Error> {
        let mut unpublished = self.unpublished.lock().await;
        loop {
            // One may have been published after whoever asked for it went away.
            unpublished.retain(|key| !self.state.index().signing_keys.contains_key(key.kid()));
            self.destroy_unused(&unpublished)?;
            let Some(lacking) = self.lacking() else { return Ok(()) };
            let made = unpublished.iter().find(|key| key.algorithm() == lacking).cloned();
            let key = match made {
                Some(key) => key,
                None => self.make(lacking, &mut unpublished).await?,
            };
            let (kid, jwk) = (key.kid().to_owned(), key.public_jwk().to_string());
            self.state.publish_signing_key(kid, jwk, lacking).await?;
        }
    }

    /// The algorithm of a key that this node needs and has not got.
    fn lacking(&self) -> Option<SigningAlgorithm> {
        SigningAlgorithm::ALL.into_iter().find(|&algorithm| {
            let is_needed = algorithm == SigningAlgorithm::Es256 || self.make_set_key.is_some();
            is_needed && self.live(algorithm) < KEYS_OF_EACH
        })
    }

    fn live(&self, algorithm: SigningAlgorithm) -> usize {
        self.own(algorithm).filter(SigningKeyFacts::is_live).count()
    }

    /// A private half that is retired, tainted or unknown to the log never signs again, so that it
    /// is not kept. One that a crash left before it was published goes the same way.
    fn destroy_unused(&self, unpublished: &[StoredKey]) -> Result<(), Error> {
        let own = SigningAlgorithm::ALL.into_iter().flat_map(|algorithm| self.own(algorithm));
        let live = own.filter(SigningKeyFacts::is_live).map(|key| key.kid);
        let live: Vec<String> = live.chain(unpublished.iter().map(|key| key.kid().to_owned())).collect();
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

    /// This node's keys that it can sign with by `algorithm`, oldest first.
    fn own(&self, algorithm: SigningAlgorithm) -> impl Iterator<Item = SigningKeyFacts> + use<> {
        let private = self.private.load_full();
        let mut own: Vec<_> = self
            .state
            .index()
            .signing_keys
            .values()
            .filter(|key| key.algorithm == algorithm)
            .filter(|key| private.get(&key.kid).is_some_and(|half| half.algorithm() == algorithm))
            .cloned()
            .collect();
        own.sort_by(|a, b| (a.usable_from, &a.kid).cmp(&(b.usable_from, &b.kid)));
        own.into_iter()
    }

    /// The key that signs tokens at `passed`: the oldest that may.
    ///
    /// # Errors
    /// [`Error::NoUsableKey`].
    pub fn signing_key(&self, passed: Timestamp) -> Result<Arc<SigningKey>, Error> {
        match self.signs(SigningAlgorithm::Es256, passed) {
            Some(StoredKey::Tokens(key)) => Ok(key),
            _ => Err(Error::NoUsableKey(SigningAlgorithm::Es256)),
        }
    }

    /// The key that signs security event tokens at `passed`: the oldest that may.
    ///
    /// # Errors
    /// [`Error::NoUsableKey`], also if this node does not transmit and never did.
    pub fn set_signing_key(&self, passed: Timestamp) -> Result<Arc<SetSigningKey>, Error> {
        match self.signs(SigningAlgorithm::Rs256, passed) {
            Some(StoredKey::Sets(key)) => Ok(key),
            _ => Err(Error::NoUsableKey(SigningAlgorithm::Rs256)),
        }
    }

    /// The `kid` of the key that signs by `algorithm` at `passed`, if one may.
    #[must_use]
    pub fn signing_kid(&self, algorithm: SigningAlgorithm, passed: Timestamp) -> Option<String> {
        self.signs(algorithm, passed).map(|key| key.kid().to_owned())
    }

    fn signs(&self, algorithm: SigningAlgorithm, passed: Timestamp) -> Option<StoredKey> {
        let private = self.private.load();
        let facts = self.own(algorithm).find(|key| key.state(passed) == SigningKeyState::Active)?;
        private.get(&facts.kid).cloned()
    }

    /// The key of any node of this cluster that signed a token under `kid`, if what it signed may be
    /// accepted at `passed`. A key for security event tokens verifies no token: nothing it signed is a credential.
    #[must_use]
    pub fn verifying_key(&self, kid: &str, passed: Timestamp) -> Option<Arc<VerifyingKey>> {
        let index = self.state.index();
        let facts = index.signing_keys.get(kid).filter(|key| key.verifies(passed))?;
        if facts.algorithm != SigningAlgorithm::Es256 {
            return None;
        }
        if let Some(key) = self.public.get(kid) {
            return Some(key);
        }
        let jwk: Value = crate::json::parse(facts.jwk.as_bytes()).ok()?;
        let key = Arc::new(VerifyingKey::from_jwk(&jwk).ok()?);
        self.public.insert(kid.to_owned(), Arc::clone(&key));
        Some(key)
    }

    /// The public halves of every node's keys that stand in the JWKS at `passed` (RFC 7517 §5).
    #[must_use]
    pub fn jwks(&self, passed: Timestamp) -> Value {
        jwks(&self.state, passed)
    }

    /// Retires the key that signs by `algorithm` now in favour of its successor, and publishes the next one.
    /// Answers the `kid` that was retired.
    ///
    /// # Errors
    /// [`state::Error::NoAgedSuccessor`] if the successor is not old enough; [`Error::DoesNotTransmit`] if
    /// there is nothing to rotate; as [`Error`] says.
    pub async fn rotate(
        &self,
        algorithm: SigningAlgorithm,
        passed: Timestamp,
        caller: &CallerFacts,
    ) -> Result<String, Error> {
        // Whatever went wrong after an earlier rotation is made good first.
        self.ensure().await?;
        if self.live(algorithm) == 0 {
            return Err(Error::DoesNotTransmit(algorithm));
        }
        let retired = self.signing_kid(algorithm, passed).ok_or(Error::NoUsableKey(algorithm))?;
        // The log asks the same of the node; it cannot know which private halves the node has lost.
        if self.own(algorithm).filter(|key| key.state(passed) == SigningKeyState::Active).count() < 2 {
            return Err(state::Error::NoAgedSuccessor.into());
        }
        self.state.on_behalf_of(caller).retire_signing_key(retired.clone()).await?;
        self.ensure_later().await;
        Ok(retired)
    }

    /// Taints a key of any node: nothing it signed is accepted any more.
    ///
    /// # Errors
    /// [`state::Error::UnknownSigningKey`]; as [`Error`] says.
    pub async fn taint(&self, kid: &str, iss: &str, caller: &CallerFacts) -> Result<(), Error> {
        let state = self.state.on_behalf_of(caller);
        state.taint_signing_key(kid.to_owned(), lineage::signing_key(iss, kid)).await?;
        self.ensure_later().await;
        Ok(())
    }

    /// Replaces a key of this node that signs no more. What was asked for stands already: a successor that
    /// cannot be published now is published later by [`Keyring::keep`].
    pub async fn ensure_later(&self) {
        if let Err(error) = self.ensure().await {
            tracing::error!(%error, "publish a successor of the signing key");
        }
    }

    /// A key whose private half is on disk: the log says only then that it exists.
    async fn make(
        &self,
        algorithm: SigningAlgorithm,
        unpublished: &mut Vec<StoredKey>,
    ) -> Result<StoredKey, Error> {
        let key = match algorithm {
            SigningAlgorithm::Es256 => {
                StoredKey::Tokens(Arc::new(SigningKey::generate().map_err(Error::Generate)?))
            }
            SigningAlgorithm::Rs256 => {
                let make = self.make_set_key.as_ref().ok_or(Error::DoesNotTransmit(algorithm))?;
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

/// The public halves of every node's keys that stand in the JWKS at `passed` (RFC 7517 §5).
#[must_use]
pub fn jwks(state: &State, passed: Timestamp) -> Value {
    let index = state.index();
    let keys: Vec<Value> = index
        .signing_keys
        .values()
        .filter(|key| key.verifies(passed))
        .filter_map(|key| crate::json::parse(key.jwk.as_bytes()).ok())
        .collect();
    serde_json::json!({ "keys": keys })
}

fn read_directory(directory: &Path) -> Result<BTreeMap<String, StoredKey>, Error> {
    let file_error = |source| Error::File { path: directory.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(file_error)?;
    // Or a power cut takes the keys that the log has published.
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

/// A crash leaves the whole file or none that counts as a key. A disk that is slow to sync holds up no requests.
async fn write_private(path: &Path, der: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut options = tokio::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh).await?;
    file.write_all(der).await?;
    // What the write came to is said here only.
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
    use crate::state::testing::Core;

    const RS256: SigningAlgorithm = SigningAlgorithm::Rs256;

    impl Keyring {
        fn live_kids(&self, algorithm: SigningAlgorithm) -> Vec<String> {
            self.own(algorithm).filter(SigningKeyFacts::is_live).map(|key| key.kid).collect()
        }
    }

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    /// A keyring of this node that makes its keys for events with `make`.
    fn keyring_with(
        node: &Core,
        make: impl Fn() -> Result<SetSigningKey, signing_key::Error> + Send + Sync + 'static,
    ) -> Keyring {
        let make: MakeSetKey = Arc::new(move || Box::pin(std::future::ready(make())));
        Keyring::open(&node.place.path().join("keys"), node.state.clone(), Some(make)).expect("opens")
    }

    /// Until this node has as many keys as it needs, of those that are not `but`.
    async fn until_replaced(keyring: &Keyring, algorithm: SigningAlgorithm, but: &str) {
        let mut told = keyring.state.feed_end();
        while keyring.live(algorithm) < KEYS_OF_EACH || keyring.live_kids(algorithm).contains(&but.to_owned())
        {
            told.changed().await.expect("it goes on");
        }
    }

    /// The successor of a tainted key was made by the request that tainted it: if that went away, the node had one
    /// key left, and the next taint left it with none for ten minutes.
    #[tokio::test]
    async fn a_key_has_a_successor_though_whoever_tainted_it_went_away() {
        let node = Core::start(NOW).await;
        let keyring = keyring_with(&node, SetSigningKey::generate);
        keyring.ensure().await.expect("keys");
        for algorithm in SigningAlgorithm::ALL {
            let kid = keyring.live_kids(algorithm).remove(0);
            let tainted = async {
                // All that is left of the request is its entry.
                let digest = lineage::signing_key("https://f", &kid);
                node.state.as_node().taint_signing_key(kid.clone(), digest).await.expect("tainted");
                until_replaced(&keyring, algorithm, &kid).await;
            };
            tokio::select! {
                // It has had its first look before the key is tainted.
                biased;
                () = keyring.clone().keep() => panic!("it ended"),
                () = tainted => {}
            }
        }
        drop(keyring);
        node.end().await;
    }

    #[tokio::test]
    async fn a_successor_that_could_not_be_written_is_made_a_minute_later() {
        let node = Core::start(NOW).await;
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let keyring = keyring_with(&node, move || match counted.fetch_add(1, Ordering::SeqCst) {
            0..3 => Err(signing_key::Error::Generation),
            _ => SetSigningKey::generate(),
        });
        assert!(matches!(keyring.ensure().await, Err(Error::Generate(_))));
        tokio::select! {
            () = keyring.clone().keep_by(tokio::time::interval(Duration::from_millis(1))) => panic!("it ended"),
            () = until_replaced(&keyring, RS256, "none") => {}
        }
        assert_eq!(calls.load(Ordering::SeqCst), 5, "it failed three times and made two");
        drop(keyring);
        node.end().await;
    }

    /// As a request does that goes away while its key is published: the log may know the key a moment later, and then
    /// its other half must not be gone.
    #[tokio::test]
    async fn a_key_that_may_be_published_yet_is_kept_and_no_other_is_made() {
        let node = Core::start(NOW).await;
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let keyring = keyring_with(&node, move || {
            counted.fetch_add(1, Ordering::SeqCst);
            SetSigningKey::generate()
        });
        // The log takes none beyond its limit, which the two for tokens do not reach.
        let others = (0..limits::SIGNING_KEYS_MAX - KEYS_OF_EACH)
            .map(|at| node.state.publish_signing_key(format!("other-{at}"), "{}".to_owned(), RS256));
        for published in join_all(others).await {
            published.expect("published");
        }
        for _ in 0..3 {
            assert!(matches!(keyring.ensure().await, Err(Error::State(_))));
        }
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let made = keyring.unpublished.lock().await.first().expect("it is kept").kid().to_owned();
        assert!(keyring.directory.join(format!("{made}.{EXTENSION}")).exists());
        drop(keyring);
        node.end().await;
    }
}
