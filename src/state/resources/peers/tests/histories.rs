//! Random histories of both fabrics: the copy judges as both complete logs do, and the parts of a response in any order
//! give one copy.

use proptest::collection::vec;
use proptest::prelude::*;

use super::logs::{ByLogs, LogCommand, LogEntry, RelyingLog, Token, judge_by_logs, must_be_refused};
use super::origin::{Change, Event, FACTS, Ledger, Response, lacks_key};
use super::*;
use crate::state::Replicated;
use crate::state::resources::peers::parts::parts_of;

/// A step of a history. Numbers are taken modulo what exists then.
#[derive(Clone, Debug)]
enum Step {
    Origin(Event),
    /// A node that lags by so many events issues a token.
    Issue {
        lineage: Vec<u8>,
        lag: usize,
    },
    /// A thief of a key chooses the index.
    Forge {
        lineage: Vec<u8>,
    },
    Sync,
    /// The peer answers a call that was sent so many entries ago; the response is late.
    Answer(usize),
    /// A late response arrives, counted from the newest.
    Deliver(usize),
    Wait(u64),
    ForgetPeer,
    Repair,
    /// The relying fabric is restored from its state so many entries ago.
    Restore(usize),
    /// A node that lags by so many entries mints a token from that one.
    Mint {
        from: usize,
        lag: usize,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let fact = || 0..FACTS;
    prop_oneof![
        6 => fact().prop_map(|fact| Event::Entry(Change::Revoke(fact))),
        1 => fact().prop_map(|fact| Event::Entry(Change::Taint(fact))),
        2 => fact().prop_map(|fact| Event::Entry(Change::Block(fact))),
        2 => fact().prop_map(|fact| Event::Entry(Change::Lift(fact))),
        3 => Just(Event::Forget),
        2 => (1u32..10).prop_map(Event::Epochs),
        1 => (0u64..12).prop_map(Event::Restore),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let lineage = || proptest::sample::subsequence((0..FACTS).collect::<Vec<_>>(), 0..=3);
    prop_oneof![
        6 => event().prop_map(Step::Origin),
        4 => (lineage(), 0usize..3).prop_map(|(lineage, lag)| Step::Issue { lineage, lag }),
        1 => lineage().prop_map(|lineage| Step::Forge { lineage }),
        5 => Just(Step::Sync),
        2 => (0usize..4).prop_map(Step::Answer),
        2 => (0usize..4).prop_map(Step::Deliver),
        2 => (1u64..100).prop_map(Step::Wait),
        1 => Just(Step::ForgetPeer),
        1 => (0usize..8).prop_map(Step::Restore),
        4 => (0usize..8, 0usize..3).prop_map(|(from, lag)| Step::Mint { from, lag }),
    ]
}

struct History {
    events: Vec<Event>,
    relying: Relying,
    /// Present incarnation of the relying fabric, and its first entry.
    incarnation: (u8, u64),
    log: Vec<LogEntry>,
    /// Rows after each entry of the log.
    rows: Vec<Rows>,
    late: Vec<Response>,
    tokens: Vec<Token>,
    /// Largest number of entries of a command.
    most: usize,
}

impl History {
    fn new(most: usize) -> Self {
        let mut history = Self {
            events: Vec::new(),
            relying: Relying::new(),
            incarnation: (0, 0),
            log: Vec::new(),
            rows: Vec::new(),
            late: Vec::new(),
            tokens: Vec::new(),
            most,
        };
        history.record(LogCommand::Other);
        history
    }

    /// Records the entry that the harness has just applied.
    fn record(&mut self, command: LogCommand) {
        let (m, at) = (self.relying.m(), self.relying.at);
        self.log.push(LogEntry { m, at, command });
        self.rows.push(Rows(self.relying.harness.rows.0.clone()));
    }

    /// Rows of a node that lags by so many entries, and is of the present incarnation.
    fn view(&self, lag: usize) -> (u64, &Rows) {
        let newest = self.log.len() - 1;
        let first = self.log.iter().position(|entry| entry.m >= self.incarnation.1).unwrap_or(newest);
        let at = newest.saturating_sub(lag).max(first);
        (self.log[at].m, &self.rows[at])
    }

    fn answer(&self, lag: usize) -> Response {
        let row = row_of(self.view(lag).1, PEER).expect("reads").unwrap_or_default();
        Ledger::after(&self.events).answer(&PeerCopy::from_row(row), self.events.len())
    }

    /// Imports a response by as many commands as it needs, as far as they are applied.
    fn import(&mut self, response: &Response) {
        let mut generation = response.import.generation;
        for part in parts_of(response.import.clone(), self.most) {
            let is_whole = part.is_whole;
            let reply = self.relying.import(ImportLedger { generation, ..part });
            let is_whole_mode = self.most > usize::from(2 * FACTS);
            let is_told = is_whole && (is_whole_mode || reply == DONE);
            self.record(if is_told {
                LogCommand::Import(Box::new(response.clone()))
            } else {
                LogCommand::Other
            });
            let copy = self.relying.copy();
            if reply != DONE || copy.incarnation() != Some(incarnation(response.incarnation)) {
                break;
            }
            generation = copy.generation;
        }
    }

    /// Number of events before the newest response of this incarnation that was applied to its end.
    fn informed_by(&self, incarnation: u8) -> Option<usize> {
        let answered = self.log.iter().filter_map(|entry| match &entry.command {
            LogCommand::Import(response) if response.incarnation == incarnation => Some(response.answered),
            _ => None,
        });
        answered.max()
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Origin(event) => self.events.push(event),
            Step::Issue { lineage, lag } => {
                let is_restore = |event: &Event| matches!(event, Event::Restore(_));
                let begin = self.events.iter().rposition(is_restore).map_or(0, |at| at + 1);
                let view = self.events.len().saturating_sub(lag).max(begin);
                let ledger = Ledger::after(&self.events[..view]);
                if ledger.issues(&lineage) {
                    self.issue(&ledger, lineage, 0, view);
                }
            }
            Step::Forge { lineage } => {
                let ledger = Ledger::after(&self.events);
                self.issue(&ledger, lineage, 9, usize::MAX);
            }
            Step::Sync => {
                let response = self.answer(0);
                self.import(&response);
            }
            Step::Answer(lag) => self.late.push(self.answer(lag)),
            Step::Deliver(at) if at < self.late.len() => {
                let response = self.late.remove(self.late.len() - 1 - at);
                self.import(&response);
            }
            Step::Wait(minutes) => {
                self.relying.wait(Duration::from_secs(60 * minutes));
                self.record(LogCommand::Other);
            }
            Step::ForgetPeer => {
                let reply = self.relying.set(PeerAct::Forget);
                let command = if reply == DONE { LogCommand::ForgetPeer } else { LogCommand::Other };
                self.record(command);
            }
            Step::Repair => {
                self.relying.set(PeerAct::Repair);
                self.record(LogCommand::Other);
            }
            Step::Restore(back) => self.restore(back),
            Step::Mint { from, lag } if from < self.tokens.len() => self.mint(from, lag),
            Step::Deliver(_) | Step::Mint { .. } => {}
        }
    }

    fn restore(&mut self, back: usize) {
        let kept = self.log.len().saturating_sub(back).max(1);
        self.log.truncate(kept);
        self.rows.truncate(kept);
        let (m, harness) = (self.log[kept - 1].m, &mut self.relying.harness);
        harness.rows = Rows(self.rows[kept - 1].0.clone());
        harness.machine = Replicated::default();
        harness.machine.rebuild(&harness.rows).expect("rebuilds");
        harness.skip_to(m);
        self.relying.wait(Duration::ZERO);
        self.incarnation = (self.incarnation.0 + 1, m + 1);
        // Callers of a restored fabric begin anew.
        self.late.clear();
        self.record(LogCommand::Other);
    }

    fn issue(&mut self, ledger: &Ledger, lineage: Vec<u8>, ahead: u64, view: usize) {
        let incarnation = ledger.incarnation;
        let root = (incarnation, view);
        self.tokens.push(Token { is_through: false, incarnation, idx: ledger.index + ahead, lineage, root });
    }

    fn mint(&mut self, from: usize, lag: usize) {
        let token = self.tokens[from].clone();
        let (idx, rows) = self.view(lag);
        if self.judge_by_rows(rows, &token) == ByLogs::Clear {
            self.tokens.push(Token { is_through: true, incarnation: self.incarnation.0, idx, ..token });
        }
    }

    /// Whether a token is of the relying fabric's incarnation before a restore: its own index refuses those.
    fn is_of_before(&self, token: &Token) -> bool {
        token.is_through && token.incarnation != self.incarnation.0
    }

    fn judge_by_rows(&self, rows: &Rows, token: &Token) -> ByLogs {
        let index = PeerIndex::default();
        index.rebuild(rows).expect("rebuilds");
        self.judge(&index, token)
    }

    fn judge(&self, index: &PeerIndex, token: &Token) -> ByLogs {
        let copy = index.get(&peer_key(PEER));
        let lineage: Vec<_> = token.lineage.iter().map(|number| fact(number + 1)).collect();
        let (verdict, etag) = if token.is_through {
            (judge_through_token(copy.as_ref(), token.idx, &lineage), None)
        } else {
            let idx = LogPosition { incarnation: incarnation(token.incarnation), index: token.idx };
            let etag = copy.as_ref().map(|copy| copy.row.keys_etag.clone());
            (judge_token(copy.as_ref(), idx, &lineage), etag)
        };
        match verdict {
            _ if self.is_of_before(token) => ByLogs::Revoked,
            PeerVerdict::Clear if etag.is_some_and(|etag| lacks_key(&etag, &token.lineage)) => {
                ByLogs::Revoked
            }
            PeerVerdict::Clear => ByLogs::Clear,
            PeerVerdict::Revoked => ByLogs::Revoked,
            PeerVerdict::Paused | PeerVerdict::Unjudged(_) => ByLogs::Unjudged,
        }
    }
}

/// Keys and rows without the index of their import.
type Contents = Vec<(Vec<u8>, Vec<u8>)>;

/// Entries and blocks of the copy.
fn contents(rows: &Rows) -> (Contents, Contents) {
    let of = |table: &str, from: usize, row: std::ops::Range<usize>| {
        let rows = rows.0.iter().filter(|((of, _), _)| of == table);
        rows.map(|((_, key), value)| (key[from..].to_vec(), value[row.clone()].to_vec())).collect()
    };
    (of("peer_ledger", 24, 0..9), of("peer_block", 24, 0..8))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn copy_judges_as_both_complete_logs_do(steps in vec(step(), 1..60)) {
        let mut history = History::new(100);
        for step in steps {
            history.run(step);
        }
        prop_assert_eq!(history.relying.copy().fault, None, "a peer that lost nothing is not held");
        history.relying.federated();
        let log = RelyingLog::read(&history.log);
        for token in history.tokens.iter().filter(|token| !history.is_of_before(token)) {
            let verdict = history.judge(history.relying.harness.machine.peers(), token);
            prop_assert_eq!(verdict, history.judge_by_rows(&history.relying.harness.rows, token));
            prop_assert_eq!(verdict, judge_by_logs(token, &history.events, &log), "{:?}", token);
            let must_be_refused = must_be_refused(token, &history.events, log.informed_by(token.root.0));
            prop_assert!(verdict != ByLogs::Clear || !must_be_refused, "{:?}", token);
        }
    }

    /// Parts, late parts and repeated ones, and repairs: nothing is accepted that both logs refuse, and in the end there is one copy.
    #[test]
    fn parts_in_any_order_give_one_copy(
        steps in vec(prop_oneof![14 => step(), 1 => Just(Step::Repair)], 1..40),
        most in 1usize..4,
        cuts in vec((0usize..9, any::<bool>()), 0..6),
    ) {
        let mut history = History::new(most);
        for step in steps {
            history.run(step);
        }
        let mut parts: Vec<_> = history.late.iter().flat_map(|late| parts_of(late.import.clone(), most)).collect();
        for (at, again) in cuts {
            if parts.is_empty() {
                break;
            }
            let at = at % parts.len();
            let part = if again { parts[at].clone() } else { parts.swap_remove(at) };
            history.relying.import(part);
            history.record(LogCommand::Other);
        }
        history.run(Step::Sync);
        history.run(Step::Sync);
        let mut copy = history.relying.copy();
        prop_assert_eq!((copy.fault, copy.is_complete), (None, true));
        history.relying.federated();
        for token in history.tokens.iter().filter(|token| !history.is_of_before(token)) {
            let verdict = history.judge(history.relying.harness.machine.peers(), token);
            let informed = history.informed_by(token.root.0);
            let must_be_refused = must_be_refused(token, &history.events, informed);
            prop_assert!(verdict != ByLogs::Clear || !must_be_refused, "{:?}", token);
        }
        // The whole ledger read at once: the copy has no more, and lacks only what it has forgotten.
        let mut fresh = Relying::new();
        let response = Ledger::after(&history.events).answer(&fresh.copy(), 0);
        prop_assert_eq!(fresh.import(response.import), DONE);
        let (entries, blocks) = contents(&history.relying.harness.rows);
        let (all, all_blocks) = contents(&fresh.harness.rows);
        prop_assert_eq!(blocks, all_blocks);
        let floor = copy.floor_n;
        let n = |row: &[u8]| u64::from_be_bytes(row[1..9].try_into().expect("a number"));
        for entry in all.iter().filter(|(_, row)| n(row) > floor) {
            prop_assert!(entries.contains(entry), "{:?}", entry);
        }
        copy.row.complete_from = copy.complete_from.max(fresh.copy().complete_from);
        let answer = Ledger::after(&history.events).answer(&copy, 0);
        let root = history.relying.root(answer.import.floor_epoch).expect("a copy").0;
        prop_assert_eq!(&root[..], &answer.import.root[..]);
    }
}
