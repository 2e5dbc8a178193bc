//! The tables of a relying fabric decide as both complete logs do, and accept no token that its origin revoked.

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use stateright::{Checker as _, HasDiscoveries, Model as _};
use std::cell::RefCell;
use std::collections::BTreeMap;
use trust_fabric_models::judgement::logs::{judge_by_logs, must_be_refused};
use trust_fabric_models::judgement::orders::{
    NEVER_ACCEPTED, NEVER_DIFFERENT, NEVER_HELD, NEVER_UNREAD, Orders,
};
use trust_fabric_models::judgement::tables::{Tables, judge_by_tables};
use trust_fabric_models::judgement::{
    Change, Command, Fact, Ledger, OriginEvent, Position, RULES, Response, Rule, Rules, Token, Verdict,
};

const ALL: Rules = Rules { without: None };

fn check(events_max: usize, commands_max: usize) {
    let model = Orders { rules: ALL, events_max, commands_max };
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{model:?}: {} states", checker.unique_state_count());
    for property in [NEVER_ACCEPTED, NEVER_UNREAD, NEVER_DIFFERENT, NEVER_HELD] {
        if let Some(path) = checker.discovery(property) {
            panic!("{property}: {:?}", path.into_actions());
        }
    }
    checker.assert_properties();
}

#[test]
fn no_short_order_accepts_a_revoked_token() {
    check(2, 3);
}

#[test]
#[ignore = "takes minutes"]
fn no_longer_order_accepts_a_revoked_token() {
    check(3, 4);
}

/// The property that this rule keeps.
fn kept_by(rule: Rule) -> &'static str {
    match rule {
        Rule::CoversLowerIndexes
        | Rule::LiftsRaiseTheFloor
        | Rule::ResetReplacesBlocks
        | Rule::FloorIsOfOneIncarnation
        | Rule::KnownEntriesAreSkipped => NEVER_DIFFERENT,
        Rule::UnknownIsUnjudged => NEVER_UNREAD,
        Rule::ImportNamesItsRequest | Rule::OldResponsesAreIgnored => NEVER_HELD,
        _ => NEVER_ACCEPTED,
    }
}

#[test]
fn without_any_rule_a_short_order_is_judged_wrongly() {
    for rule in RULES {
        let property = kept_by(rule);
        let (events_max, commands_max) = match rule {
            Rule::LiftsRaiseTheFloor | Rule::ResetReplacesBlocks => (3, 2),
            Rule::KnownEntriesAreSkipped => (1, 4),
            _ => (2, 3),
        };
        let model = Orders { rules: Rules { without: Some(rule) }, events_max, commands_max };
        // One thread: the counterexample is the shortest.
        let checker = model.checker().finish_when(HasDiscoveries::AnyOf([property].into()));
        let checker = checker.spawn_bfs().join();
        let path = checker.discovery(property);
        let path = path.unwrap_or_else(|| panic!("{rule:?} is unnecessary, or its violation invisible"));
        println!("without {rule:?}, {} states: {:?}", checker.unique_state_count(), path.into_actions());
    }
}

/// A step of a random history. Numbers are taken modulo what exists then.
#[derive(Clone, Debug)]
enum Step {
    Origin(OriginEvent),
    /// A node that lags by so many events issues a token.
    Issue {
        lineage: u8,
        lag: usize,
    },
    Forge {
        lineage: u8,
    },
    Sync,
    /// The origin answers a request that was sent so many commands ago; the response is late.
    Answer(usize),
    /// A late response arrives, counted from the newest.
    Deliver(usize),
    Relying(Command),
    /// A node that lags by so many commands mints a token from that one.
    Mint {
        from: usize,
        lag: usize,
    },
    /// A token that came from no peer.
    Own {
        lineage: u8,
    },
}

fn fact() -> impl Strategy<Value = Fact> {
    0..3_u8
}

fn origin_event() -> impl Strategy<Value = OriginEvent> {
    prop_oneof![
        6 => fact().prop_map(|fact| OriginEvent::Entry(Change::Revoke(fact))),
        1 => fact().prop_map(|fact| OriginEvent::Entry(Change::Taint(fact))),
        2 => fact().prop_map(|fact| OriginEvent::Entry(Change::Block(fact))),
        2 => fact().prop_map(|fact| OriginEvent::Entry(Change::Lift(fact))),
        3 => Just(OriginEvent::Forget),
        1 => (0..12_u8).prop_map(OriginEvent::Restore),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        6 => fact().prop_map(Command::Forget),
        1 => Just(Command::ForgetPeer),
        2 => fact().prop_map(Command::Revoke),
        1 => fact().prop_map(Command::Block),
        2 => fact().prop_map(Command::Lift),
        1 => (0..20_u8).prop_map(Command::Restore),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let lineage = || 0..8_u8;
    prop_oneof![
        6 => origin_event().prop_map(Step::Origin),
        4 => (lineage(), 0..3_usize).prop_map(|(lineage, lag)| Step::Issue { lineage, lag }),
        1 => lineage().prop_map(|lineage| Step::Forge { lineage }),
        5 => Just(Step::Sync),
        2 => (0..4_usize).prop_map(Step::Answer),
        2 => (0..4_usize).prop_map(Step::Deliver),
        3 => command().prop_map(Step::Relying),
        4 => (0..8_usize, 0..3_usize).prop_map(|(from, lag)| Step::Mint { from, lag }),
        1 => lineage().prop_map(|lineage| Step::Own { lineage }),
    ]
}

#[derive(Default)]
struct History {
    events: Vec<OriginEvent>,
    commands: Vec<Command>,
    late: Vec<Response>,
    tokens: Vec<Token>,
}

impl History {
    fn tables(&self, rules: Rules) -> Tables {
        Tables::after(rules, &self.commands)
    }

    /// Number of commands that a node had applied which lags by so many, and is of the present incarnation.
    fn view(&self, lag: usize) -> usize {
        let is_restore = |command: &Command| matches!(command, Command::Restore(_));
        let begin = self.commands.iter().rposition(is_restore).map_or(0, |at| at + 1);
        self.commands.len().saturating_sub(lag).max(begin)
    }

    fn answer(&self, rules: Rules, lag: usize) -> Response {
        let request = Tables::after(rules, &self.commands[..self.view(lag)]).request();
        Ledger::after(rules, &self.events).answer(request, self.events.len())
    }

    fn run(&mut self, rules: Rules, step: Step) {
        match step {
            Step::Origin(event) => self.events.push(event),
            Step::Issue { lineage, lag } => {
                // A node that lags is of the present incarnation.
                let is_restore = |event: &OriginEvent| matches!(event, OriginEvent::Restore(_));
                let begin = self.events.iter().rposition(is_restore).map_or(0, |at| at + 1);
                let view = self.events.len().saturating_sub(lag).max(begin);
                let ledger = Ledger::after(rules, &self.events[..view]);
                if ledger.issues(lineage) {
                    self.issue(&ledger, lineage, 0, view);
                }
            }
            Step::Forge { lineage } => {
                let ledger = Ledger::after(rules, &self.events);
                self.issue(&ledger, lineage, 9, usize::MAX);
            }
            Step::Sync => self.commands.push(Command::Import(self.answer(rules, 0))),
            Step::Answer(lag) => self.late.push(self.answer(rules, lag)),
            Step::Deliver(at) if at < self.late.len() => {
                let response = self.late.remove(self.late.len() - 1 - at);
                self.commands.push(Command::Import(response));
            }
            Step::Relying(command) => {
                // The callers of a restored fabric begin anew.
                if matches!(command, Command::Restore(_)) {
                    self.late.clear();
                }
                self.commands.push(command);
            }
            Step::Mint { from, lag } if from < self.tokens.len() => self.mint(rules, from, lag),
            Step::Own { lineage } => {
                let at = self.tables(rules).at();
                self.tokens.push(Token { is_ours: true, is_through: false, at, lineage, root: (0, 0) });
            }
            Step::Deliver(_) | Step::Mint { .. } => {}
        }
    }

    fn issue(&mut self, ledger: &Ledger, lineage: u8, ahead: u8, view: usize) {
        let at = Position { incarnation: ledger.incarnation, index: ledger.index + ahead };
        let root = (ledger.incarnation, view);
        self.tokens.push(Token { is_ours: false, is_through: false, at, lineage, root });
    }

    fn mint(&mut self, rules: Rules, from: usize, lag: usize) {
        let token = self.tokens[from];
        let tables = Tables::after(rules, &self.commands[..self.view(lag)]);
        if judge_by_tables(rules, &tables, &token) == Verdict::Clear {
            let is_through = token.is_through || !token.is_ours;
            self.tokens.push(Token { is_ours: true, is_through, at: tables.at(), ..token });
        }
    }
}

/// Runs random histories and compares every verdict at their ends.
fn compare(rules: Rules, cases: u32) -> Result<BTreeMap<(bool, Verdict), u32>, String> {
    let seen = RefCell::new(BTreeMap::new());
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = if rules.without.is_none() {
        TestRunner::new(config)
    } else {
        let config = ProptestConfig { max_shrink_iters: 0, ..config };
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
    };
    let outcome = runner.run(&prop::collection::vec(step(), 1..60), |steps| {
        let mut history = History::default();
        for step in steps {
            history.run(rules, step);
        }
        let tables = Tables::after(rules, &history.commands);
        prop_assert!(!tables.is_held());
        for token in &history.tokens {
            let verdict = judge_by_tables(rules, &tables, token);
            prop_assert_eq!(verdict, judge_by_logs(token, &history.events, &history.commands), "{:?}", token);
            let must_be_refused = must_be_refused(token, &history.events, &history.commands);
            prop_assert!(verdict != Verdict::Clear || !must_be_refused, "{:?}", token);
            *seen.borrow_mut().entry((token.is_ours, verdict)).or_default() += 1;
        }
        Ok(())
    });
    outcome.map_err(|failure| failure.to_string())?;
    Ok(seen.into_inner())
}

#[test]
fn tables_judge_as_both_complete_logs_do() {
    let seen = compare(ALL, 50_000).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{seen:?}");
    for verdict in [Verdict::Clear, Verdict::Revoked, Verdict::Unjudged] {
        assert!(seen.contains_key(&(false, verdict)) && seen.contains_key(&(true, verdict)));
    }
}

/// A property that finds no missing rule would be worth nothing.
#[test]
fn random_histories_find_any_missing_rule() {
    for rule in RULES {
        if rule == Rule::IndexIsReadFirst {
            continue; // Random histories always read it first.
        }
        assert!(compare(Rules { without: Some(rule) }, 20_000).is_err(), "{rule:?}");
    }
}
