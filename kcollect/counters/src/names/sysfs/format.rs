//! Where the fields of a PMU's events lie: the files of `/sys/bus/event_source/devices/PMU/format`.
//!
//! A file says a word of `perf_event_attr` and the bits of it, the lowest bits of the value first:
//! `config:0-7,32-35`, `config1:0-15`, `config:23`
//! (Documentation/ABI/testing/sysfs-bus-event_source-devices-format). Numbers beyond the word, and
//! words that came after `config3`, are not understood, and are never guessed.

/// The words of `perf_event_attr` that a PMU's fields lie in: `config`, `config1`, `config2`,
/// `config3`.
pub type Words = [u64; 4];

/// The names of [`Words`].
pub const WORDS: [&str; 4] = ["config", "config1", "config2", "config3"];

/// One field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// An index into [`Words`].
    word: usize,
    /// The bits of the word, each by its number, in the order in which they take the bits of a
    /// value.
    bits: Vec<u8>,
}

impl Field {
    /// What a file of `format/` says. None: not understood.
    #[must_use]
    pub fn parse(text: &str) -> Option<Field> {
        let (word, ranges) = text.trim().split_once(':')?;
        let word = WORDS.iter().position(|name| *name == word)?;
        let mut bits = Vec::new();
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u8, u8) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || last > 63 {
                return None;
            }
            bits.extend(first..=last);
        }
        (bits.len() <= 64).then_some(Field { word, bits })
    }

    /// The largest value that fits.
    #[must_use]
    pub fn most(&self) -> u64 {
        // A field has 1 to 64 bits.
        u64::MAX >> (64 - self.bits.len())
    }

    /// Writes `value`, which fits, over what the field was before.
    pub fn set(&self, words: &mut Words, value: u64) {
        let word = &mut words[self.word];
        for (at, bit) in self.bits.iter().enumerate() {
            *word &= !(1 << bit);
            *word |= (value >> at & 1) << bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(text: &str, value: u64) -> Words {
        let mut words = [0; 4];
        Field::parse(text).unwrap().set(&mut words, value);
        words
    }

    #[test]
    fn fields_in_one_and_more_ranges() {
        assert_eq!(set("config:0-7", 0x3c), [0x3c, 0, 0, 0]);
        assert_eq!(set("config:8-15\n", 0x4f), [0x4f00, 0, 0, 0]);
        assert_eq!(set("config:0-7,32-35", 0x1c7), [0x1_0000_00c7, 0, 0, 0]);
        assert_eq!(
            set("config:0-7,32-35,59-60", 0x3fff),
            [0x1800_000f_0000_00ff, 0, 0, 0]
        );
        assert_eq!(set("config:21", 1), [1 << 21, 0, 0, 0]);
        assert_eq!(set("config1:0-63", u64::MAX), [0, u64::MAX, 0, 0]);
        assert_eq!(set("config2:0-11", 0x123), [0, 0, 0x123, 0]);
        assert_eq!(set("config3:0-63", 5), [0, 0, 0, 5]);
    }

    #[test]
    fn a_value_takes_the_place_of_the_one_before() {
        let field = Field::parse("config1:0-15").unwrap();
        let mut words = [7, 0xffff_0003, 7, 7];
        field.set(&mut words, 30);
        assert_eq!(words, [7, 0xffff_001e, 7, 7]);
    }

    #[test]
    fn what_is_not_understood() {
        for text in [
            "",
            "config",
            "config:",
            "config:x",
            "config:7-0",
            "config:64",
            "config:0-64",
            "config4:0-7",
            "config:0-63,0",
            "conf:0",
        ] {
            assert_eq!(Field::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "config[0-5]?:([0-9]{0,3}[-,]?){0,6}|\\PC*", value: u64) {
            if let Some(field) = Field::parse(&text) {
                let mut words = [0; 4];
                field.set(&mut words, value & field.most());
                prop_assert!(field.most() > 0);
            }
        }
    }
}
