//! experiment-format
