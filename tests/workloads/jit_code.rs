//! `jit_code SECONDS CPU WAY`: generates machine code, announces it in a perf map or a jitdump, and
//! runs it. The way is map, many, dump, both, file, deleted, shared, memfd, forked-map,
//! forked-dump, withheld or own-stack.
//!
//! `both` is a perf map, and a jitdump that comes later and has three of the functions, by other
//! names.
//!
//! With `file`, `deleted`, `shared` and `memfd` the code is in a file (in the working directory,
//! the same but deleted, in `/dev/shm`, and without a name), which is mapped twice: to be written
//! and to be executed. Its protection changes all the time. It is announced in a perf map.
//!
//! `many` is a perf map in which very many functions come before those that run.
//!
//! `withheld` is a perf map that names a function, before the others, in a page which exists only
//! once this program supplies it (userfaultfd), and it never does.
//!
//! | function | its share of the loops | called by |
//! |---|---|---|
//! | `made_a` | 3 of 5 | `made_caller`, which keeps a frame pointer |
//! | `made_b` | 1 of 5 | the same |
//! | `made_c` | 1 of 5 | a function of this file, through `made_trampoline`, which keeps none |
//!
//! CPython's trampolines keep no frame pointer either.
//!
//! With `own-stack` a thread runs `made_d` instead, called by `made_trampoline`, called by
//! `made_switch`, which makes it on a stack of its own, as Erlang's machine does. None of these
//! keeps a frame pointer.
//!
//! With `forked-` a child process runs the code that its parent made and announced before the fork.
//! The parent announces other names after it.
//!
//! All loops are the same instructions at the same alignment. The perf map names a function in this
//! file's own text too, `never`, as node's does its builtins: nothing may get that name.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect};
use nix::sys::wait::waitpid;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, fork};
use tests::workload::truth::{Work, variant};

const PAGE: usize = 4096;
/// Their names alone are half as much again as the part of an experiment's map that functions
/// without ticks may have.
const MANY: u64 = 600_000;
/// Rounds of the loops in one turn: some 30 µs each.
const ROUNDS: u64 = 100_000;

/// `push %rbp; mov %rsp,%rbp; 1: dec %rdi; jnz 1b; pop %rbp; ret`.
const LOOP: [u8; 11] = [
    0x55, 0x48, 0x89, 0xe5, 0x48, 0xff, 0xcf, 0x75, 0xfb, 0x5d, 0xc3,
];
/// `push %rbp; mov %rsp,%rbp; call *%rsi; pop %rbp; ret`.
const CALLER: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0xff, 0xd6, 0x5d, 0xc3];
/// `sub $8,%rsp; call *%rcx; add $8,%rsp; ret`.
const TRAMPOLINE: [u8; 11] = [0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3];

/// `1: dec %rdi; jnz 1b; ret`.
const BARE_LOOP: [u8; 6] = [0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3];
/// `push %rbx; mov %rsp,%rbx; mov %rdx,%rsp; call *%rsi; mov %rbx,%rsp; pop %rbx; ret`.
const SWITCH: [u8; 14] = [
    0x53, 0x48, 0x89, 0xe3, 0x48, 0x89, 0xd4, 0xff, 0xd6, 0x48, 0x89, 0xdc, 0x5b, 0xc3,
];

const FUNCTIONS: [(&str, &[u8]); 7] = [
    ("made_a", &LOOP),
    ("made_b", &LOOP),
    ("made_c", &LOOP),
    ("made_caller", &CALLER),
    ("made_trampoline", &TRAMPOLINE),
    ("made_d", &BARE_LOOP),
    ("made_switch", &SWITCH),
];

type Call = extern "C" fn(u64, usize, usize, usize);

/// What the trampoline calls: runs a loop that is given by address.
extern "C" fn called(rounds: u64, of: usize, _: usize, _: usize) {
    // SAFETY: the trampoline passes on the address of the loop that `main` gave it.
    let of: Call = unsafe { std::mem::transmute(of) };
    of(rounds, 0, 0, 0);
    // Not a jump: this function stays on the stack.
    std::hint::black_box(rounds);
}

fn main() -> Result<()> {
    let size = NonZeroUsize::new(PAGE).context("a page has bytes")?;
    let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let in_file = code_file()?;
    let (page, written) = match &in_file {
        None => {
            // SAFETY: a new mapping at an address that the kernel chooses.
            let page = unsafe { mmap_anonymous(None, size, both, MapFlags::MAP_PRIVATE)? };
            (page, page)
        }
        Some(file) => {
            // SAFETY: new mappings at addresses that the kernel chooses.
            let [page, written] = [ProtFlags::PROT_READ, both]
                .map(|modes| unsafe { mmap(None, size, modes, MapFlags::MAP_SHARED, file, 0) });
            (page?, written?)
        }
    };
    for (index, (_, code)) in FUNCTIONS.iter().enumerate() {
        let to = written.as_ptr().cast::<u8>().wrapping_add(64 * index);
        // SAFETY: each has 64 bytes of the page that was mapped for them.
        unsafe { to.copy_from_nonoverlapping(code.as_ptr(), code.len()) };
    }
    // SAFETY: the page is ours.
    unsafe { mprotect(page, PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC)? };

    let [a, b, c, caller, trampoline, d, switch] =
        std::array::from_fn(|index| page.addr().get() + 64 * index);
    let mut withheld = None;
    let file = match variant()?.as_str() {
        "map" | "own-stack" | "forked-map" | "both" | "file" | "deleted" | "shared" | "memfd" => {
            write_perf_map(page, None, 0)?
        }
        "many" => write_perf_map(page, None, MANY)?,
        "withheld" => write_perf_map(page, Some(withheld.insert(withheld_page()?)), 0)?,
        "dump" | "forked-dump" => write_jitdump(page, Some)?,
        other => bail!("no way is {other}"),
    };
    let dump = match variant()?.as_str() {
        "both" => Some(write_jitdump(page, |name| match name {
            "made_a" => Some("dumped_a"),
            "made_b" => Some("dumped_b"),
            "made_caller" => Some("dumped_caller"),
            _ => None,
        })?),
        _ => None,
    };
    if variant()?.starts_with("forked-") && is_parent(page, file.try_clone()?)? {
        return Ok(());
    }
    let work = Work::start("jit_code")?;
    // SAFETY: this is what was written there.
    let caller: Call = unsafe { std::mem::transmute(caller) };
    // SAFETY: the same.
    let trampoline: Call = unsafe { std::mem::transmute(trampoline) };
    // SAFETY: the same.
    let switch: Call = unsafe { std::mem::transmute(switch) };
    let mut rounds = 0;
    if variant()? == "own-stack" {
        rounds = std::thread::scope(|scope| {
            let thread = scope.spawn(|| on_own_stack(&work, switch, trampoline as usize, d));
            thread.join().map_err(|_| anyhow!("the thread panicked"))?
        })?;
    }
    while !work.over()? {
        caller(3 * ROUNDS, a, 0, 0);
        caller(ROUNDS, b, 0, 0);
        trampoline(ROUNDS, c, 0, called as *const () as usize);
        rounds += 5 * ROUNDS;
        if in_file.is_some() && rounds % (1000 * ROUNDS) == 0 {
            for modes in [
                ProtFlags::PROT_READ,
                ProtFlags::PROT_READ | ProtFlags::PROT_EXEC,
            ] {
                // SAFETY: the page is ours, and nothing in it runs now.
                unsafe { mprotect(page, PAGE, modes)? };
            }
        }
    }
    work.end(rounds)?;
    if variant()? == "many" {
        // It is long. kcollect has it open by now.
        fs::remove_file(format!("/tmp/perf-{}.map", std::process::id()))?;
    }
    if variant()? == "file" {
        fs::remove_file(format!("jit_code-{}", std::process::id()))?;
    }
    // kcollect reads it when the process ends at the latest.
    drop((file, dump, withheld));
    Ok(())
}

/// Makes a file for the code, if it is to be in one.
fn code_file() -> Result<Option<File>> {
    let name = format!("jit_code-{}", std::process::id());
    let path = match variant()?.as_str() {
        "file" | "deleted" => name,
        "shared" => format!("/dev/shm/{name}"),
        "memfd" => {
            let memory = memfd_create("jit_code", MFdFlags::MFD_CLOEXEC)?;
            nix::unistd::ftruncate(&memory, PAGE as i64)?;
            return Ok(Some(memory.into()));
        }
        _ => return Ok(None),
    };
    let mut options = OpenOptions::new();
    let file = options
        .create_new(true)
        .read(true)
        .write(true)
        .open(&path)
        .context(path.clone())?;
    file.set_len(PAGE as u64)?;
    if variant()? != "file" {
        fs::remove_file(path)?;
    }
    Ok(Some(file))
}

/// Forks. Returns true in the parent, once the child has exited. Meanwhile it announces other
/// functions at the same addresses, as if it had made new ones.
fn is_parent(page: NonNull<std::ffi::c_void>, mut announced: File) -> Result<bool> {
    // SAFETY: there is one thread.
    let ForkResult::Parent { child } = (unsafe { fork() })? else {
        return Ok(false);
    };
    std::thread::sleep(Duration::from_millis(500));
    match variant()?.as_str() {
        "forked-map" => {
            let path = format!("/tmp/perf-{}.map", std::process::id());
            let mut map = OpenOptions::new().append(true).open(path)?;
            for index in 0..FUNCTIONS.len() {
                let address = page.addr().get() + 64 * index;
                writeln!(map, "{address:x} 8 later")?;
            }
        }
        _ => write_loads(&mut announced, page, |_| Some("later"))?,
    }
    waitpid(child, None)?;
    Ok(true)
}

/// Runs a loop by a function on a stack of its own. Returns the rounds.
#[inline(never)]
fn on_own_stack(work: &Work, switch: Call, function: usize, of: usize) -> Result<u64> {
    let size = NonZeroUsize::new(16 * PAGE).context("pages have bytes")?;
    let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let stack = unsafe { mmap_anonymous(None, size, both, MapFlags::MAP_PRIVATE)? };
    let mut rounds = 0;
    while !work.over()? {
        switch(5 * ROUNDS, function, stack.addr().get() + size.get(), of);
        rounds += 5 * ROUNDS;
    }
    Ok(rounds)
}

fn now() -> Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// What `UFFDIO_API` of linux/userfaultfd.h takes.
#[repr(C)]
struct UffdApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// What `UFFDIO_REGISTER` takes.
#[repr(C)]
struct UffdRegister {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

nix::ioctl_readwrite!(
    /// `UFFDIO_API`: agrees on the version.
    uffd_api,
    0xaa,
    0x3f,
    UffdApi
);
nix::ioctl_readwrite!(
    /// `UFFDIO_REGISTER`: faults in these pages are this program's.
    uffd_register,
    0xaa,
    0,
    UffdRegister
);

/// An executable page that this program has to supply when it is read, and the descriptor by which
/// it could.
struct WithheldPage {
    page: NonNull<std::ffi::c_void>,
    _faults: OwnedFd,
}

fn withheld_page() -> Result<WithheldPage> {
    /// `UFFD_API` and `UFFDIO_REGISTER_MODE_MISSING`.
    const API: u64 = 0xaa;
    const MISSING: u64 = 1;
    // SAFETY: it takes flags alone.
    let faults = unsafe { nix::libc::syscall(nix::libc::SYS_userfaultfd, nix::libc::O_CLOEXEC) };
    let faults = nix::errno::Errno::result(faults).context("userfaultfd")? as i32;
    // SAFETY: the descriptor is new, and nothing else has it.
    let faults = unsafe { OwnedFd::from_raw_fd(faults) };
    let size = NonZeroUsize::new(PAGE).context("a page has bytes")?;
    let modes = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let page = unsafe { mmap_anonymous(None, size, modes, MapFlags::MAP_PRIVATE)? };
    let mut api = UffdApi {
        api: API,
        features: 0,
        ioctls: 0,
    };
    let mut register = UffdRegister {
        start: page.addr().get() as u64,
        bytes: PAGE as u64,
        mode: MISSING,
        ioctls: 0,
    };
    // SAFETY: it is the structure of the kernel's header.
    unsafe { uffd_api(faults.as_raw_fd(), &raw mut api) }.context("UFFDIO_API")?;
    // SAFETY: the same, and the page is ours.
    unsafe { uffd_register(faults.as_raw_fd(), &raw mut register) }.context("UFFDIO_REGISTER")?;
    Ok(WithheldPage {
        page,
        _faults: faults,
    })
}

fn write_perf_map(
    page: NonNull<std::ffi::c_void>,
    withheld: Option<&WithheldPage>,
    others: u64,
) -> Result<File> {
    let path = format!("/tmp/perf-{}.map", std::process::id());
    let mut text = String::new();
    for number in 0..others {
        // Below all that is mapped.
        text += &format!(
            "{:x} 40 LazyCompile:*other_{number} /srv/app/node_modules/some-package/lib/module-{}.js:{}:17\n",
            0x10_0000 + 64 * number,
            number / 100,
            number % 100
        );
    }
    if let Some(withheld) = withheld {
        text += &format!("{:x} 40 withheld\n", withheld.page.addr().get());
    }
    for (index, (name, code)) in FUNCTIONS.iter().enumerate() {
        let address = page.addr().get() + 64 * index;
        text += &format!("{address:x} {:x} {name}\n", code.len());
    }
    text += &format!("{:x} 40 never\n", called as *const () as usize);
    fs::write(&path, text).context(path.clone())?;
    Ok(File::open(path)?)
}

/// The file is mapped for execution, by which a profiler finds it.
fn write_jitdump(
    page: NonNull<std::ffi::c_void>,
    named: impl Fn(&'static str) -> Option<&'static str>,
) -> Result<File> {
    let pid = std::process::id();
    let path = format!("jit-{pid}.dump");
    let mut bytes = Vec::new();
    put(&mut bytes, &[0x4a69_5444, 1, 40, 62, 0, pid], &[now()?, 0]);
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&path)
        .context(path)?;
    file.write_all(&bytes)?;
    write_loads(&mut file, page, named)?;
    let size = NonZeroUsize::new(PAGE).context("a page has bytes")?;
    let modes = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
    // SAFETY: a new mapping at an address that the kernel chooses; nothing refers to it yet.
    unsafe { mmap(None, size, modes, MapFlags::MAP_PRIVATE, &file, 0)? };
    Ok(file)
}

/// Announces functions in a jitdump, by other names.
fn write_loads(
    file: &mut File,
    page: NonNull<std::ffi::c_void>,
    other: impl Fn(&'static str) -> Option<&'static str>,
) -> Result<()> {
    let pid = std::process::id();
    let mut bytes = Vec::new();
    for (index, (name, code)) in FUNCTIONS.iter().enumerate() {
        let Some(name) = other(name) else {
            continue;
        };
        let address = (page.addr().get() + 64 * index) as u64;
        let size = 16 + 40 + name.len() + 1 + code.len();
        put(&mut bytes, &[0, size as u32], &[now()?]);
        let numbers = [address, address, code.len() as u64, index as u64];
        put(&mut bytes, &[pid, pid], &numbers);
        bytes.extend(name.bytes().chain([0]).chain(code.iter().copied()));
    }
    Ok(file.write_all(&bytes)?)
}

fn put(bytes: &mut Vec<u8>, words: &[u32], longs: &[u64]) {
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(longs.iter().flat_map(|long| long.to_le_bytes()));
}
