//! The colours of states and of code, the same in the page and in flame graphs.
//!
//! On-CPU states are warm and strong, waiting ones cooler and weaker, sleep is faint. The ten
//! colours of each theme were moved apart until any two differ by at least 0.09 in Oklab, for
//! normal vision and each kind of dichromacy (Machado's matrices). Code has pale colours, which no
//! state has.

use experiment_format::microstate::Microstate;
use serde::Serialize;

/// The colours of one theme, each as `#rrggbb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Palette {
    /// By the state's number.
    pub states: [&'static str; Microstate::PER_THREAD],
    /// Frames of user code that is in a file.
    pub user: &'static str,
    /// Frames of kernel code.
    pub kernel: &'static str,
    /// Frames of JIT code.
    pub jit: &'static str,
    /// Other frames: processes, marks.
    pub other: &'static str,
}

/// On a light ground; flame graphs have this one.
pub const LIGHT: Palette = Palette {
    states: [
        "#e79d28", "#d54a0d", "#791f50", "#9ecedd", "#68acdd", "#4559a1", "#469a7a", "#e9ecf0",
        "#e9cd94", "#69748f",
    ],
    user: "#f6cfae",
    kernel: "#c5cff5",
    jit: "#f1bcd6",
    other: "#dfe2e6",
};

/// On a dark ground.
pub const DARK: Palette = Palette {
    states: [
        "#fcbc5b", "#e0501d", "#b1467a", "#b4bff2", "#5789db", "#205cb3", "#53bfa1", "#262b33",
        "#b9a358", "#8a8ea5",
    ],
    user: "#69472b",
    kernel: "#3a4579",
    jit: "#6b3553",
    other: "#3a4049",
};

/// Returns the red, green and blue of a colour.
#[must_use]
pub fn rgb(colour: &str) -> [u8; 3] {
    let part = |at: usize| {
        let digits = colour.get(at..at + 2).unwrap_or("00");
        u8::from_str_radix(digits, 16).unwrap_or(0)
    };
    [part(1), part(3), part(5)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_things_have_one_colour() {
        for theme in [LIGHT, DARK] {
            let code = [theme.user, theme.kernel, theme.jit, theme.other];
            let all: BTreeSet<_> = theme.states.into_iter().chain(code).map(rgb).collect();
            assert_eq!(all.len(), 14);
        }
        assert_eq!(rgb("#0a10ff"), [10, 16, 255]);
    }
}
