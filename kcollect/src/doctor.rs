//! What this machine lacks for profiling, and how to cure it.
