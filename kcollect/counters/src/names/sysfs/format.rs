//! The fields of a PMU's events: the files of `/sys/bus/event_source/devices/PMU/format`.
//!
//! A file names a word of `perf_event_attr` and its bits, lowest bits of the value first:
//! `config:0-7,32-35`, `config1:0-15`, `config:23`
//! (Documentation/ABI/testing/sysfs-bus-event_source-devices-format). Bits beyond the word, and
//! words after `config3`, are refused.

/// The words of `perf_event_attr` that hold the fields of a PMU's events: `config`, `config1`,
/// `config2`, `config3`.
pub type ConfigWords = [u64; 4];

/// The names of [`ConfigWords`].
pub const CONFIG_WORDS: [&str; 4] = ["config", "config1", "config2", "config3"];

/// One field of a PMU's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatField {
    /// An index into [`ConfigWords`].
    word: usize,
    /// The bits of the word, by number: the first takes the lowest bit of a value.
    bits: Vec<u8>,
}

impl FormatField {
    /// Parses a file of `format/`. None: not a field known here.
    #[must_use]
    pub fn parse(text: &str) -> Option<FormatField> {
        let (word, ranges) = text.trim().split_once(':')?;
        let word = CONFIG_WORDS.iter().position(|name| *name == word)?;
        let mut bits = Vec::new();
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u8, u8) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || last > 63 {
                return None;
            }
            bits.extend(first..=last);
        }
        (bits.len() <= 64).then_some(FormatField { word, bits })
    }

    /// Returns the largest value that fits.
    #[must_use]
    pub fn max_value(&self) -> u64 {
        // A field has 1 to 64 bits.
        u64::MAX >> (64 - self.bits.len())
    }

    /// Replaces the field by `value`, which has to fit.
    pub fn set(&self, words: &mut ConfigWords, value: u64) {
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

    fn set(text: &str, value: u64) -> ConfigWords {
        let mut words = [0; 4];
        FormatField::parse(text).unwrap().set(&mut words, value);
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
    fn a_value_replaces_the_one_before() {
        let field = FormatField::parse("config1:0-15").unwrap();
        let mut words = [7, 0xffff_0003, 7, 7];
        field.set(&mut words, 30);
        assert_eq!(words, [7, 0xffff_001e, 7, 7]);
    }

    #[test]
    fn bad_fields_are_refused() {
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
            assert_eq!(FormatField::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "config[0-5]?:([0-9]{0,3}[-,]?){0,6}|\\PC*", value: u64) {
            if let Some(field) = FormatField::parse(&text) {
                let mut words = [0; 4];
                field.set(&mut words, value & field.max_value());
                prop_assert!(field.max_value() > 0);
            }
        }
    }
}
