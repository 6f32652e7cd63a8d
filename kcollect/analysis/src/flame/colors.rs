//! The colours of frames: a hue for the kind of code, a shade for the name, the same in every
//! picture.

use inferno::flamegraph::color::{Color, PaletteMap};

use crate::export::folded::{Folded, state_frame};
use crate::model::{Model, ObjectKind, STATE_SLOTS};

/// The colours of states, by position in sums: warm on a CPU, brown in page faults, cold when
/// blocked, but striking for locks and waits for a CPU, which are what people look for.
const STATE_COLORS: [Color; STATE_SLOTS] = [
    rgb(255, 130, 40),
    rgb(90, 140, 230),
    rgb(120, 90, 190),
    rgb(196, 160, 110),
    rgb(176, 132, 80),
    rgb(150, 104, 56),
    rgb(226, 60, 130),
    rgb(176, 196, 206),
    rgb(236, 60, 50),
    rgb(120, 120, 120),
    rgb(255, 130, 40),
    rgb(90, 140, 230),
    rgb(200, 200, 200),
];

const fn rgb(r: u8, g: u8, b: u8) -> Color {
    Color { r, g, b }
}

/// Returns a name's shade: FNV-1a, folded to 8 bits.
fn shade(name: &str) -> u8 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    let hash = name.bytes().fold(2_166_136_261, step);
    (hash ^ (hash >> 8) ^ (hash >> 16) ^ (hash >> 24)) as u8
}

/// Returns `from` plus the part of `by` that a shade selects.
fn lift(from: u8, by: u8, shade: u8) -> u8 {
    from + (u16::from(by) * u16::from(shade) / 255) as u8
}

/// Returns the colours of all frames that stacks can have.
pub(super) fn palette(model: &Model, folded: &Folded<'_>) -> PaletteMap {
    let mut palette = PaletteMap::default();
    // The frame of everything.
    palette.insert("", rgb(190, 190, 196));
    for frame in folded.below().iter().flat_map(|below| below.split(';')) {
        let grey = lift(196, 36, shade(frame));
        palette.insert(frame, rgb(grey, grey, grey.saturating_add(8)));
    }
    for (function, name) in model.functions.iter().zip(folded.functions()) {
        let shade = shade(name);
        let color = match model.object(function.object).kind {
            _ if function.kernel => rgb(lift(120, 50, shade), lift(170, 45, shade), 240),
            ObjectKind::File => rgb(
                lift(240, 15, shade),
                lift(150, 75, shade),
                lift(60, 40, shade),
            ),
            ObjectKind::Dynamic => rgb(lift(120, 50, shade), 210, lift(100, 50, shade)),
            ObjectKind::Special => rgb(220, 220, 220),
        };
        palette.insert(name, color);
    }
    for (slot, color) in STATE_COLORS.into_iter().enumerate() {
        palette.insert(state_frame(slot), color);
    }
    palette
}
