//! Tests of the headers in `c`, of which the pure ones are compiled natively.

mod account;
mod draw;
mod grid;
mod headers;
mod maple;

/// The functions of `c/native.c`, and what they work on.
#[allow(
    non_camel_case_types,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
mod native {
    include!(concat!(env!("OUT_DIR"), "/native.rs"));
}
