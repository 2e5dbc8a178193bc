//! Equal denials of a minute become one entry, so that a caller that is refused all the time does not fill the audit.
//!
//! The first is an entry as any other. Those of the next minute with the same caller, tool, protocol, check and subject
//! are counted, and written as one later entry; a killed process loses the count.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Action, Decision, Draft};
use crate::clock::Clock;
use crate::id::{Digest128, DigestKind};
use crate::limits;

/// Denials of the last minute.
#[derive(Debug)]
pub struct Denials {
    clock: Clock,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    denials: HashMap<Digest128, Minute>,
    /// The ends of the minutes, in order. An item without its denial is stale.
    ends: VecDeque<(Duration, Digest128)>,
    /// Entries to be written of minutes that were over when the next began.
    due: VecDeque<Box<Draft>>,
}

/// The minute after a denial.
#[derive(Debug)]
struct Minute {
    /// Time since boot.
    end: Duration,
    /// The last of the equal ones, with their number.
    joined: Option<Box<Draft>>,
}

impl Denials {
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, known: Mutex::default() }
    }

    /// Digest of the fields that equal denials have in common; `None` of anything else.
    #[must_use]
    pub fn key_of(draft: &Draft) -> Option<Digest128> {
        let check =
            draft.check.filter(|_| draft.action == Action::Verify && draft.decision == Decision::Deny)?;
        let (caller, protocol) = (draft.caller.as_deref(), draft.protocol.as_deref());
        let parts = [caller, protocol, Some(check), Some(draft.subject.as_str())];
        let mut key = Vec::new();
        for part in parts {
            let bytes = part.unwrap_or_default().as_bytes();
            key.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
            key.extend_from_slice(bytes);
        }
        Some(Digest128::of(DigestKind::Tool, &key, draft.tool_id.as_bytes()))
    }

    /// Counts a denial whose minute lasts; otherwise its minute begins, and it is to be written.
    #[must_use]
    pub fn is_joined(&self, key: Digest128, draft: &Draft) -> bool {
        let now = self.clock.boot();
        let Known { denials, ends, due } = &mut *self.known.lock();
        let are_many = denials.len().max(due.len()) >= limits::AUDIT_DENIALS_MAX;
        let end = now.saturating_add(limits::AUDIT_DENIALS_JOINED);
        match denials.get_mut(&key) {
            Some(minute) if now < minute.end => {
                let count = minute.joined.as_ref().and_then(|joined| joined.count).unwrap_or(0);
                minute.joined =
                    Some(Box::new(Draft { count: Some(count.saturating_add(1)), ..draft.clone() }));
                return true;
            }
            _ if are_many => {}
            Some(minute) => {
                due.extend(minute.joined.take());
                minute.end = end;
                ends.push_back((end, key));
            }
            None => {
                denials.insert(key, Minute { end, joined: None });
                ends.push_back((end, key));
            }
        }
        false
    }

    /// Removes a denial that was not written. Those that were joined to it meanwhile were answered.
    pub fn forget(&self, key: Digest128) {
        let Known { denials, due, .. } = &mut *self.known.lock();
        due.extend(denials.remove(&key).and_then(|minute| minute.joined));
    }

    /// The next entry to write for joined denials: of a minute that is over, or of `all`.
    #[must_use]
    pub fn take(&self, all: bool) -> Option<Draft> {
        let now = self.clock.boot();
        let mut known = self.known.lock();
        if let Some(draft) = known.due.pop_front() {
            return Some(Draft { timestamp: self.clock.now(), ..*draft });
        }
        while known.ends.front().is_some_and(|(end, _)| all || *end <= now) {
            let (end, key) = known.ends.pop_front()?;
            if known.denials.get(&key).is_none_or(|minute| minute.end != end) {
                continue;
            }
            if let Some(joined) = known.denials.remove(&key).and_then(|minute| minute.joined) {
                return Some(Draft { timestamp: self.clock.now(), ..*joined });
            }
        }
        None
    }

    /// Takes back an entry that could not be written.
    pub fn put_back(&self, draft: Draft) {
        self.known.lock().due.push_front(Box::new(draft));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::state::CallContext;

    const SECOND: Duration = Duration::from_secs(1);

    fn denial(caller: &str) -> Draft {
        let caller = CallContext { id: Some(caller.into()), ..CallContext::default() };
        let undecided = Draft::undecided(Action::Verify, "t", &caller, Timestamp::default());
        let (protocol, subject) = (Some("mcp".into()), "s".into());
        Draft { decision: Decision::Deny, check: Some("audience"), protocol, subject, ..undecided }
    }

    fn denials() -> (Denials, Clock) {
        let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
        (Denials::new(clock.clone()), clock)
    }

    fn is_joined(denials: &Denials, draft: &Draft) -> bool {
        Denials::key_of(draft).is_some_and(|key| denials.is_joined(key, draft))
    }

    #[test]
    fn equal_denials_of_a_minute_are_one_later_entry() {
        let (denials, clock) = denials();
        assert!(!is_joined(&denials, &denial("c")), "the first is an entry");
        assert_eq!(denials.take(false).map(|draft| draft.count), None);
        clock.advance(59 * SECOND);
        for at in 0..3 {
            let request_id = at.to_string();
            assert!(is_joined(&denials, &Draft { request_id, jti: Some("j".into()), ..denial("c") }));
        }
        assert!(denials.take(false).is_none(), "its minute lasts");
        clock.advance(SECOND);
        assert!(!is_joined(&denials, &denial("c")), "its minute is over: the first of another");
        assert!(is_joined(&denials, &denial("c")));
        let joined = denials.take(false).expect("an entry");
        assert_eq!((joined.count, joined.request_id.as_str(), joined.timestamp), (Some(3), "2", clock.now()));
        assert!(denials.take(false).is_none());
        assert_eq!(denials.take(true).expect("at the end").count, Some(1));
    }

    #[test]
    fn denials_that_differ_are_not_joined() {
        let (denials, _) = denials();
        let different = [
            denial("c"),
            denial("d"),
            Draft { tool_id: "u".into(), ..denial("c") },
            Draft { protocol: Some("http".into()), ..denial("c") },
            Draft { check: Some("token"), ..denial("c") },
            Draft { subject: "other".into(), ..denial("c") },
        ];
        for draft in &different {
            assert!(!is_joined(&denials, draft), "{draft:?}");
        }
        assert!(different.iter().all(|draft| is_joined(&denials, draft)));
        // Neither is anything that was allowed, or was not decided by a check.
        for other in [
            Draft { decision: Decision::Allow, ..denial("c") },
            Draft { decision: Decision::Error, ..denial("c") },
            Draft { action: Action::Replace, ..denial("c") },
            Draft { check: None, ..denial("c") },
        ] {
            assert_eq!(Denials::key_of(&other), None, "{other:?}");
        }
    }

    #[test]
    fn denials_over_the_limit_are_entries_each() {
        let (denials, clock) = denials();
        for at in 0..limits::AUDIT_DENIALS_MAX {
            assert!(!is_joined(&denials, &denial(&at.to_string())));
        }
        for _ in 0..2 {
            assert!(!is_joined(&denials, &denial("one more")));
        }
        assert!(is_joined(&denials, &denial("0")));
        clock.advance(limits::AUDIT_DENIALS_JOINED);
        assert_eq!(denials.take(false).expect("joined").count, Some(1));
        assert!(denials.take(false).is_none());
        assert!(!is_joined(&denials, &denial("one more")));
        assert!(is_joined(&denials, &denial("one more")));
    }

    #[test]
    fn denial_that_failed_to_write_is_not_the_first() {
        let (denials, _) = denials();
        assert!(!is_joined(&denials, &denial("c")));
        denials.forget(Denials::key_of(&denial("c")).expect("a denial"));
        assert!(!is_joined(&denials, &denial("c")));
        assert!(is_joined(&denials, &denial("c")));
    }

    /// Regression: their callers were answered 403, and no entry told of them.
    #[test]
    fn denials_joined_to_one_that_failed_to_write_are_written() {
        let (denials, _) = denials();
        assert!(!is_joined(&denials, &denial("c")));
        assert!((0..2).all(|_| is_joined(&denials, &denial("c"))));
        denials.forget(Denials::key_of(&denial("c")).expect("a denial"));
        assert_eq!(denials.take(false).expect("an entry").count, Some(2));
        assert!(denials.take(true).is_none());
    }

    #[test]
    fn count_that_failed_to_write_is_written_later() {
        let (denials, _) = denials();
        for _ in 0..3 {
            is_joined(&denials, &denial("c"));
        }
        denials.put_back(denials.take(true).expect("joined"));
        assert!(!is_joined(&denials, &denial("c")) && is_joined(&denials, &denial("c")));
        assert_eq!(denials.take(false).expect("again").count, Some(2));
        assert_eq!(denials.take(true).expect("the next").count, Some(1));
    }
}
