//! No order of events makes a relying fabric accept after the acknowledgement, and without any one of the rules one does.

use stateright::{Checker as _, HasDiscoveries, Model as _};
use trust_fabric_models::federation::{Federation, NEVER_LATE, NEVER_STALE, RULES, Rule};

const SMALL: Federation = Federation {
    short: 1,
    long: 1,
    without: None,
    activation: false,
    origin_elects: true,
    relying_elects: true,
};

/// Strict mode begins while longer leases are out.
const ACTIVATION: Federation =
    Federation { long: 2, activation: true, origin_elects: false, relying_elects: false, ..SMALL };

fn check(model: Federation) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{model:?}: {} states", checker.unique_state_count());
    for property in [NEVER_STALE, NEVER_LATE] {
        if let Some(path) = checker.discovery(property) {
            panic!("{property}: {:?}", path.into_actions());
        }
    }
    // Includes that every situation of interest was reached.
    checker.assert_properties();
}

#[test]
fn no_order_with_new_leaders_is_stale() {
    check(SMALL);
}

#[test]
fn no_order_with_activation_is_stale() {
    check(ACTIVATION);
}

#[test]
#[ignore = "takes minutes"]
fn longer_leases_of_two_fabrics_are_never_stale() {
    check(Federation { short: 2, long: 2, ..SMALL });
}

#[test]
#[ignore = "takes minutes"]
fn activation_with_both_new_leaders_is_not_stale() {
    check(Federation { origin_elects: true, relying_elects: true, ..ACTIVATION });
}

#[test]
fn without_any_rule_the_relying_fabric_is_stale() {
    for rule in RULES {
        let model = match rule {
            Rule::LeaderNamesTheLength | Rule::LongLeasesRunOut => ACTIVATION,
            Rule::CountsFromTheLastLongCall => Federation { relying_elects: true, ..ACTIVATION },
            Rule::NewLeaderWaitsForLongLeases => Federation { origin_elects: true, ..ACTIVATION },
            _ => SMALL,
        };
        let model = Federation { without: Some(rule), ..model };
        // One thread: the counterexample is the shortest.
        let any = HasDiscoveries::AnyOf([NEVER_STALE, NEVER_LATE].into());
        let checker = model.checker().finish_when(any).spawn_bfs().join();
        let found = [NEVER_STALE, NEVER_LATE].into_iter().filter_map(|property| checker.discovery(property));
        let shortest = found.map(stateright::Path::into_actions).min_by_key(Vec::len);
        let path = shortest.unwrap_or_else(|| panic!("{rule:?} is unnecessary, or its violation invisible"));
        println!("without {rule:?}, {} states: {path:?}", checker.unique_state_count());
    }
}
