//! How the wall clocks of the members stand.

use super::Metrics;

/// What the first gauge is.
pub const OFFSET: &str =
    "How far the wall clock of a node is ahead of the median of the voters', as this node heard last.";
/// What the second is.
pub const AGREEMENT: &str = "1 if the wall clocks of a majority of the voters are close to their median.";

impl Metrics {
    /// Whether the wall clocks agree, and how many milliseconds each node's is ahead.
    pub fn set_clocks<'o>(&self, is_agreed: bool, offset_millis: impl Iterator<Item = (&'o u64, &'o i64)>) {
        self.clock_agreement.set(i64::from(is_agreed));
        // A node whose clock was not read of late is not shown.
        self.clock_offset.reset();
        for (node, millis) in offset_millis {
            #[expect(clippy::cast_precision_loss, reason = "an offset of so many years is exact enough")]
            let secs = *millis as f64 / 1000.0;
            self.clock_offset.with_label_values(&[node.to_string().as_str()]).set(secs);
        }
    }
}
