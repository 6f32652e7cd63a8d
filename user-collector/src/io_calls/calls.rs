//! The system calls that are traced, as the BPF programs number them.

use bpf_abi::layout::{CALL_TABLES, CallTable, IO_CALLS, IoExtra, TracedCall};
use experiment_format::calls::{self, Action, CALLS_PER_TABLE, Call};

// The programs count through all tables as experiments do.
const _: () = assert!(IO_CALLS == CALLS_PER_TABLE);

/// The number of a call of a table, counted through all tables.
pub(super) fn number_of(call: u32, table: CallTable) -> u32 {
    IO_CALLS as u32 * u32::from(u8::from(table)) + call
}

/// Returns the call of a number in a table; `None` if it is not traced.
#[must_use]
pub fn call_of(number: u32, table: CallTable) -> Option<&'static Call> {
    if number as usize >= IO_CALLS {
        return None;
    }
    calls::call_of(number_of(number, table))
}

/// What the BPF programs trace, by number, one table after the other: calls that do I/O (`io`), and
/// calls that change memory (`memory`). Empty without both.
#[must_use]
pub fn traced_calls(io: bool, memory: bool) -> Vec<TracedCall> {
    if !io && !memory {
        return Vec::new();
    }
    let wanted = |call: &&Call| match call.action {
        Action::Memory(_) => memory,
        _ => io,
    };
    let traced = |call: Option<&'static Call>| match call.filter(|call| wanted(call)) {
        Some(call) => {
            let (extra, argument) = extra_of(call);
            TracedCall {
                traced: 1,
                extra: extra.into(),
                extra_argument: argument,
                zero: 0,
            }
        }
        None => TracedCall::default(),
    };
    let numbers = 0..(CALL_TABLES * IO_CALLS) as u32;
    numbers
        .map(|number| traced(calls::call_of(number)))
        .collect()
}

/// The program's data that belong to a call, and the index of the argument that points to them.
fn extra_of(call: &Call) -> (IoExtra, u8) {
    use Action::{
        Accept, Bind, ChangeDirectory, Connect, MakeMemory, Open, OpenAt, Pair, ReadMessages,
        WriteMessages,
    };
    match call.action {
        Open | MakeMemory | ChangeDirectory => (IoExtra::Path, 0),
        OpenAt => (IoExtra::Path, 1),
        Pair("pipe") => (IoExtra::Descriptors, 0),
        Pair(_) => (IoExtra::Descriptors, 3),
        Accept => (IoExtra::PeerAddress, 1),
        ReadMessages | WriteMessages => (IoExtra::MessageBytes, 1),
        Bind | Connect => (IoExtra::Address, 1),
        _ => (IoExtra::None, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_by_table_and_number() {
        use CallTable::{Compat, IoUring, Native};
        let name = |number, table| call_of(number, table).map(|call| call.name);
        assert_eq!(name(libc::SYS_read as u32, Native), Some("read"));
        assert_eq!(name(IO_CALLS as u32 + 3, Native), None);
        assert_eq!(name(u32::MAX, Native), None);
        assert_eq!(name(u32::MAX, IoUring), None);
        assert_eq!(name(22, IoUring), Some("IORING_OP_READ"));
        if cfg!(target_arch = "x86_64") {
            assert_eq!(name(3, Compat), Some("read"));
        }
    }

    #[test]
    fn what_the_programs_trace_has_the_path_of_an_open() {
        let traced = traced_calls(true, false);
        assert_eq!(traced.len(), CALL_TABLES * IO_CALLS);
        let openat = traced[libc::SYS_openat as usize];
        assert_eq!(
            (openat.traced, openat.extra, openat.extra_argument),
            (1, 1, 1)
        );
        assert_eq!(traced[libc::SYS_futex as usize], TracedCall::default());
        assert_eq!(traced[libc::SYS_mmap as usize], TracedCall::default());
        assert_eq!(traced_calls(false, true)[libc::SYS_mmap as usize].traced, 1);
        assert!(traced_calls(false, false).is_empty());
    }
}
