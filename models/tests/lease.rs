//! The promise holds in every order of events, and not without any of the rules.

use stateright::{Checker as _, Model as _};
use trust_fabric_models::lease::{Lease, NEVER_STALE, RULES};

#[test]
fn no_order_of_events_has_a_revocation_forgotten_behind_its_acknowledgement() {
    let checker = Lease::default().checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    // Also that what is to be seen was seen: leaders that change, members that are behind or removed.
    checker.assert_properties();
}

#[test]
fn without_any_one_of_its_rules_there_is_an_order_that_breaks_the_promise() {
    for rule in RULES {
        let checker = Lease { without: Some(rule) }.checker().threads(2).spawn_bfs().join();
        let broken = checker.discovery(NEVER_STALE);
        let path = broken.unwrap_or_else(|| panic!("{rule:?} is not needed, or its absence not seen"));
        println!("without {rule:?}: {:?}", path.into_actions());
    }
}
