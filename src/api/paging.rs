//! Pagination of lists (contract §1): `limit`, an opaque `cursor`, and `Link: <…>; rel="next"` (RFC 8288) while there
//! are more rows.

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

/// The query of a request, as axum reads it.
pub type RawQuery = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// The parameters of a query, each at most once.
#[derive(Debug)]
pub struct QueryParams(Vec<(String, String)>);

impl QueryParams {
    /// Parses a query.
    ///
    /// # Errors
    /// 400 if it is malformed, or has a parameter twice or one that is not in `known`.
    pub fn read(query: RawQuery, known: &[&str]) -> Result<Self, Error> {
        let Query(params) = query.map_err(|_| Error::invalid_request("the query is malformed"))?;
        for (at, (name, _)) in params.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let known = known.join(", ");
                return Err(Error::invalid_request(format!("the query parameters are {known}")));
            }
            if params.iter().take(at).any(|(other, _)| other == name) {
                return Err(Error::invalid_request(format!("{name}: must not be given twice")));
            }
        }
        Ok(Self(params))
    }

    /// The value of a parameter.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether a parameter is true; by default it is false.
    ///
    /// # Errors
    /// 400 if it is neither true nor false.
    pub fn flag(&self, name: &str) -> Result<bool, Error> {
        match self.value(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Error::invalid_request(format!("{name}: must be true or false"))),
        }
    }

    /// The page that `limit` and `cursor` name.
    ///
    /// # Errors
    /// 400 that names the parameter and its rule.
    pub fn page(&self) -> Result<Page, Error> {
        let limit = self.value("limit").map_or(Some(limits::PAGE_ROWS_DEFAULT), |text| text.parse().ok());
        let limit = limit.filter(|limit| (1..=limits::PAGE_ROWS_MAX).contains(limit)).ok_or_else(|| {
            Error::invalid_request(format!(
                "limit: must be a whole number from 1 to {}",
                limits::PAGE_ROWS_MAX
            ))
        })?;
        let after = self.value("cursor").map(|cursor| {
            let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
            let known = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            known.ok_or_else(|| Error::invalid_request("cursor: must be from a Link header"))
        });
        Ok(Page { limit, after: after.transpose()? })
    }
}

/// The requested page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Maximum rows.
    pub limit: usize,
    /// The page begins after this row; at the first row without it.
    pub after: Option<String>,
}

/// A page as a response. `next` is the key of the last row if there are more.
///
/// # Errors
/// Only if the cursor were not ASCII.
pub fn answer<T: Serialize + ?Sized>(uri: &Uri, rows: &T, next: Option<&str>) -> Result<Response, Error> {
    let mut response = Json(rows).into_response();
    if let Some(next) = next {
        let link = HeaderValue::try_from(link(uri, next)).map_err(Error::internal)?;
        response.headers_mut().insert(header::LINK, link);
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The same query with the next cursor.
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
        QueryParams::read(Query::try_from_uri(&Uri::from_static(uri)), &known)?.page()
    }

    #[test]
    fn page_limit_is_validated() {
        assert_eq!(read("/v1/tools").expect("page"), Page { limit: limits::PAGE_ROWS_DEFAULT, after: None });
        assert_eq!(read("/v1/tools?limit=1000").expect("page").limit, limits::PAGE_ROWS_MAX);
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
    fn next_link_repeats_the_query_with_a_new_cursor() {
        let uri = Uri::from_static("/v1/tools?protocol=a2a%2F2025-draft-01&limit=2&cursor=eA");
        let link = link(&uri, "we\"ird>");
        let next =
            link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\"")).expect("link");
        let next: Uri = next.parse().expect("URI");
        let params = QueryParams::read(Query::try_from_uri(&next), &["limit", "cursor", "protocol"]);
        let params = params.expect("query");
        assert_eq!(params.value("protocol"), Some("a2a/2025-draft-01"));
        assert_eq!(params.page().expect("page"), Page { limit: 2, after: Some("we\"ird>".to_owned()) });
    }
}
