//! Numbers of the x86-64 ABI: the machine, the size of an address, registers.
//!
//! Registers have DWARF's numbers ("DWARF Register Number Mapping" of the x86-64 psABI).

use object::elf::{EM_X86_64, Machine};

/// `e_machine`.
pub(super) const MACHINE: Machine = EM_X86_64;

/// Bytes of an address.
pub(super) const ADDRESS_SIZE: u8 = 8;

/// The stack pointer, rsp.
pub(super) const SP: u8 = 7;

/// The frame pointer, rbp.
pub(super) const FP: u8 = 6;

/// Number of general registers; theirs are the lower numbers.
pub(super) const GENERAL: u16 = 16;
