//! The unwinder, compiled natively, agrees with framehop on every frame of real programs' stacks; where it does not, the
//! program itself says who is right.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bpf::unwind::{self, End, Found, Registers, Walked};
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _};
use tempfile::TempDir;
use tests::traced::{Copied, Mapping, SIGNAL_FP, SIGNAL_PC, SIGNAL_SP, State, Stop, Traced, Truth};
use user_collector::unwind::{
    Cfa, Frame, Frames, ReturnAddress, Rule, Rules, Sections, Table, Unsupported,
};

/// More than any of the programs is deep.
const MOST: usize = 600;
/// `mov $15,%rax; syscall`: where a handler returns to, and how debuggers know it.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

type Bytes = Arc<[u8]>;

/// A file with code.
struct File {
    name: String,
    data: Bytes,
    table: Table,
    has_frames: bool,
    /// Offset in the file, address: of the executable segments.
    segments: Vec<(Range<u64>, u64)>,
}

impl File {
    fn of(name: &str, data: Vec<u8>, rules: &mut Rules) -> Result<File> {
        let sections = Sections::of_elf(&data[..])?;
        let has_frames = sections.frames != Frames::None;
        let (table, _) = Table::of_sections(&sections, rules)?;
        let segments = object::File::parse(&*data)?
            .segments()
            .filter(|segment| segment.permissions().executable())
            .map(|segment| {
                let (offset, size) = segment.file_range();
                (offset..offset + size, segment.address())
            })
            .collect();
        Ok(File {
            name: name.rsplit('/').next().unwrap_or(name).into(),
            data: data.into(),
            table,
            has_frames,
            segments,
        })
    }

    /// What is added to the addresses of the file where it is mapped so.
    fn bias(&self, mapping: &Mapping) -> Option<u64> {
        let page = |offset: u64| offset & !0xfff;
        let (offsets, address) = self.segments.iter().find(|(offsets, _)| {
            page(offsets.start) <= mapping.offset && mapping.offset < offsets.end
        })?;
        let start = (address + mapping.offset).wrapping_sub(offsets.start);
        Some(mapping.range.start.wrapping_sub(start))
    }

    fn module(&self, mapping: &Mapping, bias: u64) -> Result<Module<Bytes>> {
        let file = object::File::parse(&*self.data)?;
        let range = |name| {
            let section = file.section_by_name(name)?;
            Some(section.address()..section.address() + section.size())
        };
        let data = |name| {
            let section = file.section_by_name(name)?;
            let data = section.uncompressed_data().ok()?;
            // As Go leaves it: only its end.
            (data.len() > 4).then(|| Bytes::from(&*data))
        };
        let base_svma = file
            .segments()
            .map(|segment| segment.address() & !0xfff)
            .min()
            .unwrap_or(0);
        let sections = ExplicitModuleSectionInfo {
            base_svma,
            text_svma: range(".text"),
            got_svma: range(".got"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: data(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            debug_frame: data(".debug_frame"),
            ..ExplicitModuleSectionInfo::default()
        };
        Ok(Module::new(
            self.name.clone(),
            mapping.range.clone(),
            bias.wrapping_add(base_svma),
            sections,
        ))
    }

    fn symbol(&self, address: u64) -> String {
        let Ok(file) = object::File::parse(&*self.data) else {
            return String::new();
        };
        file.symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.address() != 0 && symbol.address() <= address)
            .filter(|symbol| symbol.kind() == object::SymbolKind::Text)
            .max_by_key(object::ObjectSymbol::address)
            .and_then(|symbol| Some(symbol.name().ok()?.to_owned()))
            .unwrap_or_default()
    }
}

/// At one of its two instructions.
fn is_restorer(traced: &Traced, pc: u64) -> bool {
    [pc, pc.wrapping_sub(7)]
        .into_iter()
        .any(|start| traced.bytes(start, RESTORER.len()) == RESTORER)
}

/// All files that were seen, and their rules.
#[derive(Default)]
struct Library {
    rules: Rules,
    files: HashMap<PathBuf, Option<Rc<File>>>,
}

impl Library {
    fn file(&mut self, mapping: &Mapping, traced: &Traced) -> Option<Rc<File>> {
        let path = PathBuf::from(&mapping.path);
        if let Some(known) = self.files.get(&path) {
            return known.clone();
        }
        let size = (mapping.range.end - mapping.range.start) as usize;
        let data = match mapping.path.as_str() {
            "[vdso]" => Some(traced.bytes(mapping.range.start, size)),
            other => std::fs::read(other).ok(),
        };
        let file = data.and_then(|data| File::of(&mapping.path, data, &mut self.rules).ok());
        let file = file.map(Rc::new);
        self.files.insert(path, file.clone());
        file
    }
}

struct Loaded {
    range: Range<u64>,
    bias: u64,
    file: Rc<File>,
}

/// What a process has mapped, for both unwinders.
#[derive(Default)]
struct Space {
    loaded: Vec<Loaded>,
    hop: UnwinderX86_64<Bytes>,
    restorers: HashMap<u64, bool>,
    stack: Copied,
}

/// How far framehop came.
#[derive(Debug)]
struct Hopped {
    frames: Vec<u64>,
    complete: bool,
}

impl Space {
    fn of(traced: &Traced, library: &mut Library) -> Result<Space> {
        let mut space = Space::default();
        for mapping in traced.code()? {
            let Some(file) = library.file(&mapping, traced) else {
                continue;
            };
            let Some(bias) = file.bias(&mapping) else {
                continue;
            };
            space.hop.add_module(file.module(&mapping, bias)?);
            space.loaded.push(Loaded {
                range: mapping.range,
                bias,
                file,
            });
        }
        Ok(space)
    }

    fn at(&self, address: u64) -> Option<&Loaded> {
        self.loaded
            .iter()
            .find(|loaded| loaded.range.contains(&address))
    }

    fn rule<'r>(&self, rules: &'r Rules, address: u64) -> Option<&'r Rule> {
        let loaded = self.at(address)?;
        let inside = address.wrapping_sub(loaded.bias);
        loaded.file.table.lookup(rules, inside)
    }

    fn find(&self, rules: &Rules, address: u64) -> Found {
        let Some(loaded) = self.at(address) else {
            return Found::End(End::NoMapping);
        };
        if !loaded.file.has_frames {
            return Found::Guess;
        }
        let rule = self.rule(rules, address);
        Found::Rule(rule.unwrap_or(&Rule::Absent).encode())
    }

    fn ours(&self, rules: &Rules, state: &State, traced: &Traced) -> Walked {
        let stack = &self.stack;
        let start = Registers::innermost(state.pc, state.general);
        unwind::walk(
            &start,
            MOST,
            |address| self.find(rules, address),
            |address| stack.word(address).or_else(|| traced.word(address)),
        )
    }

    fn theirs(&mut self, cache: &mut CacheX86_64, state: &State, traced: &Traced) -> Hopped {
        let stack = &self.stack;
        let mut registers = UnwindRegsX86_64::new(state.pc, state.sp(), state.fp());
        let mut address = FrameAddress::InstructionPointer(state.pc);
        let mut frames = vec![state.pc];
        let mut read = |address| {
            let word = stack.word(address).or_else(|| traced.word(address));
            word.ok_or(())
        };
        while frames.len() < MOST {
            let here = address.address();
            let restorer = *self
                .restorers
                .entry(here)
                .or_insert_with(|| is_restorer(traced, here));
            // framehop evaluates no expression that reads memory, and knows no signal frames: it is told by the kernel's layout.
            if restorer {
                let sp = registers.sp();
                let told = [SIGNAL_PC, SIGNAL_SP, SIGNAL_FP].map(|offset| read(sp + offset));
                let [Ok(pc), Ok(sp), Ok(fp)] = told else {
                    return Hopped {
                        frames,
                        complete: false,
                    };
                };
                registers = UnwindRegsX86_64::new(pc, sp, fp);
                address = FrameAddress::InstructionPointer(pc);
                frames.push(pc);
                continue;
            }
            let back = self
                .hop
                .unwind_frame(address, &mut registers, cache, &mut read);
            match back {
                Ok(Some(back)) => match FrameAddress::from_return_address(back) {
                    Some(caller) => {
                        address = caller;
                        frames.push(back - 1);
                    }
                    None => {
                        return Hopped {
                            frames,
                            complete: true,
                        };
                    }
                },
                end => {
                    return Hopped {
                        frames,
                        complete: end == Ok(None),
                    };
                }
            }
        }
        Hopped {
            frames,
            complete: false,
        }
    }

    fn name(&self, rules: &Rules, address: u64) -> String {
        let Some(loaded) = self.at(address) else {
            return format!("{address:#x}");
        };
        let inside = address.wrapping_sub(loaded.bias);
        let rule = loaded.file.table.lookup(rules, inside);
        format!(
            "{}`{} {inside:#x} {rule:?}",
            loaded.file.name,
            loaded.file.symbol(inside)
        )
    }
}

/// Who is right about one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// Both, as far as is known.
    Agreed,
    /// Both stop early, and ours says so.
    BothShort,
    /// Both say what is not true.
    BothWrong,
    /// Ours; framehop is wrong, or stops early.
    Ours,
    /// framehop; ours stops early, and says so.
    OursShort,
    /// framehop; ours is wrong.
    OursWrong,
    /// They differ, and nobody knows.
    Unknown,
}

fn judge(ours: &Walked, theirs: &Hopped, truth: Option<&[u64]>) -> Verdict {
    let agreed = ours.frames == theirs.frames;
    let Some(truth) = truth else {
        return if agreed {
            Verdict::Agreed
        } else {
            Verdict::Unknown
        };
    };
    match (agreed, ours.frames == truth) {
        (true, true) => Verdict::Agreed,
        (false, true) => Verdict::Ours,
        (true, false) if truth.starts_with(&ours.frames) && ours.end != End::Complete => {
            Verdict::BothShort
        }
        (true, false) => Verdict::BothWrong,
        (false, false) if truth.starts_with(&ours.frames) && ours.end != End::Complete => {
            Verdict::OursShort
        }
        (false, false) => Verdict::OursWrong,
    }
}

/// Why a difference is no fault of ours, where that is known. Nothing else may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Excuse {
    /// What the program did says that ours is right.
    Proven,
    /// Ours ends where Go has changed stacks, and says that it is complete.
    GoRoot,
    /// No code is mapped there, as when a null pointer was called; framehop guesses its caller.
    Unmapped,
    /// The C library has no frame information, nor have the start files anywhere; framehop guesses.
    Bare,
    /// The frame is found by a register that is known in the innermost frame only, as is rbx in the dynamic linker's resolver
    /// of lazily bound functions: ours says that it stops there, and so does framehop.
    OtherRegister,
    /// `longjmp` between two stacks, whose stack pointer is not what its description says.
    LongJump,
    /// Of a register that framehop does not have, or an expression that it does not evaluate, where the program was stopped
    /// before its calls were known. In later stacks of the kind they are.
    BeyondFramehop,
    /// libgcc rewrites its own return address, to land in the handler of an exception.
    Landing,
}

/// What was seen of a stack.
struct Seen<'a> {
    ours: &'a Walked,
    theirs: &'a [u64],
    truth: Option<&'a [u64]>,
    bare: bool,
    /// Nothing is known of the calls since the program was stopped.
    unsettled: bool,
}

impl Seen<'_> {
    fn excuse(&self, verdict: Verdict, space: &Space, rules: &Rules) -> Option<Excuse> {
        let ours = &self.ours.frames;
        let last = *ours.last()?;
        let other = self.truth.unwrap_or(self.theirs);
        let short = other.starts_with(ours);
        let differs = ours.iter().zip(other).take_while(|(a, b)| a == b).count();
        let callee = space.rule(rules, *ours.get(differs.saturating_sub(1))?);
        if verdict == Verdict::Ours {
            return Some(Excuse::Proven);
        }
        if self.truth.is_some() && (ours == self.theirs || by_rcx(callee)) && lands(ours, space) {
            return Some(Excuse::Landing);
        }
        match (self.ours.end, callee) {
            (End::NoMapping, _) if short && (last == 0 || self.truth.is_none()) => {
                Some(Excuse::Unmapped)
            }
            (End::NoRule, None) if short && (self.bare || initial(last, space)) => {
                Some(Excuse::Bare)
            }
            (End::Unsupported, Some(Rule::Frame(frame)))
                if short && differs > 1 && beyond_framehop(frame) =>
            {
                Some(Excuse::OtherRegister)
            }
            (End::Unsupported, Some(Rule::Unsupported(Unsupported::StackPointer))) if short => {
                Some(Excuse::LongJump)
            }
            (End::Complete, Some(Rule::Stop))
                if short && self.truth.is_none() && go_root(last, space) =>
            {
                Some(Excuse::GoRoot)
            }
            // Of the innermost frame alone: of others it would be ours that lacks the register.
            (_, Some(Rule::Frame(frame)))
                if self.unsettled
                    && verdict == Verdict::Unknown
                    && differs == 1
                    && beyond_framehop(frame) =>
            {
                Some(Excuse::BeyondFramehop)
            }
            _ => None,
        }
    }
}

/// Is it a function of Go's that has changed to the scheduler's stack? A goroutine's registers are elsewhere then, and what
/// framehop finds above is what the scheduler's stack had before.
fn go_root(frame: u64, space: &Space) -> bool {
    space.at(frame).is_some_and(|loaded| {
        let symbol = loaded.file.symbol(frame.wrapping_sub(loaded.bias));
        ["runtime.mcall", "runtime.morestack"]
            .iter()
            .any(|root| symbol.starts_with(root))
    })
}

/// The functions of the start files, which are built without frame information.
const START_FILES: [&str; 6] = [
    "_init",
    "_fini",
    "frame_dummy",
    "register_tm_clones",
    "deregister_tm_clones",
    "__do_global_dtors_aux",
];

/// Is it of the start files that the linker adds to each program?
fn initial(frame: u64, space: &Space) -> bool {
    space.at(frame).is_some_and(|loaded| {
        let symbol = loaded.file.symbol(frame.wrapping_sub(loaded.bias));
        START_FILES.contains(&symbol.as_str())
    })
}

/// Is it libgcc's, on the way to a handler?
fn lands(frames: &[u64], space: &Space) -> bool {
    frames.iter().take(2).any(|&frame| {
        space.at(frame).is_some_and(|loaded| {
            let inside = frame.wrapping_sub(loaded.bias);
            loaded.file.name.starts_with("libgcc_s.")
                && LANDINGS.contains(&loaded.file.symbol(inside).as_str())
        })
    })
}

/// The last instructions of a landing.
fn by_rcx(rule: Option<&Rule>) -> bool {
    let Some(Rule::Frame(frame)) = rule else {
        return false;
    };
    matches!(frame.cfa, Cfa::Register { register: 2, .. })
}

/// The functions that leave by landing.
const LANDINGS: [&str; 3] = [
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
];

/// It follows the stack and the frame pointer only, and evaluates no expression that reads memory.
fn beyond_framehop(frame: &Frame) -> bool {
    match (frame.cfa, frame.ra) {
        (Cfa::Deref { .. }, _) | (_, ReturnAddress::Register(_)) => true,
        (Cfa::Register { register, .. }, _) => !matches!(register, 6 | 7),
        (Cfa::Plt { .. }, _) => false,
    }
}

/// What kind of rule an innermost frame at this pc was left by; nothing for the ordinary ones.
fn odd(rule: Option<&Rule>, pc: u64) -> Option<&'static str> {
    let Some(Rule::Frame(frame)) = rule else {
        return None;
    };
    match (frame.cfa, frame.ra) {
        (_, ReturnAddress::Interrupted { .. }) => Some("signal frame"),
        (_, ReturnAddress::Register(_)) => Some("return address in a register"),
        (Cfa::Plt { threshold, .. }, _) if pc & 15 >= u64::from(threshold) => Some("PLT, pushed"),
        (Cfa::Plt { .. }, _) => Some("PLT"),
        (Cfa::Deref { .. }, _) => Some("realigned"),
        (Cfa::Register { register: 10, .. }, _) => Some("realigned, prologue"),
        _ => None,
    }
}

/// What became of one program.
#[derive(Default)]
struct Tally {
    stacks: u64,
    frames: u64,
    true_stacks: u64,
    agreed: u64,
    excused: BTreeMap<Excuse, u64>,
    ends: BTreeMap<End, u64>,
    /// Differences without an excuse, by the frame that was left differently.
    differences: BTreeMap<(Verdict, String), (u64, String)>,
}

/// A program, and how it is watched.
struct Program {
    name: &'static str,
    /// Watch the last thread, not the first.
    last: bool,
    /// Its stacks are made by calls, returns and signals alone.
    followed: bool,
    /// Its C library has no frame information.
    bare: bool,
    /// Watched for longer, from its own first instruction too.
    longer: bool,
}

/// Instructions that are stepped from a program's start, how often it is stopped after that, and the instructions that are
/// stepped then.
const FROM_START: u32 = 1500;
const ROUNDS: u32 = 12;
const STEPS: u32 = 500;
/// So many times as much for those that are watched for longer: a round of the odd frames.
const LONGER: u32 = 10;
/// The longest that rounds are begun for one program.
const LONGEST: Duration = Duration::from_secs(2);
/// The dynamic linker's work for a small program takes fewer instructions.
const LINKING: u32 = 400_000;

struct Check {
    library: Library,
    cache: CacheX86_64,
    /// The kinds of rule that were met in innermost frames.
    odd: BTreeSet<&'static str>,
}

impl Check {
    fn run(&mut self, program: &Program, command: &mut Command) -> Result<Tally> {
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
                LONGER * STEPS,
                program,
                &mut tally,
            )?;
        }
        traced.seize(program.last, Duration::from_millis(60))?;
        let start = Instant::now();
        for _ in 0..ROUNDS {
            // A busy machine.
            if start.elapsed() > LONGEST {
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
                    LONGER * STEPS
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
        for _ in 0..LINKING {
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
        anyhow::bail!("the dynamic linker takes longer than {LINKING} instructions")
    }

    fn steps(
        &mut self,
        traced: &mut Traced,
        space: &mut Space,
        truth: &mut Option<Truth>,
        steps: u32,
        program: &Program,
        tally: &mut Tally,
    ) -> Result<()> {
        let mut before: Option<(State, Vec<u8>)> = None;
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
        state: &State,
        (program, unsettled): (&Program, bool),
        tally: &mut Tally,
    ) -> Result<()> {
        space.stack.renew(traced, state.sp())?;
        let rules = &self.library.rules;
        let ours = space.ours(rules, state, traced);
        let theirs = space.theirs(&mut self.cache, state, traced);
        let known = truth.as_ref().and_then(|truth| truth.frames(state.pc));
        if known.is_none() {
            // What both agree on is taken up.
            *truth = (ours.frames == theirs.frames && ours.end == End::Complete)
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

fn programs(directory: &Path) -> Vec<(Program, Command)> {
    let mut programs = Vec::new();
    let mut add = |name, command: Option<Command>, arguments: &str, last, followed| {
        let Some(mut command) = command else { return };
        command.args(arguments.split_whitespace());
        // Its signals for preemption, of which a program that is stepped has no end, make calls that nobody called.
        command.env("GODEBUG", "asyncpreemptoff=1");
        let program = Program {
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
        let complete = tally.ends.get(&End::Complete).copied().unwrap_or(0);
        let ends = tally.ends.iter().filter(|(end, _)| **end != End::Complete);
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
