//! The files with which an issuer's documents are fetched. They are read for each fetch: a kubelet replaces them while the
//! node runs.

use std::path::{Path, PathBuf};

use reqwest::Certificate;
use reqwest::header::HeaderValue;

use super::read_file;
use crate::limits;
use crate::outbound::client::FetchCredentials;
use crate::token::issuer::FetchFiles;

/// A file cannot be used. The text never has its content.
#[derive(Debug, thiserror::Error)]
#[error("{setting} {}: {rule}", path.display())]
pub(super) struct FileError {
    setting: &'static str,
    path: PathBuf,
    rule: String,
}

/// Reads the files of an issuer.
pub(super) async fn read(files: &FetchFiles) -> Result<FetchCredentials, FileError> {
    let roots = match &files.ca {
        None => None,
        Some(path) => Some(roots(path).await.map_err(|rule| of("ca_file", path, rule))?),
    };
    let authorization = match &files.bearer_token {
        None => None,
        Some(path) => Some(authorization(path).await.map_err(|rule| of("bearer_token_file", path, rule))?),
    };
    Ok(FetchCredentials { roots, authorization })
}

fn of(setting: &'static str, path: &Path, rule: String) -> FileError {
    FileError { setting, path: path.to_owned(), rule }
}

async fn roots(path: &Path) -> Result<Vec<Certificate>, String> {
    let pem = read_file(path).await.map_err(|error| error.to_string())?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(roots) if !roots.is_empty() => Ok(roots),
        _ => Err("is not PEM with certificates".to_owned()),
    }
}

async fn authorization(path: &Path) -> Result<HeaderValue, String> {
    let token = read_file(path).await.map_err(|error| error.to_string())?;
    let token = token.trim_ascii();
    // RFC 6750 §2.1, without the padding rule.
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
    if token.is_empty() || token.len() > limits::TOKEN_BYTES_MAX || !token.iter().all(is_token) {
        return Err(format!("is not a bearer token of at most {} bytes", limits::TOKEN_BYTES_MAX));
    }
    let value = HeaderValue::from_bytes(&[b"Bearer ", token].concat());
    let mut value = value.map_err(|_| "is not a bearer token".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests;
