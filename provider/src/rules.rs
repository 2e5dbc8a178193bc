//! Rules of single texts. They are checked while a plan is made, without any node.
//!
//! A rule never refuses a text that the fabric accepts; the fabric may refuse more.

use url::Url;

use crate::{duration, limits};

type Verdict = Result<(), String>;

/// Whether `text` is 1 to `max` printable ASCII characters without space.
fn is_printable(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn verdict(is_kept: bool, rule: impl Into<String>) -> Verdict {
    if is_kept { Ok(()) } else { Err(rule.into()) }
}

/// A duration like `2m`.
///
/// # Errors
/// The rule.
pub fn duration(text: &str) -> Verdict {
    duration::parse(text, limits::TIMEOUT_MAX).map(drop)
}

/// A time before the end of an agent.
///
/// # Errors
/// The rule.
pub fn rotate_before(text: &str) -> Verdict {
    duration::parse(text, limits::ROTATE_BEFORE_MAX).map(drop)
}

/// A platform of agents.
///
/// # Errors
/// The rule.
pub fn platform(text: &str) -> Verdict {
    let is_kept = matches!(text, "mcp" | "a2a" | "watsonx" | "custom");
    verdict(is_kept, "must be mcp, a2a, watsonx or custom")
}

/// A value of an agent's metadata.
///
/// # Errors
/// The rule.
pub fn metadata_value(text: &str) -> Verdict {
    let is_kept = text.len() <= 512 && !text.contains(char::is_control);
    verdict(is_kept, "values must be at most 512 bytes without control characters")
}

/// `wimse://` or `spiffe://`, a trust domain and a path.
///
/// # Errors
/// The rule.
pub fn workload_id(text: &str) -> Verdict {
    let rest = text.strip_prefix("wimse://").or_else(|| text.strip_prefix("spiffe://"));
    let is_kept = rest.and_then(|rest| rest.split_once('/')).is_some_and(|(domain, path)| {
        !domain.is_empty() && !path.is_empty() && is_printable(text, 2048) && !text.contains('#')
    });
    verdict(is_kept, "must be wimse:// or spiffe://, a trust domain and a path")
}

/// The identifier of an encryption key in an import.
///
/// # Errors
/// The rule.
pub fn key_id(text: &str) -> Verdict {
    let is_kept =
        text.split_once('#').is_some_and(|(id, kid)| workload_id(id).is_ok() && is_printable(kid, 128));
    verdict(is_kept, "must be <workload_id>#<kid>")
}

/// The type of a token to exchange.
///
/// # Errors
/// The rule.
pub fn token_type(text: &str) -> Verdict {
    let is_kept = matches!(
        text,
        "urn:ietf:params:oauth:token-type:jwt"
            | "urn:svc:token-type:spiffe-svid"
            | "urn:svc:token-type:agent-a2a"
    );
    let rule = "must be urn:ietf:params:oauth:token-type:jwt, urn:svc:token-type:spiffe-svid or \
                urn:svc:token-type:agent-a2a";
    verdict(is_kept, rule)
}

/// The name of an object of Kubernetes: a subdomain (RFC 1123).
///
/// # Errors
/// The rule.
pub fn object_name(text: &str) -> Verdict {
    let rule =
        "must be 1 to 253 of a-z, 0-9, '-' and '.', each part beginning and ending with a letter or digit";
    verdict(text.len() <= 253 && text.split('.').all(is_label), rule)
}

/// The name of a namespace: a label (RFC 1123).
///
/// # Errors
/// The rule.
pub fn namespace(text: &str) -> Verdict {
    let rule = "must be 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit";
    verdict(text.len() <= 63 && is_label(text), rule)
}

/// `<namespace>/<name>`.
///
/// # Errors
/// The rule.
pub fn object_path(text: &str) -> Verdict {
    let is_kept = text
        .split_once('/')
        .is_some_and(|(space, name)| namespace(space).is_ok() && object_name(name).is_ok());
    verdict(is_kept, "must be <namespace>/<name>")
}

fn is_label(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    text.bytes().all(is_inner) && is_end(text.as_bytes().first()) && is_end(text.as_bytes().last())
}

/// A phase that a fabric is waited for.
///
/// # Errors
/// The rule.
pub fn waited_phase(text: &str) -> Verdict {
    verdict(matches!(text, "Pending" | "Converged"), "must be Pending or Converged")
}

/// The identifier of a tool.
///
/// # Errors
/// The rule.
pub fn tool_id(text: &str) -> Verdict {
    let is_segment = !text.contains(['/', '?', '#', '%']) && !matches!(text, "." | "..");
    let rule =
        "must be 1 to 256 printable ASCII characters without space, '/', '?', '#', '%', and not '.' or '..'";
    verdict(is_printable(text, 256) && is_segment, rule)
}

/// A name for people.
///
/// # Errors
/// The rule.
pub fn display(text: &str) -> Verdict {
    let is_kept = (1..=256).contains(&text.len()) && !text.contains(char::is_control);
    verdict(is_kept, "must be 1 to 256 bytes of UTF-8 without control characters")
}

/// Text of several lines.
///
/// # Errors
/// The rule.
pub fn lines(text: &str) -> Verdict {
    let is_interpreted = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    let rule = "must be at most 4096 bytes of UTF-8, without control characters except line breaks";
    verdict(text.len() <= 4096 && !text.contains(is_interpreted), rule)
}

/// An absolute URI without a fragment (RFC 8707 §2).
///
/// # Errors
/// The rule.
pub fn resource_uri(text: &str) -> Verdict {
    let is_kept = is_printable(text, 2048) && !text.contains('#') && Url::parse(text).is_ok();
    verdict(is_kept, "must be an absolute URI without a fragment, of at most 2048 bytes")
}

/// A capability: a word of `scope` (RFC 6749 §3.3).
///
/// # Errors
/// The rule.
pub fn capability(text: &str) -> Verdict {
    let is_kept = is_printable(text, 128) && !text.contains(['"', '\\']);
    verdict(is_kept, "must be words of 1 to 128 printable ASCII characters")
}

/// `<kind>` or `<kind>:<name>`.
///
/// # Errors
/// The rule.
pub fn blast_radius(text: &str) -> Verdict {
    let (kind, name) = text.split_once(':').map_or((text, None), |(kind, name)| (kind, Some(name)));
    let is_kind =
        !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let is_segment = |segment: &str| {
        !segment.is_empty()
            && segment.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    };
    let is_name = name.is_none_or(|name| name.split('/').all(is_segment));
    let rule = "must be <kind> or <kind>:<name>, kind of a-z, 0-9, '-', name of path segments";
    verdict(text.len() <= 256 && is_kind && is_name, rule)
}

/// A value of `exec_act`.
///
/// # Errors
/// The rule.
pub fn operation(text: &str) -> Verdict {
    verdict(is_printable(text, 256), "must be 1 to 256 printable ASCII characters each")
}

/// A value of `target`.
///
/// # Errors
/// The rule.
pub fn target(text: &str) -> Verdict {
    verdict(is_printable(text, 2048), "must be 1 to 2048 printable ASCII characters each")
}

/// A protocol of tools.
///
/// # Errors
/// The rule.
pub fn protocol(text: &str) -> Verdict {
    let is_kept = matches!(text, "mcp" | "http" | "a2a/2025-draft-01");
    verdict(is_kept, "must be mcp, http or a2a/2025-draft-01")
}

/// A semantic version.
///
/// # Errors
/// The rule.
pub fn version(text: &str) -> Verdict {
    let is_kept = text.len() <= 256 && semver::Version::parse(text).is_ok();
    verdict(is_kept, "must be a semantic version, for example 1.2.0, of at most 256 bytes")
}

/// The audience of a stream.
///
/// # Errors
/// The rule.
pub fn audience(text: &str) -> Verdict {
    let is_kept = (1..=2048).contains(&text.len()) && !text.contains(char::is_control);
    verdict(is_kept, "must be 1 to 2048 bytes without control characters")
}

/// The URI of an event type.
///
/// # Errors
/// The rule.
pub fn event_type(text: &str) -> Verdict {
    let is_kept = is_printable(text, 256) && Url::parse(text).is_ok();
    verdict(is_kept, "must be absolute URIs of at most 256 bytes")
}

/// A delivery method.
///
/// # Errors
/// The rule.
pub fn delivery_method(text: &str) -> Verdict {
    verdict(matches!(text, "push" | "poll"), "must be push or poll")
}

/// A push endpoint.
///
/// # Errors
/// The rule, without the URL, which may contain a secret.
pub fn push_url(text: &str) -> Verdict {
    let is_kept = text.len() <= 2048
        && Url::parse(text).is_ok_and(|url| match (url.scheme(), url.host_str()) {
            ("https", Some(_)) | ("http", Some("localhost" | "127.0.0.1")) => {
                url.username().is_empty() && url.password().is_none() && url.fragment().is_none()
            }
            _ => false,
        });
    let rule = "must be an https URL of at most 2048 bytes, without user and fragment; http only for localhost and \
                127.0.0.1";
    verdict(is_kept, rule)
}

/// The status of a stream.
///
/// # Errors
/// The rule.
pub fn stream_status(text: &str) -> Verdict {
    verdict(matches!(text, "enabled" | "paused" | "disabled"), "must be enabled, paused or disabled")
}
