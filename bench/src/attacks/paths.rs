//! Other spellings of a path: the decision must be that for the path itself or a refusal, never a weaker one.

use anyhow::Result;

use super::routes::Route;
use super::{AttackContext, Outcome};
use crate::load::is_server_error;
use crate::node::Node;

/// Every route in every spelling, without credentials, on both listeners.
pub async fn attack(field: &AttackContext<'_>) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for (listener, target) in field.node.anonymous() {
        // In development mode every caller may change the node; routes that do are left out.
        for route in field.routes.iter().filter(|route| may_be_asked(field.node, route)) {
            let right = route.request(&route.path, &target.host, "");
            let decision = target.call(&right).await.map_or(0, |answer| answer.status);
            for path in spellings(&route.path) {
                for request in requests(route, &path, &target.host) {
                    let status = target.call(&request).await.map_or(0, |answer| answer.status);
                    let line = String::from_utf8_lossy(&request);
                    let what = format!("{} ({listener})", line.lines().next().unwrap_or_default());
                    if status == decision && !is_server_error(status) {
                        outcome.tries += 1;
                    } else if route.public {
                        // A public route: only a server error would be a violation.
                        outcome.tries += 1;
                        outcome.server_errors += u64::from(is_server_error(status));
                    } else {
                        outcome.must_refuse(&what, status, &[404, 400, 405, 401, 403]);
                    }
                }
            }
        }
    }
    Ok(outcome)
}

fn may_be_asked(node: &Node, route: &Route) -> bool {
    node.https.is_some() || route.method == "GET"
}

/// The route's own method, and others that might be accepted instead.
fn requests(route: &Route, path: &str, host: &str) -> Vec<Vec<u8>> {
    let mut requests = vec![route.request(path, host, "")];
    if path == route.path {
        for method in ["HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "Post", "PROPFIND", "QUERY"] {
            let other = Route { method: method.to_owned(), ..route.clone() };
            requests.push(other.request(path, host, ""));
        }
        for header in ["X-HTTP-Method-Override: GET", "X-Original-URL: /livez", "X-Rewrite-URL: /livez"] {
            requests.push(route.request(path, host, &format!("{header}\r\n")));
        }
    }
    requests
}

/// Spellings that some part of some system treats as the path itself.
fn spellings(path: &str) -> Vec<String> {
    let (parent, last) = path.rsplit_once('/').unwrap_or(("", path));
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    let rest = path.trim_start_matches('/').strip_prefix(first).unwrap_or_default();
    let mut all = vec![path.to_owned()];
    all.extend(
        [
            "/", "//", ".", "/.", "/..", "/./", ";x", ";a=b/", "%00", "%20", "%09", "%2f", "%2e", "?", "#",
            "\\", "%5c", "~", "%23", "%3f",
        ]
        .map(|tail| format!("{path}{tail}")),
    );
    all.extend(
        [
            "/",
            "/.",
            "/..",
            "/livez/..",
            "/livez;/..",
            "/%2e",
            "/%2e%2e",
            "/;x",
            "/%2f",
            "\\",
            "/x/..",
            "/livez/%2e%2e",
        ]
        .map(|head| format!("{head}{path}")),
    );
    all.extend([
        path.to_uppercase(),
        format!("{parent}/./{last}"),
        format!("{parent}//{last}"),
        format!("{parent}/x/../{last}"),
        format!("{parent}/%2e/{last}"),
        format!("{parent}%2f{last}"),
        format!("{parent}%252f{last}"),
        format!("{parent};/{last}"),
        format!("{parent};x=y/{last}"),
        format!("{parent}\\{last}"),
        format!("{parent}/{}", encoded(last)),
        format!("{parent}/{}", overlong(last)),
        format!("/{}{rest}", encoded(first)),
        format!("/{}{rest}", first.to_uppercase()),
        format!("http://localhost{path}"),
        format!("http://evil.example{path}"),
        format!("https://localhost:8694{path}"),
        format!("localhost{path}"),
        "*".to_owned(),
    ]);
    all
}

/// The first letter escaped.
fn encoded(part: &str) -> String {
    part.bytes()
        .next()
        .map_or_else(String::new, |byte| format!("%{byte:02x}{}", part.get(1..).unwrap_or_default()))
}

/// An overlong encoding of a slash before it (invalid UTF-8, RFC 3629 §3).
fn overlong(part: &str) -> String {
    format!("%c0%af{part}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_many_spellings_and_the_first_is_its_own() {
        let all = spellings("/v1/sys/keys");
        assert!(all.len() >= 50, "{}", all.len());
        assert_eq!(all[0], "/v1/sys/keys");
        for one in [
            "//v1/sys/keys",
            "/v1/sys/./keys",
            "/v1/sys%2fkeys",
            "/V1/SYS/KEYS",
            "/v1/sys/%6beys",
            "/%761/sys/keys",
        ] {
            assert!(all.iter().any(|path| path == one), "{one}");
        }
    }
}
