//! The program: all of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(kcollect::main(std::env::args_os()))
}
