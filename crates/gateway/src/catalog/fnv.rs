//! FNV-1a, a published hash function. It keeps names and cursors the same across builds and releases, which
//! the standard library's hashers do not promise. Do not use it where an attacker could gain from a
//! collision.

pub(crate) struct Fnv(u64);

impl Fnv {
    pub(crate) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) const fn whole(&self) -> u64 {
        self.0
    }

    pub(crate) const fn folded(&self) -> u32 {
        ((self.0 >> 32) ^ (self.0 & 0xffff_ffff)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_function() {
        let mut hash = Fnv::new();
        hash.add(b"foo");
        hash.add(b"bar");
        assert_eq!(hash.whole(), 0x8594_4171_f739_67e8);
    }
}
