//! Mappings change while user stacks are unwound, and files are deleted soon, or are on file
//! systems that the kernel and user space describe differently.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tests::command::run;
use tests::experiment::followed::Followed;
use tests::kcollect::{Recording, record};
use tests::machine::{Exclusive, Shared, has_btrfs};
use tests::workload::proctorture::PROCTORTURE;

const LIMIT: Duration = Duration::from_secs(60);

/// What was read of the mappings while another thread changed them is not used: the stack is copied
/// and unwound later, and is as complete as others.
#[test]
fn root_a_thread_that_maps_files_spoils_no_stack_of_another() -> Result<()> {
    let _machine = Shared::take()?;
    let load = [PROCTORTURE, "maps", "deep:40,2000"];
    let recorded = record(&["-p", "hi", "-F", "load"], &load, LIMIT)?;
    let followed = Followed::read(&recorded)?;
    let raced = &followed.json["followed"]["raced_look_ups"];
    ensure!(raced.as_u64() > Some(0), "{raced}");
    let pid = *followed.pids().first().expect("one is followed");
    let process = followed.the(pid)?;
    let table = process.functions(None)?;
    let inclusive = |name: &str| table.find(name).map_or(0.0, |row| row.values[1]);
    let (burned, called) = (inclusive("burn_deep"), inclusive("main"));
    ensure!(
        burned > 0.5 && called >= 0.97 * burned,
        "burn_deep {burned} s, of which main called {called} s; {raced} raced"
    );
    Ok(())
}

/// Returns the number of ticks on a CPU with a user stack, and of those whose stack is complete.
fn on_cpu(followed: &Followed) -> (u64, u64) {
    let ends = followed.json["followed"]["cpu_user_stacks"].as_object();
    let of = |wanted: fn(&str) -> bool| {
        let ends = ends.into_iter().flatten();
        ends.filter(|(end, _)| wanted(end.as_str()))
            .filter_map(|(_, ticks)| ticks.as_u64())
            .sum()
    };
    let all = of(|end| {
        ![
            "via_frame_pointer",
            "via_scan",
            "executing",
            "exiting",
            "user_workers",
        ]
        .contains(&end)
    });
    (all, of(|end| end == "complete"))
}

/// Each program is a new file, runs for some 50 ms, and has exited when its records are applied:
/// its unwind table is begun when its first stack copy comes. While other checks run, many have
/// exited by then too; of those whose copies are applied later, less than half have their stacks.
#[test]
fn root_alone_programs_that_are_gone_at_once_have_their_stacks() -> Result<()> {
    let _machine = Exclusive::take()?;
    let script = "for number in $(seq 16); do cp \"$1\" $2/gone$number; \
                  $2/gone$number deep:40,50; rm $2/gone$number; done";
    let directory = tempfile::tempdir()?;
    let place = directory.path().to_str().context("a path that is text")?;
    let load = ["sh", "-c", script, "sh", PROCTORTURE, place];
    let recorded = record(&["-p", "hi", "-F", "=gone.*"], &load, LIMIT)?;
    let followed = Followed::read(&recorded)?;
    let (all, complete) = on_cpu(&followed);
    ensure!(
        all > 400 && complete as f64 >= 0.75 * all as f64,
        "{complete} of {all} are complete: {}",
        followed.json["followed"]
    );
    Ok(())
}

/// Runs a script in a mount namespace of its own, with a program and a directory, and returns what
/// was recorded of programs called `before` and `after`.
fn recorded_in_mounts(script: &str) -> Result<Followed> {
    let mut recording = Recording::start(["-p", "hi", "-F", "=(before|after)"], LIMIT)?;
    recording.until_running()?;
    let directory = tempfile::tempdir()?;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-ec", script, "sh", PROCTORTURE])
        .arg(directory.path());
    let finished = run(&mut command, LIMIT)?;
    ensure!(finished.status.success(), "{}", finished.stderr);
    Followed::read(&recording.stop()?)
}

/// Checks that all stacks are complete, and that most were unwound in the kernel: it finds the
/// tables although it has other device and inode numbers of the files than user space.
fn kernel_finds_the_tables(followed: &Followed) -> Result<()> {
    let (all, complete) = on_cpu(followed);
    let copies = &followed.json["followed"]["unwound"]["from_copies"];
    ensure!(
        all > 1500 && complete as f64 >= 0.97 * all as f64,
        "{complete} of {all} are complete: {}",
        followed.json["followed"]
    );
    ensure!(
        copies.as_u64().context("no copies")? < all / 2,
        "{copies} of {all} were copied: {}",
        followed.json["followed"]
    );
    Ok(())
}

/// One program runs while an overlay copies its file up; the other is run from the copy, for which
/// user space sees the inode of the lower file.
#[test]
fn root_files_on_an_overlay_have_their_tables() -> Result<()> {
    let _machine = Shared::take()?;
    let followed = recorded_in_mounts(
        "cd \"$2\"; mount -t tmpfs none .; cd \"$2\"; mkdir lower upper work merged; \
         cp \"$1\" lower/before; cp \"$1\" lower/after; \
         mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none merged; \
         merged/before deep:40,1500 & sleep 0.5; chmod 700 merged/before; wait; \
         chmod 700 merged/after; test -e upper/after; merged/after deep:40,1500",
    )?;
    kernel_finds_the_tables(&followed)
}

/// For a file on btrfs, user space alone sees its subvolume's device number. The file system is
/// busy until the program is archived.
#[test]
fn root_files_on_btrfs_have_their_tables() -> Result<()> {
    if !has_btrfs()? {
        return Ok(());
    }
    let _machine = Shared::take()?;
    let followed = recorded_in_mounts(
        "cd \"$2\"; mount -t tmpfs none .; cd \"$2\"; truncate -s 200M image; mkfs.btrfs -q image; \
         mkdir files; mount -o loop image files; btrfs -q subvolume create files/sub; \
         cp \"$1\" files/sub/before; sync; files/sub/before deep:40,2000; \
         for try in $(seq 100); do umount files && break; sleep 0.1; done",
    )?;
    kernel_finds_the_tables(&followed)
}
