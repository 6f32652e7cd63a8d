//! kcollect profiles the whole machine, kernel and user, and writes what it saw as an experiment that
//! gprofng opens.
//!
//! In the order of a run: [`cli`] turns what was typed into a plan; [`session`] opens the
//! [`sources`] (a clock and a side-band for each CPU, by `bpf` and [`perf`]), puts their events in
//! [`order`], and hands them to the [`kernel`]'s founder experiment; [`summary`] says what came of it.
//! [`doctor`] says beforehand what is missing, [`exit`] how a run ends.

pub mod cli;
pub mod doctor;
pub mod dry_run;
pub mod exit;
pub mod kernel;
pub mod load;
pub mod losses;
pub mod machine;
pub mod order;
pub mod output;
pub mod perf;
pub mod session;
pub mod signals;
pub mod sources;
pub mod summary;

use std::ffi::OsString;

use bpf::{Settings, TickCollector};
use cli::{Command, Machine, Plan};
use doctor::{Finding, Root};
use exit::{Failure, Kind};
use output::Output;

/// Does what the command line says. Gives the exit code.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> u8 {
    let command = match cli::parse(argv, &Machine::read()) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("{}", Failure::from(error).line());
            return Kind::Usage.code();
        }
    };
    match command {
        Command::Record(plan) => record(&plan),
        Command::Doctor { json } => doctor(json),
        Command::Counters => {
            println!("{}", counters());
            Kind::Ok.code()
        }
        Command::Version => {
            println!("kcollect {}", env!("CARGO_PKG_VERSION"));
            Kind::Ok.code()
        }
        Command::Help(text) => {
            println!("{text}");
            Kind::Ok.code()
        }
    }
}

fn record(plan: &Plan) -> u8 {
    let mut output = match Output::new(plan.output.as_deref(), plan.verbose) {
        Ok(output) => output,
        Err(error) => {
            let path = plan.output.as_deref().unwrap_or("".as_ref());
            let failure = Failure::new(
                Kind::CantCreate,
                format!("cannot append to {}: {error}", path.display()),
                "name a file that can be written with -O",
            );
            eprintln!("{}", failure.line());
            return failure.kind.code();
        }
    };
    if plan.dry_run {
        output.result(&dry_run::describe(plan).join("\n"));
        return Kind::Ok.code();
    }
    match session::record(plan, &mut output) {
        Ok(code) => code,
        Err(failure) => {
            output.say(&failure.to_string());
            failure.kind.code()
        }
    }
}

fn doctor(json: bool) -> u8 {
    let mut findings = doctor::examine(&Root::machine());
    if doctor::first_obstacle(&findings).is_none() {
        findings.push(bpf_finding());
    }
    let width = terminal_size::terminal_size().map(|(width, _)| width.0);
    let text = match json {
        true => doctor::json(&findings),
        false => doctor::table(&findings, width),
    };
    print!("{text}");
    doctor::exit_kind(&findings).code()
}

/// What no file can tell: whether this kernel takes our programs.
fn bpf_finding() -> Finding {
    const NAME: &str = "BPF programs";
    let settings = Settings {
        period_ns: 1_000_000_000,
        record_idle: false,
        max_frames: 127,
        cpu_ids: 1,
    };
    match TickCollector::load(&settings) {
        Ok(_) => Finding::ok(NAME, "the kernel loads and verifies them"),
        Err(error) => {
            let kind = if error.is_permission() {
                Kind::NoPerm
            } else {
                Kind::Unavailable
            };
            Finding::fail(
                NAME,
                kind,
                error.to_string(),
                "report this, with the kernel's version",
            )
        }
    }
}

/// `-h` alone.
fn counters() -> &'static str {
    match Root::machine().exists("/sys/bus/event_source/devices/cpu") {
        true => {
            "This machine has hardware counters, but kcollect does not profile with them yet.\n\
                 Clock profiling needs none: kcollect -p on"
        }
        false => {
            "This machine has no hardware counters (a virtual machine seldom has).\n\
                  Clock profiling needs none: kcollect -p on"
        }
    }
}
