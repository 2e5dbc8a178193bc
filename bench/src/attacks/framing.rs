//! Raw HTTP/1.1: heads that two parsers may read differently, and hidden requests.
//!
//! Every case requests `/livez`, which answers 200 to any client. More 200 responses than a case allows mean
//! that the node read a request that is not one.

use std::time::Duration;

use anyhow::Result;
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, timeout, timeout_at};

use super::{AttackContext, Outcome};
use crate::load::is_server_error;
use crate::wire::Target;

const QUIET_MAX: Duration = Duration::from_millis(700);
const CASE_MAX: Duration = Duration::from_secs(3);
/// Maximum bytes read of the responses to one case.
const READ_MAX: usize = 1024 * 1024;
/// Concurrent cases.
const AT_ONCE: usize = 8;

/// Name, bytes, and permitted number of 200 responses. `@` stands for the rest of a valid request: ` HTTP/1.1`,
/// the end of the line, and a valid `Host` line.
type Case = (&'static str, &'static str, usize);

/// A request hidden in place of a body.
macro_rules! hidden {
    () => {
        "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    };
}

const CASES: [Case; 76] = [
    // Valid ones: if these fail, the other results mean nothing.
    ("good", "GET /livez@\r\n", 1),
    ("good, two in one piece", concat!("GET /livez@\r\n", hidden!()), 2),
    ("good, with a body of stated length", concat!("GET /livez@Content-Length: 3\r\n\r\nabc", hidden!()), 2),
    ("good, a request as the body", concat!("GET /livez@Content-Length: 40\r\n\r\n", hidden!()), 1),
    // Length and coding (RFC 9112 §6).
    (
        "length and chunked",
        concat!("GET /livez@Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    (
        "chunked and length",
        concat!("GET /livez@Transfer-Encoding: chunked\r\nContent-Length: 45\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    (
        "length 0 and chunked",
        concat!("GET /livez@Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    (
        "length and gzip",
        concat!("GET /livez@Content-Length: 4\r\nTransfer-Encoding: gzip\r\n\r\nabcd", hidden!()),
        0,
    ),
    ("coding gzip", concat!("GET /livez@Transfer-Encoding: gzip\r\n\r\n", hidden!()), 0),
    ("coding identity", concat!("GET /livez@Transfer-Encoding: identity\r\n\r\n", hidden!()), 0),
    (
        "coding gzip, chunked",
        concat!("GET /livez@Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    (
        "coding chunked, gzip",
        concat!("GET /livez@Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    (
        "coding chunked, identity",
        concat!("GET /livez@Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    (
        "coding chunked twice in one line",
        concat!("GET /livez@Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    (
        "coding chunked twice in two lines",
        concat!(
            "GET /livez@Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            hidden!()
        ),
        0,
    ),
    ("coding xchunked", concat!("GET /livez@Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", hidden!()), 0),
    (
        "coding chunked with a vertical tab",
        concat!("GET /livez@Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    (
        "coding chunked in quotes",
        concat!("GET /livez@Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    (
        "coding chunked with a parameter",
        concat!("GET /livez@Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    ("coding empty", concat!("GET /livez@Transfer-Encoding:\r\n\r\n", hidden!()), 0),
    (
        "space before the colon of the coding",
        concat!("GET /livez@Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    (
        "tab before the colon of the coding",
        concat!("GET /livez@Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    (
        "coding folded into the next line",
        concat!("GET /livez@Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", hidden!()),
        0,
    ),
    (
        "coding with HTTP/1.0",
        concat!(
            "GET /livez HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            hidden!()
        ),
        0,
    ),
    (
        "chunked, then a second request",
        concat!("GET /livez@Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", hidden!()),
        1,
    ),
    (
        "two lengths that differ",
        concat!("GET /livez@Content-Length: 0\r\nContent-Length: 40\r\n\r\n", hidden!()),
        0,
    ),
    ("two lengths that agree", "GET /livez@Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 0),
    ("a list of lengths", "GET /livez@Content-Length: 3, 3\r\n\r\nabc", 0),
    ("length with a sign", "GET /livez@Content-Length: +3\r\n\r\nabc", 0),
    ("negative length", concat!("GET /livez@Content-Length: -1\r\n\r\n", hidden!()), 0),
    ("length in hexadecimal", "GET /livez@Content-Length: 0x3\r\n\r\nabc", 0),
    ("length with a point", "GET /livez@Content-Length: 3.0\r\n\r\nabc", 0),
    ("length with a space inside", concat!("GET /livez@Content-Length: 4 0\r\n\r\n", hidden!()), 0),
    ("empty length", concat!("GET /livez@Content-Length:\r\n\r\n", hidden!()), 0),
    (
        "length beyond 64 bits",
        concat!("GET /livez@Content-Length: 18446744073709551616\r\n\r\n", hidden!()),
        0,
    ),
    ("length folded into the next line", concat!("GET /livez@Content-Length:\r\n 40\r\n\r\n", hidden!()), 0),
    ("space before the colon of the length", concat!("GET /livez@Content-Length : 40\r\n\r\n", hidden!()), 0),
    // Chunks (RFC 9112 §7.1).
    (
        "chunk size with a sign",
        concat!("GET /livez@Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n", hidden!()),
        1,
    ),
    ("chunk size 0x0", concat!("GET /livez@Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n", hidden!()), 1),
    (
        "chunk size that wraps",
        concat!("GET /livez@Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n", hidden!()),
        1,
    ),
    ("chunk ended by LF", concat!("GET /livez@Transfer-Encoding: chunked\r\n\r\n0\n\n", hidden!()), 1),
    (
        "chunk extension with LF",
        concat!("GET /livez@Transfer-Encoding: chunked\r\n\r\n2;\nxx\r\n28\r\n0\r\n\r\n", hidden!()),
        1,
    ),
    (
        "length in a trailer",
        concat!("GET /livez@Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 40\r\n\r\n", hidden!()),
        1,
    ),
    // Host (RFC 9112 §3.2).
    ("no Host", "GET /livez HTTP/1.1\r\n\r\n", 0),
    ("two Hosts that differ", "GET /livez@Host: evil.example\r\n\r\n", 0),
    ("two Hosts that agree", "GET /livez@Host: localhost\r\n\r\n", 0),
    ("a list of Hosts", "GET /livez HTTP/1.1\r\nHost: localhost, localhost\r\n\r\n", 0),
    ("a foreign Host", "GET /livez HTTP/1.1\r\nHost: evil.example\r\n\r\n", 0),
    ("an empty Host", "GET /livez HTTP/1.1\r\nHost:\r\n\r\n", 0),
    ("space before the colon of Host", "GET /livez HTTP/1.1\r\nHost : localhost\r\n\r\n", 0),
    ("Host folded", "GET /livez HTTP/1.1\r\nHost:\r\n localhost\r\n\r\n", 0),
    ("space before the first header", "GET /livez HTTP/1.1\r\n Host: localhost\r\n\r\n", 0),
    ("absolute form with another Host", "GET http://evil.example/livez@\r\n", 0),
    ("absolute form", "GET http://localhost/livez@\r\n", 0),
    ("authority form", "CONNECT localhost:8693@\r\n", 0),
    ("asterisk form", "OPTIONS *@\r\n", 0),
    // Lines (RFC 9112 §2.2, §5).
    ("all lines ended by LF", "GET /livez HTTP/1.1\nHost: localhost\n\n", 0),
    ("the request line ended by LF", "GET /livez HTTP/1.1\nHost: localhost\r\n\r\n", 0),
    ("one header ended by LF", "GET /livez@X-A: b\nX-B: c\r\n\r\n", 0),
    ("the head ended by LF LF", "GET /livez@X-A: b\n\n\r\n\r\n", 0),
    ("CR inside a value", "GET /livez@X-A: b\rX-B: c\r\n\r\n", 0),
    ("CR CR LF", "GET /livez@X-A: b\r\r\n\r\n", 0),
    ("NUL in a value", "GET /livez@X-A: b\0c\r\n\r\n", 0),
    ("NUL in a name", "GET /livez@X-\0A: b\r\n\r\n", 0),
    ("a folded header", "GET /livez@X-A: b\r\n c\r\n\r\n", 0),
    ("a header folded by a tab", "GET /livez@X-A: b\r\n\tc\r\n\r\n", 0),
    ("a line without a colon", "GET /livez@nonsense\r\n\r\n", 0),
    ("an empty name", "GET /livez@: b\r\n\r\n", 0),
    ("a name with parentheses", "GET /livez@X(A): b\r\n\r\n", 0),
    // The request line (RFC 9112 §3).
    ("two spaces", "GET  /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 0),
    ("a tab instead of a space", "GET\t/livez\tHTTP/1.1\r\nHost: localhost\r\n\r\n", 0),
    ("a control character in the path", "GET /livez\x01@\r\n", 0),
    ("HTTP/1.0", "GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n", 0),
    ("HTTP/1.2", "GET /livez HTTP/1.2\r\nHost: localhost\r\n\r\n", 0),
    ("HTTP/0.9", "GET /livez\r\n\r\n", 0),
    ("HTTP/2 without having agreed on it", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0),
];

/// Every case on both listeners, and heads that are too large.
pub async fn attack(field: &AttackContext<'_>) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let large = large();
    for (listener, target) in field.node.anonymous() {
        let fixed = CASES.iter().map(|(name, text, served)| (*name, bytes(text), *served));
        let cases: Vec<_> =
            fixed.chain(large.iter().map(|(name, bytes)| (*name, bytes.clone(), 0))).collect();
        for group in cases.chunks(AT_ONCE) {
            let mut trying = tokio::task::JoinSet::new();
            for (name, bytes, served) in group.iter().cloned() {
                let target = target.clone();
                trying.spawn(async move { (name, served, answers(&target, &bytes).await) });
            }
            while let Some(tried) = trying.join_next().await {
                let (name, served, answers) = tried?;
                judge(&mut outcome, &format!("{name} ({listener})"), served, &answers);
            }
        }
    }
    Ok(outcome)
}

/// Responses of the node to a case.
struct Answers {
    statuses: Vec<u16>,
    closed: bool,
}

fn judge(outcome: &mut Outcome, what: &str, served: usize, answers: &Answers) {
    outcome.tries += 1;
    let accepted = answers.statuses.iter().filter(|status| (100..400).contains(*status)).count();
    if accepted > served {
        outcome.wrong_accepts += 1;
        outcome.note(format!("ACCEPTED: {what}: {:?}", answers.statuses));
    } else if what.starts_with("good") && accepted < served {
        outcome.note(format!("a valid request is refused: {what}: {:?}", answers.statuses));
    } else if !answers.closed && accepted < served.max(1) {
        outcome.note(format!("refused, and the connection stays open: {what}: {:?}", answers.statuses));
    }
    let errors =
        answers.statuses.iter().filter(|status| is_server_error(**status) && **status != 505).count();
    if errors > 0 {
        outcome.server_errors += errors as u64;
        outcome.note(format!("SERVER ERROR: {what}: {:?}", answers.statuses));
    }
}

fn bytes(text: &str) -> Vec<u8> {
    text.replacen('@', " HTTP/1.1\r\nHost: localhost\r\n", 1).into_bytes()
}

/// Heads beyond the limits.
fn large() -> Vec<(&'static str, Vec<u8>)> {
    let headers = |count: usize| (0..count).map(|n| format!("X-{n}: a\r\n")).collect::<Vec<_>>().concat();
    vec![
        ("101 headers", bytes(&format!("GET /livez@{}\r\n", headers(101)))),
        ("10 000 headers", bytes(&format!("GET /livez@{}\r\n", headers(10_000)))),
        ("a header of 500 KB", bytes(&format!("GET /livez@X-A: {}\r\n\r\n", "a".repeat(500_000)))),
        ("a path of 100 KB", bytes(&format!("GET /livez?{}@\r\n", "a".repeat(100_000)))),
        ("a method of 100 KB", bytes(&format!("{} /livez@\r\n", "A".repeat(100_000)))),
        ("a name of 100 KB", bytes(&format!("GET /livez@{}: a\r\n\r\n", "X".repeat(100_000)))),
    ]
}

/// Sends the bytes and reads until the node closes or stops sending.
async fn answers(target: &Target, bytes: &[u8]) -> Answers {
    let mut answers = Answers { statuses: Vec::new(), closed: true };
    let Ok(mut connection) = target.connect().await else { return answers };
    // The node may close before everything is written.
    let sent = timeout(CASE_MAX, connection.send(bytes)).await;
    let mut io = connection.into_io();
    let mut read = Vec::new();
    let end = Instant::now() + CASE_MAX;
    loop {
        let until = end.min(Instant::now() + QUIET_MAX);
        match timeout_at(until, io.read_buf(&mut read)).await {
            Ok(Ok(count)) if count > 0 && read.len() < READ_MAX => {}
            Ok(_) => break,
            Err(_) => {
                answers.closed = false;
                break;
            }
        }
    }
    drop(sent);
    answers.statuses = statuses(&read);
    answers
}

/// Status codes of all answers in these bytes.
fn statuses(read: &[u8]) -> Vec<u16> {
    let marker = b"HTTP/1.";
    let starts = read.windows(marker.len()).enumerate().filter(|(_, window)| window == marker);
    starts.filter_map(|(at, _)| std::str::from_utf8(read.get(at + 9..at + 12)?).ok()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_sixty_cases_and_all_are_different() {
        let mut names: Vec<_> = CASES.iter().map(|(name, ..)| *name).collect();
        let mut texts: Vec<_> = CASES.iter().map(|(_, text, _)| bytes(text)).collect();
        names.sort_unstable();
        names.dedup();
        texts.sort_unstable();
        texts.dedup();
        assert!(CASES.len() >= 60);
        assert_eq!((names.len(), texts.len()), (CASES.len(), CASES.len()));
    }

    #[test]
    fn a_hidden_request_has_the_length_that_the_cases_state() {
        assert_eq!(hidden!().len(), 40);
    }

    #[test]
    fn surplus_response_is_a_wrong_accept() {
        let read = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n";
        let answers = Answers { statuses: statuses(read), closed: true };
        assert_eq!(answers.statuses, [200, 200]);
        let mut outcome = Outcome::default();
        judge(&mut outcome, "chunked", 1, &answers);
        assert_eq!(outcome.wrong_accepts, 1);
    }
}
