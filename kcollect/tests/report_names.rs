//! Names of the functions of a stripped program, in a made experiment: from the debug file next to
//! it, or a description if there is no such file.
#![cfg(target_arch = "x86_64")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests report by panicking too"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use experiment_format::cause::Cause;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{LogHeader, StartTime, System};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::stacks::StackEnd;
use experiment_format::units::{Nanos, Ticks};
use experiment_format::writer::ExperimentWriter;
use object::{Object, ObjectSection};

const SOURCE: &str = "\t.text
\t.globl\tentry
\t.type\tentry, @function
entry:
\tcall\thidden
\tret
\t.size\tentry, .-entry
\t.type\thidden, @function
hidden:
\tcall\tlast
\tret
\t.size\thidden, .-hidden
\t.type\tlast, @function
last:
\tret
\t.size\tlast, .-last
";
/// Positions in the code: the last byte of the calls, as callers are recorded, and the leaf.
const STACK: [u64; 3] = [12, 10, 4];
const START: u64 = 1_000_000_000;

fn run(directory: &Path, command: &str) {
    let mut words = command.split(' ');
    let done = Command::new(words.next().unwrap())
        .args(words)
        .current_dir(directory)
        .status()
        .unwrap();
    assert!(done.success(), "{command}");
}

/// Makes a library, its debug file, and an experiment with a copy of the stripped library.
fn made(directory: &Path) -> PathBuf {
    let commands = [
        "objcopy --only-keep-debug full.so made.so.debug",
        "objcopy --strip-all full.so made.so",
        "objcopy --add-gnu-debuglink=made.so.debug made.so",
    ];
    made_with(directory, &commands)
}

/// Makes the library `full.so`, of it `made.so` by these commands, and an experiment with a copy of
/// that.
fn made_with(directory: &Path, commands: &[&str]) -> PathBuf {
    fs::write(directory.join("made.s"), SOURCE).unwrap();
    run(
        directory,
        "gcc -g -nostdlib -shared -Wl,--build-id=0xabcdef0123456789 -o full.so made.s",
    );
    for command in commands {
        run(directory, command);
    }
    let path = directory.join("made.so");
    let library = fs::read(&path).unwrap();
    let request = NameRequest::Exactly("made.er".into());
    let (dir, _) = ExperimentDir::create(directory, &request, None).unwrap();
    let file = object::File::parse(&*library).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let (file_offset, size) = text.file_range().unwrap();
    let name = path.to_str().unwrap().to_owned();
    dir.archive(&name, &library).unwrap();
    let header = LogHeader {
        collector: "kcollect test".into(),
        system: System {
            hostname: "nowhere".into(),
            arch: "x86_64".into(),
            page_size: 4096,
            pages: 1024,
            cpus: Vec::new(),
        },
        pid: Pid(7),
        command_line: "made".into(),
        profiles: vec![ClockTick::table(10_000)],
        ..LogHeader::default()
    };
    let run = StartTime {
        tstamp_ns: Nanos(START),
        wall_s: 1_795_205_070,
        wall_subsec_ns: 0,
        tm_zone_s: 0,
    };
    let mut writer = ExperimentWriter::create(dir, &header, run).unwrap();
    let vaddr = 0x7f00_0000_1000;
    writer
        .map(&MapEvent::Segment {
            at_ns: Nanos::ZERO,
            vaddr,
            size,
            file_offset,
            modes: READ_EXECUTE,
            name,
        })
        .unwrap();
    let stack = STACK.map(|place| vaddr + place);
    let tick = ClockTick {
        cpu: 0,
        time_ns: Nanos(START + 1_000_000),
        stack: writer.stack(&stack, StackEnd::Complete).unwrap(),
        tid: Tid(7),
        pid: Pid(7),
        state: Microstate::User,
        ticks: Ticks(10),
        detail: 0,
        cause: Cause::Undecided,
        waker: Tid(0),
    };
    writer.tick(&tick).unwrap();
    writer.close(Nanos(2_000_000_000)).unwrap();
    directory.join("made.er")
}

/// The folded stacks, which have all names in one line.
fn folded(directory: &Path) -> String {
    folded_with(directory, &[], &[])
}

/// The same with options and environment variables.
fn folded_with(directory: &Path, options: &[&str], variables: &[(&str, &str)]) -> String {
    let export = [
        "export", "made.er", "--to", "folded", "--by", "nothing", "-o", "-",
    ];
    let text = stdout(directory, &[&export, options].concat(), variables);
    text.lines().next().unwrap_or_default().to_owned()
}

/// Returns what a command prints. It uses the test's cache.
fn stdout(directory: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kcollect"))
        .env_remove("DEBUGINFOD_URLS")
        .env("DEBUGINFOD_CACHE_PATH", directory.join("cache"))
        .envs(variables.iter().copied())
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_stripped_library_has_the_names_of_its_debug_file() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    assert_eq!(folded(tmp.path()), "entry;hidden;last;[user] 100000");
    // Without it, one range without a name follows the exported function.
    let debug = tmp.path().join("made.so.debug");
    let aside = tmp.path().join("aside");
    fs::rename(&debug, &aside).unwrap();
    let described =
        "entry;made.so+0x1006 (0x6 after entry);made.so+0x1006 (0x6 after entry);[user] 100000";
    assert_eq!(folded(tmp.path()), described);
    // A debug file of another build is worse than none.
    fs::rename(&aside, &debug).unwrap();
    run(
        tmp.path(),
        "gcc -g -nostdlib -shared -Wl,--build-id=0xab -o made.so.debug made.s",
    );
    assert_eq!(folded(tmp.path()), described);
}

#[test]
fn a_stripped_library_has_the_names_that_are_compressed_in_it() {
    let tmp = tempfile::tempdir().unwrap();
    made_with(
        tmp.path(),
        &[
            "objcopy --strip-debug full.so mini",
            "xz mini",
            "objcopy --strip-all --add-section .gnu_debugdata=mini.xz full.so made.so",
        ],
    );
    assert_eq!(folded(tmp.path()), "entry;hidden;last;[user] 100000");
}

/// Debian's server of debug files.
struct Debuginfod(Child);

impl Debuginfod {
    /// Starts it on what is in a directory, and waits until it has what is asked for. None: it is
    /// not installed.
    fn start(directory: &Path, path: &str) -> Option<(Debuginfod, String)> {
        // Free again at the end of this statement.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = port.unwrap().port();
        let child = Command::new("debuginfod")
            .args(["-d", ":memory:", "-p", &port.to_string(), "-F"])
            .arg(directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let server = Debuginfod(child.ok()?);
        let begin = Instant::now();
        let asked = || {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).ok()?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).ok()?;
            answer.starts_with(b"HTTP/1.1 200").then_some(())
        };
        while asked().is_none() {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "debuginfod has nothing"
            );
            thread::sleep(Duration::from_millis(50));
        }
        Some((server, format!("http://127.0.0.1:{port}")))
    }
}

impl Drop for Debuginfod {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn names_are_fetched_from_debuginfod() {
    let tmp = tempfile::tempdir().unwrap();
    let served = tempfile::tempdir().unwrap();
    made(tmp.path());
    let debug = tmp.path().join("made.so.debug");
    fs::copy(&debug, served.path().join("made.so.debug")).unwrap();
    fs::remove_file(&debug).unwrap();
    let path = "/buildid/abcdef0123456789/debuginfo";
    let Some((server, url)) = Debuginfod::start(served.path(), path) else {
        eprintln!("unjudged: debuginfod is not installed");
        return;
    };
    let named = "entry;hidden;last;[user] 100000";
    let urls = [("DEBUGINFOD_URLS", &*url)];
    let with = |options: &[&str]| folded_with(tmp.path(), options, &urls);
    assert_ne!(with(&["--no-debuginfod"]), named);
    if nix::unistd::geteuid().is_root() {
        assert_ne!(with(&[]), named);
        assert!(!tmp.path().join("cache").exists());
    }
    assert_eq!(with(&["--debuginfod"]), named);
    assert!(
        tmp.path()
            .join("cache/abcdef0123456789/debuginfo")
            .is_file()
    );
    // Every other command asks for it too.
    for command in [
        &["report", "made.er", "functions"][..],
        &["flame", "made.er", "-o", "-"],
        &["export", "made.er", "--to", "speedscope", "-o", "-"],
    ] {
        let all = |option| stdout(tmp.path(), &[command, &[option]].concat(), &urls);
        assert!(all("--debuginfod").contains("hidden"), "{command:?}");
        assert!(!all("--no-debuginfod").contains("hidden"), "{command:?}");
    }
    // The server has the source where it was compiled, and the client looks elsewhere.
    let elsewhere = format!("{}=/nowhere", tmp.path().display());
    let source = |option: &str| {
        let map = ["--path-map", &elsewhere, option];
        let view = |view: &[&str]| stdout(tmp.path(), &[view, &map].concat(), &urls);
        let lines = view(&["report", "made.er", "lines"]);
        (lines, view(&["report", "made.er", "source", "hidden"]))
    };
    let annotated = |(lines, source): (String, String)| {
        lines.contains("hidden, line 10 in \"made.s\"") && source.contains("call    last")
    };
    assert!(!annotated(source("--no-debuginfod")));
    assert!(
        annotated(source("--debuginfod")),
        "{:?}",
        source("--debuginfod")
    );
    // From the cache, without the server and without the file.
    drop(server);
    fs::remove_file(tmp.path().join("made.s")).unwrap();
    assert_eq!(folded(tmp.path()), named);
    assert_ne!(with(&["--no-debuginfod"]), named);
    assert!(annotated(source("--debuginfod")));
}
