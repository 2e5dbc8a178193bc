//! SPIFFE bundles (SPIFFE Trust Domain and Bundle §4): the X.509 roots of one trust domain as a JWK Set, read from a peer
//! fabric and written for it.
//!
//! A bundle that breaks a rule changes nothing: the newest accepted one stays in use.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use serde_json::{Map, Value, json};
use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;

use super::{Error, files, svid};
use crate::clock::Timestamp;
use crate::limits;
use crate::token::key_set::{self, SpiffeDocument};

/// `use` of the key of a root (§4.2.2).
const X509_SVID: &str = "x509-svid";

/// Refusal of a bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Its file cannot be read.
    #[error(transparent)]
    File(Box<Error>),
    /// Not a JWK Set, or one with too many keys.
    #[error(transparent)]
    Document(#[from] key_set::Error),
    /// X509-SVID §6.2: "the x5c parameter MUST contain exactly one certificate".
    #[error("bundle has a key of use x509-svid whose x5c is not one certificate")]
    NotOneCertificate,
    /// Its holder could issue any name.
    #[error("bundle has a certificate that is not a CA certificate")]
    NotACa,
    /// §4.1.1: a lower number is an older bundle.
    #[error("spiffe_sequence went backwards")]
    SequenceWentBack,
    /// Without this root a client of the bundle would refuse the certificates that the root has issued.
    #[error("a CA has a key without JWK form, which is neither EC, RSA nor Ed25519; it cannot be published")]
    NoJwk,
    /// Not written by [`Bundle::to_keep`].
    #[error("is not a kept bundle; without it the node begins with bundle_file")]
    NotKept,
}

/// The newest accepted bundle of a trust domain. Cheap to clone; clones share it.
#[derive(Clone)]
pub struct Bundle(Arc<Shared>);

struct Shared {
    file: PathBuf,
    /// Digest of the file as it was last read, also if it was refused.
    read: Mutex<[u8; 32]>,
    accepted: ArcSwap<Document>,
}

struct Document {
    digest: [u8; 32],
    /// Digest of the file that was accepted last. The same if this is the document of the file.
    file_digest: [u8; 32],
    roots: Vec<Root>,
    sequence: Option<u64>,
    refresh_hint: Option<Duration>,
}

struct Root {
    certificate: CertificateDer<'static>,
    not_after: Timestamp,
}

impl Bundle {
    /// The bundle in a file.
    ///
    /// # Errors
    /// [`Error::Bundle`].
    pub fn load(file: PathBuf) -> Result<Self, Error> {
        let document = read(&file).and_then(|text| Document::parse(&text));
        let document = document.map_err(|source| Error::Bundle { path: file.clone(), source })?;
        let (read, accepted) = (Mutex::new(document.digest), ArcSwap::from_pointee(document));
        Ok(Self(Arc::new(Shared { file, read, accepted })))
    }

    /// Uses the bundle in `kept`, if it was accepted under this content of the file. Without it, a restart would trust
    /// roots again that the peer has withdrawn. Returns whether it is in use.
    ///
    /// # Errors
    /// [`Error::Bundle`].
    pub fn resume(&self, kept: &Path) -> Result<bool, Error> {
        // The file is in the data directory, to which no other user has access.
        let text = match files::read(kept, limits::TLS_FILE_BYTES_MAX, |_, _, _| Ok(())) {
            Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(false),
            read => read?,
        };
        let malformed = |source| Error::Bundle { path: kept.to_owned(), source };
        let line_end = text.iter().position(|byte| *byte == b'\n');
        let (line, document) = line_end
            .and_then(|at| text.split_at_checked(at + 1))
            .ok_or_else(|| malformed(BundleError::NotKept))?;
        let file_digest = self.0.accepted.load().file_digest;
        if line != kept_line(file_digest).as_bytes() {
            return Ok(false);
        }
        let document = Document::parse(document).map_err(malformed)?;
        self.0.accepted.store(Arc::new(Document { file_digest, ..document }));
        Ok(true)
    }

    /// The content of a file that keeps this accepted document for [`Self::resume`].
    #[must_use]
    pub fn to_keep(&self, document: &[u8]) -> Vec<u8> {
        [kept_line(self.0.accepted.load().file_digest).as_bytes(), document].concat()
    }

    /// Whether the bundle in use is that of the file, and not a newer one of the endpoint.
    #[must_use]
    pub fn is_of_file(&self) -> bool {
        let accepted = self.0.accepted.load();
        accepted.digest == accepted.file_digest
    }

    /// Reads the file again and accepts it if it has changed since it was accepted. An operator may go back to an older
    /// bundle. Returns whether the file was accepted.
    ///
    /// # Errors
    /// [`BundleError`], once for each content.
    pub fn read_again(&self) -> Result<bool, BundleError> {
        let text = read(&self.0.file)?;
        let digest = files::digest_of([text.as_slice()]);
        let mut read = self.0.read.lock();
        let before = std::mem::replace(&mut *read, digest);
        drop(read);
        if before == digest || self.0.accepted.load().file_digest == digest {
            return Ok(false);
        }
        self.0.accepted.store(Arc::new(Document::parse(&text)?));
        Ok(true)
    }

    /// Accepts a newer bundle of the endpoint. Returns whether the bundle in use changed.
    ///
    /// # Errors
    /// [`BundleError`]; the previous one stays in use.
    pub fn accept(&self, document: &[u8]) -> Result<bool, BundleError> {
        let document = Document::parse(document)?;
        let before = self.0.accepted.load();
        // A document without a number has no order.
        if let (Some(sequence), Some(before)) = (document.sequence, before.sequence)
            && sequence < before
        {
            return Err(BundleError::SequenceWentBack);
        }
        let is_new = document.digest != before.digest;
        self.0.accepted.store(Arc::new(Document { file_digest: before.file_digest, ..document }));
        Ok(is_new)
    }

    /// Time after which it is fetched again.
    #[must_use]
    pub fn refresh_interval(&self) -> Duration {
        key_set::refresh_interval(self.0.accepted.load().refresh_hint)
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.0.file
    }

    /// The roots. webpki does not check their validity period (RFC 5280 §6.1.1 d excludes it).
    pub fn unexpired(&self, now: Timestamp) -> Vec<CertificateDer<'static>> {
        let document = self.0.accepted.load();
        let unexpired = document.roots.iter().filter(|root| now <= root.not_after);
        unexpired.map(|root| root.certificate.clone()).collect()
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle").field("file", &self.0.file).finish_non_exhaustive()
    }
}

/// First line of a kept bundle.
fn kept_line(file_digest: [u8; 32]) -> String {
    format!("{}\n", URL_SAFE_NO_PAD.encode(file_digest))
}

fn read(file: &Path) -> Result<Vec<u8>, BundleError> {
    files::read(file, limits::TLS_FILE_BYTES_MAX, files::check_mode)
        .map_err(|error| BundleError::File(Box::new(error)))
}

impl Document {
    /// One malformed root refuses the whole document. Keys of another `use` are ignored (§4.2).
    fn parse(document: &[u8]) -> Result<Self, BundleError> {
        let digest = files::digest_of([document]);
        let SpiffeDocument { keys, refresh_hint, sequence } = SpiffeDocument::parse(document)?;
        let of_x509 = keys.iter().filter(|key| key.get("use").and_then(Value::as_str) == Some(X509_SVID));
        let roots = of_x509.map(root).collect::<Result<_, _>>()?;
        Ok(Self { digest, file_digest: digest, roots, sequence, refresh_hint })
    }
}

fn root(key: &Map<String, Value>) -> Result<Root, BundleError> {
    let text = match key.get("x5c").and_then(Value::as_array).map(Vec::as_slice) {
        Some([certificate]) => certificate.as_str(),
        _ => None,
    };
    let der = text.and_then(|text| STANDARD.decode(text).ok()).ok_or(BundleError::NotOneCertificate)?;
    let certificate = CertificateDer::from(der);
    let not_after = svid::client_ca_not_after(&certificate).map_err(|_| BundleError::NotOneCertificate)?;
    let not_after = not_after.ok_or(BundleError::NotACa)?;
    // TLS adds it in the same way: a root that TLS refuses must not fail the reload of everything else.
    RootCertStore::empty().add(certificate.clone()).map_err(|_| BundleError::NotACa)?;
    Ok(Root { certificate, not_after })
}

/// The bundle of these roots, all or none: a client takes a missing root for a revoked one. There is no
/// `spiffe_sequence`, which all nodes would have to count alike.
pub(super) fn document(roots: &[CertificateDer<'static>]) -> Result<String, BundleError> {
    let keys: Vec<Value> =
        roots.iter().map(|root| jwk(root).ok_or(BundleError::NoJwk)).collect::<Result<_, _>>()?;
    Ok(json!({"keys": keys, "spiffe_refresh_hint": limits::BUNDLE_REFRESH_HINT.as_secs()}).to_string())
}

fn jwk(der: &CertificateDer<'_>) -> Option<Value> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let mut key = match certificate.public_key().parsed().ok()? {
        PublicKey::EC(point) => {
            let coordinates = point.data().strip_prefix(&[4])?;
            let (x, y) = coordinates.split_at(coordinates.len() / 2);
            let curve = match x.len() {
                32 => "P-256",
                48 => "P-384",
                66 => "P-521",
                _ => return None,
            };
            json!({"kty": "EC", "crv": curve, "x": text(x), "y": text(y)})
        }
        PublicKey::RSA(key) => {
            // RFC 7518 §6.3.1.1: without the zero byte of DER.
            let modulus = key.modulus.strip_prefix(&[0]).unwrap_or(key.modulus);
            json!({"kty": "RSA", "n": text(modulus), "e": text(key.exponent)})
        }
        // RFC 8037 §2. x509-parser does not know the key type.
        PublicKey::Unknown(x) if certificate.public_key().algorithm.algorithm == OID_SIG_ED25519 => {
            json!({"kty": "OKP", "crv": "Ed25519", "x": text(x)})
        }
        _ => return None,
    };
    key["use"] = X509_SVID.into();
    key["x5c"] = json!([STANDARD.encode(der)]);
    Some(key)
}
