//! Positions in the vectors of a [`Model`].

#[cfg(doc)]
use super::Model;

/// Types of positions in the vectors of a [`Model`].
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the position.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// Position in [`Model::experiments`].
    ExperimentId;
    /// Position in [`Model::processes`].
    ProcessId;
    /// Position in [`Model::threads`].
    ThreadId;
    /// Position in [`Model::cpus`].
    CpuId;
    /// Position in [`Model::objects`].
    ObjectId;
    /// Position in [`Model::functions`].
    FunctionId;
    /// Position in [`Model::frames`].
    FrameId;
    /// Position in [`Model::files`].
    FileId;
    /// A stack: a node of [`Model::stacks`]. [`StackId::EMPTY`] has no frames; its time is in
    /// totals only.
    StackId;
}

impl StackId {
    /// The stack without frames, the root of the trie.
    pub const EMPTY: StackId = StackId(0);
}
