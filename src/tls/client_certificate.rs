//! The client certificate for outbound calls, from two files. Receivers are verified elsewhere.

use rustls::sign::CertifiedKey;

use super::files::KeyPairFiles;
use super::{Error, config, files};
use crate::clock::Timestamp;
use crate::limits;
use crate::telemetry::Validity;

/// A certificate and its private key.
#[derive(Clone, Debug)]
pub struct KeyPair {
    /// Certificate, intermediates and private key as one PEM text.
    pub pem: Vec<u8>,
    pub validity: Validity,
}

impl KeyPairFiles {
    /// Reads both, with the checks that our server certificate passes.
    ///
    /// # Errors
    /// [`Error`] if a file cannot be read, is open to others, has expired, or the two are not one pair.
    pub fn read(&self, now: Timestamp) -> Result<KeyPair, Error> {
        let mut pem = files::read(&self.certificate, limits::TLS_FILE_BYTES_MAX, files::check_mode)?;
        let key = files::read(&self.private_key, limits::TLS_FILE_BYTES_MAX, files::check_key_mode)?;
        let own = config::own_certificate(self, (&pem, &key))?;
        own.check_unexpired(self, now)?;
        let validity = own.validity;
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        CertifiedKey::from_der(own.chain, own.key, &provider).map_err(|error| self.unusable(&error))?;
        pem.push(b'\n');
        pem.extend_from_slice(&key);
        Ok(KeyPair { pem, validity })
    }

    /// The error for a pair that rustls refused.
    pub(super) fn unusable(&self, error: &rustls::Error) -> Error {
        match error {
            rustls::Error::InconsistentKeys(_) => Error::KeyMismatch {
                certificate: self.certificate.clone(),
                private_key: self.private_key.clone(),
            },
            _ => Error::NoPrivateKey { path: self.private_key.clone() },
        }
    }
}
