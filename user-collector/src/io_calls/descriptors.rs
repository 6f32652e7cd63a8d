//! The descriptors of one process, as its system calls open and close them, and the operations of
//! these calls.
//!
//! An experiment has a descriptor's name where it is opened. So a descriptor that was open before,
//! came by exec or in a message, or was opened by another process that shares the table, gets its
//! name when it is used first, by an operation without a call. If nothing is known of it, the name
//! is `fd N`.
//!
//! An operation of `io_uring` has only the descriptor: paths and addresses are looked up when it
//! has completed. A file that was registered with a ring has a number of its own in place of a
//! descriptor. The number may belong to another file at any time, or to another ring. So each
//! operation says which file it used, and the number gets that file's name. If the file is not
//! known, the name is `io_uring file N`.
//!
//! Calls of one process come in time order. Only the [`DescriptorLookup`] that is passed in reads
//! anything.

use std::collections::HashMap;
use std::sync::Arc;

use bpf_abi::IoCallRecord;
use bpf_abi::layout::{ANY_REGISTERED_FILE, CallTable, FIRST_REGISTERED_FILE, MAX_IO_EXTRA_BYTES};
use experiment_format::calls::Action;
use experiment_format::packet::{IoKind, IoOperation};
use experiment_format::units::Nanos;

use super::address::address;
use super::calls::{call_of, number_of};
use super::look::DescriptorLookup;

/// Max descriptors of a process that are kept. With more, all are dropped and looked up again.
const MAX_DESCRIPTORS: usize = 16_384;
/// Standard input, output and error.
const STANDARD: [i32; 3] = [0, 1, 2];
/// Commands of `fcntl` that duplicate a descriptor.
const DUPLICATES: [u64; 2] = [libc::F_DUPFD as u64, libc::F_DUPFD_CLOEXEC as u64];
/// Calls by which descriptors may come in a message (`SCM_RIGHTS`).
const BRINGS_DESCRIPTORS: [&str; 3] = ["recvmsg", "recvmmsg", "IORING_OP_RECVMSG"];
/// In the place of a directory's descriptor: the working directory.
const NO_DIRECTORY: i32 = libc::AT_FDCWD;

#[derive(Clone, Debug)]
struct Descriptor {
    name: Arc<[u8]>,
    /// The [`DescriptorTable::executions`] when it was added.
    execution: u32,
    /// The number of a registered file; 0 if it is not known.
    file: u64,
    /// When an operation opened that file there, CLOCK_MONOTONIC; 0 if no operation did.
    opened_ns: Nanos,
}

/// A table of open descriptors. Processes may share one.
#[derive(Clone, Debug, Default)]
pub struct DescriptorTable {
    /// Open descriptors. A child's table shares its parent's until it is changed: a process may
    /// fork often, and have many.
    open: Arc<HashMap<i32, Descriptor>>,
    /// Whether the descriptors that were open at the first call were looked up.
    looked_up: bool,
    /// How often its process has executed a program. Descriptors of before may have been closed by
    /// that (`O_CLOEXEC`).
    executions: u32,
    /// Whether messages were received since then, which may have brought descriptors: a number of
    /// before may be another file's.
    received: bool,
}

impl DescriptorTable {
    /// Notes that its process executed a program.
    pub(super) fn executed(&mut self) {
        self.executions += 1;
        self.received = false;
    }
}

/// The descriptors of a process.
#[derive(Clone, Debug, Default)]
pub struct Descriptors {
    pub(super) table: DescriptorTable,
    /// The names that the process's experiment has.
    named: HashMap<i32, Arc<[u8]>>,
    /// Names of registered files by their numbers: where each thread has a ring, the places of all
    /// rings have the same numbers in turn.
    registered: HashMap<u64, Arc<[u8]>>,
    directory: Option<Vec<u8>>,
}

impl Descriptors {
    /// Returns the descriptors of a program that was started with the working directory and the
    /// standard files of another process, in which they are looked up: the program itself may have
    /// exited before its first call is applied.
    #[must_use]
    pub fn inherited(look: &mut impl DescriptorLookup) -> Descriptors {
        let mut descriptors = Descriptors {
            directory: look.directory(),
            ..Descriptors::default()
        };
        for number in STANDARD {
            if let Some(name) = look.descriptor(number) {
                descriptors.add(number, name.into(), false);
            }
        }
        descriptors
    }

    /// The descriptors of a new child process.
    #[must_use]
    pub fn forked(&self) -> Descriptors {
        Descriptors {
            table: self.table.clone(),
            directory: self.directory.clone(),
            ..Descriptors::default()
        }
    }

    /// Starts another experiment, which has no names yet.
    pub fn start_experiment(&mut self) {
        self.named.clear();
    }

    /// Returns the operations of a call, after the names of descriptors that it uses. Empty for a
    /// call that is not traced.
    pub fn apply(
        &mut self,
        call: &IoCallRecord,
        look: &mut impl DescriptorLookup,
    ) -> Vec<IoOperation> {
        let Some(known) = call_of(call.call, call.table) else {
            return Vec::new();
        };
        if !std::mem::replace(&mut self.table.looked_up, true) {
            for (number, name) in look.all() {
                self.add(number, name.into(), false);
            }
        }
        let applied = Applied {
            descriptors: self,
            call,
            number: known.recorded_number(number_of(call.call, call.table)),
            look,
            operations: Vec::new(),
        };
        let operations = applied.apply(known.action);
        self.table.received |= call.result >= 0 && BRINGS_DESCRIPTORS.contains(&known.name);
        operations
    }

    fn add(&mut self, number: i32, name: Arc<[u8]>, named: bool) {
        if named {
            if self.named.len() >= MAX_DESCRIPTORS {
                self.named.clear();
            }
            self.named.insert(number, Arc::clone(&name));
        }
        let open = Arc::make_mut(&mut self.table.open);
        if open.len() >= MAX_DESCRIPTORS && !open.contains_key(&number) {
            open.clear();
        }
        let descriptor = Descriptor {
            name,
            execution: self.table.executions,
            file: 0,
            opened_ns: Nanos::ZERO,
        };
        open.insert(number, descriptor);
    }

    fn add_registered(&mut self, file: u64, name: Arc<[u8]>) {
        if self.registered.len() >= MAX_DESCRIPTORS {
            self.registered.clear();
        }
        self.registered.insert(file, name);
    }

    /// Notes which registered file a number stands for.
    fn add_file(&mut self, number: i32, file: u64, opened_ns: Nanos) {
        if let Some(known) = Arc::make_mut(&mut self.table.open).get_mut(&number) {
            (known.file, known.opened_ns) = (file, opened_ns);
        }
    }

    fn remove(&mut self, number: i32) {
        self.named.remove(&number);
        if self.table.open.contains_key(&number) {
            Arc::make_mut(&mut self.table.open).remove(&number);
        }
    }

    /// Returns whether the experiment has the name of a descriptor.
    fn is_named(&self, number: i32) -> bool {
        let known = self.table.open.get(&number).map(|known| &known.name);
        let named = self.named.get(&number);
        // Another process that shares the table may have opened a file of the same name there.
        known.is_some_and(|known| named.is_some_and(|named| Arc::ptr_eq(known, named)))
    }

    /// Returns whether a descriptor of the previous program may have been closed by the exec, and
    /// its number reused for a file that came in a message.
    fn is_doubtful(&self, number: i32) -> bool {
        let known = self.table.open.get(&number);
        self.table.received && known.is_some_and(|known| known.execution != self.table.executions)
    }

    /// Looks a doubtful descriptor up. What is not found any more has the name that is known.
    fn settle(&mut self, number: i32, look: &mut impl DescriptorLookup) {
        if !self.is_doubtful(number) {
            return;
        }
        let found = look.descriptor(number);
        if let Some(known) = Arc::make_mut(&mut self.table.open).get_mut(&number) {
            known.execution = self.table.executions;
            if let Some(found) = found.filter(|found| **found != *known.name) {
                known.name = found.into();
            }
        }
    }
}

/// A call that is being applied.
struct Applied<'a, L> {
    descriptors: &'a mut Descriptors,
    call: &'a IoCallRecord,
    /// The [`IoOperation::call`]: see [`experiment_format::calls`].
    number: u32,
    look: &'a mut L,
    operations: Vec<IoOperation>,
}

impl<L: DescriptorLookup> Applied<'_, L> {
    /// When the call returned.
    fn end_ns(&self) -> Nanos {
        Nanos(self.call.header.time_ns)
    }

    fn apply(mut self, action: Action) -> Vec<IoOperation> {
        match action {
            Action::Read => self.moved(IoKind::Read, 0),
            Action::Write => self.moved(IoKind::Write, 0),
            Action::ReadMessages => self.moved_messages(IoKind::Read),
            Action::WriteMessages => self.moved_messages(IoKind::Write),
            Action::Transfer { from, to } => {
                self.moved(IoKind::Write, to);
                self.moved(IoKind::Read, from);
                // The time of the call is in the first.
                if let Some(read) = self.operations.last_mut() {
                    read.requested_ns = read.ended_ns;
                }
            }
            Action::Open => {
                let name = self.path(NO_DIRECTORY);
                self.opened(name);
            }
            Action::OpenAt => {
                let name = self.path(self.argument(0));
                self.opened(name);
            }
            Action::Find(name) => self.found(name),
            Action::Make(name) => self.opened(name.as_bytes().to_vec()),
            Action::MakeMemory => {
                let name = [b"memfd:", &*self.call.extra].concat();
                self.opened(name);
            }
            Action::Socket => self.opened(self.socket()),
            Action::Accept => self.accepted(),
            Action::Pair(name) => self.pair(name),
            Action::Duplicate => self.duplicated(),
            Action::Control if DUPLICATES.contains(&self.call.arguments[1]) => self.duplicated(),
            Action::Close => self.closed(),
            Action::CloseRange => self.range_closed(),
            Action::Bind | Action::Connect => self.addressed(action),
            Action::ChangeDirectory => {
                if self.call.result >= 0 {
                    self.descriptors.directory = Some(self.path(NO_DIRECTORY));
                }
                self.other(-1);
            }
            Action::ChangeDirectoryTo => {
                let number = self.argument(0);
                self.other(number);
                if self.call.result >= 0 {
                    let directory = self.name_of(number);
                    self.descriptors.directory = Some(directory.to_vec());
                }
            }
            Action::Control | Action::Other => self.other(self.argument(0)),
            Action::OtherPath => self.other(-1),
            Action::Memory(_) => {}
        }
        self.operations
    }

    /// Returns an argument that is a descriptor.
    fn argument(&self, number: usize) -> i32 {
        self.call.arguments[number] as i32
    }

    /// The descriptor, or the number of the registered file, that the call opened; negative if the
    /// call failed.
    fn result(&self) -> i32 {
        let result = i32::try_from(self.call.result).unwrap_or(-1);
        let slot = if result >= 0 { self.slot() } else { 0 };
        let file = match slot {
            0 => return result,
            ANY_REGISTERED_FILE => result.cast_unsigned(),
            slot => slot - 1,
        };
        FIRST_REGISTERED_FILE.saturating_add_unsigned(file)
    }

    /// Returns where among the registered files an operation of `io_uring` opens or closes one,
    /// from 1 on; 0 for a descriptor.
    fn slot(&self) -> u32 {
        match self.call.table {
            CallTable::IoUring => self.call.arguments[1] as u32,
            CallTable::Native | CallTable::Compat => 0,
        }
    }

    fn operation(&self, kind: IoKind, descriptor: i32) -> IoOperation {
        IoOperation {
            requested_ns: Nanos(self.call.begin_ns),
            ended_ns: self.end_ns(),
            kind,
            failed: self.call.result < 0,
            descriptor,
            bytes: 0,
            duplicated: None,
            call: Some(self.number),
            name: None,
        }
    }

    /// Adds an operation with the name of a descriptor.
    fn add_name(&mut self, number: i32, name: Arc<[u8]>, at_ns: Nanos) {
        self.descriptors.add(number, Arc::clone(&name), true);
        self.operations.push(IoOperation {
            requested_ns: at_ns,
            ended_ns: at_ns,
            failed: false,
            call: None,
            name: Some(name),
            ..self.operation(IoKind::Open, number)
        });
    }

    /// Returns the name of a descriptor.
    fn name_of(&mut self, number: i32) -> Arc<[u8]> {
        self.descriptors.settle(number, self.look);
        if let Some(known) = self.descriptors.table.open.get(&number) {
            return Arc::clone(&known.name);
        }
        let name: Arc<[u8]> = match number {
            FIRST_REGISTERED_FILE.. => self.registered_name(number, 0),
            _ => {
                let found = self.look.descriptor(number);
                let name = found.unwrap_or_else(|| format!("fd {number}").into_bytes());
                name.into()
            }
        };
        self.descriptors.add(number, Arc::clone(&name), false);
        name
    }

    /// Returns the name of a registered file.
    fn registered_name(&mut self, number: i32, file: u64) -> Arc<[u8]> {
        if let Some(known) = self.descriptors.registered.get(&file) {
            return Arc::clone(known);
        }
        let Some(found) = self.look.registered(file) else {
            let place = number - FIRST_REGISTERED_FILE;
            return format!("io_uring file {place}").into_bytes().into();
        };
        let name: Arc<[u8]> = found.into();
        self.descriptors.add_registered(file, Arc::clone(&name));
        name
    }

    /// Notes that a registered file is used: adds its name if the number had another one. The name
    /// is from shortly before the operation ended: the slot may have changed since it began.
    fn registered_used(&mut self, number: i32) {
        let file = self.call.arguments[2];
        let named = self.descriptors.is_named(number);
        let known = self.descriptors.table.open.get(&number).filter(|_| named);
        if known.is_some_and(|known| file != 0 && known.file == file) {
            return;
        }
        let known = known.map(|known| Arc::clone(&known.name));
        let name = self.registered_name(number, file);
        if known.as_ref() != Some(&name) {
            let at_ns = self.end_ns().saturating_sub(Nanos(1));
            self.add_name(number, name, at_ns);
        }
        self.descriptors.add_file(number, file, Nanos::ZERO);
    }

    /// Notes that a descriptor is used: adds its name if the experiment does not have it.
    fn used(&mut self, number: i32) {
        let none = self.call.result == -i64::from(libc::EBADF);
        if number < 0 || none {
            return;
        }
        if number >= FIRST_REGISTERED_FILE && self.call.table == CallTable::IoUring {
            return self.registered_used(number);
        }
        self.descriptors.settle(number, self.look);
        if self.descriptors.is_named(number) {
            return;
        }
        let name = self.name_of(number);
        // Before the operation, whose time is its end.
        let at_ns = match Nanos(self.call.begin_ns) {
            Nanos::ZERO => self.end_ns().saturating_sub(Nanos(1)),
            begin_ns => begin_ns,
        };
        self.add_name(number, name, at_ns);
    }

    fn moved(&mut self, kind: IoKind, argument: usize) {
        let bytes = u64::try_from(self.call.result).unwrap_or_default();
        self.moved_bytes(kind, argument, bytes);
    }

    /// Adds a call that returned the number of its messages.
    fn moved_messages(&mut self, kind: IoKind) {
        let bytes = self.call.extra.first_chunk().copied();
        self.moved_bytes(kind, 0, bytes.map_or(0, u64::from_ne_bytes));
    }

    fn moved_bytes(&mut self, kind: IoKind, argument: usize, bytes: u64) {
        let number = self.argument(argument);
        self.used(number);
        let operation = IoOperation {
            bytes,
            ..self.operation(kind, number)
        };
        self.operations.push(operation);
    }

    fn other(&mut self, number: i32) {
        self.used(number);
        self.operations.push(self.operation(IoKind::Other, number));
    }

    /// Adds the opening of what has this name, which may have failed.
    fn opened(&mut self, name: Vec<u8>) {
        let name: Arc<[u8]> = name.into();
        let number = self.result();
        if self.call.result >= 0 {
            self.descriptors.add(number, Arc::clone(&name), true);
        }
        if self.slot() != 0 {
            let file = self.call.arguments[3];
            self.descriptors.add_file(number, file, self.end_ns());
        }
        let operation = IoOperation {
            name: Some(name),
            ..self.operation(IoKind::Open, number.max(-1))
        };
        self.operations.push(operation);
    }

    /// Adds the opening of what has to be looked up, or has this name if it is gone.
    fn found(&mut self, otherwise: &str) {
        let number = self.result();
        self.descriptors.remove(number);
        let name = match number {
            0..FIRST_REGISTERED_FILE => self.look.descriptor(number),
            FIRST_REGISTERED_FILE.. => Some(
                self.registered_name(number, self.call.arguments[3])
                    .to_vec(),
            ),
            _ => None,
        };
        self.opened(name.unwrap_or_else(|| otherwise.as_bytes().to_vec()));
    }

    fn duplicated(&mut self) {
        let from = self.argument(0);
        self.used(from);
        if self.call.result < 0 {
            return self.operations.push(self.operation(IoKind::Open, -1));
        }
        let name = self.name_of(from);
        self.opened(name.to_vec());
        if let Some(operation) = self.operations.last_mut() {
            operation.duplicated = Some(from);
        }
    }

    fn closed(&mut self) {
        let number = self.argument(0);
        // The registered file was found when the operation was submitted. An earlier operation may
        // have opened another file in its slot since.
        let known = self.descriptors.table.open.get(&number);
        let since = known.is_some_and(|known| known.opened_ns > Nanos(self.call.begin_ns));
        if !(self.slot() != 0 && since && self.descriptors.is_named(number)) {
            self.used(number);
        }
        if self.call.result >= 0 {
            self.descriptors.remove(number);
        }
        self.operations.push(self.operation(IoKind::Close, number));
    }

    /// Closes a range. The operation has the first descriptor. The others get names again when
    /// their numbers are used.
    fn range_closed(&mut self) {
        let [first, last] = [0, 1].map(|argument| self.call.arguments[argument] as u32);
        let on_exec = self.call.arguments[2] & u64::from(libc::CLOSE_RANGE_CLOEXEC) != 0;
        if self.call.result >= 0 && !on_exec {
            Arc::make_mut(&mut self.descriptors.table.open)
                .retain(|number, _| !(first..=last).contains(&number.cast_unsigned()));
        }
        let kind = if on_exec {
            IoKind::Other
        } else {
            IoKind::Close
        };
        let operation = self.operation(kind, self.argument(0));
        self.operations.push(operation);
    }

    fn pair(&mut self, name: &str) {
        let (numbers, _) = self.call.extra.as_chunks::<4>();
        let [first, second] = numbers else {
            return self.opened(name.as_bytes().to_vec());
        };
        let [first, second] = [first, second].map(|bytes| i32::from_ne_bytes(*bytes));
        // The names have the inode, which identifies the other end in another process.
        for (number, is_call) in [(first, true), (second, false)] {
            self.descriptors.remove(number);
            let found = self.look.descriptor(number);
            let found = found.filter(|found| found.starts_with(name.as_bytes()));
            let name: Arc<[u8]> = found.unwrap_or_else(|| name.as_bytes().to_vec()).into();
            if is_call {
                self.descriptors.add(number, Arc::clone(&name), true);
                let operation = IoOperation {
                    name: Some(name),
                    ..self.operation(IoKind::Open, number)
                };
                self.operations.push(operation);
            } else {
                self.add_name(number, name, self.end_ns())
            }
        }
    }

    /// Returns the name of a new socket.
    fn socket(&self) -> Vec<u8> {
        let [family, kind] = [0, 1].map(|argument| self.argument(argument));
        // The rest of the type are flags.
        let name = match (family, kind & 0xf) {
            (libc::AF_UNIX, _) => "unix socket",
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM) => "tcp socket",
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM) => "udp socket",
            (libc::AF_NETLINK, _) => "netlink socket",
            _ => "socket",
        };
        name.as_bytes().to_vec()
    }

    fn accepted(&mut self) {
        let listener = self.argument(0);
        self.used(listener);
        let name = self.name_of(listener).to_vec();
        let number = self.result();
        let peer = address(&self.call.extra);
        let name = match (self.call.result >= 0, peer) {
            (false, _) => name,
            (true, Some(peer)) => [&*name, b" - ", peer.as_bytes()].concat(),
            (true, None) => {
                let found = match number {
                    FIRST_REGISTERED_FILE.. => self.look.registered(self.call.arguments[3]),
                    _ => self.look.descriptor(number),
                };
                // Another file may have the number by now, but hardly a socket with a peer.
                let has_peer = |found: &Vec<u8>| found.windows(3).any(|bytes| bytes == b" - ");
                let found = found.filter(has_peer);
                found.unwrap_or_else(|| [&*name, b" (accepted)"].concat())
            }
        };
        self.opened(name);
    }

    /// Notes that a socket got an address, or failed to.
    fn addressed(&mut self, action: Action) {
        let number = self.argument(0);
        self.other(number);
        let done = self.call.result >= 0 || self.call.result == -i64::from(libc::EINPROGRESS);
        if !done {
            return;
        }
        let Some(address) = address(&self.call.extra) else {
            return self.addressed_by_io_uring(number);
        };
        let name = self.name_of(number);
        let protocol = name.split(|byte| *byte == b' ').next().unwrap_or(b"socket");
        let name = match action {
            Action::Bind => [protocol, b" ", address.as_bytes()].concat(),
            _ => [protocol, b" to ", address.as_bytes()].concat(),
        };
        self.add_name(number, name.into(), self.end_ns() + Nanos(1));
    }

    /// Notes that a socket has an address that is not known: it is looked up.
    fn addressed_by_io_uring(&mut self, number: i32) {
        let file = self.call.arguments[2];
        let found = match (self.call.table, number) {
            (CallTable::IoUring, FIRST_REGISTERED_FILE..) => self.look.registered(file),
            (CallTable::IoUring, _) => self.look.descriptor(number),
            (CallTable::Native | CallTable::Compat, _) => None,
        };
        let Some(name) = found else {
            return;
        };
        let name: Arc<[u8]> = name.into();
        self.add_name(number, Arc::clone(&name), self.end_ns() + Nanos(1));
        if number >= FIRST_REGISTERED_FILE {
            self.descriptors.add_registered(file, name);
            self.descriptors.add_file(number, file, Nanos::ZERO);
        }
    }

    /// Returns the call's path, absolute where the directory is known.
    fn path(&mut self, directory: i32) -> Vec<u8> {
        let mut path = self.call.extra.to_vec();
        if path.len() >= MAX_IO_EXTRA_BYTES {
            // The kernel ends a path that it cuts with NUL, where a name would end for readers.
            if path.last() == Some(&0) {
                path.pop();
            }
            path.extend("…".as_bytes());
        }
        if path.first() == Some(&b'/') {
            return path;
        }
        let base = match directory {
            NO_DIRECTORY => {
                if self.descriptors.directory.is_none() {
                    self.descriptors.directory = self.look.directory();
                }
                self.descriptors.directory.clone()
            }
            number => Some(self.name_of(number).to_vec()),
        };
        let relative = path.strip_prefix(b"./").unwrap_or(&path);
        match base {
            Some(base) if relative.is_empty() || relative == b"." => base,
            Some(base) => [base.strip_suffix(b"/").unwrap_or(&base), b"/", relative].concat(),
            None => path,
        }
    }
}

#[cfg(test)]
mod tests;
