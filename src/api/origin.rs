//! Protection from browsers. A page of any site can make a browser on this machine send requests to loopback, with a
//! name that was rebound to 127.0.0.1 even as its own origin (DNS rebinding).

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};

use super::error::Error;

/// Refuses requests of another site's page, and requests to a foreign host name.
///
/// # Errors
/// 400 if the request does not name exactly one host; 403 if that is neither one of `names`, nor a loopback name, nor
/// the `local` address; 403 if it comes from another site's page (Fetch Metadata, `Sec-Fetch-Site`; RFC 6454 §7,
/// `Origin`).
pub fn check(uri: &Uri, headers: &HeaderMap, names: &[String], local: IpAddr) -> Result<(), Error> {
    let host = host(uri, headers)?;
    if !is_ours(host, names, local) {
        return Err(Error::forbidden("Host: this is not a name of this node"));
    }
    let site = headers.get("sec-fetch-site").map(|value| value.to_str().unwrap_or_default());
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return Err(Error::forbidden("Sec-Fetch-Site: another site may not call this node"));
    }
    let origin = headers.get(header::ORIGIN).map(|value| value.to_str().unwrap_or_default());
    if origin.is_some_and(|origin| origin.split_once("://").map(|(_, authority)| authority) != Some(host)) {
        return Err(Error::forbidden("Origin: another site may not call this node"));
    }
    Ok(())
}

/// The one host that a request names: `Host`, or `:authority` in HTTP/2; both only if they agree (RFC 9113 §8.3.1).
fn host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Result<&'r str, Error> {
    let mut hosts = headers.get_all(header::HOST).iter().map(|value| value.to_str().unwrap_or_default());
    match (uri.authority().map(Authority::as_str), hosts.next(), hosts.next()) {
        (None, Some(host), None) | (Some(host), None, None) => Ok(host),
        (Some(authority), Some(host), None) if authority == host => Ok(host),
        _ => Err(Error::invalid_request("Host: must be present exactly once")),
    }
}

/// Whether `authority`, a host with an optional port, names this node. The address that was reached is safe: only a
/// name can be rebound.
fn is_ours(authority: &str, names: &[String], local: IpAddr) -> bool {
    let split = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']'),
        None => Some(authority.find(':').map_or((authority, ""), |colon| authority.split_at(colon))),
    };
    let Some((host, port)) = split else { return false };
    // RFC 3986 §3.2.3: the port is empty or digits.
    if !port.strip_prefix(':').map_or(port.is_empty(), |port| port.bytes().all(|b| b.is_ascii_digit())) {
        return false;
    }
    let is_own_address = |address: IpAddr| address.is_loopback() || address == local.to_canonical();
    host.eq_ignore_ascii_case("localhost")
        || names.iter().any(|name| host.eq_ignore_ascii_case(name))
        || host.parse::<IpAddr>().is_ok_and(is_own_address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().expect("name"), value.parse().expect("value")))
            .collect()
    }

    fn accepts(pairs: &[(&'static str, &str)]) -> bool {
        let names = ["fabric.example.com".to_owned()];
        let local = "192.0.2.7".parse().expect("address");
        check(&Uri::from_static("/v1"), &headers(pairs), &names, local).is_ok()
    }

    #[test]
    fn loopback_and_configured_names_are_accepted() {
        for host in [
            "127.0.0.1:8693",
            "localhost:8693",
            "localhost",
            "[::1]:8693",
            "fabric.example.com",
            "192.0.2.7:8694",
        ] {
            assert!(accepts(&[("host", host)]), "{host}");
        }
    }

    #[test]
    fn rebound_name_is_refused() {
        for host in [
            "evil.example",
            "127.0.0.1.evil.example:8693",
            "localhost.evil.example",
            "[::1]evil.example",
            "[::1]:evil",
            "127.0.0.1:evil",
            "localhost:1:2",
            "[::1",
            "",
        ] {
            assert!(!accepts(&[("host", host)]), "{host}");
        }
        assert!(!accepts(&[]));
    }

    #[test]
    fn page_of_another_site_is_refused() {
        let host = ("host", "127.0.0.1:8693");
        assert!(!accepts(&[host, ("origin", "https://evil.example")]));
        assert!(!accepts(&[host, ("origin", "null")]));
        assert!(!accepts(&[host, ("origin", "http://127.0.0.1:9999")]));
        assert!(!accepts(&[host, ("sec-fetch-site", "cross-site")]));
        assert!(!accepts(&[host, ("sec-fetch-site", "same-site")]));
        assert!(accepts(&[host, ("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:8693")]));
    }
}
