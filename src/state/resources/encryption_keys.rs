//! Encryption keys of agents and other workloads.
//!
//! The cryptographic checks of a key happen before; here a key is an opaque text with a name. A key is removed with its
//! agent, with the token that registered it, or, for a subject that is not an agent, after a fixed time.

use bytes::Bytes;
use prost::Message as _;

use super::agents;
use super::feed::{self, NewFeedEvent};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Digest128, Incarnation, LogPosition, WorkloadId};
use crate::limits;
use crate::state::command::{
    Command, EncryptionKeyRegistered, EncryptionKeyRow, Refusal, RegisterEncryptionKey,
    Registrar as RegistrarRow, RemoveEncryptionKey, Reply,
};
use crate::state::machine::idempotency::digest;
use crate::state::tables;
use crate::state::tables::quotas::Quota;
use crate::state::tables::{ENCRYPTION_KEY, ENCRYPTION_KEY_END, ENCRYPTION_KEY_OF, EntryTime, Tables};
use crate::state::{Error, OnBehalf, State};

/// Registers a key of an active agent, or of a subject that is not an agent. If the key exists already, `alg` and
/// registrar are replaced by those of this registration.
pub fn register(
    tables: &mut Tables<'_>,
    time: EntryTime,
    command: RegisterEncryptionKey,
) -> Result<Reply, Corrupt> {
    let subject = &command.workload_id;
    if command.registrar.is_none() {
        return Err(Corrupt::row("a registration of an encryption key has no registrar"));
    }
    if command.is_agent
        && let Err(refusal) = agents::find_active(tables, time.now, subject)?
    {
        return Ok(Reply::Refused(refusal));
    }
    delete_expired(tables, time)?;
    let (known, ended): (Vec<_>, Vec<_>) =
        of(tables, subject)?.into_iter().partition(|row| is_alive(row, time.elapsed));
    for row in &ended {
        delete(tables, subject, row)?;
    }
    let same = known.iter().find(|row| row.kid == command.kid);
    let is_first = known.is_empty() && !command.is_agent;
    let trust_domain = trust_domain(subject)?;
    let is_full = same.is_none() && known.len() >= limits::ENCRYPTION_KEYS_PER_SUBJECT_MAX
        || is_first && Quota::KeySubjects.of(tables, &trust_domain)? >= limits::ENCRYPTION_KEY_SUBJECTS_MAX;
    if is_full {
        return Ok(Reply::Refused(Refusal::TooManyEncryptionKeys));
    }
    if is_first {
        Quota::KeySubjects.add(tables, &trust_domain)?;
    }
    let ends_at = time.elapsed.plus(limits::ENCRYPTION_KEY_LIFETIME);
    let row = EncryptionKeyRow {
        kid: command.kid,
        jwk: command.jwk,
        registered_at_millis: same.map_or(time.now.millis(), |row| row.registered_at_millis),
        registrar: command.registrar,
        ends_at_millis: if command.is_agent { 0 } else { ends_at.millis() },
    };
    if let Some(same) = same {
        delete_row(tables, subject, same)?;
    }
    put_row(tables, subject, &row)?;
    let created = same.is_none();
    if created {
        feed::append(tables, time.now, NewFeedEvent::of_agent(subject, "", "encryption key registered"))?;
    }
    Ok(Reply::EncryptionKey(EncryptionKeyRegistered { created, row: Some(row) }))
}

pub fn remove(
    tables: &mut Tables<'_>,
    now: Timestamp,
    command: &RemoveEncryptionKey,
) -> Result<Reply, Corrupt> {
    let subject = &command.workload_id;
    let Some(row) = find(tables, subject, command.kid.as_bytes())? else {
        return Ok(Reply::Refused(Refusal::UnknownEncryptionKey));
    };
    delete(tables, subject, &row)?;
    feed::append(tables, now, NewFeedEvent::of_agent(subject, &command.caller, "encryption key removed"))?;
    Ok(Reply::Done { changed: true })
}

/// Removes keys whose registrar's token derives from this fact and has a smaller `idx`, a bounded number per call. Returns
/// whether none is left.
pub fn remove_registered_with(
    tables: &mut Tables<'_>,
    fact: &Digest128,
    below: u64,
) -> Result<bool, Corrupt> {
    const MOST: usize = limits::ENCRYPTION_KEYS_REMOVED_PER_STEP;
    let rows = tables.keys_under(ENCRYPTION_KEY_OF, fact.as_bytes(), &[], MOST + 1)?;
    for row in rows.iter().take(MOST) {
        let (index, name) = row
            .get(16..)
            .and_then(<[u8]>::split_first_chunk::<8>)
            .ok_or_else(|| Corrupt::row("an index row of a registrar is too short"))?;
        if u64::from_be_bytes(*index) >= below {
            return Ok(true);
        }
        delete_named(tables, name)?;
    }
    Ok(rows.len() <= MOST)
}

/// Removes the keys of an agent whose row is deleted.
pub fn remove_all(tables: &mut Tables<'_>, agent_id: &str) -> Result<(), Corrupt> {
    // One by one: most agents have none, and a range deletion slows down reads of all other keys.
    for row in of(tables, agent_id)? {
        delete(tables, agent_id, &row)?;
    }
    Ok(())
}

/// Deletes every key: a restored cluster has none that an earlier token registered.
pub fn delete_all(tables: &mut Tables<'_>) {
    // Longer than any key of these tables that consists of this byte.
    const LAST: [u8; 32] = [0xff; 32];
    for table in [ENCRYPTION_KEY, ENCRYPTION_KEY_OF, ENCRYPTION_KEY_END] {
        tables.delete_range(table, Vec::new(), LAST.to_vec());
    }
    Quota::KeySubjects.delete_all(tables);
}

/// Removes a few expired keys, but more than one entry adds.
fn delete_expired(tables: &mut Tables<'_>, time: EntryTime) -> Result<(), Corrupt> {
    let most = limits::ENDED_ENCRYPTION_KEYS_REMOVED_PER_REGISTRATION;
    for key in tables.due(ENCRYPTION_KEY_END, &[], time.elapsed, most)? {
        delete_named(tables, &key[8..])?;
    }
    Ok(())
}

/// Deletes the key that an index row names.
fn delete_named(tables: &mut Tables<'_>, name: &[u8]) -> Result<(), Corrupt> {
    let malformed = || Corrupt::row("an index row has no encryption key");
    let at = name.iter().position(|byte| *byte == 0).ok_or_else(malformed)?;
    let subject = std::str::from_utf8(&name[..at]).map_err(|_| malformed())?;
    let row = find(tables, subject, &name[at + 1..])?.ok_or_else(malformed)?;
    delete(tables, subject, &row)
}

/// A key of an agent ends with the agent, another one at its own time.
fn is_alive(row: &EncryptionKeyRow, elapsed: Timestamp) -> bool {
    row.ends_at_millis == 0 || row.ends_at_millis > elapsed.millis()
}

/// All keys of a subject; there are few.
fn of(tables: &Tables<'_>, subject: &str) -> Result<Vec<EncryptionKeyRow>, Corrupt> {
    let rows = tables.messages_under::<EncryptionKeyRow>(ENCRYPTION_KEY, &prefix(subject))?;
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

fn find(tables: &Tables<'_>, subject: &str, kid: &[u8]) -> Result<Option<EncryptionKeyRow>, Corrupt> {
    tables.message(ENCRYPTION_KEY, &[&prefix(subject)[..], kid].concat())
}

/// Deletes a key; with the last one of a subject that is not an agent, the subject no longer counts.
fn delete(tables: &mut Tables<'_>, subject: &str, row: &EncryptionKeyRow) -> Result<(), Corrupt> {
    delete_row(tables, subject, row)?;
    if row.ends_at_millis != 0 && of(tables, subject)?.is_empty() {
        Quota::KeySubjects.remove(tables, &trust_domain(subject)?)?;
    }
    Ok(())
}

fn put_row(tables: &mut Tables<'_>, subject: &str, row: &EncryptionKeyRow) -> Result<(), Corrupt> {
    for (table, key) in keys_beside(subject, row)? {
        tables.put(table, &key, Vec::new());
    }
    tables.put(ENCRYPTION_KEY, &name(subject, row), row.encode_to_vec());
    Ok(())
}

fn delete_row(tables: &mut Tables<'_>, subject: &str, row: &EncryptionKeyRow) -> Result<(), Corrupt> {
    for (table, key) in keys_beside(subject, row)? {
        tables.delete(table, &key);
    }
    tables.delete(ENCRYPTION_KEY, &name(subject, row));
    Ok(())
}

/// Index rows of a key: one for each fact in its registrar's lineage, and one for its expiry.
fn keys_beside(subject: &str, row: &EncryptionKeyRow) -> Result<Vec<(&'static str, Vec<u8>)>, Corrupt> {
    let name = name(subject, row);
    let mut keys = Vec::new();
    for fact in row.registrar.iter().flat_map(|registrar| &registrar.lineage) {
        let index = row.registrar.as_ref().map_or(0, |registrar| registrar.index).to_be_bytes();
        keys.push((ENCRYPTION_KEY_OF, [digest(fact)?.as_bytes(), &index[..], &name].concat()));
    }
    if row.ends_at_millis != 0 {
        keys.push((ENCRYPTION_KEY_END, tables::time_key(row.ends_at_millis, &name)));
    }
    Ok(keys)
}

fn name(subject: &str, row: &EncryptionKeyRow) -> Vec<u8> {
    [&prefix(subject)[..], row.kid.as_bytes()].concat()
}

/// Identifiers contain no zero byte, so no prefix is a prefix of another subject's.
fn prefix(subject: &str) -> Vec<u8> {
    [subject.as_bytes(), &[0]].concat()
}

fn trust_domain(subject: &str) -> Result<String, Corrupt> {
    let id = subject.parse::<WorkloadId>();
    let id = id.map_err(|_| Corrupt::row("the subject of an encryption key is not a workload identifier"))?;
    Ok(id.trust_domain().as_str().to_owned())
}

/// An encryption key of a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptionKeyRecord {
    /// RFC 7638 thumbprint.
    pub kid: String,
    /// A public JWK as JSON.
    pub jwk: String,
    /// Log time of its first registration.
    pub registered_at: Timestamp,
    /// The token of its last registration.
    pub registrar: Registrar,
}

/// The token that registered an encryption key, on whose validity the key depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrar {
    /// Its lineage, including the token itself.
    pub lineage: Vec<Digest128>,
    pub idx: Option<LogPosition>,
    pub iat: Timestamp,
}

impl From<&Registrar> for RegistrarRow {
    fn from(registrar: &Registrar) -> Self {
        let lineage = registrar.lineage.iter();
        Self {
            lineage: lineage.map(|digest| Bytes::copy_from_slice(digest.as_bytes())).collect(),
            incarnation: registrar
                .idx
                .map_or_else(Bytes::new, |position| Bytes::copy_from_slice(position.incarnation.as_bytes())),
            index: registrar.idx.map_or(0, |position| position.index),
            iat_millis: registrar.iat.millis(),
        }
    }
}

impl TryFrom<RegistrarRow> for Registrar {
    type Error = Corrupt;

    fn try_from(row: RegistrarRow) -> Result<Self, Corrupt> {
        let idx = match row.incarnation.as_ref() {
            [] => None,
            incarnation => {
                let incarnation = incarnation.try_into().map(Incarnation::from_bytes);
                let incarnation = incarnation.map_err(|_| Corrupt::row("an incarnation is not 16 bytes"))?;
                Some(LogPosition { incarnation, index: row.index })
            }
        };
        Ok(Self {
            lineage: row.lineage.iter().map(|fact| digest(fact)).collect::<Result<_, _>>()?,
            idx,
            iat: Timestamp::from_millis(row.iat_millis),
        })
    }
}

impl TryFrom<EncryptionKeyRow> for EncryptionKeyRecord {
    type Error = Corrupt;

    fn try_from(row: EncryptionKeyRow) -> Result<Self, Corrupt> {
        let registered_at = Timestamp::from_millis(row.registered_at_millis);
        let registrar = row.registrar.ok_or_else(|| Corrupt::row("an encryption key has no registrar"))?;
        Ok(Self { kid: row.kid, jwk: row.jwk, registered_at, registrar: registrar.try_into()? })
    }
}

impl State {
    /// The unexpired keys of a subject, regardless of the status of an agent, in the order of their `kid`s.
    pub fn encryption_keys(&self, subject: &str) -> Result<Vec<EncryptionKeyRecord>, Corrupt> {
        let tables = Tables::new(self.cluster().view());
        let now = self.index().elapsed;
        let alive = of(&tables, subject)?.into_iter().filter(|row| is_alive(row, now));
        alive.map(TryInto::try_into).collect()
    }
}

impl OnBehalf<'_> {
    /// Registers a key; returns whether it is new, and the key as it is stored.
    ///
    /// # Errors
    /// `Refusal::UnknownAgent`, `Refusal::AgentRevoked`, `Refusal::AgentEnded`,
    /// `Refusal::TooManyEncryptionKeys`, `Refusal::IdempotencyKeyReused`.
    pub async fn register_encryption_key(
        self,
        subject: &WorkloadId,
        is_agent: bool,
        (kid, jwk): (String, String),
        registrar: &Registrar,
    ) -> Result<(bool, EncryptionKeyRecord), Error> {
        let (workload_id, registrar) = (subject.to_string(), Some(registrar.into()));
        let command = RegisterEncryptionKey { workload_id, kid, jwk, registrar, is_agent };
        let command = Command::RegisterEncryptionKey(command);
        match self.propose_once(command).await?.outcome {
            Reply::EncryptionKey(EncryptionKeyRegistered { created, row: Some(row) }) => {
                Ok((created, row.try_into()?))
            }
            _ => Err(Error::Undecodable),
        }
    }

    /// Removes a key.
    ///
    /// # Errors
    /// `Refusal::UnknownEncryptionKey`, `Refusal::IdempotencyKeyReused`.
    pub async fn remove_encryption_key(self, subject: &WorkloadId, kid: String) -> Result<(), Error> {
        let command = RemoveEncryptionKey { workload_id: subject.to_string(), kid, caller: self.name() };
        self.propose_once(Command::RemoveEncryptionKey(command)).await?.outcome.changed().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::state::command::{self, Agent, AgentRow};
    use crate::state::resources::revoked_fact::fact_row;
    use crate::state::tables::{AGENT, OWNED};
    use crate::state::testing::{Rows, StateHarness};
    use crate::token::lineage::Fact;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const AGENT_ID: &str = "wimse://a.example/agent/mcp/1";

    impl Rows {
        fn agent(&mut self, agent_id: &str, ancestors: &[&str], revoked_at: Option<Timestamp>) {
            let row = AgentRow {
                agent: Some(Agent {
                    agent_id: agent_id.into(),
                    ancestors: ancestors.iter().map(|&id| id.to_owned()).collect(),
                    ..Agent::default()
                }),
                ends_at_millis: NOW.plus(Duration::from_secs(3600)).millis(),
                revoked_at_millis: revoked_at.map_or(0, Timestamp::millis),
                ..AgentRow::default()
            };
            self.0.insert((AGENT.to_owned(), agent_id.as_bytes().to_vec()), row.encode_to_vec());
        }

        fn register(&mut self, now: Timestamp, agent_id: &str, kid: &str, jwk: &str) -> Reply {
            let command = RegisterEncryptionKey {
                workload_id: agent_id.into(),
                kid: kid.into(),
                jwk: jwk.into(),
                registrar: Some(RegistrarRow::default()),
                is_agent: true,
            };
            let mut tables = Tables::new(self);
            let reply = register(&mut tables, time(now), command).expect("applies");
            let writes = tables.into_writes();
            self.write(writes);
            reply
        }

        fn keys(&self) -> usize {
            self.0.keys().filter(|(table, _)| table == ENCRYPTION_KEY).count()
        }
    }

    fn time(at: Timestamp) -> EntryTime {
        EntryTime { now: at, latest: at, elapsed: at }
    }

    fn registered(created: bool, jwk: &str, at: Timestamp) -> Reply {
        let row = EncryptionKeyRow {
            kid: "k".into(),
            jwk: jwk.into(),
            registered_at_millis: at.millis(),
            registrar: Some(RegistrarRow::default()),
            ends_at_millis: 0,
        };
        Reply::EncryptionKey(EncryptionKeyRegistered { created, row: Some(row) })
    }

    #[test]
    fn key_registered_again_has_the_last_jwk() {
        let mut rows = Rows::default();
        rows.agent(AGENT_ID, &[], None);
        let later = NOW.plus(Duration::from_secs(1));
        assert_eq!(rows.register(NOW, AGENT_ID, "k", "a"), registered(true, "a", NOW));
        assert_eq!(rows.register(later, AGENT_ID, "k", "a"), registered(false, "a", NOW));
        assert_eq!(rows.register(later, AGENT_ID, "k", "b"), registered(false, "b", NOW));
        assert_eq!(rows.keys(), 1);
    }

    #[test]
    fn keys_per_agent_are_limited() {
        let mut rows = Rows::default();
        rows.agent(AGENT_ID, &[], None);
        // Keys of agents whose ids have this one as a prefix, and sort before and after it, do not count.
        let (before, after) = (format!("{AGENT_ID}-"), format!("{AGENT_ID}0"));
        for other in [&before, &after] {
            rows.agent(other, &[], None);
            rows.register(NOW, other, "other", "{}");
        }
        let kid = |number: usize| format!("key-{number}");
        for number in 0..limits::ENCRYPTION_KEYS_PER_SUBJECT_MAX {
            let reply = rows.register(NOW, AGENT_ID, &kid(number), "{}");
            assert!(matches!(reply, Reply::EncryptionKey(_)), "{number}: {reply:?}");
        }
        let full = Reply::Refused(Refusal::TooManyEncryptionKeys);
        assert_eq!(rows.register(NOW, AGENT_ID, "one more", "{}"), full);
        let again = rows.register(NOW, AGENT_ID, &kid(0), "{}");
        assert!(matches!(again, Reply::EncryptionKey(EncryptionKeyRegistered { created: false, .. })));
        assert_eq!(rows.keys(), limits::ENCRYPTION_KEYS_PER_SUBJECT_MAX + 2);
    }

    #[test]
    fn ended_keys_of_a_subject_do_not_count() {
        let mut rows = Rows::default();
        let mut register = |at: Timestamp, subject: &str, kid: &str| {
            let command = RegisterEncryptionKey {
                workload_id: subject.into(),
                kid: kid.into(),
                jwk: "{}".into(),
                registrar: Some(RegistrarRow::default()),
                is_agent: false,
            };
            let mut tables = Tables::new(&rows);
            let reply = register(&mut tables, time(at), command).expect("applies");
            let writes = tables.into_writes();
            rows.write(writes);
            reply
        };
        let subject = |number: usize| format!("spiffe://a.example/{number}");
        // More of other subjects than one registration removes.
        for number in 1..=2 * limits::ENDED_ENCRYPTION_KEYS_REMOVED_PER_REGISTRATION {
            register(NOW, &subject(number), "k");
        }
        let later = NOW.plus(Duration::from_secs(1));
        for number in 0..limits::ENCRYPTION_KEYS_PER_SUBJECT_MAX {
            register(later, &subject(0), &number.to_string());
        }
        let ended = later.plus(limits::ENCRYPTION_KEY_LIFETIME);
        let again = register(ended, &subject(0), "1");
        let Reply::EncryptionKey(EncryptionKeyRegistered { created: true, row: Some(row) }) = again else {
            panic!("{again:?}")
        };
        assert_eq!(row.registered_at_millis, ended.millis());
    }

    #[test]
    fn limit_counts_keys_of_the_same_entry() {
        let mut rows = Rows::default();
        rows.agent(AGENT_ID, &[], None);
        let mut tables = Tables::new(&rows);
        let replies = (0..=limits::ENCRYPTION_KEYS_PER_SUBJECT_MAX).map(|number| {
            let command = RegisterEncryptionKey {
                workload_id: AGENT_ID.into(),
                kid: number.to_string(),
                registrar: Some(RegistrarRow::default()),
                is_agent: true,
                ..RegisterEncryptionKey::default()
            };
            register(&mut tables, time(NOW), command).expect("applies")
        });
        assert_eq!(replies.last(), Some(Reply::Refused(Refusal::TooManyEncryptionKeys)));
    }

    #[test]
    fn key_of_an_inactive_agent_is_refused() {
        let mut rows = Rows::default();
        let id = |name: &str| format!("wimse://a.example/agent/mcp/{name}");
        let mut agent = |name: &str, ancestors: &[&str], revoked_at| {
            let ancestors: Vec<_> = ancestors.iter().map(|name| id(name)).collect();
            let ancestors: Vec<_> = ancestors.iter().map(String::as_str).collect();
            rows.agent(&id(name), &ancestors, revoked_at);
        };
        agent("revoked", &[], Some(NOW));
        agent("parent", &["revoked"], None);
        agent("child", &["parent", "revoked"], None);
        agent("orphan", &["forgotten"], None);
        agent("good", &[], None);
        agent("heir", &["good"], None);
        let end = NOW.plus(Duration::from_secs(3600));
        for (agent_id, now, refusal) in [
            ("nobody", NOW, Some(Refusal::UnknownAgent)),
            ("revoked", NOW, Some(Refusal::AgentRevoked)),
            ("parent", NOW, Some(Refusal::AgentRevoked)),
            ("child", NOW, Some(Refusal::AgentRevoked)),
            // A parent without a row was revoked, unless its child has expired too.
            ("orphan", NOW, Some(Refusal::AgentRevoked)),
            ("orphan", end, Some(Refusal::AgentEnded)),
            ("good", end.minus(Duration::from_millis(1)), None),
            ("heir", NOW, None),
            ("good", end, Some(Refusal::AgentEnded)),
        ] {
            let reply = rows.register(now, &id(agent_id), "k", "a");
            let expected = refusal.map_or(registered(true, "a", now), Reply::Refused);
            assert_eq!(reply, expected, "{agent_id} at {now:?}");
        }
    }

    #[test]
    fn deletion_of_an_agent_removes_its_own_keys_only() {
        let mut rows = Rows::default();
        let others =
            [format!("{AGENT_ID}0"), format!("{AGENT_ID}-"), "wimse://a.example/agent/mcp/0".to_owned()];
        for agent_id in others.iter().map(String::as_str).chain([AGENT_ID]) {
            rows.agent(agent_id, &[], None);
            rows.register(NOW, agent_id, "k", "a");
            rows.register(NOW, agent_id, "\u{7f}", "a");
        }
        let mut tables = Tables::new(&rows);
        remove_all(&mut tables, AGENT_ID).expect("removes");
        let writes = tables.into_writes();
        rows.write(writes);
        assert_eq!(rows.keys(), 2 * others.len());
        assert!(
            rows.0.keys().all(|(table, key)| table != ENCRYPTION_KEY || !key.starts_with(&prefix(AGENT_ID)))
        );
    }

    const WORKLOAD: &str = "spiffe://a.example/ns/shop/sa/cart";
    const DONE: Reply = Reply::Done { changed: true };

    fn fact(name: &str) -> Fact {
        Fact::subject("https://idp.example", name)
    }

    fn key_of(subject: &str, kid: &str, index: u64, facts: &[&str]) -> Command {
        let digests = facts.iter().map(|name| Bytes::copy_from_slice(fact(name).digest().as_bytes()));
        let registrar = RegistrarRow { lineage: digests.collect(), index, ..RegistrarRow::default() };
        Command::RegisterEncryptionKey(RegisterEncryptionKey {
            workload_id: subject.to_owned(),
            kid: kid.to_owned(),
            jwk: "{}".to_owned(),
            registrar: Some(registrar),
            is_agent: false,
        })
    }

    fn removed(subject: &str, kid: &str) -> Command {
        let (workload_id, kid, caller) = (subject.to_owned(), kid.to_owned(), String::new());
        Command::RemoveEncryptionKey(RemoveEncryptionKey { workload_id, kid, caller })
    }

    fn revoked(name: &str) -> Command {
        let fact = Some(fact_row(&fact(name)));
        Command::Revoke(command::Revoke { fact, ..command::Revoke::default() })
    }

    impl StateHarness {
        fn kids(&self, subject: &str) -> Vec<String> {
            let rows = of(&Tables::new(&self.rows), subject).expect("rows");
            rows.into_iter().map(|row| row.kid).collect()
        }

        fn rows_in(&self, tables: &[&str]) -> usize {
            self.rows.0.keys().filter(|(table, _)| tables.contains(&table.as_str())).count()
        }

        fn subjects(&self) -> u64 {
            Quota::KeySubjects.of(&Tables::new(&self.rows), "a.example").expect("a count")
        }
    }

    const ALL: [&str; 3] = [ENCRYPTION_KEY, ENCRYPTION_KEY_OF, ENCRYPTION_KEY_END];

    /// Regression: a key became visible again when the revocation of its token was deleted, a day later.
    #[test]
    fn key_of_a_revoked_token_is_removed_for_good() {
        let mut harness = StateHarness::default();
        harness.one(NOW, key_of(WORKLOAD, "stolen", 1, &["alice", "gateway"]));
        harness.one(NOW, key_of(WORKLOAD, "good", 1, &["bob", "gateway"]));
        harness.one(NOW, revoked("alice"));
        assert_eq!(harness.kids(WORKLOAD), ["good"]);
        harness.one(NOW, key_of(WORKLOAD, "later", 9, &["alice"]));
        let later = NOW.plus(limits::REVOCATION_RETENTION).plus(Duration::from_secs(1));
        harness.one(later, key_of(WORKLOAD, "other", 9, &["carol"]));
        assert_eq!(harness.kids(WORKLOAD), ["good", "later", "other"]);
        harness.one(later, revoked("gateway"));
        for kid in ["later", "other"] {
            assert_eq!(harness.one(later, removed(WORKLOAD, kid)), DONE);
        }
        assert_eq!((harness.rows_in(&ALL), harness.subjects()), (0, 0));
    }

    /// A key that is registered again depends on the later token only.
    #[test]
    fn key_registered_again_depends_on_its_last_token() {
        let mut harness = StateHarness::default();
        harness.one(NOW, key_of(WORKLOAD, "k", 1, &["alice"]));
        harness.one(NOW, key_of(WORKLOAD, "k", 2, &["bob"]));
        harness.one(NOW, revoked("alice"));
        assert_eq!(harness.kids(WORKLOAD), ["k"]);
        harness.one(NOW, revoked("bob"));
        assert_eq!((harness.rows_in(&ALL), harness.subjects()), (0, 0));
    }

    /// One entry does not remove all keys that depend on a signing key; the revocation is retained until they are removed.
    #[test]
    fn revocation_is_retained_until_its_keys_are_removed() {
        let mut harness = StateHarness::default();
        let many = 2 * limits::ENCRYPTION_KEYS_REMOVED_PER_STEP + 1;
        let subject = |number: usize| format!("{WORKLOAD}-{number}");
        for number in 0..many {
            harness.one(NOW, key_of(&subject(number), "k", 1, &["alice"]));
        }
        harness.one(NOW, revoked("alice"));
        let most = limits::ENCRYPTION_KEYS_REMOVED_PER_STEP;
        assert_eq!(harness.rows_in(&[ENCRYPTION_KEY]), many - most);
        let idle = || Command::AllowRevocations(command::AllowRevocations::default());
        let mut at = NOW.plus(limits::REVOCATION_RETENTION);
        for (keys, revocations) in [(1, 1), (0, 0), (0, 0)] {
            at = at.plus(Duration::from_secs(1));
            harness.one(at, idle());
            let left = (harness.rows_in(&[ENCRYPTION_KEY]), harness.machine.revocations().watermarks());
            assert_eq!(left, (keys, revocations));
        }
    }

    #[test]
    fn key_without_agent_ends_30_days_after_its_registration() {
        let mut harness = StateHarness::default();
        harness.one(NOW, key_of(WORKLOAD, "a", 1, &["alice"]));
        harness.one(NOW, key_of(WORKLOAD, "b", 1, &["alice"]));
        let again = NOW.plus(Duration::from_secs(3600));
        harness.one(again, key_of(WORKLOAD, "b", 1, &["alice"]));
        let other = format!("{WORKLOAD}-2");
        let end = NOW.plus(limits::ENCRYPTION_KEY_LIFETIME);
        harness.one(end.minus(Duration::from_millis(1)), key_of(&other, "c", 1, &["alice"]));
        assert_eq!(harness.kids(WORKLOAD), ["a", "b"]);
        harness.one(end, key_of(&other, "c", 1, &["alice"]));
        assert_eq!((harness.kids(WORKLOAD), harness.subjects()), (vec!["b".to_owned()], 2));
        harness.one(again.plus(limits::ENCRYPTION_KEY_LIFETIME), key_of(&other, "c", 1, &["alice"]));
        assert_eq!((harness.kids(WORKLOAD).len(), harness.subjects()), (0, 1));
    }

    #[test]
    fn removal_of_expired_keys_is_bounded_per_command() {
        let mut harness = StateHarness::default();
        let most = limits::ENDED_ENCRYPTION_KEYS_REMOVED_PER_REGISTRATION;
        for number in 0..=most {
            harness.one(NOW, key_of(WORKLOAD, &number.to_string(), 1, &[]));
        }
        let end = NOW.plus(limits::ENCRYPTION_KEY_LIFETIME);
        for left in [2, 1] {
            harness.one(end, key_of(&format!("{WORKLOAD}-2"), "k", 1, &[]));
            assert_eq!(harness.rows_in(&[ENCRYPTION_KEY]), left);
        }
    }

    #[test]
    fn trust_domain_has_a_limit_of_subjects_with_keys() {
        let mut harness = StateHarness::default();
        harness.one(NOW, key_of(WORKLOAD, "a", 1, &[]));
        let count = limits::ENCRYPTION_KEY_SUBJECTS_MAX - 1;
        let key = (OWNED.to_owned(), Quota::KeySubjects.key("a.example"));
        harness.rows.0.insert(key, count.to_be_bytes().to_vec());
        let full = Reply::Refused(Refusal::TooManyEncryptionKeys);
        assert_ne!(harness.one(NOW, key_of(&format!("{WORKLOAD}-2"), "a", 1, &[])), full);
        assert_eq!(harness.one(NOW, key_of(&format!("{WORKLOAD}-3"), "a", 1, &[])), full);
        // A subject with a key may register more, and another trust domain has its own limit.
        assert_ne!(harness.one(NOW, key_of(WORKLOAD, "b", 1, &[])), full);
        assert_ne!(harness.one(NOW, key_of("spiffe://b.example/x", "a", 1, &[])), full);
        // After its last key, a subject no longer counts.
        for kid in ["a", "b"] {
            assert_eq!(harness.one(NOW, removed(WORKLOAD, kid)), DONE);
        }
        let unknown = Reply::Refused(Refusal::UnknownEncryptionKey);
        assert_eq!(harness.one(NOW, removed(WORKLOAD, "a")), unknown);
        assert_ne!(harness.one(NOW, key_of(&format!("{WORKLOAD}-3"), "a", 1, &[])), full);
    }
}
