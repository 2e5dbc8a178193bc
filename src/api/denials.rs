//! The latest denials of this node, by the id of their request, so that an operator can explain one afterwards.
//!
//! They are in memory only, and no decision depends on them: the audit is the durable record of tool calls, and a denied
//! exchange changes nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::App;
use super::error::Refused;
use crate::clock::Timestamp;
use crate::id::WorkloadId;
use crate::limits;
use crate::policy::{self, Point};
use crate::state::CallContext;

/// A denied request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedRequest {
    /// `X-Request-Id` of its response.
    pub request_id: String,
    pub at: Timestamp,
    /// `exchange`, `identity`, `signals` or `verification`.
    pub operation: &'static str,
    /// The text of the response.
    pub reason: String,
    /// The cause, which the caller does not learn.
    pub detail: Option<String>,
    /// The authenticated caller.
    pub caller: Option<String>,
    /// The subject, if its credential was verified.
    pub subject: Option<String>,
    /// The requested audience, or the tool.
    pub target: Option<String>,
    /// The input of the policy, if the policy denied.
    pub question: Option<Question>,
}

/// The input of a policy decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub point: Point,
    /// Digest of the deciding bundle.
    pub policy_digest: String,
    /// The input, as JSON.
    pub input: String,
}

impl DeniedRequest {
    fn bytes(&self) -> usize {
        let texts =
            [&self.detail, &self.caller, &self.subject, &self.target].into_iter().flatten().map(String::len);
        let question = self.question.as_ref().map_or(0, |question| question.input.len());
        size_of::<Self>() + self.request_id.len() + self.reason.len() + texts.sum::<usize>() + question
    }
}

/// The latest denials of this node. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Denials(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// Oldest first.
    denied: VecDeque<DeniedRequest>,
    bytes: usize,
}

impl Denials {
    /// Retains a denial, and removes the oldest ones beyond [`limits::DENIALS_RETAINED_MAX`] and
    /// [`limits::DENIALS_RETAINED_BYTES_MAX`].
    pub fn keep(&self, denied: DeniedRequest) {
        let mut kept = self.0.lock();
        kept.bytes += denied.bytes();
        kept.denied.push_back(denied);
        while kept.denied.len() > limits::DENIALS_RETAINED_MAX
            || kept.bytes > limits::DENIALS_RETAINED_BYTES_MAX
        {
            let Some(oldest) = kept.denied.pop_front() else { break };
            kept.bytes -= oldest.bytes();
        }
    }

    /// The denial of a request, if it is kept.
    #[must_use]
    pub fn find(&self, request_id: &str) -> Option<DeniedRequest> {
        let kept = self.0.lock();
        kept.denied.iter().rev().find(|denied| denied.request_id == request_id).cloned()
    }
}

/// A denial, as its handler knows it.
pub struct Denied<'d, E> {
    pub operation: &'static str,
    pub error: &'d E,
    pub subject: Option<&'d WorkloadId>,
    /// The requested audience, or the tool.
    pub target: Option<&'d str>,
    /// The denial by policy, if it is one.
    pub policy: Option<(Point, &'d policy::Denial)>,
}

impl<E: Refused> Denied<'_, E> {
    /// Keeps it for an explanation.
    pub fn keep(self, app: &App, caller: &CallContext) {
        let question = self.policy.and_then(|(point, denial)| {
            let input = denial.input.as_ref()?.to_string();
            Some(Question { point, policy_digest: denial.policy_digest.clone(), input })
        });
        app.denials.keep(DeniedRequest {
            request_id: caller.request_id.clone(),
            at: app.clock.now(),
            operation: self.operation,
            reason: self.error.text(),
            detail: self.error.detail(),
            caller: caller.id().map(str::to_owned),
            subject: self.subject.map(WorkloadId::to_string),
            target: self.target.map(str::to_owned),
            question,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(number: usize, input: usize) -> DeniedRequest {
        let policy_digest = String::new();
        DeniedRequest {
            request_id: number.to_string(),
            at: Timestamp::from_secs(1),
            operation: "exchange",
            reason: "no".to_owned(),
            detail: None,
            caller: None,
            subject: None,
            target: None,
            question: Some(Question { point: Point::Exchange, policy_digest, input: "a".repeat(input) }),
        }
    }

    fn kept_from(denials: &Denials, count: usize) -> Vec<bool> {
        (0..count).map(|number| denials.find(&number.to_string()).is_some()).collect()
    }

    #[test]
    fn oldest_denials_are_removed_beyond_the_number() {
        let denials = Denials::default();
        for number in 0..=limits::DENIALS_RETAINED_MAX {
            denials.keep(denied(number, 0));
        }
        assert_eq!(kept_from(&denials, 2), [false, true]);
        assert_eq!(denials.find("1"), Some(denied(1, 0)));
    }

    #[test]
    fn oldest_denials_are_removed_beyond_the_size() {
        let denials = Denials::default();
        for number in 0..3 {
            denials.keep(denied(number, limits::DENIALS_RETAINED_BYTES_MAX / 2));
        }
        assert_eq!(kept_from(&denials, 3), [false, false, true]);
        denials.keep(denied(3, limits::DENIALS_RETAINED_BYTES_MAX));
        denials.keep(denied(4, 0));
        assert_eq!(kept_from(&denials, 5), [false, false, false, false, true]);
    }
}
