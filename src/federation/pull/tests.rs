//! The ledger of one fabric read into the copy of another, without a network: responses are lost and late, pages are short,
//! and the leader of the reader changes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::clock::Timestamp;
use crate::federation::peers::{Disclosure, Peers, RootSource};
use crate::federation::wire::SyncRequest;
use crate::federation::{Error, Federation, HashQuery, Parts, Reader};
use crate::state::PeerAct;
use crate::state::command::{PeerKeys, Revoke};
use crate::state::fact_row;
use crate::state::testing::TestNode;
use crate::token::fabric_peers::Ceiling;
use crate::token::lineage::Fact;

const ISSUER: &str = "https://eu.example";
const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const STEPS: usize = 250;

fn peer() -> Peer {
    let trust_domain: crate::id::TrustDomain = "eu.example".parse().expect("a trust domain");
    Peer {
        name: "eu".to_owned(),
        issuer: ISSUER.to_owned(),
        trust_domains: vec![trust_domain.clone()],
        endpoints: Vec::new(),
        ids: BTreeSet::new(),
        roots: RootSource { trust_domain, file: PathBuf::new(), endpoint: None, crl: None },
        accept: true,
        serve: true,
        stale_after: Duration::from_secs(60),
        honours_lease: false,
        is_awaited: false,
        max_entries: 1000,
        approve_incarnation: false,
        disclose: Disclosure::Own,
        ceiling: Ceiling::default(),
        callers: BTreeSet::new(),
    }
}

/// Random numbers that are the same in every run (`SplitMix64`).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

async fn revoke(state: &State, number: u64, blocks: bool) {
    let fact = Some(fact_row(&Fact::subject(ISSUER, &format!("s{number}"))));
    let command = Revoke { fact, blocks, reason: "lost".to_owned(), ..Revoke::default() };
    state.as_node().revoke(command).await.expect("revoked");
}

/// An origin and its reader.
struct Pair {
    origin: TestNode,
    served: Federation,
    reader: TestNode,
    puller: Puller,
    engine: Engine,
}

impl Pair {
    async fn start() -> Self {
        Self::of_level(state::feature_level::NEWEST).await
    }

    async fn of_level(level: u32) -> Self {
        let origin = TestNode::start_at_level(START, level).await;
        let reader = TestNode::start_at_level(START, level).await;
        let served = Federation::new(Parts {
            issuer: ISSUER.to_owned(),
            trust_domain: peer().roots.trust_domain,
            peers: Peers::default(),
            tls: None,
            reports: Arc::default(),
            state: origin.state.clone(),
            clock: origin.clock.clone(),
            stop_requested: CancellationToken::new(),
        });
        let metrics = Metrics::new().expect("metrics");
        let puller =
            Puller::new(reader.state.clone(), reader.clock.clone(), metrics, Arc::default(), Vec::new());
        let engine = Self::engine(&reader);
        Self { origin, served, reader, puller, engine }
    }

    fn engine(reader: &TestNode) -> Engine {
        Engine::new(ISSUER.to_owned(), 1, Duration::from_secs(60), reader.clock.boot())
    }

    async fn revoke(&self, number: u64, blocks: bool) {
        revoke(&self.origin.state, number, blocks).await;
    }

    /// Reads until there is nothing new. The copy is then equal to the ledger, which has so many entries.
    async fn read_to_the_end(&mut self) -> u64 {
        loop {
            let (call, answer) = self.ask(5000).await;
            if !self.take(&call, &answer).await {
                assert!(answer.is_whole() && answer.root.is_some(), "{answer:?}");
                break;
            }
        }
        let current = self.origin.state.current().await.expect("current");
        let sums = self.origin.state.ledger_sums(&current).expect("sums");
        let incarnation = self.origin.state.index().incarnation.expect("bootstrapped");
        let copied = self.reader.state.peer_root(ISSUER, 0).expect("a root");
        assert_eq!(copied, Some((sums.root(&incarnation, 0), sums.count(0))));
        sums.count(0)
    }

    /// A call and its response, with few entries on a page.
    async fn ask(&mut self, limit: u64) -> (Call, Answer) {
        let copy = self.reader.state.peer_copy(ISSUER).expect("a row");
        let mut call = self.engine.call(copy.as_ref().map(known_of).unwrap_or_default());
        (call.request.limit, call.request.hold_ms) = (Some(limit), 0);
        let response = self.served.sync(&peer(), call.request.clone()).await.expect("a response");
        let body = serde_json::to_vec(&response).expect("JSON");
        let answer = call.expected.read(&body).expect("a response that keeps the rules");
        (call, answer)
    }

    /// Whether the response was imported.
    async fn take(&mut self, call: &Call, answer: &Answer) -> bool {
        let is_equal = self.puller.is_equal(call, answer);
        let import = self.engine.answered(call, answer, is_equal, self.reader.clock.boot());
        let Some(import) = import else { return false };
        let copy = self.puller.import(&peer(), import.command).await.expect("imported").expect("a copy");
        self.engine.imported(answer, &known_of(&copy));
        assert_eq!(copy.fault, None, "{answer:?}");
        true
    }

    async fn end(self) {
        let Self { origin, served, reader, puller, .. } = self;
        drop((served, puller));
        origin.end().await;
        reader.end().await;
    }
}

#[tokio::test]
async fn copy_is_equal_after_losses_and_changes_of_the_leader() {
    let (mut pair, mut random) = (Pair::start().await, Random(7));
    let mut late: Option<(Call, Answer)> = None;
    let mut position = 0;
    for _ in 0..STEPS {
        match random.below(7) {
            0 | 1 => pair.revoke(random.below(20), random.below(2) == 0).await,
            2 | 3 => {
                let (call, answer) = pair.ask(1 + random.below(4)).await;
                pair.take(&call, &answer).await;
            }
            4 => {
                late = Some(pair.ask(3).await);
                pair.engine.failed(&Failure::Status(503), 0);
            }
            5 => pair.engine = Pair::engine(&pair.reader),
            _ => {
                // The import of a former leader.
                let Some((call, answer)) = late.take() else { continue };
                let mut former = Pair::engine(&pair.reader);
                if let Some(import) = former.answered(&call, &answer, true, Duration::ZERO) {
                    // An import from before the first copy is refused.
                    drop(pair.puller.import(&peer(), import.command).await);
                }
            }
        }
        let copy = pair.reader.state.peer_copy(ISSUER).expect("a row");
        let now = copy.map_or(0, |copy| copy.position);
        assert!(now >= position, "the position decreased from {position} to {now}");
        position = now;
    }
    pair.engine = Pair::engine(&pair.reader);
    assert!(pair.read_to_the_end().await > 10, "something was revoked");
    pair.end().await;
}

/// Both revoke while the level of one is raised, then that of the other: the origin serves at either level, the reader copies
/// from its raise on, and no revocation fails.
#[tokio::test]
async fn raise_of_the_level_under_load_begins_the_copy() {
    let mut pair = Pair::of_level(0).await;
    pair.revoke(0, true).await;
    let (call, answer) = pair.ask(5000).await;
    let import = pair.engine.answered(&call, &answer, true, Duration::ZERO).expect("there is something new");
    let refused = pair.puller.import(&peer(), import.command).await.expect_err("level 0");
    assert!(matches!(&refused, Failure::NotImported(text) if text.contains("feature level")), "{refused}");
    assert_eq!(pair.reader.state.peer_copy(ISSUER).expect("reads"), None);
    let (origin, reader) = (pair.origin.state.clone(), pair.reader.state.clone());
    let is_over = std::cell::Cell::new(false);
    let load = async {
        let mut revoked = 1;
        while !is_over.get() {
            tokio::join!(revoke(&origin, revoked, false), revoke(&reader, revoked, true));
            revoked += 1;
        }
        revoked
    };
    let upgrade = async {
        for state in [&reader, &origin] {
            assert_eq!(state.as_node().raise_feature_level().await.expect("raised"), 1);
            for _ in 0..20 {
                let (call, answer) = pair.ask(5000).await;
                pair.take(&call, &answer).await;
            }
        }
        is_over.set(true);
    };
    let (revoked, ()) = tokio::join!(load, upgrade);
    assert_eq!(pair.read_to_the_end().await, revoked + 1, "each, and the block of the first");
    drop((origin, reader));
    pair.end().await;
}

/// Attack on the log: an idle peer costs no entry.
#[tokio::test]
async fn idle_peer_costs_no_log_entry() {
    let mut pair = Pair::start().await;
    pair.revoke(1, true).await;
    let (call, answer) = pair.ask(5000).await;
    assert!(pair.take(&call, &answer).await);
    pair.origin.state.seed_policy("digest".to_owned(), Vec::new()).await.expect("another entry");
    let before = pair.reader.state.cluster().applied();
    for _ in 0..20 {
        let (call, answer) = pair.ask(5000).await;
        assert!(!pair.take(&call, &answer).await, "{answer:?}");
    }
    assert_eq!(pair.reader.state.cluster().applied(), before);
    pair.reader.clock.advance(limits::PEER_FABRIC_POSITION_WRITE_INTERVAL);
    let (call, answer) = pair.ask(5000).await;
    assert!(pair.take(&call, &answer).await, "the position is written");
    let copy = pair.reader.state.peer_copy(ISSUER).expect("a row").expect("a copy");
    assert_eq!(copy.position, pair.origin.state.cluster().applied());
    pair.end().await;
}

#[tokio::test]
async fn page_after_a_late_import_continues_the_copy() {
    let mut pair = Pair::start().await;
    pair.revoke(0, true).await;
    let (call, answer) = pair.ask(5000).await;
    assert!(pair.take(&call, &answer).await);
    for number in 1..7 {
        pair.revoke(number, true).await;
    }
    let mut former = pair.engine.clone();
    let late = pair.ask(5000).await;
    let (call, answer) = pair.ask(2).await;
    assert!(pair.take(&call, &answer).await && !answer.is_whole());
    // The import of a deposed leader, between two pages.
    let import = former.answered(&late.0, &late.1, false, Duration::ZERO).expect("something to import");
    pair.puller.import(&peer(), import.command).await.expect("imported");
    let (_, answer) = pair.ask(2).await;
    assert_eq!((answer.entries.len(), answer.is_whole()), (0, true), "everything is there: {answer:?}");
    pair.end().await;
}

#[test]
fn set_of_keys_takes_every_permit_of_imports() {
    let keys = Some(PeerKeys::default());
    assert_eq!(permits_of(&ImportLedger::default()), 1);
    let most = permits_of(&ImportLedger { keys, ..ImportLedger::default() });
    assert_eq!(most as usize, limits::IMPORTS_IN_FLIGHT_MAX);
}

/// The lease of the copy on which `honours_lease` of this fabric and `lease_ms` of the peer are in force, and how long after
/// the call it ends on a node that allows `own`.
async fn lease_ends(honours_lease: bool, named: Option<u64>, own: Duration) -> (Duration, Duration) {
    let mut pair = Pair::start().await;
    pair.revoke(1, true).await;
    let peer = Peer { honours_lease, ..peer() };
    let begun = pair.reader.state.cluster().begin_source_call().expect("it leads");
    let (call, mut answer) = pair.ask(5000).await;
    assert!(pair.take(&call, &answer).await);
    answer.lease = named.map(Duration::from_millis);
    let copy = pair.reader.state.peer_copy(ISSUER).expect("a row").expect("a copy");
    let copied = Copied::default();
    pair.puller.record(&peer, begun, &answer, Some(&copy), (0, &copied));
    let acknowledged = copied.imported.borrow().map(|has| has.to.index);
    assert_eq!(acknowledged, honours_lease.then_some(answer.through), "only a lease that is honoured");
    let source = Source { id: peer_key(ISSUER), generation: copy.generation };
    let holds = async || {
        let fresh = pair.reader.state.fresh().await.expect("a lease of the fabric");
        pair.reader.state.cluster().source_lease(&fresh, source, own).is_ok()
    };
    while !holds().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut held = Duration::ZERO;
    let step = Duration::from_millis(250);
    while holds().await {
        pair.reader.clock.advance(step);
        held += step;
    }
    pair.end().await;
    (held.saturating_sub(step), held)
}

/// Rule `LeaderNamesTheLength` of the model: a node that still allows more takes no more than the leader does.
#[tokio::test]
async fn lease_that_is_honoured_is_short_on_every_node() {
    let minute = Duration::from_secs(60);
    for (honours, named, own, most) in [
        (true, None, minute, 5),
        (true, Some(2000), minute, 2),
        (true, Some(60_000), minute, 5),
        (false, None, limits::PEER_FABRIC_LEASE, 5),
        (false, Some(2000), minute, 60),
    ] {
        let (least, ended) = lease_ends(honours, named, own).await;
        let most = Duration::from_secs(most);
        assert!(least <= most && ended >= most * 4 / 5, "{honours} {named:?}: {least:?} to {ended:?}");
    }
}

/// A call of a reader that has everything.
async fn idle_request(pair: &mut Pair) -> SyncRequest {
    pair.revoke(1, true).await;
    let (call, answer) = pair.ask(5000).await;
    assert!(pair.take(&call, &answer).await);
    let (call, _) = pair.ask(5000).await;
    SyncRequest { hold_ms: 10_000, ..call.request }
}

#[tokio::test]
async fn held_call_of_a_peer_that_is_paused_is_refused() {
    let mut pair = Pair::start().await;
    let request = idle_request(&mut pair).await;
    let current = pair.origin.state.current().await.expect("current");
    let caller = peer();
    let call = pair.served.call(request).expect("a call");
    let mut held = Box::pin(pair.served.answer(&current, &caller, &call));
    assert!(held.as_mut().now_or_never().is_none(), "there is nothing new");
    pair.origin.state.as_node().set_peer(ISSUER, PeerAct::Pause).await.expect("paused");
    pair.revoke(2, true).await;
    let answer = held.await;
    assert!(matches!(answer, Err(Error::Paused)), "{answer:?}");
    pair.end().await;
}

/// Attack on the log of the node: calls that are ahead of the ledger, one after another and all at once.
#[tokio::test]
async fn call_ahead_of_the_log_needs_a_permit_as_any_other() {
    let mut pair = Pair::start().await;
    let request = idle_request(&mut pair).await;
    let caller = peer();
    let incarnation = pair.origin.state.index().incarnation.expect("bootstrapped");
    let ahead = SyncRequest { since: Some(format!("{incarnation}-{}", 1_u64 << 40)), ..request.clone() };
    let held = (0..limits::SYNC_HELD_PER_PEER_MAX).map(|_| {
        let mut held = Box::pin(pair.served.sync(&caller, request.clone()));
        assert!(held.as_mut().now_or_never().is_none(), "there is nothing new");
        held
    });
    let held: Vec<_> = held.collect();
    let answer = pair.served.sync(&caller, ahead.clone()).await;
    assert!(matches!(answer, Err(Error::TooManyCalls)), "{answer:?}");
    drop(held);
    let answer = pair.served.sync(&caller, ahead).await;
    assert!(matches!(answer, Err(Error::Position(_))), "{answer:?}");
    pair.end().await;
}

/// Other requests proceed while a large response is read.
#[tokio::test]
async fn large_response_is_read_in_steps() {
    let mut pair = Pair::start().await;
    let facts = 0..limits::LEDGER_ROWS_PER_STEP as u64 + 10;
    join_all(facts.map(|number| pair.revoke(number, false))).await;
    let request = pair.engine.call(Known::default()).request;
    let current = pair.origin.state.current().await.expect("current");
    let caller = peer();
    let call = pair.served.call(request).expect("a call");
    let mut read = Box::pin(pair.served.answer(&current, &caller, &call));
    assert!(read.as_mut().now_or_never().is_none(), "other tasks run");
    let response = read.await.expect("a response");
    assert_eq!((response.entries.len(), response.next), (limits::LEDGER_ROWS_PER_STEP + 10, None));
    assert!(response.root.is_some());
    pair.end().await;
}

/// Attack: a peer that scans all the time keeps operators from scanning.
#[tokio::test]
async fn scanning_peer_does_not_block_operators() {
    let pair = Pair::start().await;
    let facts = 0..limits::LEDGER_ROWS_PER_STEP as u64 + 10;
    join_all(facts.map(|number| pair.revoke(number, false))).await;
    let current = pair.origin.state.current().await.expect("current");
    let caller = peer();
    let epoch = pair.origin.state.ledger_epoch().to_string();
    let query = HashQuery { epoch: Some(&epoch), ..HashQuery::default() };
    let mut scan = Box::pin(pair.served.hash(&current, Reader::Peer(&caller), query));
    assert!(scan.as_mut().now_or_never().is_none(), "it is in progress");
    let second = pair.served.hash(&current, Reader::Peer(&caller), query).await;
    assert!(matches!(second, Err(Error::Busy)), "{second:?}");
    let of_operator = pair.served.hash(&current, Reader::Operator, query).await.expect("a hash");
    assert_eq!(of_operator.hash, scan.await.expect("a hash").hash);
    pair.end().await;
}
