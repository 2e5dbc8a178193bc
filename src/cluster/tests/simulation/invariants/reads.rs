//! Linearizable reads: a read sees every write that was answered before it began.

use super::Checked;

#[derive(Default)]
pub struct Reads {
    answered: u64,
}

impl Reads {
    pub fn answered(&mut self, index: u64) {
        self.answered = self.answered.max(index);
    }

    pub fn answered_up_to(&self) -> u64 {
        self.answered
    }
}

/// A read that began after everything up to `known` was answered sees the log up to `seen`.
pub fn check(known: u64, seen: u64) -> Checked {
    if seen < known {
        return Err(format!("a read sees the log up to {seen}, and {known} was answered before it began"));
    }
    Ok(())
}

#[test]
fn stale_read_is_found() {
    let mut reads = Reads::default();
    reads.answered(7);
    reads.answered(5);
    assert_eq!(reads.answered_up_to(), 7);
    check(7, 7).expect("everything");
    check(7, 6).expect_err("stale");
}
