//! Entity tags in preconditions (RFC 9110 §8.8.3, §13.1): parsing. Their meaning is that of the resource.

use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName};

use super::error::Error;

/// The value of `If-Match` or `If-None-Match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tags {
    /// `*`
    Any,
    /// A list.
    These(Vec<Tag>),
}

/// One entity tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// `W/`
    pub is_weak: bool,
    /// The opaque tag with its quotes.
    pub opaque: String,
}

/// Parses a header; `None` if it was not sent.
///
/// # Errors
/// 400 if it is neither `*` nor a list of entity tags.
pub fn tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Tags>, Error> {
    let malformed = || Error::invalid_request(format!("{}: must be * or a list of entity tags", title(name)));
    let mut found = Vec::new();
    for value in headers.get_all(name) {
        let text = value.to_str().map_err(|_| malformed())?;
        if text.trim() == "*" {
            found.push(None);
        } else {
            found.extend(list(text).ok_or_else(malformed)?.into_iter().map(Some));
        }
    }
    if found.is_empty() {
        return if headers.contains_key(name) { Err(malformed()) } else { Ok(None) };
    }
    match (found.contains(&None), found.len()) {
        (true, 1) => Ok(Some(Tags::Any)),
        (true, _) => Err(malformed()),
        (false, _) => Ok(Some(Tags::These(found.into_iter().flatten().collect()))),
    }
}

/// Whether the client has the representation of `etag`: `If-None-Match` compares weakly (RFC 9110 §13.1.2).
///
/// # Errors
/// As [`tags`].
pub fn is_known(headers: &HeaderMap, etag: &str) -> Result<bool, Error> {
    Ok(match tags(headers, &IF_NONE_MATCH)? {
        None => false,
        Some(Tags::Any) => true,
        Some(Tags::These(tags)) => tags.iter().any(|tag| tag.opaque == etag),
    })
}

/// Refuses preconditions on a route that ignores them, because their sender relies on them.
///
/// # Errors
/// 400 if one of `names` was sent.
pub fn refuse(headers: &HeaderMap, names: &[HeaderName]) -> Result<(), Error> {
    match names.iter().find(|name| headers.contains_key(*name)) {
        None => Ok(()),
        Some(name) => Err(Error::invalid_request(format!("{}: is not supported here", title(name)))),
    }
}

fn title(name: &HeaderName) -> &str {
    match *name {
        IF_MATCH => "If-Match",
        IF_NONE_MATCH => "If-None-Match",
        _ => name.as_str(),
    }
}

/// RFC 9110 §5.6.1: elements between commas, some of which may be empty. A tag may contain a comma.
fn list(text: &str) -> Option<Vec<Tag>> {
    let mut tags = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if rest.is_empty() {
            return Some(tags);
        }
        let (is_weak, quoted) = rest.strip_prefix("W/").map_or((false, rest), |quoted| (true, quoted));
        let (opaque, behind) = quoted.strip_prefix('"')?.split_once('"')?;
        // `etagc`: "%x21 / %x23-7E"
        if !opaque.bytes().all(|b| b.is_ascii_graphic()) {
            return None;
        }
        tags.push(Tag { is_weak, opaque: format!("\"{opaque}\"") });
        rest = behind.trim_start_matches([' ', '\t']);
        if !rest.is_empty() && !rest.starts_with(',') {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn read(values: &[&str]) -> Result<Option<Tags>, Error> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IF_MATCH, HeaderValue::from_str(value).expect("value"));
        }
        tags(&headers, &IF_MATCH)
    }

    #[test]
    fn precondition_is_a_star_or_a_list_of_tags() {
        let tag = |is_weak, opaque: &str| Tag { is_weak, opaque: opaque.to_owned() };
        assert_eq!(read(&[]).expect("absent"), None);
        assert_eq!(read(&["*"]).expect("any"), Some(Tags::Any));
        let these = Tags::These(vec![tag(false, "\"1.2\""), tag(true, "\"a,b\""), tag(false, "\"\"")]);
        assert_eq!(read(&["\"1.2\" , W/\"a,b\",", " ,\"\""]).expect("a list"), Some(these));
    }

    #[test]
    fn malformed_precondition_is_refused() {
        for values in [
            &[""][..],
            &[","],
            &["1.2"],
            &["\"1.2"],
            &["\"1.2\" \"1.3\""],
            &["w/\"1.2\""],
            &["\"1 2\""],
            &["*", "*"],
            &["*, \"1.2\""],
            &["\"1.2\"", "*"],
        ] {
            assert!(read(values).is_err(), "{values:?}");
        }
    }
}
