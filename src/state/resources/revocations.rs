//! Revocations: fact, watermark, author and reason, and their retention.
//!
//! A revocation is a watermark: it covers what was issued before its entry. It is retained until every credential
//! that it could cover has expired, by elapsed time and by log time. Lookups of requests use `revocation_index`.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;

use super::issuer_quotas::{self, QuotaKind};
use super::ledger::LedgerState;
use super::revocation_index::RevocationIndex;
use super::revoked_fact::retained_until;
use super::{agents, encryption_keys, ledger, subject_blocks};
use crate::clock::Timestamp;
use crate::cluster::{Corrupt, LeaseProof, View};
use crate::id::{Digest128, LogPosition, WorkloadId};
use crate::limits;
use crate::state::State;
use crate::state::command::{Fact as FactRow, RevocationRow};
use crate::state::machine::idempotency::digest;
use crate::state::tables::{
    EntryTime, META, REVOCATION, REVOCATION_END, REVOCATIONS, Tables, decode, time_key, try_scan,
};
use crate::token::lineage::{self, Fact, SUBJECT, TOKEN};

/// Row of the meta table: key of [`REVOCATION_END`] below which no row is left.
const DELETED_UP_TO: &[u8] = b"revocations_forgotten_up_to";

/// Fields of a row of [`REVOCATION`] for the index in memory.
pub fn watermark(key: &[u8], row: &[u8]) -> Result<(Digest128, u64, Timestamp), Corrupt> {
    watermark_of(key, &decode(REVOCATION, row)?)
}

fn watermark_of(key: &[u8], row: &RevocationRow) -> Result<(Digest128, u64, Timestamp), Corrupt> {
    // A token is revoked by `jti`, no matter when a retry minted it; renewals add to its family.
    let is_token = row.fact.as_ref().is_some_and(|fact| fact.kind == TOKEN);
    let when = (row.index, Timestamp::from_millis(row.at_millis));
    let (index, at) = if is_token { RevocationIndex::EVERYTHING } else { when };
    Ok((digest(key)?, index, at))
}

/// Details of a revocation.
#[derive(Default)]
pub struct RevocationDetails {
    /// The revoked fact.
    pub fact: Option<FactRow>,
    pub reason: String,
    /// Issuer of the signal, or caller.
    pub by: String,
    /// Whether `by` is the issuer of a signal.
    pub of_signal: bool,
    /// Whether the fact is a signing key of this fabric.
    pub is_own_key: bool,
}

/// Revokes everything that derives from the fact with this digest and was issued before this entry.
pub fn revoke(
    tables: &mut Tables<'_>,
    time: EntryTime,
    fact_digest: &[u8],
    details: RevocationDetails,
) -> Result<(), Corrupt> {
    let (digest, index) = (digest(fact_digest)?, tables.entry_index());
    if let Some(fact) = details.fact.as_ref().filter(|fact| fact.kind == SUBJECT && fact.issuer.is_empty()) {
        agents::record_revocation(tables, time.now, &fact.value, &details.by)?;
    }
    let known = tables.message::<RevocationRow>(REVOCATION, digest.as_bytes())?;
    if let Some(known) = &known {
        tables.delete(REVOCATION_END, &time_key(known.kept_until_millis, digest.as_bytes()));
    } else {
        tables.add(REVOCATIONS, 1)?;
    }
    if let Some(known) = known.as_ref().filter(|known| known.of_signal) {
        issuer_quotas::count(tables, &known.by, QuotaKind::Revocation, false)?;
    }
    if details.of_signal {
        issuer_quotas::count(tables, &details.by, QuotaKind::Revocation, true)?;
    }
    let covers_every_index =
        details.is_own_key || details.fact.as_ref().is_some_and(|fact| fact.kind == TOKEN);
    let state = if covers_every_index { LedgerState::Key } else { LedgerState::Revoked };
    ledger::record(tables, time.elapsed, digest.as_bytes(), known.as_ref().map(|known| known.index), state)?;
    // Merged as in the index in memory: a node rebuilt from the rows covers what the others cover, also if a proposer's
    // clock was set back in between.
    let covered = known.as_ref().map_or(i64::MIN, |known| known.at_millis);
    let (at_millis, kept_until_millis) = (time.latest.millis().max(covered), retained_until(time).millis());
    let revoked_at_millis = time.now.millis();
    let row = match (details.fact, known) {
        // A revocation without details keeps those of an earlier one.
        (None, Some(known)) => RevocationRow {
            index,
            at_millis,
            kept_until_millis,
            revoked_at_millis,
            of_signal: false,
            ..known
        },
        (fact, _) => RevocationRow {
            index,
            at_millis,
            kept_until_millis,
            fact: fact.map(|fact| FactRow { digest: Bytes::new(), ..fact }),
            reason: details.reason,
            by: details.by,
            of_signal: details.of_signal,
            revoked_at_millis,
        },
    };
    tables.put(REVOCATION, digest.as_bytes(), row.encode_to_vec());
    tables.put(REVOCATION_END, &time_key(kept_until_millis, digest.as_bytes()), Vec::new());
    // The remaining keys are not returned while the revocation is stored, and are removed before it is.
    encryption_keys::remove_registered_with(tables, &digest, index).map(drop)
}

/// Deletes a few revocations and lifted blocks after their retention, but more than an entry with this many facts can add.
pub fn delete_expired(tables: &mut Tables<'_>, time: EntryTime, facts: usize) -> Result<(), Corrupt> {
    let most = limits::REVOCATIONS_EXPIRED_PER_ENTRY.max(facts.saturating_mul(2));
    let from = tables.row(META, DELETED_UP_TO)?.unwrap_or_default();
    let ended = tables.due(REVOCATION_END, &from, time.elapsed.minus(Duration::from_millis(1)), most)?;
    let Some(last) = ended.last() else { return Ok(()) };
    tables.put(META, DELETED_UP_TO, last.clone());
    for key in &ended {
        tables.delete(REVOCATION_END, key);
        match &key[8..] {
            revocation if revocation.len() == 16 => delete_if_expired(tables, time, revocation)?,
            block => subject_blocks::delete_if_expired(tables, time, block)?,
        }
    }
    Ok(())
}

/// Deletes a revocation after its retention, unless a later one has extended it. The retention must be over in log time too,
/// by which tokens end: it stands still after clocks that were ahead are corrected.
fn delete_if_expired(tables: &mut Tables<'_>, time: EntryTime, key: &[u8]) -> Result<(), Corrupt> {
    let Some(row) = tables.message::<RevocationRow>(REVOCATION, key)? else { return Ok(()) };
    if row.kept_until_millis < time.elapsed.millis() {
        let ends_at = Timestamp::from_millis(row.revoked_at_millis).plus(limits::REVOCATION_RETENTION);
        let remaining = ends_at.millis().saturating_sub(time.now.millis()).max(0);
        let (digest, below, _) = watermark_of(key, &row)?;
        if remaining > 0 || !encryption_keys::remove_registered_with(tables, &digest, below)? {
            let kept_until_millis = time.elapsed.millis().saturating_add(remaining);
            tables.put(REVOCATION, key, RevocationRow { kept_until_millis, ..row }.encode_to_vec());
            tables.put(REVOCATION_END, &time_key(kept_until_millis, key), Vec::new());
            return Ok(());
        }
        tables.delete(REVOCATION, key);
        ledger::forget(tables, key, row.index)?;
        tables.subtract(REVOCATIONS, 1)?;
        if row.of_signal {
            issuer_quotas::count(tables, &row.by, QuotaKind::Revocation, false)?;
        }
    }
    Ok(())
}

/// Revocations by the digest of their fact.
type Page = (Vec<(Digest128, RevocationRow)>, Option<Digest128>);

fn list(view: &dyn View, after: Option<Digest128>, limit: usize) -> Result<Page, Corrupt> {
    // The smallest key after `after`.
    let from = after.map_or_else(Vec::new, |after| [&after.as_bytes()[..], &[0]].concat());
    let (mut rows, mut next) = (Vec::new(), None);
    try_scan(view, REVOCATION, &from, |key, row| {
        if rows.len() >= limit {
            next = rows.last().map(|(id, _)| *id);
            return Ok(false);
        }
        rows.push((digest(key)?, decode(REVOCATION, row)?));
        Ok(true)
    })?;
    Ok((rows, next))
}

impl State {
    /// Whether a credential that derives from `lineage` is revoked or blocked, or was issued before the epoch floor.
    /// `idx` is the claim of a token of this fabric, `None` for a credential of another issuer.
    #[must_use]
    pub fn revokes(
        &self,
        _fresh: &LeaseProof,
        lineage: &[Digest128],
        idx: Option<LogPosition>,
        iat: Timestamp,
    ) -> bool {
        self.cluster.machine().revocations().covers(self.index().epoch(), lineage, idx, iat)
    }

    /// Whether the sender of a signal that was issued at `iat`, or its key, is revoked or blocked. The epoch
    /// floor does not apply: after a restore, issuers send earlier signals again.
    #[must_use]
    pub fn revokes_sender(&self, _fresh: &LeaseProof, fact: &Fact, iat: Timestamp) -> bool {
        self.cluster.machine().revocations().covers_sender(&fact.digest(), iat)
    }

    /// Whether the holder of a certificate is blocked. A watermark does not cover a certificate, because the time of issue
    /// of its subject is unknown. False before the cluster is bootstrapped.
    #[must_use]
    pub fn is_blocked_caller(&self, fresh: &LeaseProof, (issuer, id): (&str, &str), now: Timestamp) -> bool {
        let Some(position) = self.position() else { return false };
        let workload = id.parse::<WorkloadId>().ok().map(|id| lineage::workload(&id));
        let facts: Vec<_> = workload.into_iter().chain([lineage::client(issuer, id)]).collect();
        self.revokes(fresh, &facts, Some(position), now)
    }

    /// At most `limit` revocations after `after`, in the order of their ids, and the cursor of the next page.
    pub fn revocation_list(&self, after: Option<Digest128>, limit: usize) -> Result<Page, Corrupt> {
        list(self.cluster.view(), after, limit)
    }

    /// Whether a revocation of the fact is stored.
    pub fn has_revocation(&self, fact: &Fact) -> Result<bool, Corrupt> {
        let tables = Tables::new(self.cluster.view());
        Ok(tables.message::<RevocationRow>(REVOCATION, fact.digest().as_bytes())?.is_some())
    }

    /// Number of revocations.
    #[must_use]
    pub fn revocation_count(&self) -> u64 {
        self.index().revocations
    }

    /// Number of blocks.
    #[must_use]
    pub fn block_count(&self) -> usize {
        self.cluster.machine().revocations().blocks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Machine as _, Stamp};
    use crate::state::command::{self, Agent, Command, IssueAgent, PublishSigningKey, Refusal, Reply};
    use crate::state::resources::revoked_fact::fact_row;
    use crate::state::tables::AGENT;
    use crate::state::testing::StateHarness;
    use crate::state::{Epoch, Idempotency, Replicated};

    const START: Timestamp = Timestamp::from_secs(1_800_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn fact(sub: &str) -> Fact {
        Fact::subject("https://a.example", sub)
    }

    fn revocation_of(fact: &Fact) -> Command {
        let fact = Some(fact_row(fact));
        let (reason, caller) = ("stolen".to_owned(), "alice".to_owned());
        Command::Revoke(command::Revoke { fact, reason, caller, ..command::Revoke::default() })
    }

    /// An entry that only advances log time.
    fn idle(harness: &mut StateHarness, at: Timestamp) {
        harness.one(at, Command::AllowRevocations(command::AllowRevocations::default()));
    }

    impl StateHarness {
        fn revoked(&self) -> Vec<Digest128> {
            let (revoked, next) = list(&self.rows, None, 1000).expect("list");
            assert_eq!(next, None);
            revoked.into_iter().map(|(id, _)| id).collect()
        }
    }

    #[test]
    fn revocation_is_deleted_after_its_retention() {
        let mut harness = StateHarness::default();
        harness.one(START, revocation_of(&fact("alice")));
        let last = START.plus(limits::REVOCATION_RETENTION);
        idle(&mut harness, last);
        assert_eq!(
            (harness.revoked(), harness.machine.revocations().watermarks()),
            (vec![fact("alice").digest()], 1)
        );
        idle(&mut harness, last.plus(Duration::from_millis(1)));
        assert_eq!((harness.revoked(), harness.machine.revocations().watermarks()), (vec![], 0));
        assert_eq!(harness.machine.index().revocations, 0);
        assert!(harness.rows.0.keys().all(|(table, _)| table != REVOCATION_END));
    }

    #[test]
    fn second_revocation_extends_the_retention() {
        let mut harness = StateHarness::default();
        harness.one(START, revocation_of(&fact("alice")));
        let again = START.plus(Duration::from_secs(3600));
        harness.one(again, revocation_of(&fact("alice")));
        assert_eq!(harness.machine.index().revocations, 1);
        idle(&mut harness, again.plus(limits::REVOCATION_RETENTION));
        assert_eq!(harness.revoked().len(), 1);
        idle(&mut harness, again.plus(limits::REVOCATION_RETENTION).plus(SECOND));
        assert_eq!((harness.revoked().len(), harness.machine.index().revocations), (0, 0));
    }

    #[test]
    fn clock_set_back_does_not_shorten_the_retention() {
        let mut harness = StateHarness::default();
        idle(&mut harness, START);
        harness.one(START.minus(limits::REVOCATION_RETENTION), revocation_of(&fact("alice")));
        idle(&mut harness, START.plus(limits::REVOCATION_RETENTION));
        assert_eq!(harness.revoked().len(), 1);
    }

    /// Clocks that were ahead are corrected: log time, by which tokens end, stands still while a day passes.
    #[test]
    fn retention_lasts_in_log_time_too() {
        let mut harness = StateHarness::default();
        harness.one(START, revocation_of(&fact("alice")));
        let mut idle = |time: Timestamp, elapsed: Timestamp| {
            let command = Command::AllowRevocations(command::AllowRevocations::default());
            harness.stamped_as(Stamp { time, latest: time, elapsed }, vec![command::encode(command)]);
            harness.machine.revocations().watermarks()
        };
        let day = limits::REVOCATION_RETENTION.saturating_add(SECOND);
        assert_eq!(idle(START, START.plus(day)), 1);
        assert_eq!(idle(START.plus(day).minus(SECOND * 2), START.plus(day * 2)), 1);
        assert_eq!(idle(START.plus(day), START.plus(day * 2).plus(SECOND * 2)), 0);
    }

    #[test]
    fn deletion_of_revocations_is_bounded_per_entry() {
        let mut harness = StateHarness::default();
        let many = limits::REVOCATIONS_EXPIRED_PER_ENTRY + 1;
        for number in 0..many {
            harness.one(START, revocation_of(&fact(&number.to_string())));
        }
        let later = START.plus(limits::REVOCATION_RETENTION).plus(SECOND);
        idle(&mut harness, later);
        assert_eq!((harness.revoked().len(), harness.machine.revocations().watermarks()), (1, 1));
        idle(&mut harness, later);
        assert_eq!((harness.revoked().len(), harness.machine.revocations().watermarks()), (0, 0));
    }

    #[test]
    fn rebuild_restores_revocations() {
        let mut harness = StateHarness::default();
        for sub in ["alice", "bob"] {
            harness.one(START, revocation_of(&fact(sub)));
        }
        let restarted = Replicated::default();
        restarted.rebuild(&harness.rows).expect("rebuilds");
        let covers =
            |sub: &str| restarted.revocations().covers(Epoch::default(), &[fact(sub).digest()], None, START);
        assert_eq!([covers("alice"), covers("bob"), covers("carol")], [true, true, false]);
        assert_eq!(restarted.index().revocations, 2);
    }

    /// The second entry is stamped by a leader whose clock is ten minutes behind that of the first.
    /// Regression: the row had the time of the second, and the index in memory of each running node the later
    /// one.
    #[test]
    fn restarted_node_covers_the_latest_time_of_a_fact() {
        let mut harness = StateHarness::default();
        let ahead = START.plus(Duration::from_secs(600));
        for latest in [ahead, START] {
            let stamp = Stamp { time: START, latest, elapsed: START };
            harness.stamped_as(stamp, vec![command::encode(revocation_of(&fact("alice")))]);
        }
        let restarted = Replicated::default();
        restarted.rebuild(&harness.rows).expect("rebuilds");
        for node in [&harness.machine, &restarted] {
            assert!(node.revocations().covers(Epoch::default(), &[fact("alice").digest()], None, ahead));
        }
        assert_eq!(list(&harness.rows, None, 1).expect("list").0[0].1.at_millis, ahead.millis());
    }

    #[test]
    fn list_of_revocations_is_paged_with_details() {
        let mut harness = StateHarness::default();
        for sub in ["alice", "bob", "carol"] {
            harness.one(START, revocation_of(&fact(sub)));
        }
        let (first, next) = list(&harness.rows, None, 2).expect("list");
        let (rest, end) = list(&harness.rows, next, 2).expect("list");
        assert_eq!((first.len(), rest.len(), end), (2, 1, None));
        let mut ids: Vec<_> = first.iter().chain(&rest).map(|(id, _)| *id).collect();
        assert!(ids.is_sorted());
        ids.dedup();
        assert_eq!(ids.len(), 3);
        let alice = first.into_iter().chain(rest).find(|(id, _)| *id == fact("alice").digest());
        let (_, alice) = alice.expect("listed");
        let text = FactRow { digest: Bytes::new(), ..fact_row(&fact("alice")) };
        assert_eq!((alice.fact, alice.reason.as_str(), alice.by.as_str()), (Some(text), "stolen", "alice"));
        assert_eq!((alice.index, alice.at_millis), (1, START.millis()));
    }

    #[test]
    fn agent_of_a_revoked_identifier_is_revoked_for_good() {
        let mut harness = StateHarness::default();
        let id = |name: &str| format!("wimse://a.example/agent/mcp/{name}");
        let new = |name: &str, parent: Option<&str>| {
            let agent = Agent { agent_id: id(name), on_behalf_of: parent.map(id), ..Agent::default() };
            Command::IssueAgent(IssueAgent { agent: Some(agent), issued_by: "alice".to_owned() })
        };
        for (name, parent) in [("root", None), ("child", Some("root")), ("other", None)] {
            harness.one(START, new(name, parent));
        }
        harness.one(START, revocation_of(&Fact::workload(&id("root").parse().expect("an id"))));
        let refused = harness.one(START, new("late", Some("child")));
        assert_eq!(refused, Reply::Refused(Refusal::AgentRevoked));
        assert!(matches!(harness.one(START, new("fine", Some("other"))), Reply::Agent(_)));
        // The agent stays revoked as long as its row exists, which is longer than the revocation.
        let later = START.plus(limits::REVOCATION_RETENTION).plus(SECOND);
        idle(&mut harness, later);
        assert_eq!(harness.revoked().len(), 0);
        assert_eq!(harness.one(later, new("late", Some("child"))), Reply::Refused(Refusal::AgentRevoked));
        // The same text as a subject of an issuer is another fact.
        let stranger = Fact::subject("https://a.example", &id("other"));
        harness.one(later, revocation_of(&stranger));
        assert!(matches!(harness.one(later, new("fine too", Some("other"))), Reply::Agent(_)));
        assert!(harness.rows.0.keys().any(|(table, _)| table == AGENT));
    }

    /// A node that stopped between two entries would leave a key that is listed as revoked and still signs.
    #[test]
    fn own_key_is_tainted_by_the_entry_of_its_revocation() {
        let mut harness = StateHarness::default();
        let publish = PublishSigningKey {
            kid: "k".to_owned(),
            node_id: 1,
            jwk: "{}".to_owned(),
            algorithm: String::new(),
        };
        harness.one(START, Command::PublishSigningKey(publish));
        let key = |kid: &str| Fact::signing_key("https://fabric.example", kid);
        let taint = |kid: &str| {
            let fact = Some(fact_row(&key(kid)));
            let reason = "stolen".to_owned();
            Command::Revoke(command::Revoke { fact, reason, taints: true, ..command::Revoke::default() })
        };
        assert_eq!(harness.one(START, taint("other")), Reply::Refused(Refusal::UnknownSigningKey));
        let agent = Fact::workload(&"wimse://a.example/agent/mcp/x".parse().expect("an id"));
        let fact = Some(fact_row(&agent));
        let unknown = command::Revoke { fact, must_be_agent: true, ..command::Revoke::default() };
        assert_eq!(harness.one(START, Command::Revoke(unknown)), Reply::Refused(Refusal::UnknownAgent));
        assert!(harness.revoked().is_empty());
        assert!(matches!(harness.one(START, taint("k")), Reply::Revoked(_)));
        assert!(harness.machine.index().signing_keys["k"].tainted_at.is_some());
        let (revoked, _) = list(&harness.rows, None, 10).expect("list");
        assert_eq!(
            (revoked.len(), revoked[0].1.reason.as_str(), revoked[0].0),
            (1, "stolen", key("k").digest())
        );
        assert!(matches!(harness.one(START, taint("k")), Reply::Revoked(_)), "a second one changes nothing");
    }

    /// An idempotency key is retained for a day and up to six hours, a revocation for a day.
    #[test]
    fn late_retry_returns_the_first_outcome_without_the_row() {
        let mut harness = StateHarness::default();
        let [key, request, owner] = ["key", "request", "owner"].map(|name| fact(name).digest());
        let key = Idempotency { key, request, owner };
        let commands = || vec![command::encode_once(revocation_of(&fact("alice")), Some(key.into()))];
        let first = harness.replied(START, commands()).remove(0);
        let later = START.plus(limits::REVOCATION_RETENTION).plus(SECOND);
        idle(&mut harness, later);
        assert!(harness.revoked().is_empty());
        let again = harness.replied(later, commands()).remove(0);
        assert!(again.is_repeated && !first.is_repeated);
        assert_eq!(again.outcome, first.outcome);
        assert!(matches!(first.outcome, Reply::Revoked(command::Revoked { index: 1, .. })));
    }
}
