//! The only source of randomness of a simulation (`SplitMix64`).

use std::time::Duration;

/// Numbers that follow from a seed.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of `0..end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// A duration of these microseconds, `to` excluded.
    pub fn micros(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from + self.below(to - from))
    }

    /// One of the items.
    pub fn pick<'i, T>(&mut self, items: &'i [T]) -> Option<&'i T> {
        let end = u64::try_from(items.len()).ok().filter(|end| *end > 0)?;
        usize::try_from(self.below(end)).ok().and_then(|at| items.get(at))
    }
}
