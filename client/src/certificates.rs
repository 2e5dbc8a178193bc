//! Certificates of a client and the CAs that it trusts, from PEM files.

use std::fmt;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use reqwest::{Certificate, ClientBuilder, Identity, redirect};

use crate::error::{Error, innermost};
use crate::limits;

/// Trusted CAs and the client certificate, in PEM.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    /// The only CAs to trust; without it, those of the machine.
    pub ca: Option<Pem>,
    /// The client certificate, with the intermediates up to the node's client CA.
    pub certificate: Option<Pem>,
    /// The private key of the certificate.
    pub private_key: Option<Pem>,
}

/// PEM, or the file that has it.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    File(PathBuf),
    /// The text itself.
    Text {
        /// The name of the setting that holds it, for errors.
        name: &'static str,
        /// The PEM.
        text: String,
    },
}

impl<P: Into<PathBuf>> From<P> for Pem {
    fn from(path: P) -> Self {
        Self::File(path.into())
    }
}

impl fmt::Debug for Pem {
    /// Without the text, which may be a private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place().display())
    }
}

impl Pem {
    /// The PEM.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        match self {
            Self::File(path) => read(path),
            Self::Text { text, .. } => Ok(text.clone().into_bytes()),
        }
    }

    /// The file, or the name of the setting.
    fn place(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::Text { name, .. } => PathBuf::from(name),
        }
    }
}

impl Certificates {
    pub(crate) fn http_client(&self) -> Result<reqwest::Client, Error> {
        let mut http = builder();
        let roots = self.ca.as_ref().map(roots).transpose()?;
        let identity = self.identity()?;
        let has_files = roots.is_some() || identity.is_some();
        if let Some(roots) = roots {
            http = http.tls_certs_only(roots);
        }
        if let Some(identity) = identity {
            http = http.identity(identity);
        }
        http.build().map_err(|error| {
            if has_files { Error::Certificates(innermost(&error).to_string()) } else { Error::Unprepared }
        })
    }

    fn identity(&self) -> Result<Option<Identity>, Error> {
        let (certificate, private_key) = match (&self.certificate, &self.private_key) {
            (None, None) => return Ok(None),
            (Some(certificate), Some(private_key)) => (certificate, private_key),
            (Some(_), None) => {
                return Err(Error::HalfIdentity { given: "a certificate", missing: "its private key" });
            }
            (None, Some(_)) => {
                return Err(Error::HalfIdentity { given: "a private key", missing: "its certificate" });
            }
        };
        let mut pem = certificate.read()?;
        if !Certificate::from_pem_bundle(&pem).is_ok_and(|found| !found.is_empty()) {
            return Err(Error::NotPem { path: certificate.place(), holds: "certificate" });
        }
        // A file may end without a line break.
        pem.push(b'\n');
        pem.extend(private_key.read()?);
        // The certificate was parsed above, so that an error is one of the key.
        let identity = Identity::from_pem(&pem);
        identity.map(Some).map_err(|_| Error::NotPem { path: private_key.place(), holds: "private key" })
    }
}

/// No redirects, no proxy. Each request has its own timeout.
pub(crate) fn builder() -> ClientBuilder {
    reqwest::Client::builder().http1_only().redirect(redirect::Policy::none()).no_proxy()
}

pub(crate) fn roots(ca: &Pem) -> Result<Vec<Certificate>, Error> {
    match Certificate::from_pem_bundle(&ca.read()?) {
        Ok(roots) if !roots.is_empty() => Ok(roots),
        _ => Err(Error::NotPem { path: ca.place(), holds: "certificate" }),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(limits::PEM_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|source| Error::File { path: path.to_owned(), source })?;
    Ok(bytes)
}
