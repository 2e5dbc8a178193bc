//! Kinds of metrics. The number of labels is part of the type, and labels are `&'static str`: their set of values is
//! fixed. Only [`super::Metrics`] has methods for others, such as the name of a peer.

use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// Upper bounds of duration histograms, in seconds.
const DURATION_BUCKETS_SECS: [f64; 14] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// A type of metric.
pub trait Kind: Sized {
    #[cfg(test)]
    const NAME: &'static str;

    fn register(registry: &Registry, opts: Opts, labels: &[&str]) -> prometheus::Result<Self>;
}

macro_rules! kinds {
    ($($kind:ident: $name:literal, $family:ty, $metric:ty, $create:expr;)*) => {$(
        /// A metric with `N` labels. Clones share their values.
        #[derive(Clone, Debug)]
        pub struct $kind<const N: usize>(pub(super) $family);

        impl<const N: usize> $kind<N> {
            /// The samples with these labels.
            pub(super) fn of(&self, labels: [&str; N]) -> $metric {
                self.0.with_label_values(&labels)
            }
        }

        impl<const N: usize> Kind for $kind<N> {
            #[cfg(test)]
            const NAME: &str = $name;

            fn register(registry: &Registry, opts: Opts, labels: &[&str]) -> prometheus::Result<Self> {
                let create: fn(Opts, &[&str]) -> prometheus::Result<$family> = $create;
                let family = create(opts, labels)?;
                registry.register(Box::new(family.clone()))?;
                Ok(Self(family))
            }
        }
    )*};
}

kinds! {
    Counter: "counter", IntCounterVec, IntCounter,
        |opts, labels| IntCounterVec::new(opts, labels).map(at_zero);
    Gauge: "gauge", IntGaugeVec, IntGauge, |opts, labels| IntGaugeVec::new(opts, labels).map(at_zero);
    FloatGauge: "gauge", GaugeVec, prometheus::Gauge,
        |opts, labels| GaugeVec::new(opts, labels).map(at_zero);
    Timing: "histogram", HistogramVec, Histogram, |opts, labels| {
        HistogramVec::new(HistogramOpts::from(opts).buckets(DURATION_BUCKETS_SECS.to_vec()), labels)
    };
}

/// Creates the sample of a metric without labels; with labels, the call fails.
fn at_zero<B: MetricVecBuilder>(family: MetricVec<B>) -> MetricVec<B> {
    drop(family.get_metric_with_label_values::<&str>(&[]));
    family
}

impl<const N: usize> Counter<N> {
    /// Counts one event.
    pub fn inc(&self, labels: [&'static str; N]) {
        self.of(labels).inc();
    }

    /// Counts `events`.
    pub fn add(&self, labels: [&'static str; N], events: u64) {
        self.of(labels).inc_by(events);
    }
}

impl<const N: usize> Gauge<N> {
    /// Sets it to `value`, or to the largest number if that is larger.
    pub fn set(&self, labels: [&'static str; N], value: impl TryInto<i64>) {
        self.of(labels).set(value.try_into().unwrap_or(i64::MAX));
    }
}
