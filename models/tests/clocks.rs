//! No wrong clock uncovers a credential or causes early expiry.

use stateright::{Checker as _, HasDiscoveries, Model as _};
use trust_fabric_models::clocks::{Clocks, GOOD, RULES};

fn check(wrong_max: usize) {
    let checker = Clocks { without: None, wrong_max }.checker().threads(2).spawn_bfs().join();
    println!("{wrong_max} wrong: {} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn no_wrong_clock_breaks_the_times_of_entries() {
    check(1);
}

/// Two clocks that are wrong by different amounts: there is no majority.
#[test]
#[ignore = "takes most of a minute"]
fn no_two_wrong_clocks_cause_early_expiry() {
    check(2);
}

#[test]
fn without_any_rule_wrong_clocks_break_the_times() {
    for rule in RULES {
        let broken = [1, 2].into_iter().find_map(|wrong_max| {
            let checker = Clocks { without: Some(rule), wrong_max }.checker().threads(2);
            let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
            checker.discovery(GOOD)
        });
        let path = broken.unwrap_or_else(|| panic!("{rule:?} is unnecessary, or its violation invisible"));
        println!("without {rule:?}: {:?}", path.into_actions());
    }
}
