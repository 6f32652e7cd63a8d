//! The unwinder, compiled natively, agrees with framehop on every frame of real programs' stacks;
//! where it does not, the program is stepped to find which is right.

mod space;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bpf_abi::unwind::UnwindEnd;
use framehop::x86_64::CacheX86_64;
use tempfile::TempDir;
use tests::workload::traced::{Stop, ThreadRegisters, Traced, Truth};

use space::{Library, Space};
use verdict::{Excuse, Seen, Verdict, judge, odd};

/// The results of one program.
#[derive(Default)]
struct Tally {
    stacks: u64,
    frames: u64,
    true_stacks: u64,
    agreed: u64,
    excused: BTreeMap<Excuse, u64>,
    ends: BTreeMap<UnwindEnd, u64>,
    /// Differences without an excuse, by the frame that was left differently.
    differences: BTreeMap<(Verdict, String), (u64, String)>,
}

/// A program whose stacks are compared, and how it is traced.
struct TracedProgram {
    name: &'static str,
    /// The last thread is traced, not the first.
    last: bool,
    /// Its stacks are made by calls, returns and signals alone.
    followed: bool,
    /// Its C library has no frame information.
    bare: bool,
    /// It is traced for longer, and from its own first instruction too.
    longer: bool,
}

/// Instructions that are stepped from a program's start, how often it is stopped after that, and
/// the instructions that are stepped then.
const FROM_START: u32 = 1500;
const ROUNDS: u32 = 12;
const STEPS: u32 = 500;
/// Factor for programs that are watched for longer: a round of the odd frames.
const LONG_WATCH_FACTOR: u32 = 10;
/// Maximum time that rounds are begun for one program.
const MAX_ROUNDS_TIME: Duration = Duration::from_secs(2);
/// More instructions than the dynamic linker executes for a small program.
const MAX_LINKING_STEPS: u32 = 400_000;

struct Check {
    library: Library,
    cache: CacheX86_64,
    /// The kinds of rule that were met in innermost frames.
    odd: BTreeSet<&'static str>,
}

impl Check {
    fn run(&mut self, program: &TracedProgram, command: &mut Command) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut traced = Traced::start(command)?;
        let mut space = Space::of(&traced, &mut self.library)?;
        let mut truth = Some(Truth::new(&[])).filter(|_| program.followed);
        self.steps(
            &mut traced,
            &mut space,
            &mut truth,
            FROM_START,
            program,
            &mut tally,
        )?;
        if program.longer {
            Self::link(&mut traced, &space, &mut truth)?;
            space = Space::of(&traced, &mut self.library)?;
            self.steps(
                &mut traced,
                &mut space,
                &mut truth,
                LONG_WATCH_FACTOR * STEPS,
                program,
                &mut tally,
            )?;
        }
        traced.seize(program.last, Duration::from_millis(60))?;
        let start = Instant::now();
        for _ in 0..ROUNDS {
            // A busy machine.
            if start.elapsed() > MAX_ROUNDS_TIME {
                break;
            }
            let stop = traced.run_for(Duration::from_millis(7))?;
            ensure!(stop != Stop::Ended, "{} has ended", program.name);
            space = Space::of(&traced, &mut self.library)?;
            let mut truth = None;
            self.steps(
                &mut traced,
                &mut space,
                &mut truth,
                if program.longer {
                    LONG_WATCH_FACTOR * STEPS
                } else {
                    STEPS
                },
                program,
                &mut tally,
            )?;
        }
        Ok(tally)
    }

    /// Through the dynamic linker to the program's own code, without a look.
    fn link(traced: &mut Traced, space: &Space, truth: &mut Option<Truth>) -> Result<()> {
        let own = space.loaded.first().context("no code")?.range.clone();
        for _ in 0..MAX_LINKING_STEPS {
            let before = traced.state()?;
            if own.contains(&before.pc) {
                return Ok(());
            }
            let code = traced.bytes(before.pc, 16);
            ensure!(traced.step()? == Stop::Stopped, "it has not started");
            if let Some(truth) = truth {
                truth.step(&before, &code, &traced.state()?, traced);
            }
        }
        anyhow::bail!("the dynamic linker takes longer than {MAX_LINKING_STEPS} instructions")
    }

    fn steps(
        &mut self,
        traced: &mut Traced,
        space: &mut Space,
        truth: &mut Option<Truth>,
        steps: u32,
        program: &TracedProgram,
        tally: &mut Tally,
    ) -> Result<()> {
        let mut before: Option<(ThreadRegisters, Vec<u8>)> = None;
        let mut unsettled = truth.is_none();
        for _ in 0..steps {
            let state = traced.state()?;
            if let (Some((before, code)), Some(truth)) = (&before, truth.as_mut()) {
                truth.step(before, code, &state, traced);
            }
            if space.at(state.pc).is_none() && state.pc > 4096 {
                *space = Space::of(traced, &mut self.library)?;
            }
            self.look(traced, space, truth, &state, (program, unsettled), tally)?;
            unsettled &= truth.is_none();
            if !program.followed {
                *truth = None;
            }
            before = Some((state, traced.bytes(state.pc, 16)));
            match traced.step()? {
                Stop::Stopped => {}
                Stop::Blocks => {
                    traced.interrupt()?;
                    return Ok(());
                }
                Stop::Ended => anyhow::bail!("it has ended"),
            }
        }
        Ok(())
    }

    fn look(
        &mut self,
        traced: &Traced,
        space: &mut Space,
        truth: &mut Option<Truth>,
        state: &ThreadRegisters,
        (program, unsettled): (&TracedProgram, bool),
        tally: &mut Tally,
    ) -> Result<()> {
        space.stack.renew(traced, state.sp())?;
        let rules = &self.library.rules;
        let ours = space.ours(rules, state, traced);
        let theirs = space.theirs(&mut self.cache, state, traced);
        let known = truth.as_ref().and_then(|truth| truth.frames(state.pc));
        if known.is_none() {
            // A stack that both agree on is taken for the truth.
            *truth = (ours.frames == theirs.frames && ours.end == UnwindEnd::Complete)
                .then(|| Truth::new(&ours.frames[1..]));
        }
        let truth = known;
        let verdict = judge(&ours, &theirs, truth.as_deref());
        tally.stacks += 1;
        tally.frames += ours.frames.len() as u64;
        tally.true_stacks += u64::from(truth.is_some());
        *tally.ends.entry(ours.end).or_default() += 1;
        if truth.is_some() {
            self.odd.extend(odd(space.rule(rules, state.pc), state.pc));
        }
        let seen = Seen {
            ours: &ours,
            theirs: &theirs.frames,
            truth: truth.as_deref(),
            bare: program.bare,
            unsettled,
        };
        if verdict == Verdict::Agreed {
            tally.agreed += 1;
        } else if let Some(excuse) = seen.excuse(verdict, space, rules) {
            *tally.excused.entry(excuse).or_default() += 1;
        } else {
            let other = match verdict {
                Verdict::Ours | Verdict::Unknown => &theirs.frames,
                _ => truth.as_ref().unwrap_or(&theirs.frames),
            };
            let same = ours
                .frames
                .iter()
                .zip(other)
                .take_while(|(a, b)| a == b)
                .count();
            let callee = ours.frames[same.max(1) - 1];
            let key = (
                verdict,
                format!("{:?} {}", ours.end, space.name(rules, callee)),
            );
            let detail = || {
                format!(
                    "at frame {same}; pc {:#x}, sp {:#x}\n ours   {:x?} {:?}\n theirs {:x?} {}\n truth  {:x?}",
                    state.pc,
                    state.sp(),
                    ours.frames,
                    ours.end,
                    theirs.frames,
                    theirs.complete,
                    truth
                )
            };
            tally
                .differences
                .entry(key)
                .or_insert_with(|| (0, detail()))
                .0 += 1;
        }
        Ok(())
    }
}

/// The workloads that are compiled here, if there is a compiler for them.
fn compile(
    directory: &Path,
    name: &str,
    compiler: &str,
    flags: &str,
    source: &str,
) -> Option<Command> {
    let program = directory.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("workloads")
        .join(source);
    let mut command = Command::new(compiler);
    command.env("GOCACHE", directory.join("go-cache"));
    command.args(flags.split_whitespace());
    command.arg("-o").arg(&program).arg(source);
    match command.output() {
        Ok(output) if output.status.success() => Some(Command::new(program)),
        Ok(output) => {
            println!("{name}: {}", String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(error) => {
            println!("{name}: left out, for there is no {compiler}: {error}");
            None
        }
    }
}

fn programs(directory: &Path) -> Vec<(TracedProgram, Command)> {
    let mut programs = Vec::new();
    let mut add = |name, command: Option<Command>, arguments: &str, last, followed| {
        let Some(mut command) = command else { return };
        command.args(arguments.split_whitespace());
        // A program that is single-stepped gets its preemption signals without end, and they make
        // calls that the code did not.
        command.env("GODEBUG", "asyncpreemptoff=1");
        let program = TracedProgram {
            name,
            last,
            followed,
            bare: name == "C, musl",
            longer: ["C, odd frames", "C, signals"].contains(&name),
        };
        programs.push((program, command));
    };
    let c = |name, compiler, flags| compile(directory, name, compiler, flags, "unwound.c");
    let lazy = "-O2 -fomit-frame-pointer -no-pie -Wl,-z,lazy";
    add("C, lazy PLT", c("lazy", "cc", lazy), "", false, true);
    add("C, odd frames", c("odd", "cc", lazy), "frames", false, true);
    add(
        "C, signals",
        c("signals", "cc", "-O2"),
        "signals",
        false,
        true,
    );
    add("C, vDSO", c("vdso", "cc", "-O2"), "vdso", false, true);
    add(
        "C, not optimised",
        c("debug", "cc", "-O0 -fcf-protection"),
        "",
        false,
        true,
    );
    add(
        "C, static",
        c("static", "cc", "-O2 -static"),
        "",
        false,
        true,
    );
    add(
        "C, musl",
        c("musl", "musl-gcc", "-O2 -static"),
        "",
        false,
        true,
    );
    add(
        "C++, main",
        compile(directory, "cxx", "c++", "-O2 -pthread", "unwound.cpp"),
        "",
        false,
        true,
    );
    add(
        "C++, thread",
        compile(directory, "cxx2", "c++", "-O2 -pthread", "unwound.cpp"),
        "",
        true,
        true,
    );
    let rust = compile(directory, "rust", "rustc", "-O", "unwound_rust.rs");
    add("Rust", rust, "", false, true);
    let go = "build -ldflags=-compressdwarf=false";
    add(
        "Go",
        compile(directory, "go", "go", go, "unwound.go"),
        "",
        false,
        false,
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/unwound.py");
    let python = ["/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    if let Some(python) = python {
        let mut command = Command::new(python);
        command.arg(script);
        add("Python", Some(command), "", false, true);
    }
    for (name, what) in [("openssl, AES", "aes-128-cbc"), ("openssl, SHA", "sha256")] {
        let mut command = Command::new("openssl");
        command.args(["speed", "-seconds", "1", what]);
        add(name, Some(command), "", false, true);
    }
    programs
}

#[test]
fn every_frame_of_real_programs() -> Result<()> {
    let directory = TempDir::new()?;
    let mut check = Check {
        library: Library::default(),
        cache: CacheX86_64::new(),
        odd: BTreeSet::new(),
    };
    let mut table = comfy_table::Table::new();
    table.set_header([
        "program",
        "stacks",
        "frames",
        "known by calls",
        "agreed",
        "excused",
        "complete",
        "other ends",
    ]);
    let mut faults = String::new();
    for (program, mut command) in programs(directory.path()) {
        let tally = check
            .run(&program, &mut command)
            .with_context(|| program.name.to_owned())?;
        let complete = tally.ends.get(&UnwindEnd::Complete).copied().unwrap_or(0);
        let ends = tally
            .ends
            .iter()
            .filter(|(end, _)| **end != UnwindEnd::Complete);
        table.add_row([
            program.name.to_owned(),
            tally.stacks.to_string(),
            tally.frames.to_string(),
            tally.true_stacks.to_string(),
            tally.agreed.to_string(),
            counts(tally.excused.iter()),
            complete.to_string(),
            counts(ends),
        ]);
        for ((verdict, frame), (count, detail)) in &tally.differences {
            faults += &format!(
                "{}: {verdict:?} {count} times: {frame}\n {detail}\n",
                program.name
            );
        }
    }
    println!("{table}");
    ensure!(faults.is_empty(), "{table}\n{faults}");
    let all = [
        "PLT",
        "PLT, pushed",
        "realigned",
        "realigned, prologue",
        "return address in a register",
        "signal frame",
    ];
    let missed: Vec<_> = all
        .iter()
        .filter(|kind| !check.odd.contains(*kind))
        .collect();
    ensure!(
        missed.is_empty(),
        "no innermost frame was of the kinds {missed:?}"
    );
    Ok(())
}

fn counts<'a, K: std::fmt::Debug + 'a>(counts: impl Iterator<Item = (&'a K, &'a u64)>) -> String {
    let counts: Vec<String> = counts
        .map(|(kind, count)| format!("{kind:?} {count}"))
        .collect();
    counts.join(", ")
}
