//! The summary as text.

use std::fmt::Write as _;

use bpf_abi::layout::MAX_LOCK_WAITS_PER_CPU_AND_SECOND;
use experiment_format::microstate::{Microstate, short_metric};
use experiment_format::units::Ticks;
use host::table::{Align, TextTable};

use super::first_tables::FirstTables;
use super::{
    CounterSummary, FollowSummary, IoCallSummary, LockWaitSummary, ProcessSummary, Summary,
};

/// A pause that is too short to be mentioned, seconds: starting and stopping take as long.
const MIN_PAUSE_S: f64 = 0.05;

impl Summary {
    /// Returns what was recorded, as text.
    #[must_use]
    pub fn head(&self) -> String {
        let mut text = String::new();
        let _ = self.write_head(&mut text);
        text.truncate(text.trim_end().len());
        text
    }

    /// Returns the rest, in `width` columns if that is known: where to look first, the processes of
    /// `-T`, the cost and commands to try next.
    #[must_use]
    pub fn rest(&self, first: &FirstTables, width: Option<u16>) -> String {
        let mut text = String::new();
        let _ = self.write_rest(&mut text, first, width);
        text.truncate(text.trim_end().len());
        text
    }

    fn write_head(&self, out: &mut String) -> std::fmt::Result {
        let time = &self.cpu_time;
        let stolen = time.stolen.unwrap_or(0.0);
        let capacity: f64 = time.user + time.kernel + time.idle + stolen;
        let share = |seconds: f64| percent(seconds, capacity);
        for problem in &self.problems {
            writeln!(out, "PROBLEM: {}", problem.line())?;
        }
        writeln!(out, "{}", self.experiment)?;
        writeln!(
            out,
            "  {:.3} s{} on {} CPU{}: {} ticks of {} recorded{}",
            self.elapsed_s,
            self.paused(),
            self.cpus.len(),
            if self.cpus.len() == 1 { "" } else { "s" },
            self.ticks,
            self.interval,
            if self.idle_recorded {
                ""
            } else {
                " (ticks of idle CPUs left out)"
            },
        )?;
        writeln!(out, "  {}", self.losses.line())?;
        for counter in &self.counters {
            writeln!(out, "  {}", counter.line())?;
        }
        if let Some(waits) = &self.lock_waits {
            writeln!(out, "  {}", waits.line())?;
        }
        if let Some(calls) = &self.io_calls {
            writeln!(out, "  {}", calls.line())?;
        }
        if let Some(memory) = &self.memory {
            writeln!(
                out,
                "  memory: {} bytes mapped, in {} pieces, and {} bytes unmapped",
                memory.mapped_bytes, memory.mapped, memory.unmapped_bytes
            )?;
        }
        if let Some(allocations) = &self.allocations {
            for line in allocations.lines() {
                writeln!(out, "  {line}")?;
            }
        }
        if let Some(followed) = &self.followed {
            writeln!(out, "  {}", followed.line())?;
            for line in followed
                .jit_line()
                .into_iter()
                .chain(followed.unused_functions_line())
            {
                writeln!(out, "  {line}")?;
            }
        }
        writeln!(out)?;
        writeln!(
            out,
            "CPU time: user {:.3} s ({}), kernel {:.3} s ({}; interrupts {:.3} s), idle {:.3} s ({}){}",
            self.cpu_time.user,
            share(self.cpu_time.user),
            self.cpu_time.kernel,
            share(self.cpu_time.kernel),
            self.cpu_time.interrupts,
            self.cpu_time.idle,
            share(self.cpu_time.idle),
            match stolen {
                0.0 => String::new(),
                stolen => format!(
                    ", stolen by the hypervisor {stolen:.3} s ({})",
                    share(stolen)
                ),
            },
        )
    }

    fn write_rest(
        &self,
        out: &mut String,
        first: &FirstTables,
        width: Option<u16>,
    ) -> std::fmt::Result {
        writeln!(out, "\n{}", first.text.trim_end())?;
        writeln!(out)?;
        if !self.targets.is_empty() {
            writeln!(out, "{}\n", target_table(&self.targets, width))?;
        }
        writeln!(
            out,
            "kcollect, from its start to now: {:.3} s of CPU ({:.2} % of one CPU), {} of memory, {} written\n\
             its programs in the kernel: {:.3} s ({:.2} % of all CPUs)",
            self.cost.cpu_s,
            self.cost.cpu_percent,
            bytes(self.cost.peak_rss_bytes),
            bytes(self.cost.bytes_written),
            self.cost.programs_s,
            self.cost.programs_percent,
        )?;
        writeln!(out, "\nNext:")?;
        next_commands(&self.experiment, first.busiest.as_deref())
            .iter()
            .try_for_each(|command| writeln!(out, "  {command}"))
    }
}

impl Summary {
    /// Returns for how long data were paused (`-t A-B`, `-y`, `-L`), as a part of a sentence.
    fn paused(&self) -> String {
        let recorded = self.cpus.iter().map(|cpu| cpu.recorded_ns).max();
        let paused = self.elapsed_s - recorded.unwrap_or_default().as_secs_f64();
        if paused > MIN_PAUSE_S && recorded.is_some() {
            format!(" ({paused:.3} s of it paused)")
        } else {
            String::new()
        }
    }
}

impl CounterSummary {
    fn line(&self) -> String {
        let mut line = format!(
            "{}: {} events, {} of them recorded (one overflow every {} events)",
            self.name, self.events, self.recorded, self.interval
        );
        let missing = self.lost + self.unreported;
        if missing > 0 {
            let share = percent(missing as f64, self.events as f64);
            line += &format!(
                ", {share} missing: {} found the ring full, {} were not reported by the kernel",
                self.lost, self.unreported
            );
        }
        if self.share_of_time < 0.9995 {
            line += &format!(
                ", counted for {:.1} % of the time",
                100.0 * self.share_of_time
            );
        }
        line
    }
}

impl IoCallSummary {
    fn line(&self) -> String {
        format!(
            "I/O: {} calls of {:.3} s recorded, {} bytes read, {} bytes written",
            self.recorded, self.recorded_s, self.read_bytes, self.written_bytes
        )
    }
}

impl LockWaitSummary {
    fn line(&self) -> String {
        let mut line = format!(
            "locks: {} waits of {:.3} s recorded",
            self.recorded, self.recorded_s
        );
        if self.left_out > 0 {
            let share = percent(self.left_out_s, self.left_out_s + self.recorded_s);
            line += &format!(
                "; {} waits of {:.3} s ({share}) left out, because there were more than {MAX_LOCK_WAITS_PER_CPU_AND_SECOND} a second on one CPU; \
                 set -s MICROSECONDS to skip short waits",
                self.left_out, self.left_out_s
            );
        }
        line
    }
}

impl FollowSummary {
    fn line(&self) -> String {
        let stacks = &self.cpu_user_stacks;
        let (complete, ticks) = stacks.complete();
        let (all_complete, all_ticks) = self.user_stacks.complete();
        let (other_complete, other_ticks) = (all_complete - complete, all_ticks - ticks);
        format!(
            "{} process{} followed: {complete} of {ticks} ticks on a CPU ({}) have a complete user stack, {} an unverified one, \
             {} a part of it, {} none; off the CPU {other_complete} of {other_ticks} ({}), {} unverified; {} ticks of exiting threads{} cannot have one",
            self.processes.len(),
            if self.processes.len() == 1 { "" } else { "es" },
            percent(complete.0 as f64, ticks.0 as f64),
            stacks.unverified(),
            ticks - complete - stacks.unverified() - stacks.missing,
            stacks.missing,
            percent(other_complete.0 as f64, other_ticks.0 as f64),
            self.user_stacks.unverified() - stacks.unverified(),
            self.user_stacks.exiting,
            self.user_workers(),
        )
    }

    /// The ticks of the kernel's workers in the processes, as a part of the sentence.
    fn user_workers(&self) -> String {
        match self.user_stacks.user_workers {
            Ticks::ZERO => String::new(),
            ticks => format!(" and {ticks} of the kernel's workers in a process"),
        }
    }

    /// Returns which JIT functions were left out without an effect on reports. None: none was.
    fn unused_functions_line(&self) -> Option<String> {
        let functions: u64 = self.processes.iter().map(|row| row.unused_functions).sum();
        (functions > 0).then(|| {
            format!(
                "JIT code: {functions} functions in which no stack is were left out, because there are very many; no \
                 report needs them"
            )
        })
    }

    /// Returns what is missing of the names of JIT code. None: nothing.
    fn jit_line(&self) -> Option<String> {
        let jit = || self.processes.iter().filter_map(|row| row.jit.as_ref());
        // Those that were too many are among the losses.
        let functions: u64 = jit()
            .map(|jit| jit.counts.bad + jit.counts.refused - jit.counts.too_many)
            .sum();
        let files = jit().filter(|jit| jit.refusal.is_some()).count();
        (functions > 0 || files > 0).then(|| {
            format!(
                "JIT code: {functions} functions could not be recorded, and {files} files of names were not read, or \
                 not completely; the reasons are in kcollect.json"
            )
        })
    }
}

/// Returns the table of `-T`, with a column for each state that any of its rows was in.
fn target_table(rows: &[ProcessSummary], width: Option<u16>) -> String {
    let in_state =
        |row: &ProcessSummary, state: usize| row.states_s.get(state).copied().unwrap_or(0.0);
    let states = Microstate::ALL[..Microstate::PER_THREAD].iter();
    let shown: Vec<_> = states
        .map(|state| (*state as usize, state.metric().map_or("", short_metric)))
        .filter(|(state, _)| rows.iter().any(|row| in_state(row, *state) >= 0.0005))
        .collect();
    let mut header: Vec<_> = shown.iter().map(|(_, title)| *title).collect();
    header.extend(["PID/TID", "Process"]);
    let numbers = header.len() - 1;
    let align = |column| {
        if column < numbers {
            Align::Right
        } else {
            Align::Left
        }
    };
    let mut table = TextTable::new((0..header.len()).map(align));
    table.titles(header);
    for row in rows {
        let times = shown.iter().map(|(state, _)| in_state(row, *state));
        let mut cells: Vec<_> = times.map(|seconds| format!("{seconds:.3}")).collect();
        cells.push(match row.tid {
            Some(tid) => format!("{}/{tid}", row.pid),
            None => row.pid.to_string(),
        });
        cells.push(row.name.clone());
        table.row(cells);
    }
    let table = table.text(width.map(usize::from));
    format!(
        "Processes and threads of -T, exact seconds by state\n\n{}",
        table.trim_end()
    )
}

/// Returns commands to type next; `busiest` is the process that leads.
fn next_commands(path: &str, busiest: Option<&str>) -> Vec<String> {
    // A name with blanks or brackets would have to be quoted for the shell, and for the pattern.
    let plain = |name: &&str| {
        name.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    let of = busiest
        .filter(plain)
        .map_or_else(String::new, |name| format!(" --process {name}"));
    vec![
        format!("kcollect report {path}{of} calltree"),
        format!("kcollect view {path}"),
        format!("kcollect flame {path}{of}"),
        format!("gprofng display text -functions {path}"),
    ]
}

fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 {
        format!("{:.1}%", 100.0 * part / whole)
    } else {
        "-".to_owned()
    }
}

fn bytes(count: u64) -> String {
    match count {
        0..=9_999 => format!("{count} B"),
        10_000..=9_999_999 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}
