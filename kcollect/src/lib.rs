//! kcollect
