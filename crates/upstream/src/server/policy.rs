//! When a lost server is started again; the supervisor does the starting.
//!
//! A policy is a value; it is the only difference between the registry and the provider adapter. Randomness is
//! passed in, so tests can predict every delay.

use std::time::Duration;

/// The delays, their jitter, when they start over, and the attempts per outage.
///
/// The two counts differ. A server that comes back but is soon lost again waits longer and longer between restarts,
/// but it is not given up: each of its outages ended with a successful attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// How long to wait before each attempt.
    pub delays: Delays,
    /// Whether long delays get up to a tenth more, so that many servers do not restart at once.
    pub jitter: bool,
    /// After how many failed attempts of one outage the server is given up; `None` means never.
    pub attempts: Option<u32>,
    /// How long a server must have served before the delays start over.
    pub stable_after: Duration,
}

/// The delay before the n-th attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delays {
    /// These seconds in turn, then the last of them repeatedly.
    Steps(&'static [u64]),
    /// Doubles each time, up to a limit.
    Doubling {
        /// The delay before the first attempt.
        first: Duration,
        /// The longest delay.
        most: Duration,
    },
}

/// The shortest delay that gets jitter.
const JITTER_FROM: Duration = Duration::from_secs(5);

impl RestartPolicy {
    /// Servers behind the gateway: at once, then after longer and longer delays, without end.
    pub const REGISTRY: Self = Self {
        delays: Delays::Steps(&[0, 1, 2, 5, 10, 30, 60]),
        jitter: true,
        attempts: None,
        stable_after: Duration::from_secs(60),
    };
    /// A single provider adapter: one second, doubling, ten times.
    pub const ADAPTER: Self = Self {
        delays: Delays::Doubling { first: Duration::from_secs(1), most: Duration::from_secs(30) },
        jitter: false,
        attempts: Some(10),
        stable_after: Duration::from_secs(60),
    };

    /// Whether a server is given up after `vain` failed attempts of one outage.
    pub fn gives_up(&self, vain: u32) -> bool {
        self.attempts.is_some_and(|most| vain >= most)
    }

    /// The delay before restart `number` (from 0) since the server was last stable. `random` is in 0..1.
    pub fn delay(&self, number: u32, random: f64) -> Duration {
        let delay = match self.delays {
            Delays::Steps(steps) => {
                let at = usize::try_from(number).unwrap_or(usize::MAX);
                Duration::from_secs(steps.get(at).or(steps.last()).copied().unwrap_or_default())
            }
            Delays::Doubling { first, most } => first.saturating_mul(2_u32.saturating_pow(number)).min(most),
        };
        let spread = self.jitter && delay >= JITTER_FROM;
        if spread { delay.mul_f64(1.0 + random.clamp(0.0, 1.0) / 10.0) } else { delay }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(policy: RestartPolicy, random: f64) -> Vec<f64> {
        let tries = (0..12).take_while(|number| !policy.gives_up(*number));
        tries.map(|number| policy.delay(number, random).as_secs_f64()).collect()
    }

    /// POOL-3: 0, 1, 2, 5, 10, 30, 60 s, then always 60 s, with up to a tenth more from 5 s up.
    #[test]
    fn the_registrys_delays() {
        let plain = [0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 60.0, 60.0, 60.0, 60.0, 60.0];
        assert_eq!(seconds(RestartPolicy::REGISTRY, 0.0), plain);
        assert_eq!(seconds(RestartPolicy::REGISTRY, 1.0)[..5], [0.0, 1.0, 2.0, 5.5, 11.0]);
        assert_eq!(seconds(RestartPolicy { jitter: false, ..RestartPolicy::REGISTRY }, 1.0), plain);
    }

    /// POOL-4: 1 s doubling up to 30 s, no jitter, ten tries.
    #[test]
    fn the_adapters_delays() {
        assert_eq!(
            seconds(RestartPolicy::ADAPTER, 1.0),
            [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0, 30.0]
        );
    }
}
