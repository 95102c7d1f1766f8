//! Percentiles and medians.

/// The latencies of one round, in nanoseconds.
#[derive(Debug, Default)]
pub struct Latencies(Vec<u32>);

/// The percentiles of a round's latencies, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percentiles {
    /// Half of all requests took at most this long.
    pub p50: f64,
    /// 95 of 100 requests took at most this long.
    pub p95: f64,
    /// 99 of 100 requests took at most this long.
    pub p99: f64,
}

impl Latencies {
    /// Adds one latency; more than four seconds count as four.
    pub fn add(&mut self, latency: std::time::Duration) {
        self.0.push(u32::try_from(latency.as_nanos()).unwrap_or(u32::MAX));
    }

    /// Adds the latencies of another connection.
    pub fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The percentiles; `None` without any latency.
    pub fn percentiles(mut self) -> Option<Percentiles> {
        self.0.sort_unstable();
        let last = self.0.len().checked_sub(1)?;
        let at = |percent: usize| f64::from(self.0[last * percent / 100]) / 1000.0;
        Some(Percentiles { p50: at(50), p95: at(95), p99: at(99) })
    }
}

/// The median; zero without any value.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    match (values.len(), values.len() / 2) {
        (0, _) => 0.0,
        (length, middle) if length % 2 == 1 => values[middle],
        (_, middle) => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn percentiles_of_a_known_row() {
        let mut latencies = Latencies::default();
        (0..=100).rev().for_each(|micros| latencies.add(Duration::from_micros(micros)));
        assert_eq!(latencies.percentiles(), Some(Percentiles { p50: 50.0, p95: 95.0, p99: 99.0 }));
        assert_eq!(Latencies::default().percentiles(), None);
    }

    #[test]
    fn medians() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median([]).abs() < 1e-9);
    }
}
