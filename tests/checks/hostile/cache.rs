//! The cache of unwind tables, `/var/cache/kcollect`, in a place where another user may rename what
//! is there, and does: nothing is written through a link of theirs, or deleted there, and the
//! recording continues.
//!
//! `/var/cache` is one of this check's own, in a mount namespace of its own.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tests::command::run;
use tests::experiment::opened::opened;
use tests::kcollect::{binary, experiments_in};
use tests::machine::Shared;

const LIMIT: Duration = Duration::from_secs(90);

/// A script that makes root's directory, with a file that kcollect would delete from its own cache:
/// it is too large, and old.
const VICTIM: &str = "\
    mount -t tmpfs -o mode=0777 none /var/cache && cd /var/cache && mkdir victim && \
    touch victim/.new-old && truncate -s 300M victim/none-$(printf %064d 0) && \
    touch -d 2001-01-01 victim/.new-old victim/none-* || exit 1";

/// The other user's script, which runs until all is over: it moves the directory that kcollect has
/// made away and puts a link in its place, or a link, a file or a directory of its own before that.
/// In every fourth round the place is free until kcollect has made its directory, for a second at
/// most, which is longer than a recording.
const RACE: &str = "\
    chdir '/var/cache'; my $n = 0; sub pause { select(undef, undef, undef, $_[0]) } \
    until (-e 'over') { \
        pause(0.0002 * ($n++ % 8)); \
        if ($n % 4 == 1) { for (1..5000) { last if -e 'kcollect' || -e 'over'; pause(0.0002) } } \
        rename('kcollect', \"old$n\"); symlink('victim', 'kcollect'); pause(0.01); \
        unlink 'kcollect'; \
        if ($n % 4 == 3) { mkdir 'kcollect', 0777; pause(0.001); rmdir 'kcollect' } \
        if ($n % 4 == 2) { open(my $file, '>', 'kcollect'); pause(0.001); unlink 'kcollect' } \
    }";

/// A script that runs kcollect a few times, and prints what is in root's directory at the end, and
/// how often kcollect had made its own.
const RUNS: &str = "\
    setpriv --reuid=65534 --regid=65534 --clear-groups perl -e \"$1\" & \
    for run in 1 2 3; do (cd \"$2\" && \"$0\" -p on -F on -A off -t 0.3) || failed=1; done; \
    touch over; wait; ls -A victim; echo \"made $(ls -d old* | wc -l)\"; exit ${failed:-0}";

#[test]
fn root_another_user_cannot_redirect_the_cache() -> Result<()> {
    let _machine = Shared::take()?;
    let directory = tempfile::tempdir()?;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &format!("{VICTIM}\n{RUNS}")])
        .arg(binary()?)
        .arg(RACE)
        .arg(directory.path());
    let finished = run(&mut command, LIMIT)?.succeeded()?;
    let lines: Vec<&str> = finished.stdout.lines().collect();
    let victim = format!("none-{:064}", 0);
    let at = lines.iter().position(|line| *line == ".new-old");
    let at = at.with_context(|| format!("a file of root's was deleted: {finished}"))?;
    let left = &lines[at..];
    ensure!(
        left.len() == 3 && left[1] == victim,
        "root's directory was written to: {left:?}"
    );
    ensure!(left[2] != "made 0", "nothing was tried: {finished}");
    let experiments = experiments_in(directory.path())?;
    ensure!(experiments.len() == 3, "{experiments:?}");
    for experiment in experiments {
        ensure!(opened(&experiment)?.closed, "{}", experiment.display());
    }
    Ok(())
}
