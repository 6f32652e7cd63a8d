//! Where an event is counted, and how exact its place has to be: perf's letters after the last
//! colon or slash.

use crate::names::event::Encoding;

/// Letters that perf knows. Those not taken mean how an event is scheduled or which side of a
/// virtual machine is counted.
const PERFS: &str = "ukhpPGHSDWIeb";

/// Where, and how exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modifiers {
    user: bool,
    kernel: bool,
    hypervisor: bool,
    precise: u8,
    most_precise: bool,
}

impl Modifiers {
    /// Letters such as `u`, `kpp`, or none. None: others are among them, or more than three `p`.
    #[must_use]
    pub fn parse(letters: &str) -> Option<Modifiers> {
        let mut modifiers = Modifiers::default();
        for letter in letters.chars() {
            match letter {
                'u' => modifiers.user = true,
                'k' => modifiers.kernel = true,
                'h' => modifiers.hypervisor = true,
                'p' => modifiers.precise += 1,
                'P' => modifiers.most_precise = true,
                _ => return None,
            }
            if modifiers.precise > 3 {
                return None;
            }
        }
        Some(modifiers)
    }

    /// Sets them. `most` is how precise the CPU can be, 0 to 3.
    pub fn apply(&self, encoding: &mut Encoding, most: u8) {
        if self.user || self.kernel || self.hypervisor {
            encoding.user = self.user;
            encoding.kernel = self.kernel;
            encoding.hypervisor = self.hypervisor;
        }
        encoding.precise = match self.most_precise {
            true => most,
            false => self.precise,
        };
    }
}

/// Whether perf takes these for modifiers.
#[must_use]
pub fn look_like(letters: &str) -> bool {
    !letters.is_empty() && letters.chars().all(|letter| PERFS.contains(letter))
}
