//! Source lines of the frames of a model: empty until [`crate::load::lines::add`] fills them.

use std::sync::Arc;

use super::FunctionId;
use crate::symbol::Lack;

/// A line of a function, or what of a function has no line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Line {
    /// The function, which may be an inlined one.
    pub function: FunctionId,
    /// Position in [`Lines::files`], and the line from 1.
    pub at: Option<(u32, u32)>,
}

/// Source lines of the frames of a model.
#[derive(Debug, Default)]
pub struct Lines {
    /// Paths of source files, as the compiler was given them.
    pub files: Vec<Arc<str>>,
    /// The lines that frames have.
    pub lines: Vec<Line>,
    /// By [`FrameId`] the position in [`Lines::lines`].
    pub of_frames: Vec<u32>,
    /// By [`ObjectId`], what could not be found out.
    pub lacks: Vec<Option<Lack>>,
}
