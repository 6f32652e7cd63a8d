//! The program: all of it is in the library, but for the allocator, which only a program chooses.

use std::process::ExitCode;

use host::memory::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    ExitCode::from(kcollect::main(std::env::args_os()))
}
