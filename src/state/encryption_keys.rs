//! Encryption keys of agents as replicated state: which agent has which.
//!
//! Whether a key is good for anything was decided before; here a key is a name and a text.

use bytes::Bytes;
use prost::Message as _;

use super::command::{
    Command, EncryptionKeyRegistered, EncryptionKeyRow, Refusal, RegisterEncryptionKey,
    Registrar as RegistrarRow, Reply,
};
use super::feed::{self, Note};
use super::idempotency::digest;
use super::tables::{self, ENCRYPTION_KEY, Tables};
use super::{Error, Idempotency, State, agents};
use crate::clock::Timestamp;
use crate::cluster::Corrupt;
use crate::id::{Digest128, Incarnation, LogPosition};
use crate::limits;

/// Registers a key of an agent that is in force. The same key again is found as it is, but for its
/// `alg` and for whose word it is: the row says what was said last, and by which token.
///
/// # Errors
/// [`Corrupt`] if a row or the command is not what was written.
pub fn register(
    tables: &mut Tables<'_>,
    now: Timestamp,
    command: RegisterEncryptionKey,
) -> Result<Reply, Corrupt> {
    if let Err(refusal) = agents::acting(tables, now, &command.agent_id)? {
        return Ok(Reply::Refused(refusal));
    }
    let prefix = prefix(&command.agent_id);
    let known = tables.messages_under::<EncryptionKeyRow>(ENCRYPTION_KEY, &prefix)?;
    let same = known.iter().map(|(_, row)| row).find(|row| row.kid == command.kid);
    if same.is_none() && known.len() >= limits::ENCRYPTION_KEYS_PER_AGENT_MAX {
        return Ok(Reply::Refused(Refusal::TooManyEncryptionKeys));
    }
    let row = EncryptionKeyRow {
        kid: command.kid,
        jwk: command.jwk,
        registered_at_millis: same.map_or(now.millis(), |row| row.registered_at_millis),
        registrar: command.registrar,
    };
    if same != Some(&row) {
        let key = [prefix.as_slice(), row.kid.as_bytes()].concat();
        tables.put(ENCRYPTION_KEY, &key, row.encode_to_vec());
    }
    let created = same.is_none();
    if created {
        let note = Note::of_agent(&command.agent_id, "", "encryption key registered");
        feed::note(tables, now, note)?;
    }
    Ok(Reply::EncryptionKey(EncryptionKeyRegistered { created, row: Some(row) }))
}

/// Forgets the keys of an agent that is itself forgotten, in this entry.
///
/// # Errors
/// [`Corrupt`] if a row is not what was written.
pub fn forget(tables: &mut Tables<'_>, agent_id: &str) -> Result<(), Corrupt> {
    // One by one: most agents have none, and a range that is removed slows the readers of all others.
    for (key, _) in tables.messages_under::<EncryptionKeyRow>(ENCRYPTION_KEY, &prefix(agent_id))? {
        tables.delete(ENCRYPTION_KEY, &key);
    }
    Ok(())
}

/// An identifier has no zero byte, so that no agent's keys begin like another's.
fn prefix(agent_id: &str) -> Vec<u8> {
    [agent_id.as_bytes(), &[0]].concat()
}

/// An encryption key of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptionKeyFacts {
    /// RFC 7638 thumbprint.
    pub kid: String,
    /// A public JWK as JSON.
    pub jwk: String,
    /// When it was registered first, in log time.
    pub registered_at: Timestamp,
    /// The token that registered it last; `None` in logs from before that was kept.
    pub registrar: Option<Registrar>,
}

/// The token that an encryption key was registered with: the key is as good as that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrar {
    /// What it derives from, itself among it.
    pub lineage: Vec<Digest128>,
    /// Its `idx`.
    pub idx: Option<LogPosition>,
    /// Its `iat`.
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

impl TryFrom<EncryptionKeyRow> for EncryptionKeyFacts {
    type Error = Corrupt;

    fn try_from(row: EncryptionKeyRow) -> Result<Self, Corrupt> {
        let registered_at = Timestamp::from_millis(row.registered_at_millis);
        let registrar = row.registrar.map(TryInto::try_into).transpose()?;
        Ok(Self { kid: row.kid, jwk: row.jwk, registered_at, registrar })
    }
}

impl State {
    /// Registers a key of an agent; whether it was not there before, and the key as it is now.
    ///
    /// # Errors
    /// [`Error::UnknownAgent`], [`Error::AgentRevoked`], [`Error::AgentEnded`],
    /// [`Error::TooManyEncryptionKeys`], [`Error::IdempotencyKeyReused`], or as [`Error::Write`] says.
    pub async fn register_encryption_key(
        &self,
        agent_id: String,
        kid: String,
        jwk: String,
        registrar: &Registrar,
        idempotency: Option<Idempotency>,
    ) -> Result<(bool, EncryptionKeyFacts), Error> {
        let registrar = Some(registrar.into());
        let command = RegisterEncryptionKey { agent_id, kid, jwk, registrar };
        let command = Command::RegisterEncryptionKey(command);
        match self.propose_once(command, idempotency).await?.outcome {
            Reply::EncryptionKey(EncryptionKeyRegistered { created, row: Some(row) }) => {
                Ok((created, row.try_into()?))
            }
            _ => Err(Error::Undecodable),
        }
    }

    /// The keys of an agent, whatever it is good for, in the order of their names.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is not what was written.
    pub fn encryption_keys(&self, agent_id: &str) -> Result<Vec<EncryptionKeyFacts>, Corrupt> {
        let prefix = prefix(agent_id);
        let mut rows = Vec::new();
        self.core().view().scan(ENCRYPTION_KEY, &prefix, &mut |key, row| {
            let is_under = key.starts_with(&prefix);
            if is_under {
                rows.push(tables::decode::<EncryptionKeyRow>(ENCRYPTION_KEY, row));
            }
            is_under
        })?;
        rows.into_iter().map(|row| row?.try_into()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::cluster::{View, Write};
    use crate::state::command::{Agent, AgentRow};
    use crate::state::tables::AGENT;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const AGENT_ID: &str = "wimse://a.example/agent/mcp/1";

    #[derive(Default)]
    struct Rows(BTreeMap<(String, Vec<u8>), Vec<u8>>);

    impl View for Rows {
        fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Corrupt> {
            Ok(self.0.get(&(table.to_owned(), key.to_vec())).cloned())
        }

        fn scan(
            &self,
            table: &str,
            from: &[u8],
            visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
        ) -> Result<(), Corrupt> {
            for ((row_table, key), row) in self.0.range((table.to_owned(), from.to_vec())..) {
                if row_table != table || !visit(key, row) {
                    break;
                }
            }
            Ok(())
        }
    }

    impl Rows {
        fn write(&mut self, writes: Vec<Write>) {
            for write in writes {
                match write {
                    Write::Put { table, key, value } => drop(self.0.insert((table.to_owned(), key), value)),
                    Write::Delete { table, key } => drop(self.0.remove(&(table.to_owned(), key))),
                    Write::DeleteRange { table, from, to } => {
                        self.0.retain(|(name, key), _| name != table || *key < from || *key >= to);
                    }
                }
            }
        }

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
                agent_id: agent_id.into(),
                kid: kid.into(),
                jwk: jwk.into(),
                registrar: None,
            };
            let mut tables = Tables::new(self);
            let reply = register(&mut tables, now, command).expect("applies");
            let writes = tables.into_writes();
            self.write(writes);
            reply
        }

        fn keys(&self) -> usize {
            self.0.keys().filter(|(table, _)| table == ENCRYPTION_KEY).count()
        }
    }

    fn registered(created: bool, jwk: &str, at: Timestamp) -> Reply {
        let row = EncryptionKeyRow {
            kid: "k".into(),
            jwk: jwk.into(),
            registered_at_millis: at.millis(),
            registrar: None,
        };
        Reply::EncryptionKey(EncryptionKeyRegistered { created, row: Some(row) })
    }

    #[test]
    fn a_key_is_registered_once_and_says_what_was_said_last() {
        let mut rows = Rows::default();
        rows.agent(AGENT_ID, &[], None);
        let later = NOW.plus(Duration::from_secs(1));
        assert_eq!(rows.register(NOW, AGENT_ID, "k", "a"), registered(true, "a", NOW));
        assert_eq!(rows.register(later, AGENT_ID, "k", "a"), registered(false, "a", NOW));
        assert_eq!(rows.register(later, AGENT_ID, "k", "b"), registered(false, "b", NOW));
        assert_eq!(rows.keys(), 1);
    }

    #[test]
    fn an_agent_has_a_limited_number_of_keys() {
        let mut rows = Rows::default();
        rows.agent(AGENT_ID, &[], None);
        // Those of an agent whose name begins alike, and comes before or after, do not count.
        let (before, after) = (format!("{AGENT_ID}!"), format!("{AGENT_ID}0"));
        for other in [&before, &after] {
            rows.agent(other, &[], None);
            rows.register(NOW, other, "other", "{}");
        }
        let kid = |number: usize| format!("key-{number}");
        for number in 0..limits::ENCRYPTION_KEYS_PER_AGENT_MAX {
            let reply = rows.register(NOW, AGENT_ID, &kid(number), "{}");
            assert!(matches!(reply, Reply::EncryptionKey(_)), "{number}: {reply:?}");
        }
        let full = Reply::Refused(Refusal::TooManyEncryptionKeys);
        assert_eq!(rows.register(NOW, AGENT_ID, "one more", "{}"), full);
        let again = rows.register(NOW, AGENT_ID, &kid(0), "{}");
        assert!(matches!(again, Reply::EncryptionKey(EncryptionKeyRegistered { created: false, .. })));
        assert_eq!(rows.keys(), limits::ENCRYPTION_KEYS_PER_AGENT_MAX + 2);
    }

    #[test]
    fn the_limit_counts_what_the_same_entry_registered() {
        let mut rows = Rows::default();
        rows.agent(AGENT_ID, &[], None);
        let mut tables = Tables::new(&rows);
        let replies = (0..=limits::ENCRYPTION_KEYS_PER_AGENT_MAX).map(|number| {
            let command = RegisterEncryptionKey {
                agent_id: AGENT_ID.into(),
                kid: number.to_string(),
                ..RegisterEncryptionKey::default()
            };
            register(&mut tables, NOW, command).expect("applies")
        });
        assert_eq!(replies.last(), Some(Reply::Refused(Refusal::TooManyEncryptionKeys)));
    }

    #[test]
    fn only_an_agent_in_force_registers_keys() {
        let mut rows = Rows::default();
        rows.agent("revoked", &[], Some(NOW));
        rows.agent("parent", &["revoked"], None);
        rows.agent("child", &["parent", "revoked"], None);
        rows.agent("orphan", &["forgotten"], None);
        rows.agent("good", &[], None);
        rows.agent("heir", &["good"], None);
        let end = NOW.plus(Duration::from_secs(3600));
        for (agent_id, now, refusal) in [
            ("nobody", NOW, Some(Refusal::UnknownAgent)),
            ("revoked", NOW, Some(Refusal::AgentRevoked)),
            ("parent", NOW, Some(Refusal::AgentRevoked)),
            ("child", NOW, Some(Refusal::AgentRevoked)),
            // No parent is forgotten before its child has ended, unless it was revoked.
            ("orphan", NOW, Some(Refusal::AgentRevoked)),
            ("orphan", end, Some(Refusal::AgentEnded)),
            ("good", end.minus(Duration::from_millis(1)), None),
            ("heir", NOW, None),
            ("good", end, Some(Refusal::AgentEnded)),
        ] {
            let reply = rows.register(now, agent_id, "k", "a");
            let expected = refusal.map_or(registered(true, "a", now), Reply::Refused);
            assert_eq!(reply, expected, "{agent_id} at {now:?}");
        }
    }

    #[test]
    fn an_agent_that_is_forgotten_leaves_no_keys_and_takes_none_with_it() {
        let mut rows = Rows::default();
        let others =
            [format!("{AGENT_ID}0"), format!("{AGENT_ID}!"), "wimse://a.example/agent/mcp/0".to_owned()];
        for agent_id in others.iter().map(String::as_str).chain([AGENT_ID]) {
            rows.agent(agent_id, &[], None);
            rows.register(NOW, agent_id, "k", "a");
            rows.register(NOW, agent_id, "\u{7f}", "a");
        }
        let mut tables = Tables::new(&rows);
        forget(&mut tables, AGENT_ID).expect("forgets");
        let writes = tables.into_writes();
        rows.write(writes);
        assert_eq!(rows.keys(), 2 * others.len());
        assert!(
            rows.0.keys().all(|(table, key)| table != ENCRYPTION_KEY || !key.starts_with(&prefix(AGENT_ID)))
        );
    }
}
