//! What comes piece by piece: files that JIT compilers write while they are read, records of the
//! kernel's rings, and what `/proc` says of a process.

use bpf::wire::Record;
use kcollect::record::input::sideband;
use user_collector::jit::jitdump::JitDump;
use user_collector::jit::perf_map::PerfMap;
use user_collector::process as facts;

/// A name is cut there; a mistake would be one that is longer than its record.
const LONGEST: usize = 1 << 16;

/// In which pieces a stream comes: as long as its first byte says.
fn pieces(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    rest.chunks(usize::from(*first).max(1))
}

/// `/tmp/perf-PID.map`, cut anywhere: what comes of it does not depend on where.
pub(super) fn perf_map(bytes: &[u8]) {
    let told = |map: &mut PerfMap, piece: &[u8], into: &mut Vec<(u64, u64, Vec<u8>)>| {
        map.feed(piece, |entry| {
            assert!(!entry.name.is_empty() && entry.name.len() <= LONGEST);
            into.push((entry.address, entry.size, entry.name.to_vec()));
        });
    };
    let (mut whole, mut cut) = (PerfMap::default(), PerfMap::default());
    let (mut all, mut parts) = (Vec::new(), Vec::new());
    told(&mut whole, bytes.get(1..).unwrap_or_default(), &mut all);
    pieces(bytes).for_each(|piece| told(&mut cut, piece, &mut parts));
    assert_eq!(all, parts);
    assert_eq!(whole.bad(), cut.bad());
}

/// `jit-PID.dump`, cut anywhere.
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

/// Bytes of a perf ring.
pub(super) fn sideband(bytes: &[u8]) {
    let mut told = 0;
    sideband::records(bytes, |_, event| {
        told += 1;
        if let sideband::SidebandEvent::Comm { name, .. } = event {
            assert!(name.len() <= bytes.len());
        }
    });
    // A record has a header at least.
    assert!(told <= bytes.len() / 8 + 1);
}

/// Records of our own programs, one after the other.
pub(super) fn records(bytes: &[u8]) {
    let _ = Record::decode_all(bytes);
    let mut rest = bytes;
    while let Ok((record, after)) = Record::decode_first(rest) {
        assert!(after.len() < rest.len());
        let _ = record.time();
        if let Record::Absence(absence) = &record {
            let _ = absence.counts();
        }
        rest = after;
    }
}

/// `/proc/PID/cmdline`, `cgroup` and `environ`.
pub(super) fn facts(bytes: &[u8]) {
    for cut in [false, true] {
        let _ = facts::quoted(bytes, cut);
    }
    let _ = facts::container_of(bytes);
    let _ = facts::rank_of(bytes);
}
