//! Input that arrives in pieces: files that JIT compilers write while they are read, records of the
//! kernel's rings, and a process's files in `/proc`.

use bpf_abi::Record;
use kcollect::record::input::sideband;
use user_collector::jit::jitdump::JitDump;
use user_collector::jit::perf_map::PerfMap;
use user_collector::process as facts;

/// A bound for names, which are cut well below it. A bug would return one longer than its record.
const MAX_NAME_BYTES: usize = 1 << 16;

/// Splits a stream into pieces, as long as its first byte says.
fn pieces(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    rest.chunks(usize::from(*first).max(1))
}

/// Reads `/tmp/perf-PID.map` in pieces; the result does not depend on where it is cut.
pub(super) fn perf_map(bytes: &[u8]) {
    let read = |map: &mut PerfMap, piece: &[u8], into: &mut Vec<(u64, u64, Vec<u8>)>| {
        map.feed(piece, |entry| {
            assert!(!entry.name.is_empty() && entry.name.len() <= MAX_NAME_BYTES);
            into.push((entry.address, entry.size, entry.name.to_vec()));
        });
    };
    let (mut whole, mut cut) = (PerfMap::default(), PerfMap::default());
    let (mut all, mut parts) = (Vec::new(), Vec::new());
    read(&mut whole, bytes.get(1..).unwrap_or_default(), &mut all);
    pieces(bytes).for_each(|piece| read(&mut cut, piece, &mut parts));
    assert_eq!(all, parts);
    assert_eq!(whole.bad(), cut.bad());
}

/// Reads `jit-PID.dump` in pieces.
pub(super) fn jitdump(bytes: &[u8]) {
    let read = |dump: &mut JitDump, piece: &[u8], into: &mut Vec<String>| {
        dump.feed(piece, |record| into.push(format!("{record:?}")))
    };
    let (mut whole, mut cut) = (JitDump::default(), JitDump::default());
    let (mut all, mut parts) = (Vec::new(), Vec::new());
    let at_once = read(&mut whole, bytes.get(1..).unwrap_or_default(), &mut all);
    let mut in_parts = Ok(());
    for piece in pieces(bytes) {
        in_parts = in_parts.and(read(&mut cut, piece, &mut parts));
    }
    assert_eq!(all, parts);
    assert_eq!(at_once, in_parts);
    assert_eq!(whole.bad(), cut.bad());
}

/// Reads the bytes of a perf ring.
pub(super) fn sideband(bytes: &[u8]) {
    let mut count = 0;
    sideband::records(bytes, |_, event| {
        count += 1;
        if let sideband::SidebandEvent::Comm { name, .. } = event {
            assert!(name.len() <= bytes.len());
        }
    });
    // A record has at least a header.
    assert!(count <= bytes.len() / 8 + 1);
}

/// Reads records of the BPF programs, one after the other.
pub(super) fn records(bytes: &[u8]) {
    Record::decode_all(bytes).for_each(drop);
    let mut rest = bytes;
    while let Ok((record, after)) = Record::decode_first(rest) {
        assert!(after.len() < rest.len());
        let _ = record.time_ns();
        if let Record::OffCpu(interval) = &record {
            let _ = interval.counts();
        }
        rest = after;
    }
}

/// Reads `/proc/PID/cmdline`, `cgroup` and `environ`.
pub(super) fn facts(bytes: &[u8]) {
    for cut in [false, true] {
        let _ = facts::quoted(bytes, cut);
    }
    let _ = facts::container_of(bytes);
    let _ = facts::rank_of(bytes);
}
