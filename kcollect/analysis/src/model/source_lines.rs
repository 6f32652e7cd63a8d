//! Source lines of the frames of a model: empty until [`crate::load::lines::add`] fills them.

use std::sync::Arc;

use super::FunctionId;
use crate::symbol::SymbolError;

/// A line of a function, or what of a function has no line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// The function, which may be an inlined one.
    pub function: FunctionId,
    /// Position in [`SourceLines::files`], and the line from 1.
    pub at: Option<(u32, u32)>,
}

/// Source lines of the frames of a model.
#[derive(Debug, Default)]
pub struct SourceLines {
    /// Paths of source files, as the compiler was given them.
    pub files: Vec<Arc<str>>,
    /// The lines that frames have.
    pub lines: Vec<SourceLine>,
    /// By [`FrameId`] the position in [`SourceLines::lines`].
    pub of_frames: Vec<u32>,
    /// By [`ObjectId`], what could not be found out.
    pub lacks: Vec<Option<SymbolError>>,
}
