//! Blocked callers: no command that a caller gives after its block was answered changes anything.

use std::collections::BTreeMap;

use super::Checked;

#[derive(Default)]
pub struct BlockedCallers {
    /// Number of the event of the first answer, by caller.
    blocked: BTreeMap<u64, u64>,
}

impl BlockedCallers {
    pub fn blocked(&mut self, caller: u64, event: u64) {
        self.blocked.entry(caller).or_insert(event);
    }

    pub fn commanded(&self, caller: u64, begun: u64, is_refused: bool) -> Checked {
        match self.blocked.get(&caller) {
            Some(event) if *event < begun && !is_refused => {
                Err(format!("caller {caller} was blocked, and its later command changed the state"))
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn command_after_the_block_is_found() {
    let mut callers = BlockedCallers::default();
    callers.commanded(1, 5, false).expect("not blocked");
    callers.blocked(1, 7);
    callers.commanded(1, 6, false).expect("it began before");
    callers.commanded(1, 8, true).expect("refused");
    callers.commanded(1, 8, false).expect_err("applied");
}
