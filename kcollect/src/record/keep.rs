//! Which experiments of a series are removed when another one is complete (`--keep`): the oldest,
//! until the others are within what is to be kept. One that is being read stays.

use std::collections::HashSet;
use std::time::SystemTime;

use experiment_format::directory::{ExperimentDir, Former};
use host::output::Output;

use crate::plan::Keep;

/// Removes what is beyond `keep` of the series whose newest experiment is `newest`.
pub(super) fn remove_oldest(keep: Keep, newest: &ExperimentDir, output: &mut Output) {
    let formers = match newest.formers() {
        Ok(formers) => formers,
        Err(error) => {
            return output.say(&format!("nothing is removed (--keep): {error}"));
        }
    };
    let beyond = beyond(keep, &formers, SystemTime::now());
    for former in formers.into_iter().take(beyond) {
        let name = former.name().to_owned();
        match former.remove() {
            Ok(true) => output.detail(&format!("{name} is removed (--keep)")),
            Ok(false) => output.detail(&format!("{name} is in use and stays for now (--keep)")),
            Err(error) => output.say(&format!("{name} is not removed (--keep): {error}")),
        }
    }
}

/// Returns how many of the experiments, the oldest first, are beyond what is to be kept.
fn beyond(keep: Keep, formers: &[Former], now: SystemTime) -> usize {
    match keep {
        Keep::Age(age) => formers
            .iter()
            .take_while(|former| {
                now.duration_since(former.written)
                    .is_ok_and(|old| old > age)
            })
            .count(),
        Keep::Bytes(most) => {
            // Files are shared: each counts once, with the newest experiment that has it.
            let (mut seen, mut room) = (HashSet::new(), 0u64);
            let kept = formers.iter().rev().take_while(|former| {
                for (file, bytes) in &former.files {
                    if seen.insert(*file) {
                        room = room.saturating_add(*bytes);
                    }
                }
                room <= most
            });
            formers.len() - kept.count()
        }
    }
}
