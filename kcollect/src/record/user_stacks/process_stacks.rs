//! What a process has mapped, and what its user stacks wait for.

use experiment_format::units::Nanos;
use user_collector::space::AddressSpace;

use super::copied_code::AnonymousCode;
use super::unmapped::UnmappedStacks;

/// The state of a process that its user stacks need.
#[derive(Debug, Default)]
pub struct ProcessStacks {
    /// What it has mapped.
    pub space: AddressSpace,
    /// Stacks with an address in no known mapping, once there was one.
    pub(in crate::record) unmapped: Option<Box<UnmappedStacks>>,
    /// The search for code that was copied to its anonymous memory, once stacks were there.
    pub(in crate::record) anonymous: Option<Box<AnonymousCode>>,
}

impl ProcessStacks {
    /// The state of a child that the process forks: a copy of its address space.
    #[must_use]
    pub fn fork(&self, at_ns: Nanos) -> ProcessStacks {
        ProcessStacks {
            space: self.space.fork(at_ns),
            ..ProcessStacks::default()
        }
    }
}
