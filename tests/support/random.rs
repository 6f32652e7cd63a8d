//! Pseudo-random numbers that are the same everywhere, for checks that can be repeated.

/// SplitMix64, a small generator; its seed.
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The next number, of 64 bits.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below a limit; 0 where that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.any() % limit.max(1)
    }
}
