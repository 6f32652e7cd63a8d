//! Traced events of chosen processes: a program that counts its own waits, or its own calls, is
//! recorded with exactly these.

mod io;
mod locks;
