//! Source lines of the frames of a model: empty until [`crate::load::lines::add`] fills them.

use std::sync::Arc;

use super::FunctionId;
use crate::symbol::SymbolError;

/// A line of a function, or the part of a function without line numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// The function, possibly an inlined one.
    pub function: FunctionId,
    /// The position in [`SourceLines::files`], and the line from 1. None: no line is known.
    pub at: Option<(u32, u32)>,
}

/// Source lines of the frames of a model.
#[derive(Debug, Default)]
pub struct SourceLines {
    /// Paths of source files, as the compiler was given them.
    pub files: Vec<Arc<str>>,
    /// The lines that frames have, each once.
    pub lines: Vec<SourceLine>,
    /// For each [`super::FrameId`], the position in [`SourceLines::lines`].
    pub of_frames: Vec<u32>,
    /// For each [`super::ObjectId`], why lines are missing.
    pub errors: Vec<Option<SymbolError>>,
}
