//! Foreign text in responses, logs and the audit.

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
