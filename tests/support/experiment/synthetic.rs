//! Synthetic experiments: a founder and subexperiments, written from a plan and not recorded.
//!
//! Their load objects are synthetic, their functions 64 bytes long with holes between them, so that
//! readers have to distinguish functions, holes, dynamic functions and addresses where nothing is
//! mapped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use experiment_format::Result;
use experiment_format::cause::Cause;
use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::elf_image::{ElfImage, ImageSymbol, TextSection};
use experiment_format::ids::{Pid, Tid};
use experiment_format::log::{Cpu, LogHeader, StartTime, System};
use experiment_format::map::{MapEvent, READ_EXECUTE};
use experiment_format::microstate::Microstate;
use experiment_format::packet::ClockTick;
use experiment_format::stacks::{StackEnd, StackUid};
use experiment_format::units::{Nanos, Ticks};
use experiment_format::writer::ExperimentWriter;

/// The address of the kernel.
pub const KERNEL: u64 = 0xffff_ffff_8100_0000;
/// The address of the program of each process.
pub const PROGRAM: u64 = 0x40_0000;
/// The address of a library, where another one is mapped from [`REMAPPED_NS`] on.
pub const LIBRARY: u64 = 0x7f00_0000_0000;
/// The address of a function without a file.
pub const DYNAMIC: u64 = 0x2000;
/// When the second library replaces the first one's mapping, nanoseconds since the start.
pub const REMAPPED_NS: u64 = 500_000_000;
/// The distance of two functions: the first half is the function and the rest a hole.
pub const STEP: u64 = 128;
/// The size of a function, bytes.
const SIZE: u64 = 64;
/// The offset of the code in a file.
const OFFSET: u64 = 4096;
const START: u64 = 1_000_000_000;
/// When recordings end, nanoseconds since the start.
const END: u64 = 60_000_000_000;
const RUN: StartTime = StartTime {
    tstamp_ns: Nanos(START),
    wall_s: 1_795_205_070,
    wall_subsec_ns: 123_456_789,
    tm_zone_s: 0,
};

/// The ticks of a thread, or of a CPU.
#[derive(Debug, Clone)]
pub struct StateInterval {
    /// The CPU.
    pub cpu: u32,
    /// The thread.
    pub tid: u32,
    /// Nanoseconds since the start.
    pub at: u64,
    /// Addresses, leaf first.
    pub frames: Vec<u64>,
    /// How the stack ends.
    pub end: StackEnd,
    /// Ticks by state; a CPU's are all in the first.
    pub ticks: [Ticks; Microstate::PER_THREAD],
    /// Whether they are a CPU's; only in a founder.
    pub kernel_cpu: bool,
}

/// The contents of an experiment.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Length of a tick, microseconds.
    pub tick_us: u32,
    /// Functions of each load object, at least 3.
    pub functions: usize,
    /// The founder's ticks, each with the process of its thread.
    pub founder: Vec<(u32, StateInterval)>,
    /// The subexperiments: process and ticks.
    pub processes: Vec<(u32, Vec<StateInterval>)>,
}

impl Plan {
    /// Writes the experiment `made.1.er` into a directory.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn write(&self, parent: &Path) -> Result<PathBuf> {
        let mut founder = self.begin(parent)?;
        for (pid, state_interval) in &self.founder {
            write_state_interval(&mut founder, *pid, state_interval)?;
        }
        for (pid, state_intervals) in &self.processes {
            let mut sub = self.sub(&founder, *pid)?;
            for state_interval in state_intervals {
                let stack = sub.stack(&state_interval.frames, state_interval.end)?;
                for tick in state_interval.packets(stack, *pid) {
                    sub.tick(&tick)?;
                }
            }
            sub.close(Nanos(END))?;
        }
        self.write_exact_times(&mut founder)?;
        founder.close(Nanos(END))
    }

    /// Writes exact times of the threads with ticks; they differ from the ticks' times.
    fn write_exact_times(&self, founder: &mut ExperimentWriter) -> Result<()> {
        let in_founder = self.founder.iter().map(|(pid, one)| (*pid, one));
        let in_processes = self.processes.iter();
        let in_processes = in_processes.flat_map(|(pid, all)| all.iter().map(|one| (*pid, one)));
        let mut threads: BTreeMap<(u32, u32), [u64; Microstate::PER_THREAD]> = BTreeMap::new();
        for (pid, one) in in_founder.chain(in_processes) {
            let sums = threads.entry((pid, one.tid)).or_default();
            for (sum, ticks) in sums.iter_mut().zip(one.ticks).filter(|_| !one.kernel_cpu) {
                *sum += ticks.0;
            }
        }
        for at_ns in [END / 120, END] {
            for ((pid, tid), ticks) in &threads {
                // No thread has ticks in the last half of the recording.
                let share = if at_ns == END { 10 } else { 6 };
                let states = ticks.map(|ticks| ticks * 7 % 50 * 1_234_567 * share);
                thread_line(founder, (*pid, *tid), at_ns, states)?;
            }
            founder.side_line(
                "threads.jsonl",
                &format!("{{\"sample\":1,\"at_ns\":{at_ns}}}\n"),
            )?;
        }
        Ok(())
    }

    /// Makes a founder without ticks.
    fn begin(&self, parent: &Path) -> Result<ExperimentWriter> {
        let request = NameRequest::Exactly("made.1.er".into());
        let (dir, _) = ExperimentDir::create(parent, &request, None)?;
        for (path, base) in [
            ("vmlinux", KERNEL),
            ("/opt/made/program", PROGRAM),
            ("/opt/made/first.so", LIBRARY),
            ("/opt/made/second.so", LIBRARY),
        ] {
            archive(&dir, path, base, self.functions)?;
        }
        let mut founder = ExperimentWriter::create(dir, &header(1, self.tick_us, true), RUN)?;
        for event in maps(self.functions) {
            founder.map(&event)?;
        }
        Ok(founder)
    }

    /// Makes a subexperiment without ticks.
    fn sub(&self, founder: &ExperimentWriter, pid: u32) -> Result<ExperimentWriter> {
        let name = format!("_program{pid}_PID_{pid}.1.er");
        let header = header(pid, self.tick_us, false);
        let mut sub = ExperimentWriter::create_sub(founder.dir(), &name, &header, RUN)?;
        for event in maps(self.functions) {
            sub.map(&event)?;
        }
        Ok(sub)
    }
}

/// The size of an experiment of [`large`], as options of a benchmark.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Size {
    /// Packets of threads, a quarter of them in the founder and as many of its CPUs; the rest in
    /// subexperiments.
    #[arg(long, default_value_t = 1_000_000)]
    pub packets: usize,
    /// Functions of all load objects together.
    #[arg(long = "symbols", default_value_t = 200_000)]
    pub functions: usize,
    /// Different stacks.
    #[arg(long, default_value_t = 20_000)]
    pub stacks: usize,
    /// Frames of each.
    #[arg(long, default_value_t = 20)]
    pub depth: usize,
}

/// Writes an experiment `made.1.er` of some size, the same one each time, without holding it in
/// memory.
///
/// # Errors
/// What the system refuses.
pub fn large(parent: &Path, size: Size) -> Result<PathBuf> {
    let functions = (size.functions / 4).max(3);
    let plan = Plan {
        tick_us: 997,
        functions,
        founder: Vec::new(),
        processes: Vec::new(),
    };
    let mut founder = plan.begin(parent)?;
    let mut random = Random(1);
    let stacks = random.stacks(size, functions);
    // As they are recorded: in the order of time.
    let mut state_interval = |pid: u32, share: f64| {
        let stack = &stacks[random.below(size.stacks as u64) as usize];
        let mut ticks = [Ticks::ZERO; Microstate::PER_THREAD];
        for _ in 0..=random.below(2) {
            ticks[random.below(10) as usize] = Ticks(1 + random.below(20));
        }
        StateInterval {
            cpu: random.below(64) as u32,
            tid: pid * 16 + random.below(16) as u32,
            at: (share * 6e10) as u64,
            frames: stack.clone(),
            end: StackEnd::Complete,
            ticks,
            kernel_cpu: random.below(2) == 0,
        }
    };
    let share = |number: usize, of: usize| number as f64 / of as f64;
    for number in 0..size.packets / 2 {
        let state_interval = state_interval(1, share(number, size.packets / 2));
        write_state_interval(&mut founder, 1, &state_interval)?;
    }
    for pid in 2..10 {
        let mut sub = plan.sub(&founder, pid)?;
        for number in 0..size.packets / 16 {
            let state_interval = state_interval(pid, share(number, size.packets / 16));
            let stack = sub.stack(&state_interval.frames, state_interval.end)?;
            for tick in state_interval.packets(stack, pid) {
                sub.tick(&tick)?;
            }
            if sub.buffered() > 1 << 20 {
                sub.flush()?;
            }
        }
        sub.close(Nanos(END))?;
    }
    for second in 1..=60 {
        for pid in 1..10 {
            for tid in pid * 16..pid * 16 + 16 {
                let states = [second * 100_000_000; Microstate::PER_THREAD];
                thread_line(&mut founder, (pid, tid), second * 1_000_000_000, states)?;
            }
        }
    }
    founder.close(Nanos(END))
}

/// Writes the exact times of a thread up to an instant.
fn thread_line(
    founder: &mut ExperimentWriter,
    (pid, tid): (u32, u32),
    at_ns: u64,
    states: [u64; Microstate::PER_THREAD],
) -> Result<()> {
    let states = Microstate::ALL.into_iter().zip(states);
    let states = states.filter_map(|(state, ns)| Some((state.metric()?, ns)));
    let states: BTreeMap<_, _> = states.collect();
    let line = serde_json::json!({
        "pid": pid, "tid": tid, "name": "made", "at_ns": at_ns, "ended": at_ns == END,
        "state": "sleep", "since_ns": 0, "states_ns": states,
    });
    founder.side_line("threads.jsonl", &format!("{line}\n"))
}

/// A generator of pseudorandom numbers: xorshift64*, of Vigna, "An experimental exploration of
/// Marsaglia's xorshift generators, scrambled".
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    /// Returns stacks that share their callers, like a program's: each but the first is an earlier
    /// one with other leaves.
    fn stacks(&mut self, size: Size, functions: usize) -> Vec<Vec<u64>> {
        let mut stacks: Vec<Vec<u64>> = Vec::with_capacity(size.stacks);
        for number in 0..size.stacks as u64 {
            let mut frames: Vec<_> = (0..size.depth)
                .map(|_| {
                    let base = [KERNEL, PROGRAM, LIBRARY][self.below(3) as usize];
                    base + self.below(functions as u64) * STEP + self.below(SIZE)
                })
                .collect();
            if number > 0 {
                let other = &stacks[self.below(number) as usize];
                let kept = self.below(size.depth as u64) as usize;
                frames[kept..].copy_from_slice(&other[kept..]);
            }
            stacks.push(frames);
        }
        stacks
    }
}

fn write_state_interval(
    founder: &mut ExperimentWriter,
    pid: u32,
    state_interval: &StateInterval,
) -> Result<()> {
    let stack = founder.stack(&state_interval.frames, state_interval.end)?;
    for tick in state_interval.packets(stack, pid) {
        founder.tick(&tick)?;
    }
    Ok(())
}

impl StateInterval {
    /// Returns its packets, one for each state that it has.
    fn packets(&self, stack: StackUid, pid: u32) -> impl Iterator<Item = ClockTick> {
        let of_threads = Microstate::ALL.into_iter().zip(self.ticks);
        let of_threads = of_threads.filter(|(_, ticks)| *ticks > Ticks::ZERO);
        let of_cpu = (Microstate::KernelCpu, self.ticks[0]);
        let (of_cpu, of_threads) = if self.kernel_cpu {
            (Some(of_cpu), None)
        } else {
            (None, Some(of_threads))
        };
        let states = of_cpu.into_iter().chain(of_threads.into_iter().flatten());
        states.map(move |(state, ticks)| ClockTick {
            cpu: self.cpu,
            time_ns: Nanos(START + self.at),
            stack,
            tid: Tid(self.tid),
            pid: Pid(pid),
            state,
            ticks,
            detail: 0,
            cause: Cause::Undecided,
            waker: Tid(0),
        })
    }
}

fn header(pid: u32, tick_us: u32, machine: bool) -> LogHeader {
    LogHeader {
        collector: "made 1".into(),
        system: System {
            hostname: "nowhere".into(),
            arch: "x86_64".into(),
            page_size: 4096,
            pages: 1 << 20,
            cpus: (0..4).map(|id| Cpu { id, mhz: 2600 }).collect(),
        },
        pid: Pid(pid),
        command_line: if machine {
            "kernel".into()
        } else {
            format!("/opt/made/program{pid} --option")
        },
        profiles: if machine {
            vec![ClockTick::table_of_cpus(tick_us), ClockTick::table(tick_us)]
        } else {
            vec![ClockTick::table(tick_us)]
        },
        ..LogHeader::default()
    }
}

/// Returns the size of a load object's code, bytes.
fn length(functions: usize) -> u64 {
    functions as u64 * STEP
}

fn maps(functions: usize) -> Vec<MapEvent> {
    let segment = |at_ns, vaddr, name: &str| MapEvent::Segment {
        at_ns,
        vaddr,
        // gprofng takes this for the length of the file, and is confused by what lies beyond it.
        size: length(functions) + 2 * OFFSET,
        file_offset: OFFSET,
        modes: READ_EXECUTE,
        name: name.into(),
    };
    vec![
        segment(Nanos::ZERO, KERNEL, "vmlinux"),
        segment(Nanos::ZERO, PROGRAM, "/opt/made/program"),
        segment(Nanos::ZERO, LIBRARY, "/opt/made/first.so"),
        MapEvent::Function {
            at_ns: Nanos::ZERO,
            vaddr: DYNAMIC,
            size: 256,
            name: "<IDLE>".into(),
        },
        MapEvent::Unmap {
            at_ns: Nanos(REMAPPED_NS),
            vaddr: LIBRARY,
        },
        segment(Nanos(REMAPPED_NS), LIBRARY, "/opt/made/second.so"),
    ]
}

fn archive(dir: &ExperimentDir, path: &str, base: u64, functions: usize) -> Result<()> {
    let short = path.rsplit('/').next().unwrap_or(path).replace('.', "_");
    let names: Vec<_> = (0..functions)
        .map(|number| {
            let name = format!("{short}_{number}");
            // Some are of C++: made::name(int).
            match number % 7 {
                3 => format!("_ZN4made{}{name}Ei", name.len()),
                _ => name,
            }
        })
        .collect();
    let mut symbols: Vec<_> = (0..)
        .zip(&names)
        .map(|(number, name)| ImageSymbol {
            address: base + number * STEP,
            size: SIZE,
            name: name.as_bytes(),
            global: true,
        })
        .collect();
    // gprofng gives a hole before the last function the name of the one after it, so leave no hole.
    // The first function has another, longer name.
    if let Some(before_last) = symbols.len().checked_sub(2) {
        symbols[before_last].size = STEP;
        symbols.push(ImageSymbol {
            name: b"another_name_of_the_first_function",
            ..symbols[0]
        });
    }
    let text = TextSection {
        address: base,
        size: length(functions),
        bits: None,
    };
    let image = ElfImage {
        texts: vec![text],
        symbols,
    };
    dir.archive(path, &image.to_bytes()?)
}
