//! A program that is traced instruction by instruction, and its true stack.
//!
//! A tracer that follows a program from its first instruction has its stack without any table: each
//! call that is executed adds a frame, and each rise of the stack pointer removes those that are
//! below it. That is [`Truth`], which decides where unwinders do not agree.
//!
//! It supports x86-64 only. After a stack pointer that jumps to another stack without a signal, or
//! a return to an address that no call pushed, it reports that the stack is unknown.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Maximum time to wait for a step of a seized program; a program that was not seized cannot be
/// interrupted. A step into a system call may last as long as the call.
const STEP_LIMIT: Duration = Duration::from_millis(300);
/// The number of polls before the wait for a step sleeps: a step takes some microseconds.
const MAX_POLLS: u32 = 2000;
/// Maximum bytes of a stack that are copied.
const MAX_STACK_COPY_BYTES: u64 = 1 << 20;
/// Minimum change of the stack pointer, bytes, that is a jump to another stack.
const STACK_JUMP_BYTES: u64 = 256 << 10;
/// The offset of the interrupted frame pointer in a signal frame, by the kernel's `struct
/// rt_sigframe`: bytes from the stack pointer of the code that the handler returns to.
pub const SIGNAL_FP: u64 = 120;
/// Likewise, the stack pointer.
pub const SIGNAL_SP: u64 = 160;
/// Likewise, the pc.
pub const SIGNAL_PC: u64 = 168;
/// The number of `rt_sigreturn`.
const SIGRETURN: u64 = 15;

/// The registers of a stopped thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadRegisters {
    /// The next instruction.
    pub pc: u64,
    /// The general registers by DWARF number.
    pub general: [u64; 16],
}

impl ThreadRegisters {
    /// The stack pointer.
    #[must_use]
    pub fn sp(&self) -> u64 {
        self.general[7]
    }

    /// The frame pointer.
    #[must_use]
    pub fn fp(&self) -> u64 {
        self.general[6]
    }
}

/// One line of `/proc/PID/maps` that is executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Addresses.
    pub range: Range<u64>,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// The file, or a name in brackets, or nothing.
    pub path: String,
}

/// How a traced program has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Its registers and memory can be read.
    Stopped,
    /// It is blocked in a system call; it can be read, but steps take long.
    Blocks,
    /// It has ended.
    Ended,
}

/// A program that this thread traces. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Traced {
    child: Child,
    thread: Pid,
    memory: File,
    signal: Option<Signal>,
    seized: bool,
    ended: bool,
}

impl Traced {
    /// Starts a program and stops it at its first instruction. It has no input, and its output is
    /// discarded.
    ///
    /// # Errors
    /// When it cannot be started or traced.
    pub fn start(command: &mut Command) -> Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: between fork and exec the closure makes one system call.
        unsafe {
            command.pre_exec(|| ptrace::traceme().map_err(io::Error::from));
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let thread = Pid::from_raw(child.id().cast_signed());
        let memory = File::open(format!("/proc/{thread}/mem"))?;
        let mut traced = Traced {
            child,
            thread,
            memory,
            signal: None,
            seized: false,
            ended: false,
        };
        match waitpid(thread, Some(WaitPidFlag::__WALL))? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            other => bail!("{command:?}: {other:?} in place of its start"),
        }
        // The mapping of the memory is the new program's from here on.
        traced.memory = File::open(format!("/proc/{thread}/mem"))?;
        Ok(traced)
    }

    /// Lets it run for a while and then seizes its last thread, or its first again; the others run
    /// on.
    ///
    /// # Errors
    /// When it has ended.
    pub fn seize(&mut self, last: bool, after: Duration) -> Result<()> {
        ptrace::detach(self.thread, self.signal.take())?;
        sleep(after);
        let mut thread = self.child.id().cast_signed();
        if last {
            for entry in fs::read_dir(format!("/proc/{thread}/task"))? {
                thread = thread.max(entry?.file_name().to_string_lossy().parse()?);
            }
        }
        self.thread = Pid::from_raw(thread);
        ptrace::seize(self.thread, Options::empty())?;
        self.seized = true;
        self.interrupt()?;
        Ok(())
    }

    /// Lets a seized program run for a while and stops it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn run_for(&mut self, time: Duration) -> Result<Stop> {
        let deadline = Instant::now() + time;
        ptrace::cont(self.thread, self.signal.take())?;
        while Instant::now() < deadline {
            match waitpid(
                self.thread,
                Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG),
            )? {
                WaitStatus::StillAlive => sleep(Duration::from_micros(20)),
                WaitStatus::Stopped(_, signal) => self.forward(signal)?,
                other => return Ok(self.stopped(other)),
            }
        }
        self.interrupt()
    }

    /// Stops a seized program, and forwards the signals that come first.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn interrupt(&mut self) -> Result<Stop> {
        ptrace::interrupt(self.thread)?;
        loop {
            match waitpid(self.thread, Some(WaitPidFlag::__WALL))? {
                WaitStatus::Stopped(_, signal) => self.forward(signal)?,
                other => return Ok(self.stopped(other)),
            }
        }
    }

    /// Forwards a signal, except the SIGTRAP at the end of a step that has blocked.
    fn forward(&self, signal: Signal) -> Result<()> {
        let signal = Some(signal).filter(|signal| *signal != Signal::SIGTRAP);
        Ok(ptrace::cont(self.thread, signal)?)
    }

    /// Executes one instruction, or enters the handler of a signal that has come.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn step(&mut self) -> Result<Stop> {
        ptrace::step(self.thread, self.signal.take())?;
        self.wait()
    }

    fn wait(&mut self) -> Result<Stop> {
        let start = Instant::now();
        for look in 0.. {
            let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
            let status = waitpid(self.thread, Some(flags))?;
            if status != WaitStatus::StillAlive {
                return Ok(self.stopped(status));
            }
            if look > MAX_POLLS {
                sleep(Duration::from_micros(100));
            }
            if self.seized && start.elapsed() > STEP_LIMIT {
                return Ok(Stop::Blocks);
            }
        }
        Ok(Stop::Blocks)
    }

    fn stopped(&mut self, status: WaitStatus) -> Stop {
        match status {
            WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(..) => Stop::Stopped,
            WaitStatus::Stopped(_, signal) => {
                self.signal = Some(signal);
                Stop::Stopped
            }
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => {
                self.ended = true;
                Stop::Ended
            }
            _ => Stop::Blocks,
        }
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its registers.
    ///
    /// # Errors
    /// When it is not stopped.
    pub fn state(&self) -> Result<ThreadRegisters> {
        let r = ptrace::getregs(self.thread)?;
        Ok(ThreadRegisters {
            pc: r.rip,
            general: [
                r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11,
                r.r12, r.r13, r.r14, r.r15,
            ],
        })
    }

    /// Returns its executable mappings.
    ///
    /// # Errors
    /// When it has ended.
    pub fn code(&self) -> Result<Vec<Mapping>> {
        let lines = self.map_lines()?;
        Ok(lines
            .into_iter()
            .filter(|(_, executable)| *executable)
            .map(|(mapping, _)| mapping)
            .collect())
    }

    fn map_lines(&self) -> Result<Vec<(Mapping, bool)>> {
        let text = fs::read_to_string(format!("/proc/{}/maps", self.child.id()))?;
        let line = |line: &str| {
            let mut words = line.splitn(6, ' ');
            let (from, to) = words.next()?.split_once('-')?;
            let permissions = words.next()?;
            let offset = u64::from_str_radix(words.next()?, 16).ok()?;
            let path = words.nth(2).unwrap_or_default().trim().to_owned();
            let range = u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?;
            let executable = permissions.as_bytes().get(2) == Some(&b'x');
            Some((
                Mapping {
                    range,
                    offset,
                    path,
                },
                executable,
            ))
        };
        text.lines()
            .map(|text| line(text).with_context(|| format!("no line of maps: {text:?}")))
            .collect()
    }

    /// Reads memory; as much of it as there is.
    #[must_use]
    pub fn bytes(&self, address: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        let got = self.memory.read_at(&mut bytes, address).unwrap_or(0);
        bytes.truncate(got);
        bytes
    }

    /// Reads a word.
    #[must_use]
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if !self.ended {
            // It may have ended by itself meanwhile.
            let _gone = self.child.kill();
            // A thread that is traced is waited for by its tracer before its process can be.
            while !matches!(
                waitpid(self.thread, Some(WaitPidFlag::__WALL)),
                Err(_) | Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))
            ) {}
        }
        let _status = self.child.wait();
    }
}

/// The copy of a stack from its pointer upwards, as a profiler makes it.
#[derive(Debug, Default)]
pub struct CopiedStack {
    mapping: Range<u64>,
    start: u64,
    bytes: Vec<u8>,
}

impl CopiedStack {
    /// Copies the stack again: up to the end of the mapping, 1 MiB at most.
    ///
    /// # Errors
    /// When the program has ended.
    pub fn renew(&mut self, traced: &Traced, sp: u64) -> Result<()> {
        if !self.mapping.contains(&sp) {
            self.mapping = traced
                .map_lines()?
                .into_iter()
                .map(|(mapping, _)| mapping.range)
                .find(|range| range.contains(&sp))
                .unwrap_or(sp..sp);
        }
        let size = (self.mapping.end - sp).min(MAX_STACK_COPY_BYTES);
        self.start = sp;
        self.bytes.resize(size as usize, 0);
        let got = traced.memory.read_at(&mut self.bytes, sp).unwrap_or(0);
        self.bytes.truncate(got);
        Ok(())
    }

    /// Returns a word of it; nothing outside of it.
    #[must_use]
    pub fn word(&self, address: u64) -> Option<u64> {
        let from = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let word = self.bytes.get(from..)?.first_chunk()?;
        Some(u64::from_le_bytes(*word))
    }
}

/// The effect of an instruction on the stack of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Call,
    Return,
    SystemCall,
    /// The stack pointer is set to another register than the frame pointer, as by longjmp.
    StackJump,
    /// A jump to an address in a register or in memory.
    Jump,
    Other,
}

/// Returns the kind of the instruction that begins here.
fn kind(code: &[u8]) -> Kind {
    let prefix = |byte: &&u8| {
        matches!(
            byte,
            0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3
        )
    };
    let rest = &code[code.iter().take_while(prefix).count()..];
    match rest {
        [0xe8, ..] => Kind::Call,
        [0xff, mode, ..] if mode >> 3 & 7 == 2 => Kind::Call,
        [0xff, mode, ..] if mode >> 3 & 7 == 4 => Kind::Jump,
        [0xc3 | 0xc2, ..] => Kind::Return,
        [0x0f, 0x05, ..] => Kind::SystemCall,
        [0x89, mode, ..] if mode & 0xc7 == 0xc4 && *mode != 0xec => Kind::StackJump,
        _ => Kind::Other,
    }
}

/// A return address on the stack, and where it is.
#[derive(Clone, Copy, Debug)]
struct ReturnAddress {
    slot: u64,
    back: u64,
}

/// The calls of a signal handler and the address that it has interrupted, or the calls of the
/// program itself.
#[derive(Clone, Debug, Default)]
struct CallChain {
    calls: Vec<ReturnAddress>,
    interrupted: Option<u64>,
}

/// The true stack of a program, by its calls and returns.
#[derive(Clone, Debug)]
pub struct Truth {
    /// The chains of calls; the last one runs.
    chains: Vec<CallChain>,
    /// The callers from before the program was traced, the innermost first, as they are looked up.
    base: Vec<u64>,
    lost: bool,
}

impl Truth {
    /// Returns the stack of a program whose innermost frame has these callers, the innermost first,
    /// each as it is looked up: its return address − 1.
    #[must_use]
    pub fn new(callers: &[u64]) -> Truth {
        Truth {
            chains: vec![CallChain::default()],
            base: callers.to_vec(),
            lost: false,
        }
    }

    /// Returns all frames as they are looked up, leaf first; nothing if they are unknown.
    #[must_use]
    pub fn frames(&self, pc: u64) -> Option<Vec<u64>> {
        if self.lost {
            return None;
        }
        let mut frames = vec![pc];
        for part in self.chains.iter().rev() {
            frames.extend(part.calls.iter().rev().map(|call| call.back - 1));
            frames.extend(part.interrupted);
        }
        frames.extend(&self.base);
        Some(frames)
    }

    /// Applies a step from `before`, where the code was `code`, to `after`.
    pub fn step(
        &mut self,
        before: &ThreadRegisters,
        code: &[u8],
        after: &ThreadRegisters,
        traced: &Traced,
    ) {
        let (sp, old_sp) = (after.sp(), before.sp());
        if self.lost || (after.pc, sp) == (before.pc, old_sp) {
            return;
        }
        if entered_handler(before, after, traced) {
            if let Some(back) = traced.word(sp) {
                self.chains.push(CallChain {
                    calls: vec![ReturnAddress { slot: sp, back }],
                    interrupted: Some(before.pc),
                });
            }
            return;
        }
        let kind = kind(code);
        if kind == Kind::SystemCall && before.general[0] == SIGRETURN {
            if self.chains.len() > 1 {
                self.chains.pop();
            } else if self.base.first() == Some(&after.pc) && self.calls().is_empty() {
                self.base.remove(0);
            } else {
                self.lost = true;
            }
            return;
        }
        if self.chains.len() == 1 && sp.abs_diff(old_sp) > STACK_JUMP_BYTES {
            self.lost = true;
            return;
        }
        if kind == Kind::Call && sp == old_sp.wrapping_sub(8) {
            match traced.word(sp) {
                Some(back) => self.calls().push(ReturnAddress { slot: sp, back }),
                None => self.lost = true,
            }
            return;
        }
        // How many of the callers from before the tracing are left is unknown.
        if kind == Kind::StackJump && self.chains.len() == 1 && self.calls().is_empty() {
            self.lost = true;
            return;
        }
        self.rise(before, kind, after, traced);
    }

    /// Removes the calls below the stack pointer.
    fn rise(
        &mut self,
        before: &ThreadRegisters,
        kind: Kind,
        after: &ThreadRegisters,
        traced: &Traced,
    ) {
        let sp = after.sp();
        let returned = kind == Kind::Return;
        // A return address that is popped into a register, as by vfork, is still where it
        // continues. libgcc pops another one, that it has put there, to land in a handler.
        let kept = |call: &ReturnAddress| {
            let popped = call.slot == before.sp() && traced.word(call.slot) == Some(call.back);
            let stood = call.slot + 8 == before.sp() && sp == before.sp();
            let held = !returned && sp == call.slot + 8 && (popped || stood);
            call.slot >= sp || (held && call.back != after.pc)
        };
        let base = self.chains.len() == 1;
        let back = self
            .base
            .first()
            .is_some_and(|caller| caller + 1 == after.pc);
        if base && (returned || (kind == Kind::Jump && back)) && self.calls().is_empty() {
            if back {
                self.base.remove(0);
            } else {
                self.lost = true;
            }
            return;
        }
        let mut last = None;
        while let Some(call) = self.calls().last().copied()
            && !kept(&call)
        {
            last = Some(call);
            self.calls().pop();
        }
        let elsewhere = last.is_some_and(|call| call.back != after.pc);
        if (returned && elsewhere) || (kind == Kind::StackJump && base && self.calls().is_empty()) {
            self.lost = true;
        }
        // A handler that is left by a jump, and not to its return address.
        if let Some(call) = last
            && self.calls().is_empty()
            && self.chains.len() > 1
            && call.back != after.pc
        {
            self.lost = false;
            self.chains.pop();
            self.rise(before, Kind::Other, after, traced);
        }
    }

    fn calls(&mut self) -> &mut Vec<ReturnAddress> {
        if self.chains.is_empty() {
            self.chains.push(CallChain::default());
        }
        let last = self.chains.len() - 1;
        &mut self.chains[last].calls
    }
}

/// Returns whether the kernel has entered a signal handler: its frame has the interrupted
/// registers.
fn entered_handler(before: &ThreadRegisters, after: &ThreadRegisters, traced: &Traced) -> bool {
    let frame = after.sp().wrapping_add(8);
    traced.word(frame.wrapping_add(SIGNAL_PC)) == Some(before.pc)
        && traced.word(frame.wrapping_add(SIGNAL_SP)) == Some(before.sp())
        && after.pc != before.pc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_instructions() {
        for (code, expected) in [
            (&[0xe8, 1, 2, 3, 4][..], Kind::Call),
            (&[0xff, 0xd0], Kind::Call),
            (&[0x41, 0xff, 0xd4], Kind::Call),
            (&[0xf2, 0xff, 0x15, 0, 0, 0, 0], Kind::Call),
            (&[0xff, 0x25, 0, 0, 0, 0], Kind::Jump),
            (&[0x48, 0x89, 0xcc], Kind::StackJump),
            (&[0x48, 0x89, 0xec], Kind::Other),
            (&[0x48, 0x89, 0xe5], Kind::Other),
            (&[0xf3, 0xc3], Kind::Return),
            (&[0xc2, 8, 0], Kind::Return),
            (&[0x0f, 0x05], Kind::SystemCall),
            (&[], Kind::Other),
        ] {
            assert_eq!(kind(code), expected, "{code:x?}");
        }
    }
}
