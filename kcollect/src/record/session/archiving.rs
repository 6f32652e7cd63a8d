//! The end of archiving: what is not copied yet is copied now, until the user gives up, or a
//! service runs out of time.

use std::time::{Duration, Instant};

use host::machine::now;
use host::output::Output;

use super::control::Control;
use crate::record::dispatch::Dispatcher;

/// The time between two looks whether the user has given up.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Max time for one load object. The largest that is copied, 1 GiB, takes this long at 36 MB/s.
const MAX_OBJECT_TIME: Duration = Duration::from_secs(30);
/// Max time for all of it in a service. systemd kills a service that has not exited
/// `TimeoutStopSec` after it was told to stop, and then the experiment is not closed.
const MAX_SERVICE_TIME: Duration = Duration::from_secs(20);

/// Archives what is not archived yet, until a stop is requested or it takes too long.
pub(super) fn finish(dispatcher: &mut Dispatcher, control: &mut Control, output: &mut Output) {
    let began = Instant::now();
    dispatcher.archive_rest(|| control.stop_requested());
    let (mut before, mut since) = (0, Instant::now());
    while let Some(progress) = dispatcher.archiving(POLL_INTERVAL) {
        control.alive(now());
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
        let late = control.is_service() && began.elapsed() > MAX_SERVICE_TIME;
        if late {
            output.say(&format!(
                "Archiving is given up: a service has {} s for it",
                MAX_SERVICE_TIME.as_secs()
            ));
        }
        if stuck || late || control.stop_requested() {
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
