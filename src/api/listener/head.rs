//! The head of an HTTP/1.1 request as bytes: its end, and whether it has only one reading. Pure, without I/O.
//!
//! Stricter than RFC 9112 requires: where it leaves a choice, the request is refused, because two programs that choose
//! differently see different requests in the same bytes (request smuggling).

use hyper::StatusCode;

use crate::limits;

/// A violation of the framing rules. A request with one in its extensions is answered with it; nothing else of it is
/// known but its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// LF without CR, or CR without LF (RFC 9112 §2.2).
    #[error("a line of the request's head does not end with CR LF")]
    LineEnd,
    /// RFC 9110 §5.5: CR, LF and NUL are dangerous, other control characters are not allowed.
    #[error("the request's head contains a control character")]
    ControlCharacter,
    /// Not "method SP request-target SP HTTP-version" (RFC 9112 §3).
    #[error("the request line is malformed")]
    RequestLine,
    /// Beyond [`limits::REQUEST_LINE_BYTES_MAX`].
    #[error("the request line is too long")]
    RequestLineTooLong,
    /// Not the origin-form (RFC 9112 §3.2.1); the other forms are for proxies.
    #[error("the request target is not a path with an optional query")]
    Target,
    /// Not HTTP/1.1.
    #[error("the version is not HTTP/1.1")]
    Version,
    /// Beyond [`limits::HEAD_BYTES_MAX`].
    #[error("the request's head is too large")]
    HeadTooLarge,
    /// Beyond [`limits::HEADERS_MAX`].
    #[error("the request has too many headers")]
    TooManyHeaders,
    /// Not "field-name: field-value", or folded over two lines (RFC 9112 §5.1, §5.2).
    #[error("a header is malformed")]
    Header,
    /// Not exactly one authority (RFC 9112 §3.2, RFC 9113 §8.3.1).
    #[error("the request must have exactly one well-formed Host")]
    Host,
    /// Not one value of digits (RFC 9112 §6.3).
    #[error("Content-Length must be one number")]
    ContentLength,
    /// Not `chunked` and nothing else (RFC 9112 §6.1).
    #[error("Transfer-Encoding must be chunked")]
    TransferEncoding,
    /// RFC 9112 §6.1: both "might indicate an attempt to perform request smuggling".
    #[error("Content-Length and Transfer-Encoding exclude each other")]
    TwoLengths,
    /// The HTTP library read a request where none was checked.
    #[error("the request does not begin where the previous one ended")]
    Unchecked,
}

impl Violation {
    /// The status of the response.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::RequestLineTooLong => StatusCode::URI_TOO_LONG,
            Self::HeadTooLarge | Self::TooManyHeaders => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// The body that follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A number of bytes.
    Length(u64),
    /// Chunks (RFC 9112 §7.1).
    Chunked,
}

/// Finds the end of a head in bytes that arrive in parts; each byte is scanned once.
#[derive(Debug, Default)]
pub struct Scan {
    at: usize,
    line_start: usize,
    lines: usize,
    after_cr: bool,
    /// Where the request line begins.
    start: usize,
}

impl Scan {
    /// The range of the complete head in `bytes`, which starts where it started at the previous call.
    ///
    /// # Errors
    /// A [`Violation`] that is visible before the head is complete.
    pub fn head_in<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<(&'b [u8], usize)>, Violation> {
        while let Some(byte) = bytes.get(self.at) {
            self.at += 1;
            if self.lines == 0 && self.at - self.start > limits::REQUEST_LINE_BYTES_MAX {
                return Err(Violation::RequestLineTooLong);
            }
            if self.at - self.start > limits::HEAD_BYTES_MAX {
                return Err(Violation::HeadTooLarge);
            }
            let after_cr = std::mem::replace(&mut self.after_cr, *byte == b'\r');
            match byte {
                b'\n' if after_cr => {
                    if self.end_line()? {
                        return Ok(bytes.get(self.start..self.at).map(|head| (head, self.at)));
                    }
                }
                b'\n' => return Err(Violation::LineEnd),
                _ if after_cr => return Err(Violation::LineEnd),
                b'\r' | b'\t' | b' '..=b'~' | 0x80..=0xff => {}
                _ => return Err(Violation::ControlCharacter),
            }
        }
        Ok(None)
    }

    /// Whether the line that ended was the empty one after the headers.
    fn end_line(&mut self) -> Result<bool, Violation> {
        let is_empty = self.at - self.line_start == 2;
        self.line_start = self.at;
        match (is_empty, self.lines) {
            // RFC 9112 §2.2: "SHOULD ignore at least one empty line (CRLF) received prior to the request-line". One is
            // ignored.
            (true, 0) if self.start == 0 => self.start = self.at,
            (true, 0) => return Err(Violation::RequestLine),
            (true, _) => return Ok(true),
            (false, lines) if lines > limits::HEADERS_MAX => return Err(Violation::TooManyHeaders),
            (false, _) => self.lines += 1,
        }
        Ok(false)
    }
}

/// Checks a complete head, whose line ends and bytes [`Scan`] has checked: the request line, each header, then the
/// headers that must occur once.
///
/// # Errors
/// The first [`Violation`].
pub fn check(head: &[u8]) -> Result<Body, Violation> {
    let mut lines = head
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .take_while(|line| !line.is_empty());
    check_request_line(lines.next().unwrap_or_default())?;
    let mut hosts = 0;
    let mut length = None;
    let mut is_chunked = false;
    for line in lines {
        let (name, value) = header(line)?;
        if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
            if !is_authority(value) {
                return Err(Violation::Host);
            }
        } else if name.eq_ignore_ascii_case(b"content-length") {
            if length.replace(content_length(value)?).is_some() {
                return Err(Violation::ContentLength);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding")
            && (std::mem::replace(&mut is_chunked, true) || !value.eq_ignore_ascii_case(b"chunked"))
        {
            return Err(Violation::TransferEncoding);
        }
    }
    match (hosts, length, is_chunked) {
        (1, Some(_), true) => Err(Violation::TwoLengths),
        (1, None, true) => Ok(Body::Chunked),
        (1, length, false) => Ok(Body::Length(length.unwrap_or(0))),
        _ => Err(Violation::Host),
    }
}

/// Whether `text` can name a host and port (RFC 3986 §3.2.2). Narrower: no userinfo, no percent-encoding, no character
/// that some programs treat as a separator.
#[must_use]
pub fn is_authority(text: &[u8]) -> bool {
    let is_of_authority = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':' | b'[' | b']')
    };
    !text.is_empty() && text.iter().all(is_of_authority)
}

fn check_request_line(line: &[u8]) -> Result<(), Violation> {
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Violation::RequestLine);
    };
    match version.strip_prefix(b"HTTP/") {
        Some(b"1.1") => {}
        Some([major, b'.', minor]) if major.is_ascii_digit() && minor.is_ascii_digit() => {
            return Err(Violation::Version);
        }
        _ => return Err(Violation::RequestLine),
    }
    if !is_token(method) {
        return Err(Violation::RequestLine);
    }
    // CONNECT requires the authority-form (RFC 9112 §3.2.3).
    if method == b"CONNECT" || !target.starts_with(b"/") || !target.iter().copied().all(is_of_target) {
        return Err(Violation::Target);
    }
    Ok(())
}

/// `pchar`, `/` and `?` (RFC 3986 §3.3, §3.4).
#[must_use]
pub fn is_of_target(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:@/?".contains(&byte)
}

/// `tchar` (RFC 9110 §5.6.2).
fn is_token(text: &[u8]) -> bool {
    let is_tchar = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_tchar)
}

/// RFC 9112 §5.1: "No whitespace is allowed between the field name and colon". A folded line begins with whitespace
/// (§5.2), which no name contains.
fn header(line: &[u8]) -> Result<(&[u8], &[u8]), Violation> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(Violation::Header)?;
    let (name, rest) = line.split_at_checked(colon).ok_or(Violation::Header)?;
    if !is_token(name) {
        return Err(Violation::Header);
    }
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let value = rest.get(1..).unwrap_or_default();
    let start = value.iter().position(|byte| !is_space(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !is_space(byte)).map_or(start, |last| last + 1);
    Ok((name, value.get(start..end).unwrap_or_default()))
}

fn content_length(value: &[u8]) -> Result<u64, Violation> {
    // `parse` alone would accept a sign.
    if !value.iter().all(u8::is_ascii_digit) {
        return Err(Violation::ContentLength);
    }
    let digits = str::from_utf8(value).map_err(|_| Violation::ContentLength)?;
    // The HTTP library reserves the largest values of u64.
    let length: i64 = digits.parse().map_err(|_| Violation::ContentLength)?;
    u64::try_from(length).map_err(|_| Violation::ContentLength)
}
