//! The state machine: `apply`, one function from (state, batch) to (writes, replies), and the rows in memory.
//!
//! Pure: no clock, no randomness, no I/O, no policy, no cryptography. Time is log time.

pub(crate) mod dedup;
pub(crate) mod idempotency;
mod index;
mod refused_caller;
mod state_identity;

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::watch;

use super::command::{
    self, Batch, Bootstrap, Command, Idempotency, PolicyRow, Refusal, Replied, Reply, Submitted,
};
use super::feature_level;
use super::resources::events::{EventId, Span};
use super::resources::feed::{FeedKind, NewFeedEvent};
use super::resources::peers::index::PeerIndex;
use super::resources::revocation_index::RevocationIndex;
use super::resources::{
    agents, audit_blocks, encryption_keys, feature_levels, feed, nodes, nonces, operator_revocations, outbox,
    peers, policies, restore, revocations, signals, signing_keys, streams, subject_blocks, tools,
};
use super::tables::row_cache::RowCache;
use super::tables::{
    self, AUDIT_BLOCK, AUDIT_CONTENT, AUDIT_HEAD, BLOCK, BOOTSTRAPPED_AT, CLUSTER_ID, DEAD_LETTER, EntryTime,
    FEED, INCARNATION, META, NODES, OUTBOX, PEER_LEDGER, PEER_LEDGER_END, POLICY, POLICY_HISTORY, REVOCATION,
    REVOCATION_END, REVOCATION_ORDER, SIGNAL, SIGNING_KEY, STREAM, STREAM_CURSOR, TOOL, Tables,
};
use crate::breaks::{self, Break};
use crate::cluster::{
    Applied, Corrupt, LogTimes, Machine, MemberEntry, Stamp, Submission, View, WantedMember, Write,
};
use dedup::Dedup;
pub use index::Index;
use index::read_incarnation;
pub use state_identity::StateIdentity;

/// The state machine with the rows in memory.
#[derive(Default)]
pub struct Replicated {
    index: ArcSwap<Index>,
    revocations: RevocationIndex,
    peers: PeerIndex,
    row_cache: RowCache,
    policy: watch::Sender<String>,
    streams: watch::Sender<u64>,
    outbox_end: watch::Sender<EventId>,
    feed_end: watch::Sender<EventId>,
    ledger_changes: watch::Sender<u64>,
}

/// Ends of outbox and feed, and whether our own ledger or the signing keys have changed, if an entry has written them.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    outbox: Option<EventId>,
    feed: Option<EventId>,
    ledger: bool,
}

impl Ends {
    fn put(&mut self, key: &[u8], row: &[u8]) -> Result<(), Corrupt> {
        match key {
            outbox::SPAN => self.outbox = Some(Span::read(row)?.end),
            feed::SPAN => self.feed = Some(Span::read(row)?.end),
            _ => {}
        }
        Ok(())
    }
}

impl Replicated {
    /// Small tables, as of the last entry applied.
    #[must_use]
    pub fn index(&self) -> arc_swap::Guard<Arc<Index>> {
        self.index.load()
    }

    /// Revocations and subject blocks, as of the last entry applied.
    #[must_use]
    pub fn revocations(&self) -> &RevocationIndex {
        &self.revocations
    }

    /// Peers and the copies of their ledgers, as of the last entry applied.
    #[must_use]
    pub fn peers(&self) -> &PeerIndex {
        &self.peers
    }

    /// Large rows in memory, as of the last entry applied.
    #[must_use]
    pub fn row_cache(&self) -> &RowCache {
        &self.row_cache
    }

    /// Watches the digest of the current policy.
    #[must_use]
    pub fn policy_changes(&self) -> watch::Receiver<String> {
        self.policy.subscribe()
    }

    /// Counter of changes of streams, without those of cursors.
    #[must_use]
    pub fn stream_changes(&self) -> watch::Receiver<u64> {
        self.streams.subscribe()
    }

    /// Watches the end of the outbox: the id after its last event.
    #[must_use]
    pub fn outbox_end(&self) -> watch::Receiver<EventId> {
        self.outbox_end.subscribe()
    }

    /// Watches the end of the feed: the id after its last event.
    #[must_use]
    pub fn feed_end(&self) -> watch::Receiver<EventId> {
        self.feed_end.subscribe()
    }

    /// Counter of changes of our own ledger, and of the signing keys, which peers read with it.
    #[must_use]
    pub fn ledger_changes(&self) -> watch::Receiver<u64> {
        self.ledger_changes.subscribe()
    }

    /// Replaces the index before notifying, so that a notified subscriber finds it.
    fn replace_index(&self, index: Index, ends: Ends) {
        let index = Arc::new(index);
        let before = self.index.swap(Arc::clone(&index));
        if !Arc::ptr_eq(&before.streams, &index.streams) {
            self.streams.send_modify(|changes| *changes = changes.wrapping_add(1));
        }
        self.policy.send_if_modified(|policy| {
            let changed = *policy != index.policy;
            policy.clone_from(&index.policy);
            changed
        });
        for (sender, end) in [(&self.outbox_end, ends.outbox), (&self.feed_end, ends.feed)] {
            let Some(end) = end else { continue };
            sender.send_if_modified(|known| std::mem::replace(known, end) != end);
        }
        if ends.ledger {
            self.ledger_changes.send_modify(|changes| *changes = changes.wrapping_add(1));
        }
    }
}

impl Machine for Replicated {
    const TABLES: &'static [&'static str] = tables::ALL;
    // Audit blocks take up to [`crate::limits::AUDIT_BYTES_MAX`], and a node must start within seconds. Revocations,
    // tools and audit heads are read once, by `rebuild`.
    const TABLES_VERIFIED_ON_READ: &'static [&'static str] = &[
        AUDIT_BLOCK,
        AUDIT_CONTENT,
        AUDIT_HEAD,
        REVOCATION,
        REVOCATION_END,
        REVOCATION_ORDER,
        PEER_LEDGER,
        PEER_LEDGER_END,
        SIGNAL,
        TOOL,
        OUTBOX,
        FEED,
        DEAD_LETTER,
    ];

    const NEWEST_LEVEL: u32 = feature_level::NEWEST;

    fn feature_level(&self) -> u32 {
        self.index.load().feature_level
    }

    fn can_decode(command: &[u8]) -> bool {
        command::is_proposable(command)
    }

    fn adds_data(command: &[u8]) -> bool {
        command::adds_data(command)
    }

    fn times(&self) -> LogTimes {
        let index = self.index.load();
        LogTimes { time: index.time, elapsed: index.elapsed }
    }

    fn batch(stamp: Stamp, submissions: Vec<Submission>) -> Bytes {
        command::encode_batch(stamp, submissions)
    }

    fn apply(&self, view: &dyn View, batch: &[u8], index: u64) -> Result<Applied, Corrupt> {
        let batch = command::decode_batch(batch)?;
        let mut tables = Tables::of_entry(view, index);
        let time = tables.advance(&batch.stamp)?;
        let mut applied = Applied::default();
        revocations::delete_expired(&mut tables, time, facts_of(&batch))?;
        let imported = batch.commands.iter().map(|submitted| peers::entries_of(&submitted.command)).sum();
        peers::expiry::delete_expired(&mut tables, time.elapsed, imported)?;
        let mut dedup = Dedup::begin(&mut tables, time.elapsed)?;
        let epoch = self.index.load().epoch();
        for Submitted { id, command, idempotency, caller } in batch.commands {
            if let Some(reply) = dedup.reply_to(&mut tables, &id)? {
                applied.replies.push(reply);
                continue;
            }
            let is_refused = match &caller {
                None => false,
                Some(_) if breaks::active(Break::ApplyForBlocked) => false,
                Some(caller) => refused_caller::is_refused(&tables, &self.revocations, epoch, caller)?,
            };
            let replied = if is_refused {
                Replied::first(Reply::Refused(Refusal::CallerRefused))
            } else {
                if let Command::CheckStateHash(check) = &command {
                    let hash = check.hash.as_ref().try_into();
                    let hash = hash.map_err(|_| Corrupt::row("a state hash is not 32 bytes"))?;
                    applied.expected_hash = Some((check.index, hash));
                }
                carry_out(&mut tables, time, command, idempotency.as_ref())?
            };
            let reply = command::encode_reply(replied);
            dedup.record(&id, &reply);
            applied.replies.push(reply);
        }
        dedup.end(&mut tables)?;
        applied.writes = tables.into_writes();
        Ok(applied)
    }

    fn record_members(
        &self,
        view: &dyn View,
        members: &[MemberEntry],
        index: u64,
    ) -> Result<Vec<Write>, Corrupt> {
        let mut tables = Tables::of_entry(view, index);
        nodes::record_members(&mut tables, members, index)?;
        Ok(tables.into_writes())
    }

    fn removed_at(&self, node_id: u64) -> Option<u64> {
        nodes::removed_at(self.index.load().nodes.get(&node_id)?)
    }

    fn wanted_members(&self) -> Vec<WantedMember> {
        self.index.load().nodes.values().filter_map(|node| nodes::wanted_member(node)).collect()
    }

    fn project(&self, writes: &[Write], _index: u64) -> Result<(), Corrupt> {
        let mut index = Index::clone(&self.index.load());
        let mut ends = Ends::default();
        for write in writes {
            self.row_cache.project(write)?;
            match write {
                Write::Put { table: REVOCATION, key, value } => {
                    take_revocation(&self.revocations, key, value)?;
                }
                Write::Delete { table: REVOCATION, key } => {
                    self.revocations.remove(&idempotency::digest(key)?);
                }
                Write::Put { table: BLOCK, key, value } => take_block(&self.revocations, key, value)?,
                Write::Put { table, key, value } => {
                    if *table == META {
                        ends.put(key, value)?;
                    }
                    ends.ledger |= [REVOCATION_ORDER, SIGNING_KEY].contains(table);
                    index.put(table, key, value)?;
                }
                Write::Delete { table, key } => index.delete(table, key),
                // No table of these has ranges deleted.
                Write::DeleteRange { .. } => {}
            }
        }
        self.peers.project(writes)?;
        self.replace_index(index, ends);
        Ok(())
    }

    fn rebuild(&self, view: &dyn View) -> Result<(), Corrupt> {
        let mut index = Index::default();
        for table in [META, NODES, SIGNING_KEY, POLICY_HISTORY, STREAM, STREAM_CURSOR] {
            tables::try_scan(view, table, &[], |key, row| index.put(table, key, row).map(|()| true))?;
        }
        let revocations = RevocationIndex::default();
        tables::try_scan(view, REVOCATION, &[], |key, row| {
            take_revocation(&revocations, key, row).map(|()| true)
        })?;
        tables::try_scan(view, BLOCK, &[], |key, row| take_block(&revocations, key, row).map(|()| true))?;
        if !index.policy.is_empty() && view.get(POLICY, index.policy.as_bytes())?.is_none() {
            return Err(Corrupt::row("the current policy is missing"));
        }
        if index.incarnation.is_some() {
            feature_level::check(index.feature_level, &feature_level::SUPPORTED)?;
        }
        let end = |span: &'static [u8]| Span::at(view, span).map(|span| Some(span.end));
        let ends = Ends { outbox: end(outbox::SPAN)?, feed: end(feed::SPAN)?, ledger: true };
        self.row_cache.rebuild(view)?;
        self.peers.rebuild(view)?;
        self.revocations.replace(revocations);
        self.replace_index(index, ends);
        Ok(())
    }
}

/// Outcome of a command: that of an earlier request with the same `Idempotency-Key`, or that of carrying it out.
fn carry_out(
    tables: &mut Tables<'_>,
    time: EntryTime,
    command: Command,
    idempotency: Option<&Idempotency>,
) -> Result<Replied<Reply>, Corrupt> {
    if let Some(refusal) = nonces::refusal_by_log_time(time.now, &command) {
        return Ok(Replied::first(Reply::Refused(refusal)));
    }
    if let Some(idempotency) = idempotency {
        if let Some(known) = idempotency::outcome(tables, time.elapsed, idempotency, &command)? {
            return Ok(known);
        }
        if !idempotency::has_capacity(tables, time.elapsed, idempotency)? {
            return Ok(Replied::first(Reply::Refused(Refusal::TooManyIdempotencyKeys)));
        }
    }
    let needed = feature_level::needed_by(&command);
    if needed > 0 && needed > feature_levels::of_cluster(tables)? {
        return Ok(Replied::first(Reply::Refused(Refusal::FeatureLevelTooLow)));
    }
    let reply = match command {
        Command::Bootstrap(command) => bootstrap(tables, time, &command)?,
        Command::RecordExchange(command) => nonces::record_exchange(tables, time.elapsed, command)?,
        Command::SpendToken(command) => nonces::spend_token(tables, time.now, &command)?,
        Command::PublishSigningKey(command) => signing_keys::publish(tables, time, &command)?,
        Command::RetireSigningKey(command) => signing_keys::retire(tables, time, &command.kid)?,
        Command::TaintSigningKey(command) => signing_keys::taint(tables, time, &command)?,
        Command::PutPolicy(command) => policies::put(tables, time.now, &command)?,
        // Compared after the entry.
        Command::CheckStateHash(_) => Reply::Done { changed: false },
        Command::PutTool(command) => tools::put(tables, time.now, command)?,
        Command::DeregisterTool(command) => tools::deregister(tables, time.now, &command)?,
        Command::IssueAgent(command) => agents::issue(tables, time.now, command)?,
        Command::RevokeAgent(command) => agents::revoke(tables, time, command)?,
        Command::RegisterEncryptionKey(command) => encryption_keys::register(tables, time, command)?,
        Command::RemoveEncryptionKey(command) => encryption_keys::remove(tables, time.now, &command)?,
        Command::AppendAuditBlocks(command) => audit_blocks::append(tables, time, command)?,
        Command::AcceptSignal(command) => signals::accept(tables, time, command)?,
        Command::Revoke(command) => operator_revocations::by_operator(tables, time, command)?,
        Command::AllowRevocations(command) => signals::allow(tables, &command)?,
        Command::LiftBlock(command) => subject_blocks::lift(tables, time, &command.id)?,
        Command::CreateStream(command) => streams::create(tables, time.now, command)?,
        Command::UpdateStream(command) => streams::update(tables, time.now, command)?,
        Command::SetStreamStatus(command) => streams::set_status(tables, time, command)?,
        Command::ChangeStreamSubject(command) => streams::change_subject(tables, time.now, command)?,
        Command::VerifyStream(command) => streams::verify(tables, time, command)?,
        Command::DeleteStream(command) => streams::delete(tables, time.now, &command)?,
        Command::AdvanceStream(command) => streams::advance(tables, time.now, command)?,
        Command::AllocateNode(command) => nodes::allocate(tables, time.now, &command)?,
        Command::JoinNode(command) => nodes::join(tables, time.now, command)?,
        Command::WantRole(command) => nodes::want_role(tables, time.now, &command)?,
        Command::Restore(command) => restore::begin_incarnation(tables, time, &command)?,
        Command::RaiseFeatureLevel(command) => feature_levels::raise(tables, time.now, &command)?,
        #[cfg(not(feature = "level-0"))]
        Command::RecordVersion(command) => feature_levels::record_version(tables, command)?,
        #[cfg(not(feature = "level-0"))]
        Command::ImportLedger(command) => peers::import::import(tables, time, &command)?,
        #[cfg(not(feature = "level-0"))]
        Command::SetPeer(command) => peers::act::set(tables, time, &command)?,
    };
    if let Some(idempotency) = idempotency {
        idempotency::store(tables, time.elapsed, idempotency, &reply)?;
    }
    Ok(Replied::first(reply))
}

fn take_revocation(revocations: &RevocationIndex, key: &[u8], row: &[u8]) -> Result<(), Corrupt> {
    let (digest, index, at) = revocations::watermark(key, row)?;
    revocations.put(digest, index, at)
}

fn take_block(revocations: &RevocationIndex, key: &[u8], row: &[u8]) -> Result<(), Corrupt> {
    let (fact, by, is_blocked) = subject_blocks::status(key, row)?;
    revocations.set_block(fact, by, is_blocked);
    Ok(())
}

/// Maximum number of facts that a batch revokes.
fn facts_of(batch: &Batch) -> usize {
    let of = |submitted: &Submitted| match &submitted.command {
        Command::AcceptSignal(signal) => signal.effects.len(),
        _ => 1,
    };
    batch.commands.iter().map(of).sum()
}

fn bootstrap(tables: &mut Tables<'_>, time: EntryTime, command: &Bootstrap) -> Result<Reply, Corrupt> {
    if tables.row(META, INCARNATION)?.is_some() {
        return Ok(Reply::Refused(Refusal::AlreadyBootstrapped));
    }
    let cluster_id = read_incarnation(&command.cluster_id)?.to_string();
    read_incarnation(&command.incarnation)?;
    feature_levels::set_initial(tables, command.feature_level)?;
    tables.put(META, CLUSTER_ID, command.cluster_id.to_vec());
    tables.put(META, INCARNATION, command.incarnation.to_vec());
    tables.put(META, BOOTSTRAPPED_AT, time.elapsed.millis().to_be_bytes().to_vec());
    let feed_event =
        NewFeedEvent { kind: FeedKind::Cluster, subject: &cluster_id, target: "", detail: "bootstrapped" };
    feed::append(tables, time.now, feed_event)?;
    Ok(Reply::Done { changed: true })
}

/// The sources of a policy bundle.
pub fn policy_sources(view: &dyn View, digest: &str) -> Result<Option<Vec<command::PolicySource>>, Corrupt> {
    let bundle = Tables::new(view).message::<PolicyRow>(POLICY, digest.as_bytes())?;
    Ok(bundle.map(|bundle| bundle.sources))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::{Context, Wake, Waker};
    use std::time::Duration;

    use super::*;
    use crate::clock::Timestamp;
    use crate::id::Incarnation;
    use crate::limits;
    use crate::state::SigningKeyState;
    use crate::state::command::{MintedToken, PolicySource, PublishSigningKey, PutPolicy, RecordExchange};
    use crate::state::resources::revocation_index::Epoch;
    use crate::state::testing::{StateHarness, batch};
    use crate::token::signing_key::SigningAlgorithm;

    const DONE: Reply = Reply::Done { changed: true };
    const AGAIN: Reply = Reply::Done { changed: false };
    const START: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn spend(nonce: u8) -> Command {
        let digest = |byte: u8| Bytes::from(vec![byte; 16]);
        let token = Some(MintedToken::default());
        Command::RecordExchange(RecordExchange { nonce: digest(nonce), owner: digest(9), token })
    }

    fn publish(kid: &str, node_id: u64) -> Command {
        publish_of("", kid, node_id)
    }

    fn publish_of(algorithm: &str, kid: &str, node_id: u64) -> Command {
        let (kid, jwk, algorithm) = (kid.into(), "{}".into(), algorithm.into());
        Command::PublishSigningKey(PublishSigningKey { kid, node_id, jwk, algorithm })
    }

    fn retire(kid: &str) -> Command {
        Command::RetireSigningKey(command::RetireSigningKey { kid: kid.into() })
    }

    fn taint(kid: &str, digest: &[u8]) -> command::TaintSigningKey {
        command::TaintSigningKey { kid: kid.into(), digest: Bytes::copy_from_slice(digest) }
    }

    fn put_policy(digest: &str, expected: &str) -> Command {
        Command::PutPolicy(PutPolicy {
            digest: digest.into(),
            sources: vec![PolicySource { path: "a.rego".into(), text: digest.into() }],
            applied_by: String::new(),
            expected_current: expected.into(),
            is_seed: false,
        })
    }

    #[test]
    fn only_the_first_key_of_a_cluster_is_active_at_once() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![publish("first", 1), publish("second", 1), publish("other", 2)]);
        let usable_from =
            |harness: &StateHarness, kid: &str| harness.machine.index().signing_keys[kid].usable_from;
        assert_eq!(usable_from(&harness, "first"), START);
        assert_eq!(usable_from(&harness, "second"), START.plus(limits::KEY_PUBLISH_AHEAD));
        assert_eq!(usable_from(&harness, "other"), START.plus(limits::KEY_PUBLISH_AHEAD));
    }

    #[test]
    fn first_key_of_each_algorithm_is_active_at_once() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![publish("first", 1), publish("second", 1)]);
        let later = START.plus(Duration::from_secs(3600));
        let sets = |kid: &str, node_id| publish_of("RS256", kid, node_id);
        harness.apply(later, vec![sets("set", 2), sets("next set", 2), sets("other set", 1)]);
        harness.one(later, publish("third", 1));
        let usable_from = |kid: &str| harness.machine.index().signing_keys[kid].usable_from;
        assert_eq!(usable_from("set"), later);
        for kid in ["next set", "other set", "third"] {
            assert_eq!(usable_from(kid), later.plus(limits::KEY_PUBLISH_AHEAD), "{kid}");
        }
    }

    /// A peer whose call is held would otherwise refuse tokens of the new key until that ends.
    #[test]
    fn new_signing_key_is_news_for_peers() {
        let mut harness = StateHarness::default();
        let changes = harness.machine.ledger_changes();
        harness.one(START, put_policy("a", ""));
        assert!(!changes.has_changed().expect("open"));
        harness.one(START, publish("first", 1));
        assert!(changes.has_changed().expect("open"));
    }

    /// Each node of a bootstrap proposes a seed, and a node may be slower than the first operator.
    #[test]
    fn seed_never_replaces_a_policy() {
        let mut harness = StateHarness::default();
        let seed = |digest: &str| match put_policy(digest, "") {
            Command::PutPolicy(command) => Command::PutPolicy(PutPolicy { is_seed: true, ..command }),
            other => other,
        };
        assert_eq!(harness.one(START, seed("a")), DONE);
        for late in ["b", "a"] {
            assert_eq!(harness.one(START, seed(late)), Reply::Refused(Refusal::PolicyChanged));
        }
        assert_eq!(harness.one(START, put_policy("c", "a")), DONE);
        assert_eq!(harness.one(START, seed("a")), Reply::Refused(Refusal::PolicyChanged));
        assert_eq!(harness.machine.index().policy, "c");
        assert_eq!(harness.machine.index().policy_history.len(), 2);
    }

    fn bootstrapped(at: Timestamp) -> StateHarness {
        let mut harness = StateHarness::default();
        let id = Bytes::from(vec![7; 16]);
        let command = Bootstrap { cluster_id: id.clone(), incarnation: id, feature_level: 0 };
        assert_eq!(harness.one(at, Command::Bootstrap(command)), DONE);
        harness
    }

    /// Time from publication to activation of each of these keys.
    fn waits(harness: &mut StateHarness, at: Timestamp, keys: Vec<Command>) -> Vec<Duration> {
        let kids = |keys: &[Command]| -> Vec<String> {
            let kid = |key: &Command| match key {
                Command::PublishSigningKey(key) => key.kid.clone(),
                _ => String::new(),
            };
            keys.iter().map(kid).collect()
        };
        let kids = kids(&keys);
        assert!(harness.apply(at, keys).iter().all(|reply| *reply == DONE));
        let known = Arc::clone(&harness.machine.index().signing_keys);
        kids.iter().map(|kid| known[kid].usable_from.since(known[kid].published_at)).collect()
    }

    const AT_ONCE: Duration = Duration::ZERO;
    const AGED: Duration = limits::KEY_PUBLISH_AHEAD;

    #[test]
    fn bootstrap_activates_the_first_key_of_each_node_at_once() {
        let mut harness = bootstrapped(START);
        let keys = vec![publish("a1", 1), publish("a2", 1), publish_of("RS256", "r1", 1)];
        assert_eq!(waits(&mut harness, START, keys), [AT_ONCE, AGED, AT_ONCE]);
        let last = START.plus(AGED).minus(Duration::from_millis(1));
        let keys = vec![publish("b1", 2), publish("b2", 2), publish_of("RS256", "s1", 2)];
        assert_eq!(waits(&mut harness, last, keys), [AT_ONCE, AGED, AT_ONCE]);
        assert_eq!(waits(&mut harness, last, vec![publish("c1", 3)]), [AT_ONCE]);
        let keys = vec![publish("d1", 4), publish_of("RS256", "t1", 4)];
        assert_eq!(waits(&mut harness, START.plus(AGED), keys), [AGED, AGED], "no longer young");
    }

    /// Otherwise a caller that may taint keys makes a node sign with a key that no verifier has fetched.
    #[test]
    fn key_after_a_tainted_first_key_is_pending() {
        let mut harness = bootstrapped(START);
        let keys = vec![publish("a1", 1), publish("b1", 2), publish("c1", 3)];
        assert_eq!(waits(&mut harness, START, keys), [AT_ONCE; 3]);
        harness.one(START, Command::TaintSigningKey(taint("b1", &[7; 16])));
        assert_eq!(waits(&mut harness, START, vec![publish("b2", 2)]), [AGED]);
        // A tainted key is removed when a later key is published, but never while the cluster is young.
        let late = START.plus(AGED).minus(Duration::from_millis(1));
        harness.one(late, Command::TaintSigningKey(taint("b2", &[8; 16])));
        assert_eq!(waits(&mut harness, late, vec![publish("b3", 2)]), [AGED]);
        assert!(harness.machine.index().signing_keys.contains_key("b1"));
    }

    #[test]
    fn key_after_a_retired_first_key_is_pending() {
        let mut harness = bootstrapped(START);
        // Log time jumps: the second key is active, so the first may retire, and the cluster is no longer young.
        assert_eq!(waits(&mut harness, START, vec![publish("a1", 1), publish("a2", 1)]), [AT_ONCE, AGED]);
        assert_eq!(harness.one(START.plus(AGED), retire("a1")), DONE);
        assert_eq!(waits(&mut harness, START.plus(AGED), vec![publish("a3", 1)]), [AGED]);
        let a_day_later = START.plus(AGED).plus(Duration::from_secs(24 * 3600));
        assert_eq!(waits(&mut harness, a_day_later, vec![publish("a4", 1)]), [AGED]);
        assert!(!harness.machine.index().signing_keys.contains_key("a1"), "removed");
    }

    /// A verifier that has cached the keys since the last one of an algorithm has not fetched the next.
    #[test]
    fn key_after_a_removed_key_is_not_the_first() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![publish("token", 1), publish_of("RS256", "set", 1)]);
        harness.one(START, Command::TaintSigningKey(taint("set", &[7; 16])));
        let a_day_later = START.plus(Duration::from_secs(24 * 3600));
        harness.apply(a_day_later, vec![publish("next token", 1), publish_of("RS256", "next set", 1)]);
        let keys = harness.machine.index().signing_keys.clone();
        assert_eq!(keys["next set"].usable_from, a_day_later.plus(limits::KEY_PUBLISH_AHEAD));
        assert!(!keys.contains_key("set"), "removed on publication of its successor");
    }

    #[test]
    fn key_of_another_algorithm_is_no_successor() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![publish("token", 1), publish_of("RS256", "set", 1)]);
        let aged = START.plus(limits::KEY_PUBLISH_AHEAD);
        for kid in ["token", "set"] {
            assert_eq!(harness.one(aged, retire(kid)), Reply::Refused(Refusal::NoAgedSuccessor), "{kid}");
        }
        harness.one(aged, publish_of("RS256", "next set", 1));
        let aged = aged.plus(limits::KEY_PUBLISH_AHEAD);
        assert_eq!(harness.one(aged, retire("token")), Reply::Refused(Refusal::NoAgedSuccessor));
        assert_eq!(harness.one(aged, retire("set")), DONE);
    }

    #[test]
    fn rebuild_restores_signing_keys() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![publish("token", 1), publish_of("RS256", "set", 1), publish("next", 1)]);
        harness.one(START.plus(limits::KEY_PUBLISH_AHEAD), retire("token"));
        let keys = harness.machine.index().signing_keys.clone();
        assert_eq!(keys["token"].algorithm, SigningAlgorithm::Es256);
        assert_eq!(keys["set"].algorithm, SigningAlgorithm::Rs256);
        let restarted = Replicated::default();
        restarted.rebuild(&harness.rows).expect("rebuilds");
        assert_eq!(restarted.index().signing_keys, keys);
    }

    /// Under a leader whose clock was 100 days ahead for one term, new keys would become active in 200 days,
    /// and old ones would be removed at once.
    #[test]
    fn leap_of_log_time_ages_no_key() {
        let mut harness = bootstrapped(START);
        harness.apply(START, vec![publish("first", 1), publish("second", 1)]);
        let leap = |elapsed: Duration| {
            let ahead = START.plus(Duration::from_secs(100 * 24 * 3600));
            Stamp { time: ahead, latest: ahead, elapsed: START.plus(elapsed) }
        };
        let outcome = |harness: &mut StateHarness, elapsed, command| {
            harness.stamped_as(leap(elapsed), vec![command::encode(command)]).remove(0).outcome
        };
        let second = Duration::from_secs(1);
        let too_young = Reply::Refused(Refusal::NoAgedSuccessor);
        assert_eq!(outcome(&mut harness, second, retire("first")), too_young);
        assert_eq!(outcome(&mut harness, second, publish("other", 2)), DONE);
        let usable_from = harness.machine.index().signing_keys["other"].usable_from;
        assert_eq!(usable_from, START.plus(second), "the cluster is still young");
        assert_eq!(outcome(&mut harness, AGED, retire("first")), DONE);
        assert_eq!(outcome(&mut harness, AGED, publish("third", 1)), DONE);
        let first = harness.machine.index().signing_keys["first"].clone();
        assert_eq!(first.state(START.plus(AGED)), SigningKeyState::Retired);
    }

    #[test]
    fn key_of_an_unknown_algorithm_is_corrupt() {
        let harness = StateHarness::default();
        // ES256 is the empty text in the log: two spellings of one algorithm would be two different rows.
        for algorithm in ["ES256", "RS384", "rs256", " "] {
            let stamp = Stamp { time: START, ..Stamp::default() };
            let batch = batch(stamp, vec![command::encode(publish_of(algorithm, "k", 1))]);
            assert!(harness.machine.apply(&harness.rows, &batch, 1).is_err(), "{algorithm}");
        }
    }

    #[test]
    fn key_without_an_active_successor_is_not_retired() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![publish("first", 1), publish("second", 1), publish("other", 2)]);
        assert_eq!(harness.one(START, retire("first")), Reply::Refused(Refusal::NoAgedSuccessor));
        let aged = START.plus(limits::KEY_PUBLISH_AHEAD);
        assert_eq!(harness.one(aged, retire("first")), DONE);
        assert_eq!(harness.one(aged, retire("first")), AGAIN);
        assert_eq!(harness.one(aged, retire("second")), Reply::Refused(Refusal::NoAgedSuccessor));
        assert_eq!(harness.one(aged, retire("none")), Reply::Refused(Refusal::UnknownSigningKey));
    }

    #[test]
    fn retired_key_verifies_until_its_longest_token_expires() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![publish("first", 1), publish("second", 1)]);
        let retired = START.plus(limits::KEY_PUBLISH_AHEAD);
        harness.one(retired, retire("first"));
        let facts = harness.machine.index().signing_keys["first"].clone();
        let dead = retired.plus(limits::TOKEN_LIFETIME_MAX).plus(limits::LEEWAY);
        assert!(facts.verifies(dead.minus(Duration::from_millis(1))));
        assert!(!facts.verifies(dead));
        harness.one(dead, publish("third", 1));
        assert!(!harness.machine.index().signing_keys.contains_key("first"));
    }

    #[test]
    fn policy_change_with_a_stale_precondition_is_refused() {
        let mut harness = StateHarness::default();
        harness.one(START, put_policy("a", ""));
        harness.one(START, put_policy("b", "a"));
        assert_eq!(harness.one(START, put_policy("c", "a")), Reply::Refused(Refusal::PolicyChanged));
        assert_eq!(harness.machine.index().policy, "b");
        // Regression: the repetition of a change that had succeeded was refused.
        assert_eq!(harness.one(START, put_policy("b", "a")), Reply::Done { changed: false });
    }

    /// Records the policy that a subscriber finds when it is woken.
    struct WokenReader {
        machine: Arc<Replicated>,
        found: Mutex<Vec<String>>,
    }

    impl Wake for WokenReader {
        fn wake(self: Arc<Self>) {
            self.found.lock().expect("lock").push(self.machine.index().policy.clone());
        }
    }

    #[test]
    fn woken_subscriber_finds_the_new_policy() {
        let machine = Arc::new(Replicated::default());
        let reader = Arc::new(WokenReader { machine: Arc::clone(&machine), found: Mutex::default() });
        let waker = Waker::from(Arc::clone(&reader));
        let mut changes = machine.policy_changes();
        let mut changed = pin!(changes.changed());
        assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        machine.replace_index(Index { policy: "new".to_owned(), ..Index::default() }, Ends::default());
        assert_eq!(*reader.found.lock().expect("lock"), ["new"]);
    }

    #[test]
    fn policy_history_is_bounded_and_its_bundles_are_retained() {
        let mut harness = StateHarness::default();
        for number in 0..3 * limits::POLICY_HISTORY_MAX {
            harness.one(START, put_policy(&format!("p{}", number % 5 + number / 7), ""));
        }
        let index = Index::clone(&harness.machine.index());
        assert_eq!(index.policy_history.len(), limits::POLICY_HISTORY_MAX);
        for change in index.policy_history.values() {
            assert!(
                policy_sources(&harness.rows, &change.digest).expect("row").is_some(),
                "{}",
                change.digest
            );
        }
        let bundles = harness.rows.0.keys().filter(|(table, _)| table == POLICY).count();
        assert!(bundles <= limits::POLICY_HISTORY_MAX);
    }

    #[test]
    fn second_bootstrap_is_refused() {
        let mut harness = StateHarness::default();
        let bootstrap = |byte: u8| {
            let id = Bytes::from(vec![byte; 16]);
            Command::Bootstrap(Bootstrap { cluster_id: id.clone(), incarnation: id, feature_level: 0 })
        };
        assert_eq!(harness.one(START, bootstrap(1)), DONE);
        assert_eq!(harness.one(START, bootstrap(2)), Reply::Refused(Refusal::AlreadyBootstrapped));
        assert_eq!(harness.machine.index().incarnation, Some(Incarnation::from_bytes([1; 16])));
    }

    #[test]
    fn rebuild_restores_the_index() {
        let mut harness = StateHarness::default();
        harness.apply(START, vec![publish("first", 1), publish("second", 1), put_policy("a", "")]);
        harness.one(START.plus(limits::KEY_PUBLISH_AHEAD), retire("first"));
        let restarted = Replicated::default();
        restarted.rebuild(&harness.rows).expect("rebuilds");
        assert_eq!(format!("{:?}", restarted.index()), format!("{:?}", harness.machine.index()));
    }

    #[test]
    fn rows_do_not_depend_on_batching() {
        let commands = || vec![publish("a", 1), spend(1), spend(2), put_policy("p", "")];
        let (mut together, mut apart) = (StateHarness::default(), StateHarness::default());
        together.apply(START, commands());
        for command in commands() {
            apart.one(START, command);
        }
        assert_eq!(together.rows.without_events(), apart.rows.without_events());
    }

    #[test]
    fn key_over_the_limit_is_refused_until_another_expires() {
        let mut harness = StateHarness::default();
        let each =
            |at: usize| publish_of(if at.is_multiple_of(2) { "" } else { "RS256" }, &format!("k{at}"), 1);
        let keys = (0..limits::SIGNING_KEYS_MAX).map(each).collect();
        assert!(harness.apply(START, keys).iter().all(|reply| *reply == DONE));
        for algorithm in ["", "RS256"] {
            let more = publish_of(algorithm, "more", 1);
            assert_eq!(harness.one(START, more), Reply::Refused(Refusal::TooManySigningKeys));
        }
        let retired = START.plus(limits::KEY_PUBLISH_AHEAD);
        assert_eq!(harness.one(retired, retire("k0")), DONE);
        assert_eq!(harness.one(retired, publish("more", 1)), Reply::Refused(Refusal::TooManySigningKeys));
        let dead = retired.plus(limits::TOKEN_LIFETIME_MAX).plus(limits::LEEWAY);
        assert_eq!(harness.one(dead, publish("more", 1)), DONE);
    }

    #[test]
    fn taint_revokes_what_derives_from_the_key_once() {
        let mut harness = StateHarness::default();
        harness.one(START, publish("k", 1));
        let taint = || Command::TaintSigningKey(taint("k", &[7; 16]));
        assert_eq!(harness.one(START, taint()), DONE);
        assert_eq!(harness.one(START, taint()), AGAIN);
        assert_eq!(harness.rows.0.keys().filter(|(table, _)| table == REVOCATION).count(), 1);
        let tainted = crate::id::Digest128::from_bytes([7; 16]);
        assert!(harness.machine.revocations().covers(Epoch::default(), &[tainted], None, START));
        assert!(harness.machine.index().signing_keys["k"].tainted_at.is_some());
    }
}
