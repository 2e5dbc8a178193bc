//! Foreign text in responses, logs and the audit.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

/// Characters that stay unencoded in a path segment (RFC 3986 §2.3, unreserved).
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A segment of a path, percent-encoded.
pub(super) fn segment(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, SEGMENT)
}

/// Printable ASCII without quotes and backslashes (RFC 6749 §5.2), bounded.
pub(super) fn printable(text: &str) -> String {
    const CHARACTERS_MAX: usize = 1000;
    text.chars()
        .take(CHARACTERS_MAX)
        .map(|c| match c {
            '"' | '\\' | '`' => '\'',
            '\n' | '\r' | '\t' => ' ',
            ' '..='~' => c,
            _ => '?',
        })
        .collect()
}
