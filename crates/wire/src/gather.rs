//! Joins a text that arrives in pieces.
//!
//! What must stay true: a text that arrives in one piece is not copied, and each byte of any other is copied about once. A
//! long text takes little more than twice its size while it is gathered, most often much less.
//!
//! A piece keeps the whole buffer alive that it was read into, so pieces are copied out of it at once. Where the length is
//! not known the buffer grows in large steps. Memory that is not written to yet costs only addresses, while each step
//! leaves a copy behind that the allocator may keep for a while.

use bytes::{Bytes, BytesMut};

/// Up to this size a full buffer doubles.
const LONG: usize = 256 * 1024;
/// The factor by which a longer buffer grows.
const STEP: usize = 16;
/// The most bytes by which it grows at once.
const MAX_GROWTH: usize = 64 * 1024 * 1024;

/// The pieces that have arrived.
#[derive(Debug, Default)]
pub struct Gathered {
    /// The first piece, while it is the only one.
    first: Bytes,
    place: BytesMut,
    /// The expected length; zero if it is not known.
    expected: usize,
}

impl Gathered {
    /// For a text of this length, if it is known. The caller must have checked that the length is acceptable.
    #[inline]
    pub fn expecting(length: Option<u64>) -> Self {
        let expected = length.and_then(|length| usize::try_from(length).ok()).unwrap_or_default();
        Self { expected, ..Self::default() }
    }

    /// Adds a piece.
    pub fn push(&mut self, piece: Bytes) {
        if self.is_empty() {
            self.first = piece;
            return;
        }
        self.reserve(self.len() + piece.len());
        if !self.first.is_empty() {
            self.place.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.place.extend_from_slice(&piece);
    }

    fn reserve(&mut self, needed: usize) {
        let room = self.place.capacity();
        if needed <= room {
            return;
        }
        let mut grown = if room == 0 { self.expected } else { (room * 2).min(LONG) };
        if grown < needed && needed > LONG {
            grown = LONG;
            while grown < needed {
                grown = (grown * STEP).min(grown + MAX_GROWTH);
            }
        }
        self.place.reserve(grown.max(needed) - self.place.len());
    }

    /// How many bytes have arrived.
    pub fn len(&self) -> usize {
        self.first.len() + self.place.len()
    }

    /// Whether no byte has arrived.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the whole text and leaves this empty.
    pub fn take(&mut self) -> Bytes {
        self.expected = 0;
        if self.place.is_empty() {
            return std::mem::take(&mut self.first);
        }
        std::mem::take(&mut self.place).freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_and_one_alone_is_not_copied() {
        let mut gathered = Gathered::default();
        assert!(gathered.is_empty());
        assert_eq!(gathered.take(), "");
        let whole = Bytes::from(vec![b'x'; 10]);
        gathered.push(Bytes::new());
        gathered.push(whole.clone());
        assert_eq!(gathered.take().as_ptr(), whole.as_ptr());
        for piece in ["a", "", "bc", "d"] {
            gathered.push(Bytes::from_static(piece.as_bytes()));
        }
        assert_eq!((gathered.len(), gathered.take()), (4, Bytes::from_static(b"abcd")));
        assert!(gathered.is_empty());
    }

    #[test]
    fn a_known_length_is_made_room_for_at_once() {
        let mut gathered = Gathered::expecting(Some(1000));
        gathered.push(Bytes::from(vec![1; 10]));
        gathered.push(Bytes::from(vec![2; 10]));
        assert_eq!(gathered.place.capacity(), 1000);
        // More bytes than announced are accepted: the caller enforces the limit.
        gathered.push(Bytes::from(vec![3; 2000]));
        assert_eq!(gathered.take().len(), 2020);
    }

    #[test]
    fn a_long_text_is_moved_seldom() {
        let mut gathered = Gathered::default();
        let (mut moved, mut at) = (0, std::ptr::null());
        let piece = Bytes::from(vec![0; 8 * 1024]);
        for _ in 0..10_000_000 / piece.len() {
            let room = gathered.place.capacity();
            gathered.push(piece.clone());
            if room >= LONG && room != gathered.place.capacity() {
                moved += room;
            }
            at = gathered.place.as_ptr();
        }
        assert!(moved <= gathered.len() / 2, "{moved} bytes were copied again");
        assert_eq!(gathered.take().as_ptr(), at);
    }
}
