//! This node's signing keys: private halves in files, public halves in the replicated state.
//!
//! A private half never leaves the data directory (directory 0700, files 0600; contract §3, Keys).
//! Which key signs is decided by the log: the oldest of this node's that may. There are keys for tokens and,
//! on a node that transmits, keys for security event tokens; neither is ever used for the other.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwap;
use moka::sync::Cache;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::clock::Timestamp;
use crate::limits;
use crate::state::{self, SigningKeyFacts, SigningKeyState, State};
use crate::token::key_set::VerifyingKey;
use crate::token::lineage;
use crate::token::signing::{self, SetSigningKey, SigningAlgorithm, SigningKey, StoredKey};

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
        source: signing::Error,
    },
    /// A new key could not be made.
    #[error("generate a signing key: {0}")]
    Generate(signing::Error),
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
    dyn Fn() -> Pin<Box<dyn Future<Output = Result<SetSigningKey, signing::Error>> + Send>> + Send + Sync,
>;

/// Of each algorithm: one that signs, and its successor.
const KEYS_OF_EACH: usize = 2;

/// The keys of this node. Cheap to clone.
#[derive(Clone)]
pub struct Keyring {
    directory: Arc<Path>,
    private: Arc<ArcSwap<BTreeMap<String, StoredKey>>>,
    public: Cache<String, Arc<VerifyingKey>>,
    state: State,
    /// Only of a node that transmits.
    make_set_key: Option<MakeSetKey>,
    /// Two at once would each find the same key missing, and the half-made key of the other unused.
    ensuring: Arc<Mutex<()>>,
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
            ensuring: Arc::default(),
        })
    }

    /// Makes sure that this node has a key that signs and a successor that ages, for tokens and, if it
    /// transmits, for security event tokens, and destroys the private halves that have no part in that any
    /// more.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn ensure(&self) -> Result<(), Error> {
        let _alone = self.ensuring.lock().await;
        loop {
            self.destroy_unused()?;
            let Some(lacking) = self.lacking() else { return Ok(()) };
            self.publish_new(lacking).await?;
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
    fn destroy_unused(&self) -> Result<(), Error> {
        let own = SigningAlgorithm::ALL.into_iter().flat_map(|algorithm| self.own(algorithm));
        let live: Vec<String> = own.filter(SigningKeyFacts::is_live).map(|key| key.kid).collect();
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

    /// The key that signs tokens at `now`: the oldest that may.
    ///
    /// # Errors
    /// [`Error::NoUsableKey`].
    pub fn signing_key(&self, now: Timestamp) -> Result<Arc<SigningKey>, Error> {
        match self.signs(SigningAlgorithm::Es256, now) {
            Some(StoredKey::Tokens(key)) => Ok(key),
            _ => Err(Error::NoUsableKey(SigningAlgorithm::Es256)),
        }
    }

    /// The key that signs security event tokens at `now`: the oldest that may.
    ///
    /// # Errors
    /// [`Error::NoUsableKey`], also if this node does not transmit and never did.
    pub fn set_signing_key(&self, now: Timestamp) -> Result<Arc<SetSigningKey>, Error> {
        match self.signs(SigningAlgorithm::Rs256, now) {
            Some(StoredKey::Sets(key)) => Ok(key),
            _ => Err(Error::NoUsableKey(SigningAlgorithm::Rs256)),
        }
    }

    /// The `kid` of the key that signs by `algorithm` at `now`, if one may.
    #[must_use]
    pub fn signing_kid(&self, algorithm: SigningAlgorithm, now: Timestamp) -> Option<String> {
        self.signs(algorithm, now).map(|key| key.kid().to_owned())
    }

    fn signs(&self, algorithm: SigningAlgorithm, now: Timestamp) -> Option<StoredKey> {
        let private = self.private.load();
        let facts = self.own(algorithm).find(|key| key.state(now) == SigningKeyState::Active)?;
        private.get(&facts.kid).cloned()
    }

    /// The key of any node of this cluster that signed a token under `kid`, if what it signed may be
    /// accepted at `now`. A key for security event tokens verifies no token: nothing it signed is a credential.
    #[must_use]
    pub fn verifying_key(&self, kid: &str, now: Timestamp) -> Option<Arc<VerifyingKey>> {
        let index = self.state.index();
        let facts = index.signing_keys.get(kid).filter(|key| key.verifies(now))?;
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

    /// The public halves of every node's keys that stand in the JWKS at `now` (RFC 7517 §5).
    #[must_use]
    pub fn jwks(&self, now: Timestamp) -> Value {
        let index = self.state.index();
        let keys: Vec<Value> = index
            .signing_keys
            .values()
            .filter(|key| key.verifies(now))
            .filter_map(|key| crate::json::parse(key.jwk.as_bytes()).ok())
            .collect();
        serde_json::json!({ "keys": keys })
    }

    /// Retires the key that signs by `algorithm` now in favour of its successor, and publishes the next one.
    /// Answers the `kid` that was retired.
    ///
    /// # Errors
    /// [`state::Error::NoAgedSuccessor`] if the successor is not old enough; [`Error::DoesNotTransmit`] if
    /// there is nothing to rotate; as [`Error`] says.
    pub async fn rotate(&self, algorithm: SigningAlgorithm, now: Timestamp) -> Result<String, Error> {
        // Whatever went wrong after an earlier rotation is made good first.
        self.ensure().await?;
        if self.live(algorithm) == 0 {
            return Err(Error::DoesNotTransmit(algorithm));
        }
        let retired = self.signing_kid(algorithm, now).ok_or(Error::NoUsableKey(algorithm))?;
        // The log asks the same of the node; it cannot know which private halves the node has lost.
        if self.own(algorithm).filter(|key| key.state(now) == SigningKeyState::Active).count() < 2 {
            return Err(state::Error::NoAgedSuccessor.into());
        }
        self.state.retire_signing_key(retired.clone()).await?;
        self.ensure_later().await;
        Ok(retired)
    }

    /// Taints a key of any node: nothing it signed is accepted any more.
    ///
    /// # Errors
    /// [`state::Error::UnknownSigningKey`]; as [`Error`] says.
    pub async fn taint(&self, kid: &str, iss: &str) -> Result<(), Error> {
        self.state.taint_signing_key(kid.to_owned(), lineage::signing_key(iss, kid)).await?;
        self.ensure_later().await;
        Ok(())
    }

    /// Replaces a key of this node that signs no more. What was asked for stands already: a successor that
    /// cannot be published now is published by the next rotation, taint or start.
    pub async fn ensure_later(&self) {
        if let Err(error) = self.ensure().await {
            tracing::error!(%error, "publish a successor of the signing key");
        }
    }

    /// The private half is on disk before the log says that it exists.
    async fn publish_new(&self, algorithm: SigningAlgorithm) -> Result<(), Error> {
        let key = self.make(algorithm).await?;
        let (kid, jwk) = (key.kid().to_owned(), key.public_jwk().to_string());
        self.state.publish_signing_key(kid, jwk, algorithm).await?;
        Ok(())
    }

    async fn make(&self, algorithm: SigningAlgorithm) -> Result<StoredKey, Error> {
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
        write_private(&path, &der).map_err(|source| Error::File { path, source })?;
        self.private.rcu(|private| {
            let mut private = BTreeMap::clone(private);
            private.insert(key.kid().to_owned(), key.clone());
            private
        });
        Ok(key)
    }
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

/// A crash leaves the whole file or none that counts as a key.
fn write_private(path: &Path, der: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(der)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    let parent = path.parent().ok_or_else(|| io::Error::other("a key file has a directory"))?;
    fs::File::open(parent)?.sync_all()
}
