//! The protocol revisions and the two eras they fall into.

use std::fmt;
use std::str::FromStr;

/// A published revision of the protocol, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// 2024-11-05
    V2024_11_05,
    /// 2025-03-26, the only one with JSON-RPC batches
    V2025_03_26,
    /// 2025-06-18
    V2025_06_18,
    /// 2025-11-25, the last with a handshake
    V2025_11_25,
    /// 2026-07-28, stateless
    V2026_07_28,
}

/// Which of the two protocols a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Era {
    /// `initialize`, sessions, requests in both directions.
    Legacy,
    /// Every request carries all it needs.
    Modern,
}

impl Revision {
    /// The newest revision with a handshake: what is offered to a legacy peer.
    pub const LATEST_LEGACY: Self = Self::V2025_11_25;
    /// The stateless revision: what is offered to a modern peer.
    pub const MODERN: Self = Self::V2026_07_28;
    /// All of them, oldest first.
    pub const ALL: [Self; 5] =
        [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25, Self::V2026_07_28];

    /// Its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// The era it belongs to.
    pub const fn era(self) -> Era {
        match self {
            Self::V2026_07_28 => Era::Modern,
            Self::V2024_11_05 | Self::V2025_03_26 | Self::V2025_06_18 | Self::V2025_11_25 => Era::Legacy,
        }
    }

    /// Whether several messages may travel as one JSON array.
    pub const fn has_batches(self) -> bool {
        matches!(self, Self::V2025_03_26)
    }

    /// The legacy revision to answer to an `initialize` that asks for `requested`: the same if we have
    /// it, else our newest (the client then decides whether it can go on).
    pub fn negotiate(requested: &str) -> Self {
        requested
            .parse()
            .ok()
            .filter(|revision: &Self| revision.era() == Era::Legacy)
            .unwrap_or(Self::LATEST_LEGACY)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Revision {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|revision| revision.as_str() == text).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_order_by_date() {
        for revision in Revision::ALL {
            assert_eq!(revision.as_str().parse(), Ok(revision));
        }
        assert!(Revision::ALL.is_sorted());
    }

    #[test]
    fn negotiation_never_leaves_the_legacy_era() {
        assert_eq!(Revision::negotiate("2024-11-05"), Revision::V2024_11_05);
        assert_eq!(Revision::negotiate("2026-07-28"), Revision::LATEST_LEGACY);
        assert_eq!(Revision::negotiate("1999-01-01"), Revision::LATEST_LEGACY);
    }
}
