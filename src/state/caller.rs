//! The caller of a command: the digests by which it is blocked or revoked, the handle that adds them to every command,
//! and the refusal in `apply`.
//!
//! The edge admits a caller by the state of its own node. `apply` finds a block that was applied after that and before
//! the command.

use bytes::Bytes;

use super::command::{self, Command, Refusal, Replied, Reply};
use super::feature_level;
use super::machine::idempotency::digest;
use super::readers::Awaited;
use super::resources::revocation_index::{Epoch, RevocationIndex};
use super::{Error, Idempotency, State, read_reply};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, LeaseProof};
use crate::id::{Digest128, Incarnation, LogPosition, WorkloadId};
use crate::token::confirmation::CertificateDigest;
use crate::token::foreign::Credential;
use crate::token::lineage;

/// Facts about a caller. Constructed by the edge only; the default is an anonymous caller, which only development mode
/// admits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerFacts {
    digests: Vec<Digest128>,
    /// Issue of the bearer token; `None` for a certificate, which a watermark does not cover, because its `notBefore`
    /// says nothing about the workload that holds it.
    issued: Option<Issued>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Issued {
    idx: Option<LogPosition>,
    iat: Timestamp,
}

impl CallerFacts {
    /// Facts of a client certificate: the workload, and the client of `issuer` (our own `iss`) with the same identifier.
    #[must_use]
    pub fn of_certificate(issuer: &str, id: &WorkloadId) -> Self {
        Self { digests: vec![lineage::workload(id), lineage::client(issuer, id.as_str())], issued: None }
    }

    /// Facts of several client certificates.
    #[must_use]
    pub fn of_certificates<'i>(issuer: &str, ids: impl IntoIterator<Item = &'i WorkloadId>) -> Self {
        let digests = ids.into_iter().flat_map(|id| Self::of_certificate(issuer, id).digests);
        Self { digests: digests.collect(), issued: None }
    }

    /// Facts of a bearer token.
    #[must_use]
    pub fn of_bearer(credential: &Credential) -> Self {
        let issued = Issued { idx: credential.idx, iat: credential.iat };
        Self { digests: credential.lineage.clone(), issued: Some(issued) }
    }

    /// Whether a block of the fact with this digest would block the caller.
    #[must_use]
    pub fn contain(&self, fact: &Digest128) -> bool {
        self.digests.contains(fact)
    }

    /// Digests of the facts.
    pub(super) fn digests(&self) -> &[Digest128] {
        &self.digests
    }

    /// Decodes the output of [`Self::to_row`].
    pub fn from_row(row: &command::Caller) -> Result<Self, Corrupt> {
        let digests = row.digests.chunks(16).map(digest).collect::<Result<_, _>>()?;
        let issued = row.bearer.as_ref().map(|bearer| {
            let incarnation = bearer.incarnation.as_ref().try_into().map(Incarnation::from_bytes);
            let idx = incarnation.ok().map(|incarnation| LogPosition { incarnation, index: bearer.index });
            Issued { idx, iat: Timestamp::from_millis(bearer.iat_millis) }
        });
        Ok(Self { digests, issued })
    }

    /// Encodes the facts for a command; `None` for an anonymous caller.
    #[must_use]
    pub fn to_row(&self) -> Option<command::Caller> {
        if self.digests.is_empty() {
            return None;
        }
        let digests = self.digests.iter().flat_map(|digest| *digest.as_bytes()).collect();
        let bearer = self.issued.map(|Issued { idx, iat }| command::BearerIssued {
            incarnation: idx
                .map_or_else(Bytes::new, |idx| Bytes::copy_from_slice(idx.incarnation.as_bytes())),
            index: idx.map_or(0, |idx| idx.index),
            iat_millis: iat.millis(),
        });
        Some(command::Caller { digests, bearer })
    }

    pub(super) fn is_refused_by(
        &self,
        revocations: &RevocationIndex,
        epoch: Epoch,
        digests: &[Digest128],
    ) -> bool {
        match self.issued {
            None => revocations.blocks_any(digests),
            Some(Issued { idx, iat }) => revocations.covers(epoch, digests, idx, iat),
        }
    }
}

/// The caller of one request, for use-cases and commands. Constructed by the edge only.
#[derive(Clone, Debug, Default)]
pub struct CallContext {
    /// `X-Request-Id` of the request.
    pub request_id: String,
    /// Authenticated identifier; `None` for an anonymous caller.
    pub id: Option<String>,
    /// Actor of its bearer token (RFC 8693 §4.1).
    pub actor: Option<String>,
    /// Whether it also has `cluster.admin` and may read and change resources of other owners.
    pub is_operator: bool,
    /// The certificate of its connection, also when a bearer token authenticates it.
    pub certificate: Option<CertificateDigest>,
    /// The facts that `apply` checks against the blocks.
    pub facts: CallerFacts,
    /// `Idempotency-Key` with the digest of the request; `None` also on a route that ignores it.
    pub idempotency: Option<Idempotency>,
}

impl CallContext {
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Identifier in the log: empty for an anonymous caller.
    #[must_use]
    pub fn name(&self) -> &str {
        self.id().unwrap_or_default()
    }
}

/// Write access to the replicated state for one caller, or for the node itself.
#[derive(Clone, Copy)]
pub struct OnBehalf<'s> {
    pub(super) state: &'s State,
    caller: Option<&'s CallContext>,
    idempotency: Option<Idempotency>,
}

impl State {
    /// For commands that a caller causes: `apply` refuses them if the caller is blocked by then.
    #[must_use]
    pub fn on_behalf_of<'s>(&'s self, caller: &'s CallContext) -> OnBehalf<'s> {
        OnBehalf { state: self, caller: Some(caller), idempotency: caller.idempotency }
    }

    /// For commands of the node itself, to which no block applies.
    #[must_use]
    pub fn as_node(&self) -> OnBehalf<'_> {
        OnBehalf { state: self, caller: None, idempotency: None }
    }

    /// Whether a caller is blocked, or for a bearer token revoked, in the state of this node.
    #[must_use]
    pub fn refuses(&self, _fresh: &LeaseProof, caller: &CallerFacts) -> bool {
        let revocations = self.cluster.machine().revocations();
        caller.is_refused_by(revocations, self.index().epoch(), &caller.digests)
    }
}

impl OnBehalf<'_> {
    /// Replaces the digests of the request.
    #[must_use]
    pub fn once(self, idempotency: Option<Idempotency>) -> Self {
        Self { idempotency, ..self }
    }

    /// The caller's identifier in the log: empty for an anonymous caller and for the node itself.
    pub(super) fn name(self) -> String {
        self.caller.map(CallContext::name).unwrap_or_default().to_owned()
    }

    pub(super) fn is_operator(self) -> bool {
        self.caller.is_some_and(|caller| caller.is_operator)
    }

    pub(super) async fn propose(self, command: Command) -> Result<bool, Error> {
        self.once(None).propose_once(command).await?.outcome.changed()
    }

    /// Proposes a command whose outcome is stored under the caller's `Idempotency-Key`. The result is never
    /// [`Reply::Refused`].
    pub(super) async fn propose_once(self, command: Command) -> Result<Replied<Reply>, Error> {
        read_reply(&self.state.cluster.propose(self.encode(command)?).await?)
    }

    /// As [`Self::propose_once`]: returns after the barrier, also if the command changed nothing.
    pub(super) async fn propose_acknowledged(self, command: Command) -> Result<Replied<Reply>, Error> {
        let outcome = self.state.cluster.propose(self.encode(command)?).await?;
        let reply = read_reply(&outcome)?;
        self.state.cluster.barrier(outcome.index).await?;
        Ok(reply)
    }

    /// The same for a command that revokes: waits for the awaited peers too.
    pub(super) async fn propose_revocation(
        self,
        command: Command,
    ) -> Result<(Replied<Reply>, Awaited), Error> {
        let outcome = self.state.cluster.propose(self.encode(command)?).await?;
        let reply = read_reply(&outcome)?;
        Ok((reply, self.state.enforced_everywhere(outcome.index).await?))
    }

    /// Nothing is proposed that a member of an older version may not know.
    fn encode(self, command: Command) -> Result<Bytes, Error> {
        if feature_level::needed_by(&command) > self.state.index().feature_level {
            return Err(Error::Refused(Refusal::FeatureLevelTooLow));
        }
        let caller = self.caller.and_then(|caller| caller.facts.to_row());
        Ok(command::encode_for(command, self.idempotency.map(Into::into), caller))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ProposerId, Submission};
    use crate::state::command::{Idempotency, LiftBlock, Refusal, Revoke, SpendToken, encode_for};
    use crate::state::resources::revoked_fact::fact_row;
    use crate::state::resources::subject_blocks;
    use crate::state::testing::StateHarness;
    use crate::token::lineage::Fact;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const REFUSED: Reply = Reply::Refused(Refusal::CallerRefused);
    const DONE: Reply = Reply::Done { changed: true };

    fn id() -> WorkloadId {
        "spiffe://fabric.example/ops/alice".parse().expect("an id")
    }

    fn certificate() -> CallerFacts {
        CallerFacts::of_certificate("https://fabric.example", &id())
    }

    /// A bearer token of the same workload, issued when its node had applied the log up to `index`.
    fn bearer(index: u64) -> CallerFacts {
        let idx = LogPosition { incarnation: Incarnation::from_bytes([2; 16]), index };
        let digests = vec![Fact::token("https://fabric.example", "jti").digest(), lineage::workload(&id())];
        CallerFacts { digests, issued: Some(Issued { idx: Some(idx), iat: NOW }) }
    }

    fn spend(token: u8) -> Command {
        let (token, owner) = (vec![token; 16].into(), vec![1; 16].into());
        Command::SpendToken(SpendToken { token, owner, exp_millis: NOW.millis() + 1 })
    }

    fn revoke(blocks: bool) -> Bytes {
        let fact = Some(fact_row(&Fact::workload(&id())));
        command::encode(Command::Revoke(Revoke { fact, blocks, ..Revoke::default() }))
    }

    fn lift_id() -> Bytes {
        subject_blocks::key(Fact::workload(&id()).digest().as_bytes(), "", "operator").into()
    }

    fn lift() -> Bytes {
        command::encode(Command::LiftBlock(LiftBlock { id: lift_id() }))
    }

    fn by(caller: &CallerFacts, command: Command) -> Bytes {
        encode_for(command, None, caller.to_row())
    }

    fn harness() -> StateHarness {
        let mut harness = StateHarness::default();
        let id = Bytes::from(vec![2; 16]);
        harness.one(
            NOW,
            Command::Bootstrap(command::Bootstrap {
                cluster_id: id.clone(),
                incarnation: id,
                feature_level: 0,
            }),
        );
        harness
    }

    #[test]
    fn facts_round_trip_through_the_log() {
        for caller in [certificate(), bearer(7)] {
            let row = caller.to_row().expect("facts");
            assert_eq!(CallerFacts::from_row(&row).expect("reads"), caller);
        }
        assert_eq!(CallerFacts::default().to_row(), None);
        let cut = command::Caller { digests: Bytes::from_static(&[1; 17]), bearer: None };
        assert!(CallerFacts::from_row(&cut).is_err());
    }

    /// Regression: an operator was blocked while its request waited for a leader, and lifted its own block
    /// with that request.
    #[test]
    fn command_of_a_blocked_caller_is_refused() {
        let mut harness = harness();
        for caller in [certificate(), bearer(1)] {
            assert_eq!(harness.encoded(NOW, vec![by(&caller, spend(1))]).remove(0), DONE);
            harness.encoded(NOW, vec![revoke(true)]);
            assert_eq!(harness.encoded(NOW, vec![by(&caller, spend(2))]), [REFUSED]);
            let row = caller.to_row();
            let own = encode_for(Command::LiftBlock(LiftBlock { id: lift_id() }), None, row);
            assert_eq!(harness.encoded(NOW, vec![own]), [REFUSED]);
            assert_eq!(harness.encoded(NOW, vec![lift()]), [DONE]);
            harness = self::harness();
        }
    }

    /// The load of the leader decides how commands are batched; no outcome may depend on it.
    #[test]
    fn block_earlier_in_the_entry_refuses_later_commands() {
        let caller = certificate();
        let commands = || {
            vec![
                by(&caller, spend(1)),
                revoke(true),
                by(&caller, spend(2)),
                lift(),
                by(&caller, spend(3)),
                revoke(false),
                by(&caller, spend(4)),
                by(&bearer(1), spend(5)),
            ]
        };
        let (mut together, mut apart) = (harness(), harness());
        let replies = together.encoded(NOW, commands());
        let refused = |reply: &Reply| *reply == REFUSED;
        assert_eq!(
            replies.iter().map(refused).collect::<Vec<_>>(),
            [false, false, true, false, false, false, false, true]
        );
        for (command, reply) in commands().into_iter().zip(replies) {
            let one = apart.encoded(NOW, vec![command]).remove(0);
            assert_eq!(refused(&one), refused(&reply));
        }
    }

    #[test]
    fn watermark_covers_older_bearers_and_no_certificate() {
        let mut harness = harness();
        harness.skip_to(10);
        harness.encoded(NOW, vec![revoke(false)]);
        let replies = harness.encoded(
            NOW,
            vec![by(&certificate(), spend(1)), by(&bearer(10), spend(2)), by(&bearer(11), spend(3))],
        );
        assert_eq!(replies, [DONE, REFUSED, DONE]);
    }

    /// The caller was not blocked when its command was applied; only the reply was lost.
    #[test]
    fn duplicate_gets_its_reply_after_a_block() {
        let mut harness = harness();
        let submission = |sequence, command| Submission {
            proposer: ProposerId::from_bytes([7; 16]),
            sequence,
            low_watermark: 1,
            command,
        };
        let caller = certificate();
        let mut send =
            |sequence, command| harness.submitted(NOW, vec![submission(sequence, command)]).remove(0).outcome;
        assert_eq!(send(1, by(&caller, spend(1))), DONE);
        assert!(matches!(send(2, revoke(true)), Reply::Revoked(_)));
        assert_eq!(send(1, by(&caller, spend(1))), DONE);
        assert_eq!(send(3, by(&caller, spend(2))), REFUSED);
        assert_eq!(send(4, lift()), DONE);
        assert_eq!(send(3, by(&caller, spend(2))), REFUSED, "the refusal is its reply for good");
    }

    #[test]
    fn block_comes_before_the_idempotency_key() {
        let mut harness = harness();
        let [key, request, owner] = [1, 2, 3].map(|byte| vec![byte; 16].into());
        let key = Idempotency { key, request, owner };
        let lift = || Command::LiftBlock(LiftBlock { id: lift_id() });
        let lift_by = |caller| encode_for(lift(), Some(key.clone()), caller);
        harness.encoded(NOW, vec![revoke(true)]);
        let refused = harness.replied(NOW, vec![lift_by(certificate().to_row())]);
        assert_eq!(refused, [Replied::first(REFUSED)], "nothing is stored under the key");
        assert_eq!(harness.replied(NOW, vec![lift_by(None)]), [Replied::first(DONE)]);
        assert_eq!(harness.replied(NOW, vec![lift_by(certificate().to_row())]), [Replied::repeated(DONE)]);
        harness.encoded(NOW, vec![revoke(true)]);
        assert_eq!(harness.replied(NOW, vec![lift_by(certificate().to_row())]), [Replied::first(REFUSED)]);
    }
}
