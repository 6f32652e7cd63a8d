//! The program. Everything is in the library except the allocator, which only a program can choose.

use std::process::ExitCode;

use host::memory::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    ExitCode::from(kcollect::main(std::env::args_os()))
}
