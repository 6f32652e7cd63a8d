//! `make fuzz`: the same targets under libFuzzer, which sees which code an input reached.
//!
//! The environment variable `KCOLLECT_FUZZ` names the target. Options and corpora are libFuzzer's
//! own. It works on stable Rust, whose compiler can count the branches that are taken, except those
//! of the standard library, which is not rebuilt.

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
