//! The kernel's counts of a process, read by the process itself and by kcollect.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// Counts since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    /// Context switches when it blocked or yielded.
    pub voluntary_switches: u64,
    /// Context switches when it was preempted.
    pub involuntary_switches: u64,
    /// Bytes read, from anything.
    pub read_chars: u64,
    /// Bytes written, to anything.
    pub written_chars: u64,
    /// System calls that read.
    pub read_calls: u64,
    /// System calls that write.
    pub write_calls: u64,
}

/// Maximum that a process counts between its last look at its counts and its end, when it prints,
/// unmaps and exits.
const MAX_AFTER_LAST_READ: Counts = Counts {
    minor_faults: 40,
    major_faults: 5,
    voluntary_switches: 20,
    involuntary_switches: 20,
    read_chars: 10_000,
    written_chars: 10_000,
    read_calls: 20,
    write_calls: 20,
};

impl Counts {
    fn all(&self) -> [(&'static str, u64); 8] {
        [
            ("minor faults", self.minor_faults),
            ("major faults", self.major_faults),
            ("voluntary switches", self.voluntary_switches),
            ("involuntary switches", self.involuntary_switches),
            ("characters read", self.read_chars),
            ("characters written", self.written_chars),
            ("reads", self.read_calls),
            ("writes", self.write_calls),
        ]
    }

    /// Judges kcollect's counts of a process by those that it read shortly before its end.
    ///
    /// # Errors
    /// When one is smaller, or larger by more than the end takes.
    pub fn agree(&self, own: &Counts) -> Result<()> {
        for ((mine, own), more) in self
            .all()
            .iter()
            .zip(own.all())
            .zip(MAX_AFTER_LAST_READ.all())
        {
            ensure!(
                (own.1..=own.1 + more.1).contains(&mine.1),
                "{}: {} by the process, {} by kcollect",
                own.0,
                own.1,
                mine.1
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_and_too_many_are_errors() {
        let own = Counts {
            read_calls: 100,
            ..Counts::default()
        };
        own.agree(&own).unwrap();
        let of = |read_calls| Counts { read_calls, ..own };
        of(120).agree(&own).unwrap();
        assert!(of(99).agree(&own).is_err());
        assert!(of(121).agree(&own).is_err());
    }
}
