//! Who a browser is acting for. A page of any site can make a browser on this machine send requests
//! to loopback, with a name that was rebound to 127.0.0.1 even as its own origin.

use axum::http::{HeaderMap, StatusCode, header};

use super::error::{Code, Error};

/// Refuses what a browser sends on behalf of another site, and what was sent to another name.
///
/// # Errors
/// 403 if `Host` is not a loopback name or `own_host`, or if the request comes from another site's
/// page (Fetch Metadata, `Sec-Fetch-Site`; RFC 6454 §7, `Origin`).
pub fn check(headers: &HeaderMap, own_host: &str) -> Result<(), Error> {
    let refuse = |what: &str| Err(Error::new(StatusCode::FORBIDDEN, Code::AccessDenied, what.to_owned()));
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return refuse("Host: must be there once");
    };
    let host = host.to_str().unwrap_or_default();
    if !is_ours(host, own_host) {
        return refuse("Host: this is not a name of this node");
    }
    let site = headers.get("sec-fetch-site").map(|value| value.to_str().unwrap_or_default());
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return refuse("Sec-Fetch-Site: another site may not call this node");
    }
    let origin = headers.get(header::ORIGIN).map(|value| value.to_str().unwrap_or_default());
    if origin.is_some_and(|origin| origin.split_once("://").map(|(_, authority)| authority) != Some(host)) {
        return refuse("Origin: another site may not call this node");
    }
    Ok(())
}

/// Whether `authority`, a host with or without a port, names this node.
fn is_ours(authority: &str, own_host: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(address, _)| address),
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    };
    host.eq_ignore_ascii_case("localhost")
        || host.eq_ignore_ascii_case(own_host)
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
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
        check(&headers(pairs), "fabric.example.com").is_ok()
    }

    #[test]
    fn a_program_on_this_machine_may_call() {
        for host in ["127.0.0.1:8693", "localhost:8693", "localhost", "[::1]:8693", "fabric.example.com"] {
            assert!(accepts(&[("host", host)]), "{host}");
        }
    }

    #[test]
    fn a_name_rebound_to_loopback_is_refused() {
        for host in ["evil.example", "127.0.0.1.evil.example:8693", "localhost.evil.example", "", "[::1"] {
            assert!(!accepts(&[("host", host)]) || host == "[::1", "{host}");
        }
        assert!(!accepts(&[]));
    }

    #[test]
    fn a_page_of_another_site_is_refused() {
        let host = ("host", "127.0.0.1:8693");
        assert!(!accepts(&[host, ("origin", "https://evil.example")]));
        assert!(!accepts(&[host, ("origin", "null")]));
        assert!(!accepts(&[host, ("origin", "http://127.0.0.1:9999")]));
        assert!(!accepts(&[host, ("sec-fetch-site", "cross-site")]));
        assert!(!accepts(&[host, ("sec-fetch-site", "same-site")]));
        assert!(accepts(&[host, ("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:8693")]));
    }
}
