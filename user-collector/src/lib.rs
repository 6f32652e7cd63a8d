//! user-collector
