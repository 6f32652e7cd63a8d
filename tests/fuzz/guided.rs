//! libFuzzer on the same targets, which sees which code an input reached: `make fuzz`.
//!
//! The target is the one that the environment variable `KCOLLECT_FUZZ` names. All else is
//! libFuzzer's: its options, its corpora. It works on stable Rust, whose compiler can count which
//! branches are taken; only that the standard library is not built anew for it.

#![no_main]

mod targets;

use std::sync::LazyLock;

use libfuzzer_sys::{Corpus, fuzz_target};

static TARGET: LazyLock<Option<targets::Target>> = LazyLock::new(|| {
    let name = std::env::var("KCOLLECT_FUZZ").ok()?;
    targets::target(&name)
});

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Some(target) = *TARGET else {
        let known = targets::TARGETS.map(|(name, _)| name);
        eprintln!("KCOLLECT_FUZZ has to be one of {known:?}");
        std::process::exit(64);
    };
    target(bytes);
    Corpus::Keep
});
