//! Rows and replies of a pseudo-random log. Bytes on disk and the state hash depend on both, so a change of the digest is
//! a change of the format.

use std::collections::BTreeSet;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use serde_json::json;

use super::caller::CallerFacts;
use super::command::{
    self, AdvanceStream, Agent, AllocateNode, AllowRevocations, AppendAuditBlocks, AuditContent, AuditHead,
    AuditHeader, Bootstrap, ChangeStreamSubject, Command, DeadLetter, DeregisterTool, Effect, EffectKind,
    Idempotency, IssueAgent, JoinNode, LiftBlock, MintedToken, NewAuditBlock, PolicySource,
    PublishSigningKey, PutPolicy, PutTool, RecordExchange, RegisterEncryptionKey, Registrar,
    RemoveEncryptionKey, RetireSigningKey, Revoke, RevokeAgent, SetStreamStatus, SpendToken, StreamCursorRow,
    TaintSigningKey, Tool, ToolVersion, UpdateStream, VerifyStream, WantRole, encode_for,
};
use super::resources::events::EventId;
use super::resources::revoked_fact::fact_row;
use super::tables;
use super::testing::{StateHarness, about, create_stream, delete_stream, signal};
use crate::clock::Timestamp;
use crate::cluster::{
    Applied, Machine as _, MemberEntry, ProposerId, Stamp, Submission, WantedMember, WantedRole, Write,
};
use crate::id::Digest128;
use crate::token::lineage::Fact;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const ENTRIES: u64 = 1_500;
/// First 16 bytes of the SHA-256 of all writes and replies.
const DIGEST: &str = "H1FcY3uhcad3squPY6aNLw";

/// A generator of the log. Identifiers are few, so that commands meet existing rows.
struct Generator {
    random: u64,
    harness: StateHarness,
    at: Timestamp,
    /// Last sequence and hash of the audit blocks of each node.
    blocks: [(u64, Bytes); 2],
}

impl Generator {
    fn below(&mut self, end: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % end
    }

    fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    fn name(&mut self, prefix: &str, end: u64) -> String {
        format!("{prefix}{}", self.below(end))
    }

    fn digest(&mut self, end: u64) -> Bytes {
        vec![u8::try_from(self.below(end)).unwrap_or_default() + 1; 16].into()
    }

    fn caller(&mut self) -> String {
        if self.chance(8) { String::new() } else { self.name("spiffe://a.example/c", 4) }
    }

    fn agent_id(&mut self) -> String {
        self.name("wimse://a.example/agent/mcp/", 12)
    }

    fn fact(&mut self) -> Fact {
        match self.below(4) {
            0 => Fact::workload(&self.agent_id().parse().expect("an id")),
            1 => Fact::workload(&self.name("spiffe://a.example/c", 4).parse().expect("an id")),
            2 => Fact::token("https://f", &self.name("jti", 4)),
            _ => Fact::subject("https://idp.example", &self.name("sub", 6)),
        }
    }

    fn tool(&mut self) -> Command {
        let protocols =
            if self.chance(2) { vec!["mcp".to_owned()] } else { vec!["http".to_owned(), "mcp".to_owned()] };
        let name = self.name("name", 3);
        let tool = Tool { tool_id: self.name("t", 6), name, protocols, ..Tool::default() };
        let version = ToolVersion { registration: self.below(20), revision: 1 };
        Command::PutTool(PutTool {
            tool: Some(tool),
            caller: self.caller(),
            is_operator: self.chance(4),
            replaces: self.chance(2),
            expected: if self.chance(6) { vec![version] } else { Vec::new() },
            must_exist: self.chance(9),
            must_be_new: self.chance(9),
        })
    }

    fn agent(&mut self) -> Command {
        let on_behalf_of = if self.chance(2) { Some(self.agent_id()) } else { None };
        let agent = Agent { agent_id: self.agent_id(), on_behalf_of, ..Agent::default() };
        Command::IssueAgent(IssueAgent { agent: Some(agent), issued_by: self.caller() })
    }

    fn encryption_key(&mut self) -> Command {
        let is_agent = self.chance(2);
        let workload_id = if is_agent { self.agent_id() } else { self.name("spiffe://a.example/w", 5) };
        let lineage = vec![Bytes::copy_from_slice(self.fact().digest().as_bytes())];
        let registrar = Registrar { lineage, index: self.below(ENTRIES), ..Registrar::default() };
        let kid = self.name("e", 3);
        Command::RegisterEncryptionKey(RegisterEncryptionKey {
            workload_id,
            kid,
            jwk: "{}".to_owned(),
            registrar: Some(registrar),
            is_agent,
        })
    }

    fn audit_block(&mut self) -> Command {
        let node = self.below(2);
        let heads = (0..self.below(4)).map(|_| AuditHead { tool: self.digest(5), hash: vec![9; 32].into() });
        let heads = heads.collect();
        let (sequence, prev_hash) = self.blocks[usize::from(node == 1)].clone();
        let hash: Bytes = vec![u8::try_from(self.below(256)).unwrap_or_default(); 32].into();
        let bucket = u32::try_from(self.below(3)).unwrap_or_default();
        if !self.chance(9) {
            self.blocks[usize::from(node == 1)] = (sequence + 1, hash.clone());
        }
        let header = AuditHeader {
            sequence: sequence + 1,
            bucket,
            prev_hash,
            hash,
            content_hash: vec![8; 32].into(),
            count: 1,
            first_millis: self.at.millis(),
            last_millis: self.at.millis(),
        };
        let content = AuditContent { heads, payload: vec![7; 100].into() };
        let block = NewAuditBlock { header: Some(header), content: Some(content) };
        Command::AppendAuditBlocks(AppendAuditBlocks {
            node_id: node,
            segment: sequence + 1,
            blocks: vec![block],
        })
    }

    fn signal(&mut self) -> Command {
        let Command::AcceptSignal(mut command) = signal(&self.name("jti", 40), &["x"]) else {
            panic!("a signal")
        };
        for _ in 0..self.below(4) {
            let kind = [EffectKind::Watermark, EffectKind::Block, EffectKind::Lift]
                [usize::from(self.chance(2)) + usize::from(self.chance(3))];
            let happened_at_millis =
                self.at.millis() - i64::try_from(self.below(100_000)).unwrap_or_default();
            let (fact, family) = (Some(fact_row(&self.fact())), self.name("f", 2));
            command.effects.push(Effect { kind: kind.into(), fact, family, happened_at_millis });
        }
        command.quota = 20;
        command.issuer = self.name("https://idp", 2);
        Command::AcceptSignal(command)
    }

    fn revocation(&mut self) -> Command {
        let event = if self.chance(2) { Some(about("y")) } else { None };
        match self.below(4) {
            0 => {
                let agent_id = self.agent_id();
                let digest = Fact::workload(&agent_id.parse().expect("an id")).digest();
                let digest = Bytes::copy_from_slice(digest.as_bytes());
                let (caller, is_operator) = (self.caller(), self.chance(2));
                Command::RevokeAgent(RevokeAgent { agent_id, digest, caller, is_operator, event })
            }
            1 => {
                let rows = self.harness.rows.0.keys().filter(|(table, _)| table == tables::BLOCK);
                let ids: Vec<Bytes> = rows.map(|(_, key)| Bytes::from(key.clone())).collect();
                let at = usize::try_from(self.below(ids.len() as u64 + 1)).unwrap_or_default();
                Command::LiftBlock(LiftBlock { id: ids.get(at).cloned().unwrap_or_default() })
            }
            _ => {
                let fact = Some(fact_row(&self.fact()));
                let (reason, caller, blocks) = ("r".to_owned(), self.caller(), self.chance(3));
                Command::Revoke(Revoke { fact, reason, caller, blocks, event, ..Revoke::default() })
            }
        }
    }

    fn stream(&mut self) -> Command {
        let stream_id = self.name("s", 4);
        let index = self.harness.machine.index();
        let known = index.streams.get(&stream_id).cloned();
        let version = index.stream_cursors.get(&stream_id).map_or(0, |cursor| cursor.version);
        drop(index);
        match (self.below(9), known) {
            (0, _) => delete_stream(&stream_id),
            (1, Some(known)) => {
                let mut stream = known.config.clone();
                stream.events_delivered = vec![self.name("urn:", 3)];
                Command::UpdateStream(UpdateStream { stream: Some(stream), revision: known.revision })
            }
            (2 | 3, _) => {
                let status = i32::try_from(self.below(3)).unwrap_or_default();
                let (reason, by_transmitter) = (self.name("r", 2), self.chance(3));
                Command::SetStreamStatus(SetStreamStatus {
                    stream_id,
                    status,
                    reason,
                    by_transmitter,
                    changes: None,
                })
            }
            (4, _) => {
                let sub_id = json!({"format": "email", "email": self.name("e", 5)}).to_string();
                Command::ChangeStreamSubject(ChangeStreamSubject {
                    stream_id,
                    sub_id,
                    removed: self.chance(2),
                })
            }
            (5, _) => Command::VerifyStream(VerifyStream { stream_id, state: "x".to_owned() }),
            (6 | 7, Some(known)) => {
                let next = EventId { index: self.below(ENTRIES), number: 0 };
                let letter = DeadLetter { id: Some(next), err: "e".to_owned(), ..DeadLetter::default() };
                let cursor = Some(StreamCursorRow { next: Some(next), delivered: 1, ..Default::default() });
                let dead_letters = if self.chance(2) { vec![letter] } else { Vec::new() };
                let filter = Some(known.filter);
                Command::AdvanceStream(AdvanceStream { stream_id, version, cursor, dead_letters, filter })
            }
            _ => create_stream(&stream_id, &self.name("owner", 2)),
        }
    }

    fn signing_key(&mut self) -> Command {
        let kid = self.name("k", 9);
        match self.below(6) {
            0 => Command::RetireSigningKey(RetireSigningKey { kid }),
            1 => Command::TaintSigningKey(TaintSigningKey { kid, digest: self.digest(200) }),
            _ => {
                let algorithm = if self.chance(3) { "RS256" } else { "" }.to_owned();
                let (node_id, jwk) = (self.below(3), "{}".to_owned());
                Command::PublishSigningKey(PublishSigningKey { kid, node_id, jwk, algorithm })
            }
        }
    }

    fn node(&mut self) -> Command {
        let node_id = self.below(30);
        let role = i32::try_from(self.below(4)).unwrap_or_default();
        let token_digest: Bytes = self.digest(3).repeat(2).into();
        match self.below(4) {
            0 => Command::WantRole(WantRole { node_id, role, caller: self.caller() }),
            1 => {
                let replaces = self.chance(3).then(|| self.below(9));
                Command::AllocateNode(AllocateNode { token_digest, role, replaces, caller: self.caller() })
            }
            _ => {
                let (address, disk_id) = (self.name("n", 12), self.digest(9));
                Command::JoinNode(JoinNode { node_id, token_digest, address, disk_id, feature_level: 0 })
            }
        }
    }

    /// The wanted members, some of them with the role that they shall have; at first the members of the bootstrap.
    fn members(&mut self) -> Vec<MemberEntry> {
        let wanted = self.harness.machine.wanted_members();
        if wanted.is_empty() {
            let member = |node_id| (node_id, format!("n{node_id}"));
            let members = (1..=2).map(member);
            return members.map(|(node_id, address)| entry(node_id, address, [1; 16], true)).collect();
        }
        let mut members = Vec::new();
        for WantedMember { node_id, address, disk_id, role, .. } in wanted {
            if role != WantedRole::Removed || self.chance(2) {
                members.push(entry(node_id, address, disk_id, role == WantedRole::Voter && !self.chance(3)));
            }
        }
        members
    }

    fn command(&mut self) -> Command {
        match self.below(24) {
            22 | 23 => self.node(),
            0..3 => self.tool(),
            3 => {
                let (tool_id, caller) = (self.name("t", 6), self.caller());
                Command::DeregisterTool(DeregisterTool { tool_id, caller, ..DeregisterTool::default() })
            }
            4..7 => self.agent(),
            7 => self.encryption_key(),
            8 => {
                let (workload_id, kid) = (self.name("spiffe://a.example/w", 5), self.name("e", 3));
                Command::RemoveEncryptionKey(RemoveEncryptionKey { workload_id, kid, caller: self.caller() })
            }
            9 => self.audit_block(),
            10 | 11 => self.signal(),
            12 | 13 => self.revocation(),
            14..17 => self.stream(),
            17 => self.signing_key(),
            18 => {
                let (digest, source) = (self.name("p", 80), PolicySource::default());
                Command::PutPolicy(PutPolicy { digest, sources: vec![source], ..PutPolicy::default() })
            }
            19 => {
                let token = Some(MintedToken { jti: self.name("m", 9), iat: 1, exp: 2 });
                let nonce = if self.chance(3) { Bytes::new() } else { self.digest(50) };
                Command::RecordExchange(RecordExchange { nonce, owner: self.digest(3), token })
            }
            20 => {
                let (token, owner) = (self.digest(50), self.digest(3));
                let exp_millis = self.at.plus(Duration::from_secs(self.below(400))).millis();
                Command::SpendToken(SpendToken { token, owner, exp_millis })
            }
            _ => {
                let (issuer, more) = (self.name("https://idp", 2), 5);
                Command::AllowRevocations(AllowRevocations { issuer, more })
            }
        }
    }

    fn submission(&mut self, sequences: &mut [u64; 3]) -> Submission {
        let process = usize::try_from(self.below(3)).unwrap_or_default();
        if !self.chance(9) {
            sequences[process] += 1;
        }
        let command = self.command();
        let idempotency = self.chance(5).then(|| Idempotency {
            key: self.digest(9),
            request: self.digest(2),
            owner: self.digest(3),
        });
        let caller = if self.chance(4) {
            let id = self.name("spiffe://a.example/c", 4).parse().expect("an id");
            CallerFacts::of_certificate("https://f", &id).to_row()
        } else {
            None
        };
        let sequence = sequences[process].max(1);
        Submission {
            proposer: ProposerId::from_bytes([u8::try_from(process).unwrap_or_default(); 16]),
            sequence,
            low_watermark: sequence.saturating_sub(self.below(4)).max(1),
            command: encode_for(command, idempotency, caller),
        }
    }

    fn advance(&mut self) {
        let millis = match self.below(60) {
            0 => 31 * 24 * 3_600_000,
            1..4 => 24 * 3_600_000,
            4..9 => 3_600_000,
            _ => self.below(120_000),
        };
        self.at = self.at.plus(Duration::from_millis(millis));
    }
}

fn entry(node_id: u64, address: String, disk_id: [u8; 16], is_voter: bool) -> MemberEntry {
    MemberEntry { node_id, address, disk_id, is_voter }
}

fn hash_write(hash: &mut Context, write: &Write) {
    let (kind, table, parts): (u8, &str, [&[u8]; 2]) = match write {
        Write::Put { table, key, value } => (0, table, [key, value]),
        Write::Delete { table, key } => (1, table, [key, &[]]),
        Write::DeleteRange { table, from, to } => (2, table, [from, to]),
    };
    hash.update(&[kind]);
    for part in [table.as_bytes(), parts[0], parts[1]] {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part);
    }
}

#[test]
fn writes_and_replies_of_a_recorded_log_are_stable() {
    let (harness, blocks) = (StateHarness::default(), [(0, Bytes::new()), (0, Bytes::new())]);
    let mut generator = Generator { random: 1, harness, at: START, blocks };
    let (mut hash, mut written, mut sequences) = (Context::new(&SHA256), BTreeSet::new(), [0; 3]);
    for index in 1..=ENTRIES {
        generator.advance();
        let count = generator.below(4) + 1;
        let mut submissions: Vec<_> = (0..count).map(|_| generator.submission(&mut sequences)).collect();
        if index == 1 {
            let id = Bytes::from_static(&[7; 16]);
            let bootstrap = Bootstrap { cluster_id: id.clone(), incarnation: id, feature_level: 0 };
            submissions[0].command = command::encode(Command::Bootstrap(bootstrap));
        }
        let stamp = Stamp { time: generator.at, latest: generator.at, elapsed: generator.at };
        let batch = super::Replicated::batch(stamp, submissions);
        let members = (index % 8 == 2).then(|| generator.members());
        let harness = &mut generator.harness;
        let applied = match members {
            None => harness.machine.apply(&harness.rows, &batch, index).expect("applies"),
            Some(members) => {
                let writes = harness.machine.record_members(&harness.rows, &members, index);
                Applied { writes: writes.expect("records"), ..Applied::default() }
            }
        };
        for write in &applied.writes {
            hash_write(&mut hash, write);
            if let Write::Put { table, .. } = write {
                written.insert(*table);
            }
        }
        applied.replies.iter().for_each(|reply| hash.update(reply));
        harness.machine.project(&applied.writes, index).expect("projects");
        harness.rows.write(applied.writes);
    }
    // The tests of peers write theirs: the cluster of this log has feature level 0.
    let expected = tables::ALL.iter().copied().filter(|table| !table.starts_with("peer"));
    assert_eq!(written, expected.collect(), "every table is written");
    let mut digest = [0; 16];
    digest.copy_from_slice(&hash.finish().as_ref()[..16]);
    assert_eq!(Digest128::from_bytes(digest).to_string(), DIGEST);
}
