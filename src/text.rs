//! Rules for text in requests, tokens and policy output: length, alphabet and URI syntax.

pub(crate) mod values;

use std::net::SocketAddr;

use crate::limits;

/// The variant with this name; otherwise the rule that the text breaks.
pub(crate) fn one_of<T: strum::VariantArray + Copy + Into<&'static str>>(text: &str) -> Result<T, String> {
    let names: Vec<&str> = T::VARIANTS.iter().map(|variant| (*variant).into()).collect();
    let found = names.iter().position(|name| *name == text).and_then(|at| T::VARIANTS.get(at));
    found.copied().ok_or_else(|| format!("must be one of {}", names.join(", ")))
}

/// Whether `text` has 1 to `bytes_max` bytes.
pub(crate) fn fits(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len())
}

/// Whether `text` is 1 to `bytes_max` printable ASCII characters without spaces.
pub(crate) fn is_printable(text: &str, bytes_max: usize) -> bool {
    fits(text, bytes_max) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether `text` is 1 to `bytes_max` bytes of text for display, without control characters.
pub(crate) fn is_display(text: &str, bytes_max: usize) -> bool {
    fits(text, bytes_max) && !text.contains(char::is_control)
}

/// `scope-token = 1*( %x21 / %x23-5B / %x5D-7E )` (RFC 6749 §3.3), within its limit. Every capability is one, because
/// it is written into `scope`.
pub(crate) fn is_scope_word(text: &str) -> bool {
    is_printable(text, limits::CAPABILITY_BYTES_MAX) && !text.contains(['"', '\\'])
}

/// Whether `text` is a URI (RFC 3986 §3): a scheme, a colon and a non-empty rest, within its limit.
pub(crate) fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
        && !rest.is_empty()
        && is_printable(text, limits::URI_BYTES_MAX)
        && !text.contains(['"', '<', '>', '\\', '^', '`', '{', '|', '}'])
}

/// Whether `text` is an absolute URI: a URI without fragment (RFC 3986 §4.3).
pub(crate) fn is_absolute_uri(text: &str) -> bool {
    is_uri(text) && !text.contains('#')
}

/// Whether `text` is a host name or address and a port. Nodes are identified by certificates, not by addresses.
pub(crate) fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_name = fits(host, limits::DNS_NAME_BYTES_MAX)
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
    is_port && (is_name || text.parse::<SocketAddr>().is_ok())
}

/// An id of 16 bytes as 32 lower-case hexadecimal digits.
pub(crate) fn hex(id: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

/// Parses the output of [`hex`].
pub(crate) fn from_hex(text: &str) -> Option<[u8; 16]> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let digits = Some(text).filter(|text| text.len() == 32 && text.bytes().all(is_digit))?;
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}

/// Advice for a refused mode, if it is the one that Kubernetes gives to a private directory or file of a volume when the pod
/// has an `fsGroup`.
pub(crate) const fn fs_group_advice(mode: u32) -> &'static str {
    match mode {
        0o770 | 0o660 => {
            ". If Kubernetes has opened it to the fsGroup of the pod: set fsGroupChangePolicy to OnRootMismatch, and node.data_dir \
             to a subdirectory of the volume, whose root always gets that mode; remove the access of the group once \
             (chmod -R g-rwxs)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_has_no_space_and_no_other_alphabet() {
        assert!(is_printable("a-1~", 4));
        for text in ["", "abcde", "a b", "a\n", "\u{e4}", "\u{7f}"] {
            assert!(!is_printable(text, 4), "{text:?}");
        }
    }

    #[test]
    fn display_text_has_no_control_characters() {
        assert!(is_display("J\u{f6}rg 1", 7));
        for text in ["", "12345678", "a\tb", "a\u{85}"] {
            assert!(!is_display(text, 7), "{text:?}");
        }
    }

    #[test]
    fn scope_word_follows_rfc_6749() {
        assert!(is_scope_word("db.read:[1]"));
        for text in ["", "a b", "a\"b", "a\\b", "\u{e4}", &"x".repeat(limits::CAPABILITY_BYTES_MAX + 1)] {
            assert!(!is_scope_word(text), "{text:?}");
        }
    }

    #[test]
    fn host_and_port_have_a_port_that_can_be_dialled() {
        for text in ["node-1.example:8695", "10.0.0.1:1", "[::1]:8695", "a_b:65535"] {
            assert!(is_host_and_port(text), "{text}");
        }
        for text in ["", "a", ":1", "a:0", "a:65536", "a:x", "a b:1", "::1:8695x", "a/b:1", "a:1\n"] {
            assert!(!is_host_and_port(text), "{text:?}");
        }
        assert!(!is_host_and_port(&format!("{}:1", "a".repeat(limits::DNS_NAME_BYTES_MAX + 1))));
    }

    #[test]
    fn hexadecimal_id_round_trips_and_has_one_spelling() {
        let id = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!(from_hex(&hex(&id)), Some(id));
        for text in ["", "00", &"A".repeat(32), &"0".repeat(33), &format!("+{}", "0".repeat(31))] {
            assert_eq!(from_hex(text), None, "{text}");
        }
    }

    #[test]
    fn uri_needs_a_scheme_and_absolute_uri_has_no_fragment() {
        for text in ["https://a.example/x?y", "urn:x", "a+b-c.1:/"] {
            assert!(is_uri(text) && is_absolute_uri(text), "{text}");
        }
        assert!(is_uri("https://a.example/#x"));
        assert!(!is_absolute_uri("https://a.example/#x"));
        for text in ["", "x", ":x", "x:", "1x:y", "a b:c", "x:a b", "x:<y>", "x:a|b", "x:\u{e4}"] {
            assert!(!is_uri(text), "{text}");
        }
        assert!(!is_uri(&format!("x:{}", "y".repeat(limits::URI_BYTES_MAX))));
    }
}
