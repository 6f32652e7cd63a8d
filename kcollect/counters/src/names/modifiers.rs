//! Modifiers of an event: perf's letters after the last colon or slash, which select modes and how
//! exact the address of an overflow has to be.

use crate::names::event::Encoding;

/// All letters that perf has. Those not supported here select how an event is scheduled, or the
/// host or guest of a virtual machine.
const PERF_MODIFIERS: &str = "ukhpPGHSDWIeb";

/// The modes in which an event is counted, and its precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modifiers {
    user: bool,
    kernel: bool,
    hypervisor: bool,
    precise: u8,
    max_precise: bool,
}

impl Modifiers {
    /// Parses letters such as `u`, `kpp`, or an empty string. None: another letter, or more than
    /// three `p`.
    #[must_use]
    pub fn parse(letters: &str) -> Option<Modifiers> {
        let mut modifiers = Modifiers::default();
        for letter in letters.chars() {
            match letter {
                'u' => modifiers.user = true,
                'k' => modifiers.kernel = true,
                'h' => modifiers.hypervisor = true,
                'p' => modifiers.precise += 1,
                'P' => modifiers.max_precise = true,
                _ => return None,
            }
            if modifiers.precise > 3 {
                return None;
            }
        }
        Some(modifiers)
    }

    /// Applies them to an event. `max_precise` is the CPU's highest precision, 0 to 3.
    pub fn apply(&self, encoding: &mut Encoding, max_precise: u8) {
        if self.user || self.kernel || self.hypervisor {
            encoding.user = self.user;
            encoding.kernel = self.kernel;
            encoding.hypervisor = self.hypervisor;
        }
        encoding.precise = if self.max_precise {
            max_precise
        } else {
            self.precise
        };
    }
}

/// Whether perf has all these letters as modifiers.
#[must_use]
pub fn are_perf_modifiers(letters: &str) -> bool {
    !letters.is_empty()
        && letters
            .chars()
            .all(|letter| PERF_MODIFIERS.contains(letter))
}
