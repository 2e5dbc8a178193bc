//! Single use: of all requests with one token, at most one is granted, and a request that nothing races is
//! never refused as a repeated use, however often its command was proposed.

use std::collections::BTreeSet;

use super::Checked;

#[derive(Default)]
pub struct SingleUse(BTreeSet<u64>);

impl SingleUse {
    pub fn answered(&mut self, token: u64, is_first: bool, is_own: bool) -> Checked {
        if is_first && !self.0.insert(token) {
            return Err(format!("token {token} was spent twice"));
        }
        if !is_first && is_own {
            return Err(format!(
                "token {token} was spent by its own request, which is refused: it was applied twice"
            ));
        }
        Ok(())
    }
}

#[test]
fn token_that_is_spent_twice_is_found() {
    let mut tokens = SingleUse::default();
    tokens.answered(1, true, false).expect("the first");
    tokens.answered(1, false, false).expect("raced");
    tokens.answered(1, true, false).expect_err("twice");
    tokens.answered(2, true, true).expect("the only one");
    tokens.answered(3, false, true).expect_err("applied twice");
}
