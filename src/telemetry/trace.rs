//! The caller's trace (W3C Trace Context).

use std::fmt;

/// The value of a `traceparent` header (W3C Trace Context §3.2). Written as version 00.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    parent_id: u64,
    flags: u8,
}

impl TraceContext {
    /// Parses a header value. On `None` the trace is ignored, and the request is still served (§3.2.4).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('-');
        let version = hexadecimal(fields.next()?, 2)?;
        let trace_id = hexadecimal(fields.next()?, 32)?;
        let parent_id = u64::try_from(hexadecimal(fields.next()?, 16)?).ok()?;
        let flags = u8::try_from(hexadecimal(fields.next()?, 2)?).ok()?;
        // §3.2.2: version ff is invalid, 00 has four fields, a later one may have more.
        if version == 0xff || (version == 0 && fields.next().is_some()) {
            return None;
        }
        // §3.2.2.3 and §3.2.2.4: all bytes zero is invalid.
        (trace_id != 0 && parent_id != 0).then_some(Self { trace_id, parent_id, flags })
    }

    /// The trace id, 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // §3.2.2.5: only the flag `sampled` is defined; unknown flags are not forwarded.
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.parent_id, self.flags & 1)
    }
}

/// Exactly `digits` lower-case hexadecimal digits.
fn hexadecimal(text: &str, digits: usize) -> Option<u128> {
    let well_formed =
        text.len() == digits && text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'));
    if well_formed { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn trace_context_round_trips() {
        let trace = TraceContext::parse(GOOD).expect("well formed");
        assert_eq!(trace.to_string(), GOOD);
        assert_eq!(trace.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
    }

    #[test]
    fn later_version_is_parsed_as_version_00() {
        let later = GOOD.replacen("00-", "cc-", 1) + "-what-the-future-brings";
        assert_eq!(TraceContext::parse(&later), TraceContext::parse(GOOD));
    }

    #[test]
    fn malformed_trace_is_ignored() {
        for text in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "+0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(text), None, "{text}");
        }
    }
}
