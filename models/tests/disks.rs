//! No set-back disk loses entries that other members know of, and no other disk is refused.

use stateright::{Checker as _, HasDiscoveries, Model as _};
use trust_fabric_models::disks::{Disks, NEVER_LOST, NEVER_SILENT, NEVER_WRONG, RULES, Rule};

#[test]
fn no_order_of_events_loses_an_entry() {
    let checker = Disks::default().checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn without_any_rule_an_order_of_events_loses_an_entry() {
    for rule in RULES {
        let checker = Disks { without: Some(rule) }.checker().threads(2);
        let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let property = match rule {
            Rule::HeldIsCommitted | Rule::StartIsDurableFirst => NEVER_WRONG,
            Rule::CommittedIsNeverTruncated => NEVER_SILENT,
            _ => NEVER_LOST,
        };
        let broken = checker.discovery(property);
        let path = broken.unwrap_or_else(|| panic!("{rule:?} is unnecessary, or its violation invisible"));
        println!("without {rule:?}: {:?}", path.into_actions());
    }
}
