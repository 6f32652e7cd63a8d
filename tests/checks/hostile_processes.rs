//! Processes that make it hard to follow them, by accident or on purpose: under names that are no names, from files that
//! are gone or replaced, with code that moves, is made, or has no tables or lies in them, and out of containers. What can be
//! known of them is right, what can't is marked, and nobody else's stacks suffer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment_format::stacks::StackEnd;
use tests::command::Running;
use tests::followed::{Followed, Sub};
use tests::gprofng;
use tests::kcollect::{Recorded, Recording};
use tests::machine::Exclusive;
use tests::quarry::{
    INSIDE, NARROW, OUTSIDE, QUARRY, SWAPPED, find_word, finish, name_deed, pid, start,
};
use tests::statistics::Band;

const LIMIT: Duration = Duration::from_secs(60);

/// Shares of an interval that the kernel, the C library and the loader have of a quarry's CPU time.
const ELSEWHERE: f64 = 0.06;

/// What the kernel walks at most, frames.
const DEEPEST: usize = 1000;

/// Records what `begin` starts, until all of that has ended.
fn record_all(
    begin: impl FnOnce() -> Result<Vec<Running>>,
) -> Result<(Recorded, Vec<u32>, Vec<String>)> {
    let mut recording = Recording::start(["-p", "hi", "-F", "on"], LIMIT)?;
    recording.until_running()?;
    std::thread::sleep(Duration::from_millis(200));
    let all = begin()?;
    let pids = all.iter().map(pid).collect();
    let said = finish(all)?.into_iter().map(|finished| finished.stdout);
    let said = said.collect();
    std::thread::sleep(Duration::from_millis(150));
    Ok((recording.stop()?, pids, said))
}

/// That so many milliseconds of user time are found, as far as a sample can tell.
fn judge(followed: &Followed, what: &str, ms: u64, ticks: f64) -> Result<()> {
    let expected = ms as f64 * 1e6;
    Band::time(expected, expected, followed.interval_ns)
        .with_edges(ELSEWHERE * expected / followed.interval_ns)
        .judge(what, ticks)
}

/// That so many milliseconds are under a function's own name, by stock gprofng.
fn judge_function(followed: &Followed, sub: &Sub, function: &str, ms: u64) -> Result<()> {
    let table = sub.functions(None)?;
    let ticks = table.get(function) * 1e9 / followed.interval_ns;
    let first: Vec<_> = table.rows.iter().take(6).collect();
    judge(followed, &format!("{function} in {}", sub.name), ms, ticks)
        .with_context(|| format!("{first:?}"))
}

#[test]
fn root_names_that_are_no_names_stay_inside() -> Result<()> {
    let _machine = Exclusive::take()?;
    let names: [&[u8]; 9] = [
        b"/",
        b"..",
        b".",
        b"a\nb",
        b"\"'<&",
        b"-n",
        &[0xff; 15],
        b"",
        b"../../../etc/x",
    ];
    let (recorded, pids, _) = record_all(|| {
        // Under the name from the first instant on: the quarry that does the work is a child.
        let deeds = |name| {
            [
                name_deed(name),
                "fork".into(),
                "say:child".into(),
                "one:80".into(),
            ]
        };
        names
            .iter()
            .map(|name| start(QUARRY, &deeds(name)))
            .collect()
    })?;
    ensure!(pids.len() == names.len());
    let founder = recorded.experiment()?;
    let beside: Vec<_> = fs::read_dir(recorded.directory())?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<_>>()?;
    ensure!(beside.len() == 1, "beside the experiment: {beside:?}");
    let followed = Followed::read(&recorded)?;
    let mut of_names = 0;
    for sub in &followed.subs {
        let stem = sub
            .name
            .strip_suffix(".er")
            .context("a name that ends in .er")?;
        let safe = |character: char| character.is_alphanumeric() || "._-+:@=,".contains(character);
        ensure!(
            stem.starts_with('_') && stem.chars().all(safe),
            "{:?}",
            sub.name
        );
        ensure!(fs::symlink_metadata(&sub.path)?.is_dir(), "{:?}", sub.name);
        ensure!(sub.path.parent() == Some(&*founder), "{:?}", sub.path);
        let (_, burnt) = sub.user_ticks(|object| object == Some(QUARRY));
        of_names += u64::from(burnt as f64 * followed.interval_ns > 60e6);
    }
    ensure!(
        of_names == names.len() as u64,
        "{of_names} children did their work"
    );
    // All of it opens.
    let functions = gprofng::script(&["metrics e.user:i.user:name", "functions"], &founder)?;
    let burnt = functions.content()?.table(2).get("burn_one") * 1e9 / followed.interval_ns;
    let all = 80 * names.len() as u64;
    judge(&followed, "burn_one of all", all, burnt)?;
    followed.lost_nothing()
}

#[test]
fn root_files_that_go_or_are_replaced_are_told_apart() -> Result<()> {
    let _machine = Exclusive::take()?;
    let directory = tempfile::tempdir()?;
    let (program, other) = (
        directory.path().join("program"),
        directory.path().join("other"),
    );
    let deleted = directory.path().join("deleted");
    fs::copy(INSIDE, &program)?;
    fs::copy(OUTSIDE, &other)?;
    fs::copy(INSIDE, &deleted)?;
    let (recorded, pids, _) = record_all(|| {
        let first = start(&program, &["one:500"])?;
        let gone = start(&deleted, &["one:500"])?;
        std::thread::sleep(Duration::from_millis(150));
        fs::rename(&other, &program)?;
        fs::remove_file(&deleted)?;
        Ok(vec![first, gone, start(&program, &["one:500"])?])
    })?;
    let followed = Followed::read(&recorded)?;
    let subs = pids.iter().map(|pid| followed.the(*pid));
    let subs = subs.collect::<Result<Vec<_>>>()?;
    let objects: Vec<String> = subs
        .iter()
        .map(|sub| sub.main_object().context("it has a load object"))
        .collect::<Result<_>>()?;
    ensure!(
        objects[0] != objects[2],
        "two files under one name: {objects:?}"
    );
    ensure!(
        objects[1].starts_with(&*deleted.to_string_lossy()),
        "{objects:?}"
    );
    for (sub, (object, function)) in
        subs.iter().zip(
            objects
                .iter()
                .zip(["burn_inside", "burn_inside", "burn_outside"]),
        )
    {
        let (_, ticks) = sub.user_ticks(|found| found == Some(object));
        judge(&followed, &sub.name, 500, ticks as f64)?;
        if followed.archives(object) {
            judge_function(&followed, sub, function, 500)?;
        }
    }
    Ok(())
}

#[test]
fn root_libraries_that_take_turns_at_an_address_are_told_apart() -> Result<()> {
    const TIMES: u64 = 3000;
    const US: u64 = 200;
    let _machine = Exclusive::take()?;
    let (recorded, pids, said) = record_all(|| {
        let deed = format!("swap:{},{},{TIMES},{US}", SWAPPED[0], SWAPPED[1]);
        Ok(vec![start(QUARRY, &[deed])?])
    })?;
    let followed = Followed::read(&recorded)?;
    let sub = followed.the(pids[0])?;
    let spent = find_word(&said[0], "swapped")?.numbers;
    ensure!(
        spent[2] == 2 * TIMES,
        "they were not always at one address: {spent:?}"
    );
    // The leaf: by time.
    let table = sub.functions(None)?;
    let whole: u64 = spent[..2].iter().sum();
    for (function, ns) in ["leaf_one", "leaf_two"].into_iter().zip(&spent) {
        let ticks = table.get(function) * 1e9 / followed.interval_ns;
        Band::time(*ns as f64, whole as f64, followed.interval_ns)
            .with_edges(ELSEWHERE * *ns as f64 / followed.interval_ns)
            .judge(function, ticks)?;
    }
    // And no function of the one calls one of the other.
    for (caller, other) in [("middle_one", "leaf_two"), ("middle_two", "leaf_one")] {
        let filter = format!("(FNAME(\"{caller}\") SOME IN STACK)");
        let table = sub.functions(Some(&filter))?;
        ensure!(
            table.get(other) == 0.0,
            "{caller} calls {other}: {:?}",
            table.find(other)
        );
    }
    let mixed = sub.stays.iter().filter(|stay| {
        let of = |library: &str| {
            stay.objects
                .iter()
                .flatten()
                .any(|object| object == library)
        };
        of(SWAPPED[0]) && of(SWAPPED[1])
    });
    ensure!(mixed.count() == 0, "stacks with frames in both");
    let ends = followed.ends(sub)?;
    let complete = ends.get("complete").copied().unwrap_or(0);
    eprintln!(
        "of {} ticks {ends:?}; losses {}",
        sub.ticks(),
        followed.json["followed"]["losses"]
    );
    ensure!(complete > 0, "{ends:?}");
    Ok(())
}

#[test]
fn root_code_without_files_tables_or_stacks() -> Result<()> {
    let _machine = Exclusive::take()?;
    let (recorded, pids, said) = record_all(|| {
        [
            (QUARRY, &["two:600"][..]),
            (QUARRY, &["moved:200"]),
            (QUARRY, &["memory", "one:200"]),
            (QUARRY, &["jit:200"]),
            (QUARRY, &["jitfp:200"]),
            (NARROW, &["one:200"]),
            (QUARRY, &["deep:20000,400"]),
            (QUARRY, &["nowhere:200"]),
            (QUARRY, &["one:200", "die"]),
            (QUARRY, &["space", "say:inside", "one:200"]),
        ]
        .into_iter()
        .map(|(program, deeds)| start(program, deeds))
        .collect()
    })?;
    let followed = Followed::read(&recorded)?;
    let the = |index: usize| followed.the(pids[index]);
    let (ordinary, moved, memory, narrow) = (the(0)?, the(1)?, the(2)?, the(5)?);

    judge_function(&followed, ordinary, "burn_two", 600)?;
    let ends = followed.ends(ordinary)?;
    let complete = ends.get("complete").copied().unwrap_or(0) as f64;
    ensure!(
        complete >= 0.97 * ordinary.ticks() as f64,
        "the ordinary one's stacks: {ends:?}"
    );

    // The kernel tells nobody that a mapping moves: nothing is known of the new place, and nothing wrong is said.
    judge_function(&followed, moved, "<Unknown>", 200)?;
    for index in [3, 4] {
        judge_function(&followed, the(index)?, "<Unknown>", 200)?;
    }
    // Called with a frame pointer, code without a file has its callers.
    let called = the(4)?.functions(None)?;
    let inclusive = called.find("call_made").map_or(0.0, |row| row.values[1]);
    judge(
        &followed,
        "callers of jitfp",
        200,
        inclusive * 1e9 / followed.interval_ns,
    )?;

    let object = memory
        .main_object()
        .context("the program in memory has a load object")?;
    ensure!(object.starts_with("/memfd:quarry"), "{object}");
    if followed.archives(&object) {
        judge_function(&followed, memory, "burn_one", 200)?;
    }
    judge_function(&followed, narrow, "burn_narrow", 200)?;

    let deep = the(6)?;
    judge_function(&followed, deep, "burn_deep", 400)?;
    let ends = followed.ends(deep)?;
    let cut = ends.get("deep").copied().unwrap_or(0);
    let (user, _) = deep.user_ticks(|_| true);
    ensure!(
        cut as f64 >= 0.5 * user as f64,
        "of {user} ticks at the bottom: {ends:?}"
    );
    for stay in &deep.stays {
        ensure!(stay.frames <= DEEPEST, "{} frames", stay.frames);
        ensure!(
            stay.frames < DEEPEST || stay.end == StackEnd::Truncated,
            "{stay:?}"
        );
    }
    let table = deep.functions(None)?;
    let truncated = table
        .find("<Truncated-stack>")
        .map_or(0.0, |row| row.values[1]);
    ensure!(truncated > 0.15, "<Truncated-stack> {truncated} s");

    judge_function(&followed, the(7)?, "spin_nowhere", 200)?;
    let killed = the(8)?;
    judge_function(&followed, killed, "burn_one", 200)?;
    ensure!(killed.end_ns.is_some(), "{} is not closed", killed.name);

    // By the machine's numbers, not by its own.
    let inside = find_word(&said[9], "inside")?.pid;
    ensure!(inside == 1, "it is number {inside} in its namespace");
    let outside = find_word(&said[9], "space")?.pid;
    judge_function(&followed, followed.the(outside)?, "burn_one", 200)?;
    followed.lost_nothing()
}

#[test]
fn root_tables_that_lie_harm_nobody_else() -> Result<()> {
    let _machine = Exclusive::take()?;
    let directory = tempfile::tempdir()?;
    let programs = variants(directory.path())?;
    let (recorded, pids, _) = record_all(|| {
        let mut all = vec![start(QUARRY, &["two:800"])?];
        for program in programs.keys() {
            all.push(start(program, &["one:80"])?);
        }
        Ok(all)
    })?;
    let followed = Followed::read(&recorded)?;
    let ordinary = followed.the(pids[0])?;
    judge_function(&followed, ordinary, "burn_two", 800)?;
    let ends = followed.ends(ordinary)?;
    let complete = ends.get("complete").copied().unwrap_or(0) as f64;
    ensure!(
        complete >= 0.97 * ordinary.ticks() as f64,
        "the ordinary one's stacks: {ends:?}"
    );
    for (pid, (program, what)) in pids[1..].iter().zip(&programs) {
        let sub = followed.the(*pid)?;
        let (_, burnt) =
            sub.user_ticks(|object| object.is_some_and(|object| Path::new(object) == program));
        judge(&followed, what, 80, burnt as f64)?;
        ensure!(
            sub.stays.iter().all(|stay| stay.frames <= DEEPEST),
            "{what}: too deep a stack"
        );
    }
    let peak = followed.json["cost"]["peak_rss_bytes"]
        .as_u64()
        .context("a peak")?;
    ensure!(peak < 256 << 20, "{peak} bytes");
    followed.lost_nothing()
}

#[test]
fn root_a_container_has_its_own_files_and_numbers() -> Result<()> {
    let _machine = Exclusive::take()?;
    let (host, root) = (tempfile::tempdir()?, tempfile::tempdir()?);
    // The container's own root is for everybody, as its user is nobody outside.
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755))?;
    let inside = |path: &Path| -> Result<_> { Ok(root.path().join(path.strip_prefix("/")?)) };
    let (fixed, linked) = (host.path().join("fixed"), host.path().join("linked"));
    fs::create_dir_all(inside(host.path())?)?;
    fs::copy(INSIDE, inside(&fixed)?)?;
    fs::copy(QUARRY, inside(&linked)?)?;
    // The host has other files there.
    fs::copy(OUTSIDE, &fixed)?;
    fs::copy(OUTSIDE, &linked)?;
    for library in libraries()? {
        let to = inside(Path::new(&library))?;
        fs::create_dir_all(to.parent().context("a library has a directory")?)?;
        fs::copy(&library, to)?;
    }
    let enter = format!("root:{}", root.path().display());
    let (recorded, pids, said) = record_all(|| {
        let exec = |program: &Path| format!("exec:{}", program.display());
        let deeds = |program, rest: &str| {
            [
                enter.clone(),
                "space".into(),
                exec(program),
                rest.to_owned(),
            ]
        };
        Ok(vec![
            start(QUARRY, &deeds(&fixed, "one:400"))?,
            start(QUARRY, &deeds(&linked, "two:400"))?,
            start(&fixed, &["one:400"])?,
        ])
    })?;
    let followed = Followed::read(&recorded)?;
    let outside = |said: &str| anyhow::Ok(find_word(said, "space")?.pid);
    let pids = [outside(&said[0])?, outside(&said[1])?, pids[2]];
    let mut names = BTreeSet::new();
    for (pid, function) in pids
        .into_iter()
        .zip(["burn_inside", "burn_two", "burn_outside"])
    {
        let sub = followed.the(pid)?;
        let object = sub
            .main_object()
            .with_context(|| format!("{} has a load object", sub.name))?;
        let (_, ticks) = sub.user_ticks(|found| found == Some(&object));
        judge(
            &followed,
            &format!("{object} in {}", sub.name),
            400,
            ticks as f64,
        )?;
        if followed.archives(&object) {
            judge_function(&followed, sub, function, 400)?;
        }
        let ends = followed.ends(sub)?;
        let complete = ends.get("complete").copied().unwrap_or(0) as f64;
        ensure!(
            complete >= 0.9 * sub.ticks() as f64,
            "{function}: {ends:?} of {}",
            sub.ticks()
        );
        names.insert(object);
    }
    ensure!(
        names.len() == 3,
        "the container's files and the host's are {names:?}"
    );
    Ok(())
}

/// The files that a quarry maps for execution and that are no part of it: the loader and the C library.
fn libraries() -> Result<BTreeSet<String>> {
    let mut quarry = start(QUARRY, &["sleep:5000"])?;
    let maps = format!("/proc/{}/maps", quarry.pid());
    let mut found = BTreeSet::new();
    quarry.until("its libraries", || {
        let maps = fs::read_to_string(&maps).unwrap_or_default();
        found = maps
            .lines()
            .filter_map(|line| Some(line[line.find('/')?..].to_owned()))
            .filter(|path| path != QUARRY)
            .collect();
        found.iter().any(|path| path.contains("libc"))
    })?;
    // The loader is asked for by the name in the program.
    found.insert("/lib64/ld-linux-x86-64.so.2".to_owned());
    for name in found.clone() {
        if let Some(name) = name.rsplit('/').next() {
            found.insert(format!("/lib/x86_64-linux-gnu/{name}"));
        }
    }
    found.retain(|path| Path::new(path).exists());
    Ok(found)
}

/// Copies of the quarry whose frame information is not what it should be, and what is wrong with each.
fn variants(directory: &Path) -> Result<BTreeMap<std::path::PathBuf, String>> {
    let good = fs::read(QUARRY)?;
    let elf = Elf::of(&good).context("the quarry is an ELF file")?;
    let frames = elf
        .section(&good, ".eh_frame")
        .context("it has .eh_frame")?;
    let index = elf
        .section(&good, ".eh_frame_hdr")
        .context("it has .eh_frame_hdr")?;
    let (at, size) = (frames.offset(&good), frames.size(&good));
    let mut made = BTreeMap::new();
    let mut make = |what: &str, change: &dyn Fn(&mut Vec<u8>)| -> Result<()> {
        let mut bytes = good.clone();
        change(&mut bytes);
        let path = directory.join(what.replace(' ', "-"));
        fs::write(&path, bytes)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        made.insert(path, what.to_owned());
        Ok(())
    };
    make("frames of noise", &|bytes| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for byte in &mut bytes[at..at + size] {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            *byte = state.to_be_bytes()[0];
        }
    })?;
    make("frames of ones", &|bytes| bytes[at..at + size].fill(0xff))?;
    make("frames cut in the middle", &|bytes| {
        bytes[at + size / 2 + 3..at + size].fill(0);
        frames.set_size(bytes, (size / 2 + 3) as u64);
    })?;
    make("an entry of four gigabytes", &|bytes| {
        bytes[at..at + 4].copy_from_slice(&0xffff_fff0_u32.to_le_bytes());
    })?;
    make("an entry of many exabytes", &|bytes| {
        bytes[at..at + 4].fill(0xff);
        bytes[at + 4..at + 12].copy_from_slice(&(u64::MAX - 16).to_le_bytes());
    })?;
    make("entries that point at themselves", &|bytes| {
        let mut place = at;
        while place + 8 <= at + size {
            let length = u32::from_le_bytes(bytes[place..place + 4].try_into().unwrap_or_default());
            if length == 0 || length as usize > size {
                break;
            }
            bytes[place + 4..place + 8].copy_from_slice(&4_u32.to_le_bytes());
            place += 4 + length as usize;
        }
    })?;
    make("a section without end", &|bytes| {
        frames.set_size(bytes, u64::MAX)
    })?;
    make("a section beyond the file", &|bytes| {
        frames.set_offset(bytes, 1 << 40)
    })?;
    make("a section over the headers", &|bytes| {
        frames.set_offset(bytes, 0);
        let all = bytes.len() as u64;
        frames.set_size(bytes, all);
    })?;
    make("an index of its own frames", &|bytes| {
        let (offset, size) = (frames.offset(bytes) as u64, frames.size(bytes) as u64);
        index.set_offset(bytes, offset);
        index.set_size(bytes, size);
    })?;
    make("no section at all", &|bytes| {
        // e_shoff, e_shnum and e_shstrndx.
        bytes[0x28..0x30].copy_from_slice(&u64::MAX.to_le_bytes());
        bytes[0x3c..0x40].fill(0xff);
    })?;
    Ok(made)
}

/// The section headers of an ELF file of 64 bits.
struct Elf {
    first: usize,
    count: usize,
    names: usize,
}

/// One of them: where it is.
#[derive(Clone, Copy)]
struct Section(usize);

impl Elf {
    fn of(bytes: &[u8]) -> Option<Elf> {
        let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        Some(Elf {
            first: number(bytes, 0x28)?,
            count: half(0x3c)?.into(),
            names: half(0x3e)?.into(),
        })
    }

    fn at(&self, index: usize) -> Section {
        const HEADER: usize = 64;
        Section(self.first + HEADER * index)
    }

    fn section(&self, bytes: &[u8], name: &str) -> Option<Section> {
        let names = self.at(self.names).offset(bytes);
        (0..self.count).map(|index| self.at(index)).find(|section| {
            let place = bytes
                .get(section.0..section.0 + 4)
                .and_then(|word| word.try_into().ok());
            let start = names + place.map_or(0, |word| u32::from_le_bytes(word) as usize);
            let rest = bytes.get(start..).unwrap_or_default();
            rest.starts_with(name.as_bytes()) && rest.get(name.len()) == Some(&0)
        })
    }
}

impl Section {
    const OFFSET: usize = 0x18;
    const SIZE: usize = 0x20;

    fn offset(self, bytes: &[u8]) -> usize {
        number(bytes, self.0 + Self::OFFSET).unwrap_or(0)
    }

    fn size(self, bytes: &[u8]) -> usize {
        number(bytes, self.0 + Self::SIZE).unwrap_or(0)
    }

    fn set_offset(self, bytes: &mut [u8], value: u64) {
        let place = self.0 + Self::OFFSET;
        bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn set_size(self, bytes: &mut [u8], value: u64) {
        let place = self.0 + Self::SIZE;
        bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
    }
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
    usize::try_from(u64::from_le_bytes(bytes)).ok()
}
