//! The colours of frames: a hue for the kind of code, a shade for the name, the same in every
//! picture.

use experiment_format::cause::{Cause, WaitKind};
use experiment_format::microstate::Microstate;
use inferno::flamegraph::color::{Color, PaletteMap};

use crate::export::folded::{Folded, state_frame, wait_frame};
use crate::model::{Model, ObjectKind, STATE_SLOTS, WaitReason};
use crate::palette::{LIGHT, rgb};

/// The difference between the lightest and the darkest shade of one kind of code.
const SHADE_RANGE: u8 = 24;

/// Returns the colours of code with their meanings.
pub(super) fn of_code() -> [(Color, &'static str); 3] {
    [
        (color(LIGHT.user), "user code"),
        (color(LIGHT.kernel), "kernel code"),
        (color(LIGHT.jit), "JIT code"),
    ]
}

/// Returns the colour of a state, by its position in sums.
pub(super) fn of_state(slot: usize) -> Color {
    color(LIGHT.states.get(slot).unwrap_or(&LIGHT.other))
}

/// Returns the colour of a wait by its reason. A picture of waits has no states, so the colours are
/// those of states, which differ well: the same where both mean the same.
pub(super) fn of_wait(reason: WaitReason) -> Color {
    let state = match reason {
        WaitReason::Cpu => Microstate::WaitCpu,
        WaitReason::Blocked(cause) => match cause {
            Cause::Lock => Microstate::UserLock,
            Cause::Kernel => Microstate::KernelFault,
            Cause::Device => Microstate::DataFault,
            Cause::Write => Microstate::TextFault,
            Cause::Answer => Microstate::System,
            Cause::Middle => Microstate::User,
            Cause::Child => Microstate::Trap,
            Cause::ThreadEnd => Microstate::Stopped,
            // They are not suffered, and not drawn.
            Cause::Undecided | Cause::Timer | Cause::Outside | Cause::NewWork | Cause::NotEnded => {
                Microstate::Sleep
            }
        },
    };
    of_state(state as usize)
}

/// Returns why threads can suffer, in the order of the legend.
pub(super) fn suffered() -> impl Iterator<Item = WaitReason> {
    WaitReason::all().filter(|reason| reason.kind() == WaitKind::Suffered)
}

fn color(of: &str) -> Color {
    let [r, g, b] = rgb(of);
    Color { r, g, b }
}

/// Returns a name's shade: FNV-1a, folded to 8 bits.
fn shade(name: &str) -> u8 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    let hash = name.bytes().fold(2_166_136_261, step);
    (hash ^ (hash >> 8) ^ (hash >> 16) ^ (hash >> 24)) as u8
}

/// Returns a colour in the shade of a name.
fn shaded(of: &str, name: &str) -> Color {
    let by = (u16::from(SHADE_RANGE) * u16::from(shade(name)) / 255) as u8;
    let part = |value: u8| value.saturating_sub(SHADE_RANGE / 2).saturating_add(by);
    let Color { r, g, b } = color(of);
    Color {
        r: part(r),
        g: part(g),
        b: part(b),
    }
}

/// Returns the colours of all frames that stacks can have.
pub(super) fn palette(model: &Model, folded: &Folded<'_>) -> PaletteMap {
    let mut palette = PaletteMap::default();
    // The root.
    palette.insert("", color(LIGHT.other));
    for frame in folded.below().iter().flat_map(|below| below.split(';')) {
        palette.insert(frame, shaded(LIGHT.other, frame));
    }
    // What woke threads; causes and states get their own colours below.
    for frame in folded.tops().iter().flat_map(|top| top.split(';')) {
        palette.insert(frame, shaded(LIGHT.other, frame));
    }
    for (function, name) in model.functions.iter().zip(folded.functions()) {
        let color = match model.object(function.object).kind {
            _ if function.kernel => LIGHT.kernel,
            ObjectKind::File => LIGHT.user,
            ObjectKind::Dynamic if model.is_jit_code(function) => LIGHT.jit,
            ObjectKind::Dynamic | ObjectKind::Special => LIGHT.other,
        };
        palette.insert(name, shaded(color, name));
    }
    for slot in 0..STATE_SLOTS {
        palette.insert(state_frame(slot), of_state(slot));
    }
    for reason in suffered() {
        palette.insert(wait_frame(reason), of_wait(reason));
    }
    palette
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_suffered_cause_has_a_colour_of_its_own() {
        let colors = suffered().map(|reason| {
            let Color { r, g, b } = of_wait(reason);
            (r, g, b)
        });
        let colors: Vec<_> = colors.collect();
        assert_eq!(colors.iter().collect::<BTreeSet<_>>().len(), colors.len());
        assert_eq!(colors.len(), 9);
    }
}
