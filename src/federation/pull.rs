//! Calls to peers whose ledgers are read, on the leader only: one call at a time to each peer. Decisions are in
//! [`super::engine`], which has no I/O.
//!
//! Two nodes that take themselves for the leader are harmless: an import names the copy and the position that it
//! continues.

mod acknowledge;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::{Semaphore, watch};

use self::acknowledge::{Imported, acknowledge, repeated};
use super::engine::{self, Call, Engine, Failure, Import, Known, Outcome};
use super::peers::Peer;
use super::report::Reports;
use super::wire::{Answer, Malformed};
use crate::clock::Clock;
use crate::id::LogPosition;
use crate::limits;
use crate::outbound::peers::{Endpoint, PeerClient};
use crate::state::command::ImportLedger;
use crate::state::{self, PeerCopy, PeerFault, Refusal, Source, SourceCall, State, import_parts, peer_key};
use crate::telemetry::Metrics;

/// Path of the calls.
const PATH: &str = "/v1/federation/sync";

/// A peer whose ledger is read, and the connections to it.
pub struct Origin {
    /// The peer.
    pub peer: Arc<Peer>,
    /// The connections.
    pub client: PeerClient,
}

/// The copy of a peer whose short lease this fabric honours: the position imported here, and the position
/// that every node of ours enforces. Both as this leader knows them.
#[derive(Default)]
struct Copied {
    imported: watch::Sender<Option<Imported>>,
    enforced: watch::Sender<Option<Imported>>,
}

/// Reads the ledgers of peers.
pub struct Puller {
    state: State,
    clock: Clock,
    metrics: Metrics,
    reports: Arc<Reports>,
    origins: Vec<Origin>,
    /// Permits for entries in commands in flight; waiters are served in order.
    entries: Semaphore,
}

impl Puller {
    /// Reads the ledgers of these peers.
    #[must_use]
    pub fn new(
        state: State,
        clock: Clock,
        metrics: Metrics,
        reports: Arc<Reports>,
        origins: Vec<Origin>,
    ) -> Self {
        let entries = Semaphore::new(limits::IMPORTS_IN_FLIGHT_MAX);
        Self { state, clock, metrics, reports, origins, entries }
    }

    /// Calls the peers while this node leads; never returns.
    pub async fn run(self) {
        let cluster = self.state.cluster();
        loop {
            cluster.until_this_node_leads().await;
            // Dropping the calls ends them.
            tokio::select! {
                () = cluster.until_this_node_does_not_lead() => {}
                () = self.call_all() => {}
            }
            self.reports.clear();
        }
    }

    async fn call_all(&self) {
        join_all(self.origins.iter().map(|origin| self.follow(origin))).await;
    }

    /// Calls a peer for ever, and acknowledges what is enforced here.
    async fn follow(&self, origin: &Origin) {
        let copied = Copied::default();
        // A row is visible shortly before its log index counts as applied. The read waits for the index.
        let barrier = || async { self.state.current().await.is_ok() && self.state.barrier().await.is_ok() };
        let (imported, send) = (copied.imported.subscribe(), |has| self.send_enforced(origin, has));
        let acknowledged = acknowledge(imported, &copied.enforced, barrier, send);
        tokio::join!(self.read(origin, &copied), acknowledged);
    }

    /// Calls a peer for ever.
    async fn read(&self, origin: &Origin, copied: &Copied) {
        let Origin { peer, .. } = origin;
        let mut engine =
            Engine::new(peer.issuer.clone(), peer.endpoints.len(), peer.lease(), self.clock.boot());
        loop {
            let began = self.clock.boot();
            let pause = match self.call(origin, &mut engine, copied).await {
                Ok(outcome) => {
                    self.succeeded(peer, outcome);
                    engine.succeeded(outcome, self.clock.boot().saturating_sub(began))
                }
                Err(failure) => {
                    self.failed(peer, &failure);
                    engine.failed(&failure, random())
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// One call, and the import of its response.
    async fn call(&self, origin: &Origin, engine: &mut Engine, copied: &Copied) -> Result<Outcome, Failure> {
        let Origin { peer, client } = origin;
        // Before the call is sent.
        let begun = self.state.cluster().begin_source_call();
        let begun = begun.ok_or_else(|| Failure::NotImported("this node does not lead".to_owned()))?;
        let known = self.state.peer_copy(&peer.issuer).map_err(not_imported)?;
        let mut call = engine.call(known.as_ref().map(known_of).unwrap_or_default());
        call.request.honours_lease = peer.honours_lease;
        call.request.enforced = repeated(*copied.enforced.borrow(), &call);
        let endpoint = peer.endpoints.get(call.endpoint);
        let endpoint = endpoint.ok_or_else(|| Failure::Unanswered("it has no endpoint".to_owned()))?;
        let sent = self.clock.boot();
        let answer = self.ask(client, endpoint, engine, &call).await;
        let took = self.clock.boot().saturating_sub(sent);
        if matches!(answer, Err(Failure::RolledBack))
            && let Some(command) = engine.rolled_back(&call)
        {
            self.import(peer, command).await?;
        }
        let answer = answer?;
        self.reports.change(&peer.issuer, |report| {
            endpoint.as_str().clone_into(&mut report.endpoint);
            report.clock_offset_millis = Some(answer.at.millis().saturating_sub(self.clock.now().millis()));
        });
        let is_equal = self.is_equal(&call, &answer);
        let import = engine.answered(&call, &answer, is_equal, self.clock.boot());
        let Some(Import { command, pause }) = import else {
            let audited = if answer.root.is_some() { "equal" } else { "skipped" };
            self.metrics.federation_audited(&peer.name, audited);
            // A peer that stops answers before the time is over.
            if let Some(round_trip) = took.checked_sub(Duration::from_millis(call.request.hold_ms)) {
                self.reports.change(&peer.issuer, |report| report.round_trip = Some(round_trip));
            }
            self.record(peer, begun, &answer, known.as_ref(), (call.endpoint, copied));
            return Ok(Outcome::NothingNew);
        };
        let answered = self.clock.boot();
        let floor_epoch = Some(command.floor_epoch).filter(|_| !command.root.is_empty());
        let copy = self.import(peer, command).await?;
        self.metrics.federation_audited(&peer.name, audit_of(floor_epoch, copy.as_ref()));
        let took = self.clock.boot().saturating_sub(answered);
        self.metrics.federation_import_took(&peer.name, took);
        self.record(peer, begun, &answer, copy.as_ref(), (call.endpoint, copied));
        if let Some(copy) = &copy {
            engine.imported(&answer, &known_of(copy));
        }
        let is_held = copy.is_none_or(|copy| copy.fault.is_some());
        Ok(if is_held { Outcome::Held(pause) } else { Outcome::Imported(pause) })
    }

    /// Sends a call, and checks its response.
    async fn ask(
        &self,
        client: &PeerClient,
        endpoint: &Endpoint,
        engine: &Engine,
        call: &Call,
    ) -> Result<Answer, Failure> {
        let body =
            serde_json::to_vec(&call.request).map_err(|error| Failure::Unanswered(error.to_string()))?;
        let (response_timeout, most) = (engine.response_timeout(), limits::SYNC_RESPONSE_BYTES_MAX);
        let response = client.post(endpoint, PATH, body.into(), response_timeout, most).await;
        let response = response.map_err(|error| Failure::Unanswered(error.to_string()))?;
        match response.status {
            200 => {
                let answer = call.expected.read(&response.body)?;
                if call.known.is_ahead_of(&answer) { Err(Failure::RolledBack) } else { Ok(answer) }
            }
            409 => Err(Failure::RolledBack),
            status => Err(Failure::Status(status)),
        }
    }

    /// Whether the copy has the root of a response, as far as the two can be compared. The import compares them again.
    fn is_equal(&self, call: &Call, answer: &Answer) -> bool {
        let Some(root) = answer.root else { return true };
        let copied = self.state.peer_root(&call.expected.issuer, engine::floor_epoch(call, answer));
        matches!(copied, Ok(Some((copied, _))) if copied == root)
    }

    /// Imports a response in parts, each after the one before, until the peer is held. Returns the copy.
    async fn import(&self, peer: &Peer, mut import: ImportLedger) -> Result<Option<PeerCopy>, Failure> {
        (import.entries_max, import.approve_incarnation) = (peer.max_entries, peer.approve_incarnation);
        let mut copy: Option<PeerCopy> = None;
        for mut part in import_parts(import) {
            if let Some(copy) = &copy {
                // The first part may have begun another copy.
                part.generation = copy.generation;
            }
            let _permits = self.entries.acquire_many(permits_of(&part)).await;
            let imported = self.state.import_ledger(part).await.map_err(not_imported)?;
            let is_held = imported.copy.fault.is_some();
            copy = Some(imported.copy);
            if is_held {
                break;
            }
        }
        Ok(copy)
    }

    /// Records that everything in a response is applied here, which begins leases of all nodes.
    fn record(
        &self,
        peer: &Peer,
        begun: SourceCall,
        answer: &Answer,
        copy: Option<&PeerCopy>,
        (endpoint, copied): (usize, &Copied),
    ) {
        let is_current = |copy: &&PeerCopy| {
            copy.fault.is_none() && copy.is_complete && copy.incarnation() == Some(answer.incarnation)
        };
        let Some(copy) = copy.filter(is_current).filter(|_| answer.is_whole()) else { return };
        let source = Source { id: peer_key(&peer.issuer), generation: copy.generation };
        if !self.state.cluster().record_source(begun, source, peer.lease_of(answer.lease)) {
            tracing::debug!(peer = peer.name, "a call to a peer fabric is not recorded");
        }
        if peer.honours_lease {
            let to = LogPosition { incarnation: answer.incarnation, index: copy.position };
            copied.imported.send_replace(Some(Imported { generation: copy.generation, to, endpoint }));
        }
    }

    fn succeeded(&self, peer: &Peer, outcome: Outcome) {
        self.metrics.federation_call(&peer.name, outcome.into_str());
        self.reports.change(&peer.issuer, |report| {
            if report.error.take().is_some() {
                tracing::info!(peer = peer.name, "peer fabric answers again");
            }
        });
    }

    /// Logs a reason once, however often it repeats in a row.
    fn failed(&self, peer: &Peer, failure: &Failure) {
        self.metrics.federation_call(&peer.name, failure.into_str());
        self.reports.change(&peer.issuer, |report| {
            let error = failure.to_string();
            if report.error.as_ref() != Some(&error) {
                tracing::warn!(peer = peer.name, error, "call to a peer fabric failed");
            }
            report.error = Some(error);
        });
    }
}

/// Result of the comparison that the import of a response makes, if that has a root over the epochs from `floor_epoch` on.
fn audit_of(floor_epoch: Option<u32>, copy: Option<&PeerCopy>) -> &'static str {
    let (Some(floor_epoch), Some(copy)) = (floor_epoch, copy) else { return "skipped" };
    match copy.fault {
        Some(PeerFault::RootDiffers) => "differs",
        None if floor_epoch >= copy.complete_from => "equal",
        None | Some(_) => "skipped",
    }
}

fn known_of(copy: &PeerCopy) -> Known {
    Known {
        generation: copy.generation,
        incarnation: copy.incarnation(),
        position: copy.position,
        reached: copy.known_to,
        complete_from: copy.complete_from,
        blocks_of: copy.blocks_of,
        keys_etag: copy.keys_etag.clone(),
        is_complete: copy.is_complete && copy.fault.is_none(),
    }
}

/// Permits for a command in flight. A set of keys is as large as all entries of a command.
fn permits_of(part: &ImportLedger) -> u32 {
    let permits = if part.keys.is_some() { limits::IMPORTS_IN_FLIGHT_MAX } else { part.entries.len().max(1) };
    u32::try_from(permits).unwrap_or(u32::MAX)
}

fn not_imported(error: state::Error) -> Failure {
    match error {
        state::Error::Refused(Refusal::PeerOverQuota) => Failure::OverQuota,
        state::Error::Refused(Refusal::PeerImportMalformed) => {
            let rule = "must keep the rules of imports".to_owned();
            Failure::Malformed(Malformed { field: "entries".to_owned(), rule })
        }
        error => Failure::NotImported(error.to_string()),
    }
}

/// For the waits between calls; nothing depends on it.
fn random() -> u64 {
    let mut bytes = [0; 8];
    match aws_lc_rs::rand::fill(&mut bytes) {
        Ok(()) => u64::from_be_bytes(bytes),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests;
