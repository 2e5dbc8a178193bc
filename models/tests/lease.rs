//! The promise holds in every order of events, and does not hold without any one of the rules.

use stateright::{Checker as _, HasDiscoveries, Model as _};
use trust_fabric_models::lease::{Lease, NEVER_STALE, RULES, Rule};

const SMALL: Lease = Lease { ticks: 1, restarts: false, removal: false, without: None };

fn check(model: Lease) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{model:?}: {} states", checker.unique_state_count());
    // Includes that every situation of interest was reached: new leaders, lagging and removed members.
    checker.assert_properties();
}

#[test]
fn no_order_with_a_removal_is_stale() {
    check(Lease { removal: true, ..SMALL });
}

#[test]
fn no_order_with_restarts_is_stale() {
    check(Lease { restarts: true, ..SMALL });
}

/// A longer lease; restarts and a removal together.
#[test]
#[ignore = "takes minutes"]
fn no_order_with_restarts_and_a_removal_is_stale() {
    check(Lease { ticks: 2, restarts: true, removal: true, ..SMALL });
}

#[test]
fn without_any_rule_an_order_of_events_is_stale() {
    for rule in RULES {
        let removal = matches!(rule, Rule::WaitsForRemoved | Rule::GivesUpWhenDeposed);
        let restarts = matches!(
            rule,
            Rule::EndsWithTheProcess | Rule::VotesSurviveRestarts | Rule::EntriesSurviveRestarts
        );
        let model = Lease { without: Some(rule), removal, restarts, ..SMALL };
        let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let broken = checker.discovery(NEVER_STALE);
        let path = broken.unwrap_or_else(|| panic!("{rule:?} is unnecessary, or its violation invisible"));
        println!("without {rule:?}: {:?}", path.into_actions());
    }
}
