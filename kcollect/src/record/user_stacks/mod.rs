//! User stacks: unwound by the BPF programs or here, from what is published to them.

pub(in crate::record) mod copied_code;
pub mod process_stacks;
pub mod publish;
pub mod resolve_stack;
mod unmapped;
pub mod user_stack;
