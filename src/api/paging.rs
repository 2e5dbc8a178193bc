//! Pages of a list (contract §1, Lists): `limit`, an opaque `cursor`, and `Link: <…>; rel="next"`
//! (RFC 8288) while there is more.

use axum::Json;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;

use super::error::Error;
use crate::limits;

/// The members of a query, each at most once.
#[derive(Debug)]
pub struct Members(Vec<(String, String)>);

impl Members {
    /// Reads a query.
    ///
    /// # Errors
    /// 400 if it cannot be read, or names a member twice or one that is not in `known`.
    pub fn read(
        query: Result<Query<Vec<(String, String)>>, QueryRejection>,
        known: &[&str],
    ) -> Result<Self, Error> {
        let Query(members) = query.map_err(|_| Error::invalid_request("the query cannot be read"))?;
        for (at, (name, _)) in members.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let known = known.join(", ");
                return Err(Error::invalid_request(format!("the query knows only {known}")));
            }
            if members.iter().take(at).any(|(other, _)| other == name) {
                return Err(Error::invalid_request(format!("{name}: must not be given twice")));
            }
        }
        Ok(Self(members))
    }

    /// The value of a member.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Which page is asked for, by `limit` and `cursor`.
    ///
    /// # Errors
    /// 400 that names the member and its rule.
    pub fn page(&self) -> Result<Page, Error> {
        let limit = self.value("limit").map_or(Some(limits::PAGE_DEFAULT), |text| text.parse().ok());
        let limit = limit.filter(|limit| (1..=limits::PAGE_MAX).contains(limit)).ok_or_else(|| {
            Error::invalid_request(format!("limit: must be a whole number from 1 to {}", limits::PAGE_MAX))
        })?;
        let after = self.value("cursor").map(|cursor| {
            let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
            let known = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            known.ok_or_else(|| Error::invalid_request("cursor: must be one that a Link header gave"))
        });
        Ok(Page { limit, after: after.transpose()? })
    }
}

/// A page that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Most rows.
    pub limit: usize,
    /// Rows behind this one; from the first on without it.
    pub after: Option<String>,
}

/// Answers a page. `next` is the last row's key if there are more rows behind it.
///
/// # Errors
/// Never in practice: what is in the header is ASCII.
pub fn answer<T: Serialize + ?Sized>(uri: &Uri, rows: &T, next: Option<&str>) -> Result<Response, Error> {
    let mut response = Json(rows).into_response();
    if let Some(next) = next {
        let link = HeaderValue::try_from(link(uri, next)).map_err(Error::internal)?;
        response.headers_mut().insert(header::LINK, link);
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The same query with another cursor, relative to this host.
fn link(uri: &Uri, next: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        if name != "cursor" {
            query.append_pair(&name, &value);
        }
    }
    query.append_pair("cursor", &URL_SAFE_NO_PAD.encode(next));
    format!("<{}?{}>; rel=\"next\"", uri.path(), query.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(uri: &'static str) -> Result<Page, Error> {
        let known = ["limit", "cursor", "protocol"];
        Members::read(Query::try_from_uri(&Uri::from_static(uri)), &known)?.page()
    }

    #[test]
    fn a_page_has_at_most_its_limit_of_rows() {
        assert_eq!(read("/v1/tools").expect("page"), Page { limit: limits::PAGE_DEFAULT, after: None });
        assert_eq!(read("/v1/tools?limit=1000").expect("page").limit, limits::PAGE_MAX);
        for uri in
            ["/l?limit=0", "/l?limit=1001", "/l?limit=-1", "/l?limit=x", "/l?limit=", "/l?limit=1&limit=1"]
        {
            assert!(read(uri).is_err(), "{uri}");
        }
        for uri in ["/l?cursor=%3D", "/l?cursor=_w", "/l?order=name"] {
            assert!(read(uri).is_err(), "{uri}");
        }
    }

    #[test]
    fn the_link_to_the_next_page_asks_the_same_from_there_on() {
        let uri = Uri::from_static("/v1/tools?protocol=a2a%2F2025-draft-01&limit=2&cursor=eA");
        let link = link(&uri, "we\"ird>");
        let next =
            link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\"")).expect("link");
        let next: Uri = next.parse().expect("URI");
        let members = Members::read(Query::try_from_uri(&next), &["limit", "cursor", "protocol"]);
        let members = members.expect("query");
        assert_eq!(members.value("protocol"), Some("a2a/2025-draft-01"));
        assert_eq!(members.page().expect("page"), Page { limit: 2, after: Some("we\"ird>".to_owned()) });
    }
}
