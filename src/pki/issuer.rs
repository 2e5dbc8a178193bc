//! A development issuer: a signing key with its JWK Set in the directory of the certificates, and credentials signed with
//! it. It replaces a Kubernetes cluster in development.

use std::path::{Path, PathBuf};

use rcgen::KeyPair;
use serde_json::json;

use super::files::{KeyPairPaths, make_directory};
use super::{Error, Unfit};
use crate::clock::Clock;
use crate::demo;
use crate::token::signing_key::SigningKey;

/// Files of a development issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerFiles {
    /// Its JWK Set (RFC 7517 §5), for `keys_file` of `[[issuers]]`.
    pub key_set: PathBuf,
    /// Its private key, PKCS #8 in PEM, mode 0600.
    pub private_key: PathBuf,
    /// Whether it was created now; otherwise it existed and is unchanged.
    pub is_new: bool,
}

/// Signs development credentials.
pub struct DevelopmentIssuer {
    key: SigningKey,
}

impl DevelopmentIssuer {
    /// `iss` of its credentials; the shipped policy has rules for it.
    pub const ISS: &str = demo::ISSUER;

    /// The files in `directory`, created if absent, never overwritten.
    pub fn make(directory: &Path) -> Result<IssuerFiles, Error> {
        make_directory(directory)?;
        let paths = paths(directory);
        let is_new = Self::at(&paths)?.is_none();
        if is_new {
            let pair = KeyPair::generate()?;
            let key = SigningKey::from_pkcs8(&pair.serialize_der())?;
            paths.write(&key_set(&key), &pair.serialize_pem())?;
        }
        let KeyPairPaths { certificate: key_set, private_key } = paths;
        Ok(IssuerFiles { key_set, private_key, is_new })
    }

    /// The existing issuer in `directory`.
    ///
    /// # Errors
    /// [`Error::NoIssuer`] if there is none.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let key = Self::at(&paths(directory))?.ok_or_else(|| Error::NoIssuer(directory.to_owned()))?;
        Ok(Self { key })
    }

    /// A service-account token as of a Kubernetes API server, valid for ten minutes.
    ///
    /// # Errors
    /// [`Error::Credential`] if a name breaks its rule.
    pub fn credential(
        &self,
        audience: &str,
        namespace: &str,
        service_account: &str,
        clock: &Clock,
    ) -> Result<String, Error> {
        demo::credential(&self.key, Self::ISS, audience, namespace, service_account, clock)
            .map_err(Error::Credential)
    }

    fn at(paths: &KeyPairPaths) -> Result<Option<SigningKey>, Error> {
        let Some((text, key)) = paths.read()? else { return Ok(None) };
        let unfit = |reason| Error::Unfit { path: paths.certificate.clone(), reason };
        let pair = KeyPair::from_pem(&key).map_err(|_| unfit(Unfit::NotAKey))?;
        let key = SigningKey::from_pkcs8(&pair.serialize_der()).map_err(|_| unfit(Unfit::NotAKey))?;
        if text == key_set(&key).as_bytes() { Ok(Some(key)) } else { Err(unfit(Unfit::OtherKeySet)) }
    }
}

fn paths(directory: &Path) -> KeyPairPaths {
    KeyPairPaths {
        certificate: directory.join("issuer-keys.json"),
        private_key: directory.join("issuer-key.pem"),
    }
}

fn key_set(key: &SigningKey) -> String {
    format!("{}\n", json!({"keys": [key.public_jwk()]}))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::clock::Timestamp;
    use crate::token::jws::Compact;
    use crate::token::key_set::{KeySet, Purpose};

    fn clock() -> Clock {
        Clock::manual(Timestamp::from_secs(1_800_000_000))
    }

    fn credential(directory: &Path) -> String {
        let issuer = DevelopmentIssuer::open(directory).expect("an issuer");
        issuer.credential("https://localhost:8694", "demo", "reporter", &clock()).expect("a credential")
    }

    fn is_signed_by(credential: &str, key_set: &Path) -> bool {
        let keys = KeySet::parse(&fs::read(key_set).expect("read"), Purpose::Issuer).expect("a key set");
        let token = Compact::parse(credential).expect("a token");
        keys.select(token.header().kid.as_deref(), token.header().algorithm)
            .is_ok_and(|key| token.verify(&key).is_ok())
    }

    #[test]
    fn credentials_verify_by_the_key_set_after_a_second_run() {
        let parent = tempfile::tempdir().expect("directory");
        let [directory, other] = ["pki", "other"].map(|name| parent.path().join(name));
        let first = DevelopmentIssuer::make(&directory).expect("made");
        let before = credential(&directory);
        let second = DevelopmentIssuer::make(&directory).expect("kept");
        assert_eq!((first.is_new, second.is_new), (true, false));
        for credential in [before, credential(&directory)] {
            assert!(is_signed_by(&credential, &second.key_set));
        }
        let other = DevelopmentIssuer::make(&other).expect("made");
        assert!(!is_signed_by(&credential(&directory), &other.key_set));
    }

    #[test]
    fn key_is_private_and_key_set_is_public() {
        let parent = tempfile::tempdir().expect("directory");
        let directory = parent.path().join("pki");
        let files = DevelopmentIssuer::make(&directory).expect("made");
        let mode = |path: &Path| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
        assert_eq!(
            [&directory, &files.private_key, &files.key_set].map(|path| mode(path)),
            [0o700, 0o600, 0o644]
        );
        // A key set with a private part would be refused.
        KeySet::parse(&fs::read(&files.key_set).expect("read"), Purpose::Issuer).expect("a key set");
        fs::set_permissions(&files.private_key, fs::Permissions::from_mode(0o640)).expect("mode");
        assert!(matches!(DevelopmentIssuer::open(&directory), Err(Error::TooOpen { mode: 0o640, .. })));
    }

    #[test]
    fn missing_or_mismatched_files_are_refused() {
        let parent = tempfile::tempdir().expect("directory");
        let [directory, other] = ["pki", "other"].map(|name| parent.path().join(name));
        assert!(matches!(DevelopmentIssuer::open(&directory), Err(Error::NoIssuer(_))));
        assert!(!directory.exists());
        let files = DevelopmentIssuer::make(&directory).expect("made");
        let other = DevelopmentIssuer::make(&other).expect("made");
        fs::copy(&other.key_set, &files.key_set).expect("copied");
        for outcome in [DevelopmentIssuer::make(&directory).err(), DevelopmentIssuer::open(&directory).err()]
        {
            assert!(matches!(outcome, Some(Error::Unfit { reason: Unfit::OtherKeySet, .. })), "{outcome:?}");
        }
        fs::remove_file(&files.key_set).expect("removed");
        assert!(matches!(DevelopmentIssuer::make(&directory), Err(Error::HalfMissing { .. })));
    }

    #[test]
    fn name_with_separator_gets_no_credential() {
        let parent = tempfile::tempdir().expect("directory");
        let directory = parent.path().join("pki");
        DevelopmentIssuer::make(&directory).expect("made");
        let issuer = DevelopmentIssuer::open(&directory).expect("an issuer");
        for (namespace, name) in [("demo", "a:b"), ("a/b", "reporter"), ("", "reporter")] {
            let outcome = issuer.credential("a", namespace, name, &clock());
            assert!(matches!(outcome, Err(Error::Credential(_))), "{namespace} {name}");
        }
    }
}
