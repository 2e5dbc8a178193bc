//! Conversion between openraft's types and the messages of `proto/peer.proto`.
//!
//! Messages of members are validated too: openraft takes an inconsistent message for a bug of its own and stops.

use std::time::Duration;

use openraft::entry::RaftEntry as _;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderRequest, VoteRequest, VoteResponse,
};
use openraft::vote::RaftLeaderId as _;

use crate::cluster::ClockReport;
use crate::cluster::codec::{self, proto as log};
use crate::cluster::type_config::{LogId, TypeConfig, Vote};
use crate::limits;

/// Generated from `proto/peer.proto`.
#[allow(clippy::pedantic, missing_docs, unused_qualifications, reason = "generated code")]
pub(crate) mod proto {
    include!(concat!(env!("OUT_DIR"), "/trust_fabric.peer.v1.rs"));
}

/// A message of another node is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// It does not decode.
    #[error("{0}")]
    Undecodable(#[from] codec::Error),
    /// A required field is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// The vote names a node other than the sender.
    #[error("the vote names node {named}, the sender is node {from}")]
    VoteOfAnother {
        /// The node that the vote names.
        named: u64,
        /// The sender.
        from: u64,
    },
    /// A vote must be committed in a leader's message, and uncommitted in a candidate's.
    #[error("the vote is {0}committed")]
    Committed(&'static str),
    /// The term is impossibly far ahead.
    #[error("term {term} is more than {} ahead of the current term", limits::TERM_AHEAD_MAX)]
    TermTooFar { term: u64 },
    /// The index is impossibly large.
    #[error("log index {0} is too large")]
    IndexTooLarge(u64),
    /// The entries are not contiguous.
    #[error("log entry {found} found where entry {expected} should be")]
    Gap {
        /// Index of the entry.
        found: u64,
        /// The expected index.
        expected: u64,
    },
    /// The term of an entry is after the sender's, or before that of the previous entry.
    #[error("log entry {0} has an impossible term")]
    TermOfEntry(u64),
}

/// Context in which a message is validated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageContext {
    /// The sender, as its certificate names it.
    pub(crate) node_id: u64,
    /// Term of the receiver.
    pub(crate) own_term: u64,
}

fn need<T>(part: Option<T>, name: &'static str) -> Result<T, Error> {
    part.ok_or(Error::Missing(name))
}

fn log_id(message: Option<log::LogId>) -> Result<Option<LogId>, Error> {
    let log_id = message.map(codec::log_id_from_proto).transpose()?;
    match log_id {
        Some(log_id) if log_id.index > limits::LOG_INDEX_MAX => Err(Error::IndexTooLarge(log_id.index)),
        log_id => Ok(log_id),
    }
}

/// Decodes the sender's own vote, with a possible term.
fn vote(message: Option<log::Vote>, from: MessageContext, committed: bool) -> Result<Vote, Error> {
    let vote = codec::vote_from_proto(need(message, "vote")?)?;
    let named = *vote.leader_id.node_id();
    if named != from.node_id {
        return Err(Error::VoteOfAnother { named, from: from.node_id });
    }
    if vote.committed != committed {
        return Err(Error::Committed(if committed { "not " } else { "" }));
    }
    of_possible_term(vote, from.own_term)
}

/// openraft adopts any higher vote.
fn of_possible_term(vote: Vote, own_term: u64) -> Result<Vote, Error> {
    match vote.leader_id.term() {
        term if term > own_term.saturating_add(limits::TERM_AHEAD_MAX) => Err(Error::TermTooFar { term }),
        _ => Ok(vote),
    }
}

/// Decodes a vote request.
pub(crate) fn vote_request(
    message: proto::VoteRequest,
    from: MessageContext,
) -> Result<VoteRequest<TypeConfig>, Error> {
    let mut request = VoteRequest::new(vote(message.vote, from, false)?, log_id(message.last_log_id)?);
    request.leadership_transfer = message.leadership_transfer;
    Ok(request)
}

pub(crate) fn vote_request_to_proto(request: &VoteRequest<TypeConfig>) -> proto::VoteRequest {
    proto::VoteRequest {
        vote: Some(codec::vote_to_proto(&request.vote)),
        last_log_id: request.last_log_id.as_ref().map(codec::log_id_to_proto),
        leadership_transfer: request.leadership_transfer,
    }
}

/// Decodes a leadership transfer.
pub(crate) fn transfer_request(
    message: proto::TransferLeaderRequest,
    from: MessageContext,
) -> Result<TransferLeaderRequest<TypeConfig>, Error> {
    let vote = vote(message.vote, from, true)?;
    let last = log_id(message.last_log_id)?;
    match last.filter(|last| last.leader_id > vote.leader_id) {
        Some(last) => Err(Error::TermOfEntry(last.index)),
        None => Ok(TransferLeaderRequest::new(vote, message.to, last)),
    }
}

pub(crate) fn transfer_request_to_proto(
    request: &TransferLeaderRequest<TypeConfig>,
) -> proto::TransferLeaderRequest {
    proto::TransferLeaderRequest {
        vote: Some(codec::vote_to_proto(request.from_leader())),
        to: *request.to_node_id(),
        last_log_id: request.last_log_id().map(codec::log_id_to_proto),
    }
}

/// Decodes the vote in a response, with a possible term.
pub(crate) fn answered_vote(message: Option<log::Vote>, own_term: u64) -> Result<Vote, Error> {
    of_possible_term(codec::vote_from_proto(need(message, "vote")?)?, own_term)
}

/// Decodes the response to a vote request that was sent in `own_term`.
pub(crate) fn vote_response(
    message: proto::VoteResponse,
    own_term: u64,
) -> Result<VoteResponse<TypeConfig>, Error> {
    let vote = answered_vote(message.vote, own_term)?;
    Ok(VoteResponse::new(vote, log_id(message.last_log_id)?, message.granted))
}

pub(crate) fn vote_response_to_proto(response: &VoteResponse<TypeConfig>) -> proto::VoteResponse {
    proto::VoteResponse {
        vote: Some(codec::vote_to_proto(&response.vote)),
        granted: response.vote_granted,
        last_log_id: response.last_log_id.as_ref().map(codec::log_id_to_proto),
        wall_millis: None,
    }
}

/// Decodes an append request: entries are contiguous, and none is of a later leader.
pub(crate) fn append_request(
    message: proto::AppendRequest,
    from: MessageContext,
) -> Result<AppendEntriesRequest<TypeConfig>, Error> {
    let vote = vote(message.vote, from, true)?;
    let prev_log_id = log_id(message.prev_log_id)?;
    let leader_commit = log_id(message.leader_commit)?;
    let mut before = prev_log_id;
    let mut entries = Vec::with_capacity(message.entries.len());
    for message in message.entries {
        let entry = codec::entry_from_proto(message)?;
        let LogId { leader_id, index: found } = entry.log_id();
        let expected = before.map_or(0, |before| before.index.saturating_add(1));
        if found != expected {
            return Err(Error::Gap { found, expected });
        }
        if leader_id > vote.leader_id || before.is_some_and(|before| leader_id < before.leader_id) {
            return Err(Error::TermOfEntry(found));
        }
        before = Some(entry.log_id());
        entries.push(entry);
    }
    for log_id in [prev_log_id, leader_commit].into_iter().flatten() {
        if log_id.leader_id > vote.leader_id {
            return Err(Error::TermOfEntry(log_id.index));
        }
    }
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

pub(crate) fn append_request_to_proto(request: &AppendEntriesRequest<TypeConfig>) -> proto::AppendRequest {
    proto::AppendRequest {
        vote: Some(codec::vote_to_proto(&request.vote)),
        prev_log_id: request.prev_log_id.as_ref().map(codec::log_id_to_proto),
        entries: request.entries.iter().map(codec::entry_to_proto).collect(),
        leader_commit: request.leader_commit.as_ref().map(codec::log_id_to_proto),
        memories: Vec::new(),
    }
}

/// Decodes the response to entries that were sent in `own_term`.
pub(crate) fn append_response(
    message: proto::AppendResponse,
    own_term: u64,
) -> Result<StreamAppendResult<TypeConfig>, Error> {
    use proto::append_response::Outcome;
    Ok(match need(message.outcome, "outcome")? {
        Outcome::Matched(matched) => Ok(log_id(matched.log_id)?),
        Outcome::Conflict(at) => Err(StreamAppendError::Conflict(need(log_id(Some(at))?, "conflict")?)),
        Outcome::HigherVote(vote) => Err(StreamAppendError::HigherVote(answered_vote(Some(vote), own_term)?)),
    })
}

pub(crate) fn append_response_to_proto(result: &StreamAppendResult<TypeConfig>) -> proto::AppendResponse {
    use proto::append_response::Outcome;
    let outcome = match result {
        Ok(matched) => {
            Outcome::Matched(proto::Matched { log_id: matched.as_ref().map(codec::log_id_to_proto) })
        }
        Err(StreamAppendError::Conflict(at)) => Outcome::Conflict(codec::log_id_to_proto(at)),
        Err(StreamAppendError::HigherVote(vote)) => Outcome::HigherVote(codec::vote_to_proto(vote)),
    };
    proto::AppendResponse { outcome: Some(outcome), wall_millis: None }
}

/// Decodes the response to a single append request.
pub(crate) fn append_entries_response(
    message: proto::AppendResponse,
    last: Option<LogId>,
    own_term: u64,
) -> Result<AppendEntriesResponse<TypeConfig>, Error> {
    Ok(match append_response(message, own_term)? {
        Ok(matched) if matched == last => AppendEntriesResponse::Success,
        Ok(matched) => AppendEntriesResponse::PartialSuccess(matched),
        Err(StreamAppendError::Conflict(_)) => AppendEntriesResponse::Conflict,
        Err(StreamAppendError::HigherVote(vote)) => AppendEntriesResponse::HigherVote(vote),
    })
}

/// Decodes the leader's clock report; empty if it is missing.
pub(crate) fn clock_report(message: Option<proto::ClockReport>) -> ClockReport {
    let message = message.unwrap_or_default();
    ClockReport {
        is_agreed: message.is_agreed,
        spread: Duration::from_millis(message.spread_millis),
        offsets: message.offset_millis.into_iter().collect(),
    }
}

pub(crate) fn clock_report_to_proto(report: &ClockReport) -> proto::ClockReport {
    proto::ClockReport {
        is_agreed: report.is_agreed,
        spread_millis: u64::try_from(report.spread.as_millis()).unwrap_or(u64::MAX),
        offset_millis: report.offsets.clone().into_iter().collect(),
    }
}

/// Decodes the head of a snapshot: the leader's vote, and the last log id.
pub(crate) fn snapshot_head(
    head: &proto::SnapshotHead,
    from: MessageContext,
) -> Result<(Vote, LogId), Error> {
    let vote = vote(head.vote, from, true)?;
    let last = need(log_id(head.last_log_id)?, "last_log_id")?;
    if last.leader_id > vote.leader_id {
        return Err(Error::TermOfEntry(last.index));
    }
    Ok((vote, last))
}
