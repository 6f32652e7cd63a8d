//! Traced events of chosen processes: a program that counts its own waits is recorded with exactly
//! these.

mod locks;
