//! The end of archiving: what is not copied yet is copied now, until the user gives up on it.

use std::time::{Duration, Instant};

use host::output::Output;

use super::dispatch::Dispatcher;

/// The time between two looks whether the user has given up.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The longest that one load object may take. The largest that is copied, 1 GiB, takes so long at
/// 36 MB/s.
const MAX_OBJECT_TIME: Duration = Duration::from_secs(30);

/// Archives what is not archived yet, unless the user gives up on that, or a file takes too long.
pub(super) fn finish(
    dispatcher: &mut Dispatcher,
    mut give_up: impl FnMut() -> bool,
    output: &mut Output,
) {
    dispatcher.archive_rest(&mut give_up);
    let (mut before, mut since) = (0, Instant::now());
    while let Some(progress) = dispatcher.archiving(POLL_INTERVAL) {
        if progress.left != before {
            (before, since) = (progress.left, Instant::now());
        }
        let stuck = since.elapsed() > MAX_OBJECT_TIME;
        if stuck {
            output.say(&format!(
                "Archiving is given up: one load object has taken {} s, as on a file system that does not answer",
                MAX_OBJECT_TIME.as_secs()
            ));
        }
        if stuck || give_up() {
            dispatcher.give_up_archiving();
            break;
        }
        output.progress(|| {
            let (done, all) = (progress.done, progress.all);
            format!("archiving {done} of {all} load objects  (Ctrl-C gives up)")
        });
    }
    output.end_progress();
    let Some(archived) = dispatcher.archived() else {
        return;
    };
    if archived.bytes > 0 {
        output.say(&format!(
            "Archived with it: {} load objects and {} sources of processes, {:.1} MB",
            archived.objects,
            archived.sources,
            archived.bytes as f64 / 1e6
        ));
    }
    if let missing @ 1.. = archived.left_out.len() {
        output.say(&format!(
            "{missing} load object{} of processes not archived: the experiment's log names them",
            if missing == 1 { "" } else { "s" },
        ));
    }
}
