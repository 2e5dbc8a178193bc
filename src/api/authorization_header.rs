//! The header `Authorization` of a request.

use axum::http::{HeaderMap, header};

use super::App;
use super::error::Error;
use crate::token;
use crate::token::CertificateDigest;
use crate::token::foreign::Credential;
use crate::token::jws::Compact;

/// Whether the scheme is HTTP Basic (RFC 7617 §2).
pub(super) fn is_basic(headers: &HeaderMap) -> bool {
    let scheme = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.split(' ').next());
    scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("basic"))
}

/// RFC 6750 §2.1: `Authorization: Bearer <token>`, the scheme case-insensitive (RFC 9110 §11.1). Another scheme is
/// refused, because its sender relies on it.
pub(super) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Error> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let credentials = value.to_str().ok().and_then(|text| text.split_once(' '));
    match (credentials, values.next()) {
        (Some((scheme, token)), None) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token)),
        _ => Err(Error::invalid_bearer("Authorization: must be exactly one Bearer token")),
    }
}

/// Verifies a bearer token. Every refusal has the same text; the log has the reason.
pub(super) async fn verify_bearer(
    app: &App,
    text: &str,
    certificate: Option<&CertificateDigest>,
) -> Result<Credential, Error> {
    let invalid =
        |error: token::Error| Error::invalid_bearer("the bearer token is not valid").with_detail(error);
    let token = Compact::parse(text).map_err(invalid)?;
    let fresh = app.state.fresh().await?;
    app.state.check_clock(&fresh)?;
    app.own_tokens.verify(&fresh, &token, certificate, app.clock.now()).await.map_err(invalid)
}
