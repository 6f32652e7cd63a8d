//! The application: runs the command of the command line and returns its exit code.

use std::ffi::OsString;

use analysis::{export, flame, list, packing, report, view};
use bpf::{
    AllocationSampling, KernelFunctions, KernelTypes, Programs, ReturnProbes, Sabotage, Settings,
    UserStackCapture,
};
use host::Root;
use host::exit::{ExitKind, Failure};
use host::machine;
use host::output::Output;

use crate::cli::{self, Command, HostFacts};
use crate::doctor::{self, Finding};
use crate::plan::{HeapTracing, Plan};
use crate::record::input::load_failure::bpf_failure;
use crate::record::input::self_test;
use crate::record::kernel::code::KernelCode;
use crate::record::{dry_run, session};

/// Runs the command of a command line. Returns the exit code.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> u8 {
    let mut output = Output::standard();
    let done = run(argv, &mut output);
    let code = done.unwrap_or_else(|failure| fail(&mut output, &failure));
    match output.take_failure() {
        Some(error) if code == ExitKind::Ok.code() => {
            let failure = Failure::new(
                ExitKind::IoErr,
                format!("the result could not be written: {error}"),
                "make space, or write it to another place",
            );
            fail(&mut output, &failure)
        }
        _ => code,
    }
}

/// Runs the command, and returns its exit code if it did not fail.
fn run(argv: impl IntoIterator<Item = OsString>, output: &mut Output) -> Result<u8, Failure> {
    let command = cli::parse(argv, &HostFacts::read())?;
    if let Command::Report(_) | Command::Flame(_) | Command::Export(_) | Command::View(_) = command
    {
        machine::take_memory_in_large_steps();
    }
    match command {
        Command::Record(plan) => return record(&plan, output),
        Command::Doctor { json } => return Ok(doctor(json, output).code()),
        Command::Report(request) => report::report(&request, output)?,
        Command::Flame(request) => flame::flame(&request, output)?,
        Command::Export(request) => export::export(&request, output)?,
        Command::View(request) => view::show(&request, output)?,
        Command::List(request) => list::list(&request, output)?,
        Command::Pack(request) => packing::pack(&request, output)?,
        Command::Unpack(request) => packing::unpack(&request, output)?,
        Command::Track(request) => return counters::track::track(&request, output),
        Command::Stat(request) => return counters::stat::stat(&request, output),
        Command::Counters { json } => {
            let listing = counters::listing(&Root::machine());
            if json {
                output.json(&listing.json())
            } else {
                output.result(listing.text(output.width()).trim_end())
            }
        }
        Command::Version => output.result(concat!("kcollect ", env!("CARGO_PKG_VERSION"))),
        Command::Help(text) => output.result(&text),
    }
    Ok(ExitKind::Ok.code())
}

/// Prints a failure and returns its exit code.
fn fail(output: &mut Output, failure: &Failure) -> u8 {
    output.say(&failure.to_string());
    failure.kind.code()
}

fn record(plan: &Plan, output: &mut Output) -> Result<u8, Failure> {
    *output =
        Output::new(plan.printing.file.as_deref(), plan.printing.verbose).map_err(|error| {
            let path = plan.printing.file.as_deref().unwrap_or("".as_ref());
            Failure::new(
                ExitKind::CantCreate,
                format!("cannot append to {}: {error}", path.display()),
                "type another file after -O",
            )
        })?;
    let counters = counters::names::resolve_requests(&plan.counters, &Root::machine())?;
    plan.notices.iter().for_each(|notice| output.say(notice));
    if plan.tracing.io || plan.tracing.heap == HeapTracing::Growth {
        output
            .say("-i, -H: every system call of every process takes 0.1 to 0.2 us longer meanwhile");
    }
    if plan.dry_run {
        output.result(&dry_run::describe(plan).join("\n"));
        return Ok(ExitKind::Ok.code());
    }
    session::record(plan, &counters, output)
}

fn doctor(json: bool, output: &mut Output) -> ExitKind {
    let mut findings = doctor::examine(&Root::machine());
    if doctor::first_obstacle(&findings).is_none() {
        let types = KernelTypes::read();
        let capture = UserStackCapture::of(&types);
        findings.extend(bpf_findings(capture, &types));
        let abilities = types.abilities().into_iter();
        findings.extend(abilities.map(|ability| Finding::ok(ability.name, ability.way)));
        if doctor::first_obstacle(&findings).is_none() {
            findings.extend(self_test_findings(capture, &types));
        }
    }
    if json {
        output.json(&doctor::json(&findings))
    } else {
        output.result(&doctor::table(&findings, output.width()))
    }
    doctor::exit_kind(&findings)
}

/// Records for a second and checks what the recording shows of a thread of kcollect's own.
fn self_test_findings(capture: UserStackCapture, types: &KernelTypes) -> Vec<Finding> {
    let argv = ["kcollect", "-F", "all", "-p", "hi"].map(OsString::from);
    let Ok(Command::Record(plan)) = cli::parse(argv, &HostFacts::read()) else {
        return Vec::new();
    };
    let functions = KernelCode::read(|_| ())
        .map(|kernel| kernel.sought())
        .unwrap_or_default();
    self_test::run::findings(&plan, functions, types, capture)
}

/// Returns the findings of the check that loads the BPF programs.
fn bpf_findings(capture: UserStackCapture, types: &KernelTypes) -> Vec<Finding> {
    const NAME: &str = "BPF programs";
    let settings = Settings {
        types,
        period_ns: 1_000_000_000,
        record_idle: false,
        max_kernel_frames: 127,
        functions: KernelFunctions::default(),
        watch_wakers: true,
        cpu_ids: 1,
        user_stacks: Some(capture),
        lock_threshold_ns: Some(0),
        traced_calls: user_collector::io_calls::traced_calls(true, true),
        allocations: Some(AllocationSampling {
            mean_bytes: 0,
            returns: ReturnProbes::of(types),
        }),
        hit_intervals: None,
        sabotage: Sabotage::of_environment(),
    };
    match Programs::load(&settings) {
        Ok((programs, _)) => {
            let stolen = if programs.has_stolen_time() {
                "a wait for a CPU of its own kind"
            } else {
                "unknown to this kernel; in a virtual machine it counts as time on a CPU"
            };
            vec![
                Finding::ok(NAME, "the kernel loads and verifies them"),
                Finding::ok("stolen time", stolen),
            ]
        }
        Err(error) => {
            let failure = bpf_failure(error);
            vec![Finding::fail(
                NAME,
                failure.kind,
                failure.message,
                failure.hint,
            )]
        }
    }
}
