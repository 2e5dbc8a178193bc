//! Certificates of a client and the CAs that it trusts, from PEM files.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use reqwest::{Certificate, ClientBuilder, Identity, redirect};

use crate::error::{Error, innermost};
use crate::limits;

/// Trusted CAs and the client certificate. Files in PEM.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    /// The only CAs to trust; without it, those of the machine.
    pub ca: Option<PathBuf>,
    /// The client certificate, with the intermediates up to the node's client CA.
    pub certificate: Option<PathBuf>,
    /// The private key of the certificate.
    pub private_key: Option<PathBuf>,
}

impl Certificates {
    pub(crate) fn http_client(&self) -> Result<reqwest::Client, Error> {
        let mut http = builder();
        let roots = self.ca.as_deref().map(roots).transpose()?;
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
        let mut pem = read(certificate)?;
        if !Certificate::from_pem_bundle(&pem).is_ok_and(|found| !found.is_empty()) {
            return Err(Error::NotPem { path: certificate.clone(), holds: "certificate" });
        }
        // A file may end without a line break.
        pem.push(b'\n');
        pem.extend(read(private_key)?);
        // The certificate was parsed above, so that an error is one of the key.
        let identity = Identity::from_pem(&pem);
        identity.map(Some).map_err(|_| Error::NotPem { path: private_key.clone(), holds: "private key" })
    }
}

/// No redirects, no proxy, one timeout for all requests.
pub(crate) fn builder() -> ClientBuilder {
    reqwest::Client::builder()
        .http1_only()
        .redirect(redirect::Policy::none())
        .no_proxy()
        .timeout(limits::REQUEST_TIMEOUT)
}

pub(crate) fn roots(path: &Path) -> Result<Vec<Certificate>, Error> {
    match Certificate::from_pem_bundle(&read(path)?) {
        Ok(roots) if !roots.is_empty() => Ok(roots),
        _ => Err(Error::NotPem { path: path.to_owned(), holds: "certificate" }),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(limits::PEM_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|source| Error::File { path: path.to_owned(), source })?;
    Ok(bytes)
}
