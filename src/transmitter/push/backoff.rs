//! Backoff of a failing receiver. Pure: randomness is an argument.

use std::time::Duration;

/// Random numbers that are not secret (`SplitMix64`), so that streams that failed together do not retry together.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// `seed` must differ per stream and node.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, also usable as a seed.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// Bounds of a backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub min: Duration,
    /// Also bounds the receiver's `Retry-After`.
    pub max: Duration,
}

impl Backoff {
    /// Wait after `failures` in a row: uniform between the minimum and a bound that doubles with each failure.
    pub fn after(&self, failures: u32, jitter: &mut Jitter) -> Duration {
        let doubled = 2_u32.checked_pow(failures).and_then(|times| self.min.checked_mul(times));
        let bound = doubled.unwrap_or(self.max).min(self.max).max(self.min);
        let spread = u64::try_from(bound.saturating_sub(self.min).as_millis()).unwrap_or(u64::MAX);
        self.min + Duration::from_millis(jitter.draw() % spread.saturating_add(1))
    }

    /// Wait that the receiver requested (`Retry-After`, RFC 9110 §10.2.3), within the bounds.
    pub fn requested(&self, wait: Duration) -> Duration {
        wait.clamp(self.min, self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { min: Duration::from_secs(1), max: Duration::from_secs(300) };

    #[test]
    fn wait_is_uniform_up_to_a_doubling_bound() {
        let mut jitter = Jitter::new(7);
        for (failures, bound_secs) in
            [(0, 1), (1, 2), (2, 4), (5, 32), (8, 256), (9, 300), (31, 300), (u32::MAX, 300)]
        {
            let waits: Vec<_> = (0..1000).map(|_| BACKOFF.after(failures, &mut jitter)).collect();
            let (least, most) = (waits.iter().min().copied(), waits.iter().max().copied());
            let bound = Duration::from_secs(bound_secs);
            assert!(least >= Some(BACKOFF.min) && most <= Some(bound), "{failures}: {least:?} to {most:?}");
            let spread = bound.saturating_sub(BACKOFF.min);
            assert!(least <= Some(BACKOFF.min + spread / 20), "{failures}: {least:?} is the least");
            assert!(most >= Some(bound.saturating_sub(spread / 20)), "{failures}: {most:?} is the most");
        }
    }

    #[test]
    fn streams_that_failed_together_do_not_retry_together() {
        let mut seeds = Jitter::new(1);
        let waits: std::collections::BTreeSet<_> =
            (0..100).map(|_| BACKOFF.after(9, &mut Jitter::new(seeds.draw()))).collect();
        assert!(waits.len() > 95, "{waits:?}");
    }

    #[test]
    fn retry_after_is_honoured_within_bounds() {
        for (requested_secs, waited_secs) in
            [(0, 1), (1, 1), (20, 20), (300, 300), (301, 300), (u64::MAX, 300)]
        {
            assert_eq!(
                BACKOFF.requested(Duration::from_secs(requested_secs)),
                Duration::from_secs(waited_secs)
            );
        }
    }
}
