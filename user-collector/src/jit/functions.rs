//! The JIT functions of one process, as a function of time.

use std::collections::BTreeMap;
use std::sync::Arc;

use experiment_format::text::printable;
use experiment_format::units::Nanos;

use super::MAX_NAME_BYTES;
use super::memory_limit::{JitMemory, JitMemoryShare};

/// Max functions of one process at a time.
pub const MAX_FUNCTIONS: usize = 1_000_000;
/// Max bytes of the names of one process's functions.
pub const MAX_NAMES_BYTES: usize = 128 << 20;
/// Memory of a function in addition to its name, bytes: its place in a tree that may be half empty,
/// and the reference counts of the name.
const FUNCTION_OVERHEAD_BYTES: usize = 96;
/// Largest function, bytes: gprofng reads sizes as signed 32-bit numbers.
const MAX_FUNCTION_BYTES: u64 = (1 << 31) - 1;

/// A function that begins or ends, in the order in which it is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JitChange {
    /// A function begins.
    Begin {
        /// When, nanoseconds of the events' clock.
        at_ns: Nanos,
        /// First address.
        address: u64,
        /// Bytes: 1 to 2^31 - 1.
        size: u64,
        /// Its name, safe to print.
        name: Arc<str>,
        /// Where in the jitdump its code begins, bytes; none from [`JitFunctions`], which reads no
        /// files.
        dump_offset: Option<u64>,
    },
    /// A function ends.
    End {
        /// When, nanoseconds of the events' clock.
        at_ns: Nanos,
        /// First address.
        address: u64,
    },
}

/// The JIT functions of one process, as they are at the instant of the last change. No two
/// overlap.
#[derive(Debug, Default)]
pub struct JitFunctions {
    by_address: BTreeMap<u64, JitFunction>,
    name_bytes: usize,
    share: JitMemoryShare,
    latest_end_ns: Nanos,
    refused: u64,
    too_many: u64,
}

#[derive(Clone, Debug)]
struct JitFunction {
    begin_ns: Nanos,
    size: u64,
    name: Arc<str>,
    /// Its process's jitdump names it.
    dumped: bool,
}

impl JitFunctions {
    /// Returns no functions yet; their memory counts towards this limit.
    #[must_use]
    pub fn within(memory: &JitMemory) -> JitFunctions {
        JitFunctions {
            share: JitMemoryShare::of(memory),
            ..JitFunctions::default()
        }
    }

    /// Adds a function. All functions that it overlaps end, whole: no part of one is kept.
    ///
    /// Adding the same function again changes nothing. A function without bytes, one that is too
    /// large and one beyond the limits are refused, and counted. Times of one address always
    /// increase: a beginning is a nanosecond after the last end of any function, an end after its
    /// beginning, whatever `at_ns` is.
    pub fn load(&mut self, at_ns: Nanos, address: u64, size: u64, name: &[u8]) -> Vec<JitChange> {
        self.begin(at_ns, address, size, (kept(name), false))
    }

    /// Adds a function of the process's jitdump, as [`JitFunctions::load`].
    pub fn load_dumped(
        &mut self,
        at_ns: Nanos,
        address: u64,
        size: u64,
        name: &[u8],
    ) -> Vec<JitChange> {
        self.begin(at_ns, address, size, (kept(name), true))
    }

    /// Adds a function of the process's perf map, as [`JitFunctions::load`]. Where one of the
    /// jitdump lies, which has exact times, that one stays.
    pub fn load_mapped(
        &mut self,
        at_ns: Nanos,
        address: u64,
        size: u64,
        name: &[u8],
    ) -> Vec<JitChange> {
        let below = self.by_address.range(..address.saturating_add(size));
        let mut overlaps = below
            .rev()
            .take_while(|(start, function)| **start + function.size > address);
        if overlaps.any(|(_, function)| function.dumped) {
            return Vec::new();
        }
        self.load(at_ns, address, size, name)
    }

    /// Moves the function at `from` to `to`. An unknown function changes nothing.
    pub fn moved(&mut self, at_ns: Nanos, from: u64, to: u64) -> Vec<JitChange> {
        let Some(function) = self.by_address.get(&from).cloned() else {
            return Vec::new();
        };
        let JitFunction {
            size, name, dumped, ..
        } = function;
        if from == to {
            return Vec::new();
        }
        let mut changes = self.clear(at_ns, from, from + size);
        changes.extend(self.begin(at_ns, to, size, (name, dumped)));
        changes
    }

    /// Ends all functions that overlap the addresses between `start` and `end`.
    pub fn clear(&mut self, at_ns: Nanos, start: u64, end: u64) -> Vec<JitChange> {
        if start >= end {
            return Vec::new();
        }
        let before = self.by_address.range(..start).next_back();
        let first = match before {
            Some((address, function)) if address + function.size > start => *address,
            _ => start,
        };
        let over: Vec<u64> = self
            .by_address
            .range(first..end)
            .map(|(address, _)| *address)
            .collect();
        let ended = over.into_iter().filter_map(|address| {
            let function = self.by_address.remove(&address)?;
            self.name_bytes -= function.name.len();
            self.share
                .release(function.name.len() + FUNCTION_OVERHEAD_BYTES);
            let at_ns = at_ns.max(function.begin_ns.saturating_add(Nanos(1)));
            self.latest_end_ns = self.latest_end_ns.max(at_ns);
            Some(JitChange::End { at_ns, address })
        });
        ended.collect()
    }

    fn begin(
        &mut self,
        at_ns: Nanos,
        address: u64,
        size: u64,
        (name, dumped): (Arc<str>, bool),
    ) -> Vec<JitChange> {
        let end = match address.checked_add(size) {
            Some(end) if size != 0 && size <= MAX_FUNCTION_BYTES => end,
            _ => {
                self.refused += 1;
                return Vec::new();
            }
        };
        if let Some(old) = self.by_address.get_mut(&address)
            && old.size == size
            && old.name == name
        {
            old.dumped |= dumped;
            return Vec::new();
        }
        let mut changes = self.clear(at_ns, address, end);
        let name_bytes = self.name_bytes + name.len();
        if self.by_address.len() >= MAX_FUNCTIONS
            || name_bytes > MAX_NAMES_BYTES
            || !self.share.take(name.len() + FUNCTION_OVERHEAD_BYTES)
        {
            self.refused += 1;
            self.too_many += 1;
            return changes;
        }
        self.name_bytes = name_bytes;
        let at_ns = at_ns.max(self.latest_end_ns.saturating_add(Nanos(1)));
        let function = JitFunction {
            begin_ns: at_ns,
            size,
            name: Arc::clone(&name),
            dumped,
        };
        self.by_address.insert(address, function);
        changes.push(JitChange::Begin {
            at_ns,
            address,
            size,
            name,
            dump_offset: None,
        });
        changes
    }

    /// Returns when the function at an address began, if one begins there.
    pub(super) fn begin_ns(&self, address: u64) -> Option<Nanos> {
        self.by_address
            .get(&address)
            .map(|function| function.begin_ns)
    }

    /// The number of functions that exist now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Whether no functions exist now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Returns how many were refused so far.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns how many of those were beyond the limits of one process or of all.
    #[must_use]
    pub fn too_many(&self) -> u64 {
        self.too_many
    }
}

/// Returns what is kept of a name.
fn kept(name: &[u8]) -> Arc<str> {
    printable(&name[..name.len().min(MAX_NAME_BYTES)]).into()
}

/// Removes the functions that lasted for one nanosecond, the shortest time possible. The process
/// had replaced them before the file was read, and they have no ticks. The order of the rest stays.
pub(super) fn without_momentary(changes: &mut Vec<JitChange>) {
    let mut begins = BTreeMap::new();
    let mut keep = vec![true; changes.len()];
    for (index, change) in changes.iter().enumerate() {
        match change {
            JitChange::Begin { at_ns, address, .. } => {
                begins.insert(*address, (*at_ns, index));
            }
            JitChange::End { at_ns, address } => {
                if let Some((since, begin)) = begins.remove(address)
                    && *at_ns <= since + Nanos(1)
                {
                    keep[begin] = false;
                    keep[index] = false;
                }
            }
        }
    }
    let mut keep = keep.into_iter();
    changes.retain(|_| keep.next().unwrap_or(true));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::jit::is_anonymous;
    use crate::space::MappedFile;

    /// What a reader has of the changes: functions by address, and all changes so far.
    #[derive(Default)]
    struct Written(BTreeMap<u64, (u64, Arc<str>)>, Vec<JitChange>);

    impl Written {
        fn apply(&mut self, changes: &[JitChange]) {
            self.1.extend_from_slice(changes);
            self.0.clear();
            let mut sorted = self.1.clone();
            // As gprofng does: of one instant, what is written last comes first.
            sorted.reverse();
            sorted.sort_by_key(|change| match change {
                JitChange::Begin { at_ns, .. } | JitChange::End { at_ns, .. } => *at_ns,
            });
            for change in sorted {
                match change {
                    JitChange::Begin {
                        address,
                        size,
                        name,
                        ..
                    } => {
                        let old = self.0.insert(address, (size, name));
                        assert!(old.is_none(), "{address:#x} was not ended");
                        let all: Vec<_> = self.0.iter().collect();
                        let apart =
                            |pair: &[(&u64, &(u64, _))]| pair[0].0 + pair[0].1.0 <= *pair[1].0;
                        assert!(all.windows(2).all(apart), "overlap");
                    }
                    JitChange::End { address, .. } => {
                        assert!(self.0.remove(&address).is_some(), "{address:#x} ends twice");
                    }
                }
            }
        }

        /// First letters of the names, a dot for nothing.
        fn drawing(&self, length: u64) -> String {
            (0..length)
                .map(|address| {
                    let found = self.0.range(..=address).next_back();
                    found
                        .filter(|(start, (size, _))| address < *start + size)
                        .and_then(|(_, (_, name))| name.chars().next())
                        .unwrap_or('.')
                })
                .collect()
        }
    }

    fn after(loads: &[(u64, u64, &str)]) -> (JitFunctions, Written) {
        let (mut functions, mut written) = (JitFunctions::default(), Written::default());
        for (at_ns, (address, size, name)) in loads.iter().enumerate() {
            written.apply(&functions.load(Nanos(at_ns as u64), *address, *size, name.as_bytes()));
        }
        (functions, written)
    }

    #[test]
    fn a_new_function_ends_all_that_it_overlaps() {
        let (mut functions, written) = after(&[(1, 3, "a"), (4, 2, "b"), (6, 2, "c")]);
        assert_eq!(written.drawing(10), ".aaabbcc..");
        let changes = functions.load(Nanos(9), 3, 2, b"d");
        let end = |address| JitChange::End {
            at_ns: Nanos(9),
            address,
        };
        assert_eq!(changes[..2], [end(1), end(4)]);
        assert!(matches!(changes[2], JitChange::Begin { address: 3, .. }));
        assert_eq!(functions.len(), 2);
    }

    #[test]
    fn the_same_again_changes_nothing_but_another_name_does() {
        let (mut functions, _) = after(&[(1, 3, "a")]);
        assert!(functions.load(Nanos(9), 1, 3, b"a").is_empty());
        assert_eq!(functions.load(Nanos(9), 1, 3, b"aa").len(), 2);
        assert_eq!(functions.load(Nanos(9), 1, 2, b"aa").len(), 2);
    }

    #[test]
    fn bad_functions_are_refused() {
        let mut functions = JitFunctions::default();
        for (address, size) in [(1, 0), (1, 1 << 31), (u64::MAX, 2)] {
            assert!(functions.load(Nanos::ZERO, address, size, b"x").is_empty());
        }
        assert_eq!(functions.refused(), 3);
        assert!(functions.is_empty());
    }

    #[test]
    fn functions_that_end_free_their_memory() {
        let memory = JitMemory::default();
        let mut functions = JitFunctions::within(&memory);
        functions.load(Nanos::ZERO, 1, 4, b"four");
        functions.load(Nanos::ZERO, 3, 4, b"other");
        assert_eq!(memory.taken(), 5 + FUNCTION_OVERHEAD_BYTES);
        functions.moved(Nanos::ZERO, 3, 9);
        assert_eq!(memory.taken(), 5 + FUNCTION_OVERHEAD_BYTES);
        functions.clear(Nanos::ZERO, 0, u64::MAX);
        assert_eq!(memory.taken(), 0);
    }

    #[test]
    fn names_are_safe_and_short() {
        let mut functions = JitFunctions::default();
        let name = |changes: Vec<JitChange>| match &changes[..] {
            [JitChange::Begin { name, .. }] => name.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            name(functions.load(Nanos::ZERO, 1, 1, b"a\x1b[31m\xff")),
            "a\\x1B[31m\\xFF"
        );
        assert_eq!(
            name(functions.load(Nanos::ZERO, 2, 1, &[b'y'; 2000])).len(),
            1000
        );
    }

    #[test]
    fn moved_code_keeps_its_name() {
        let (mut functions, mut written) = after(&[(1, 3, "a"), (6, 2, "b")]);
        written.apply(&functions.moved(Nanos(5), 1, 4));
        assert_eq!(written.drawing(9), "....aaa..");
        written.apply(&functions.moved(Nanos(6), 4, 3));
        assert_eq!(written.drawing(9), "...aaa...");
        assert!(functions.moved(Nanos(6), 77, 3).is_empty());
        assert!(functions.moved(Nanos(6), 3, 3).is_empty());
    }

    #[test]
    fn a_file_over_functions_ends_them() {
        let (mut functions, mut written) = after(&[(1, 3, "a"), (4, 2, "b"), (6, 2, "c")]);
        written.apply(&functions.clear(Nanos(5), 5, 6));
        assert_eq!(written.drawing(9), ".aaa..cc.");
        written.apply(&functions.clear(Nanos(6), 0, u64::MAX));
        assert!(written.0.is_empty() && functions.is_empty());
        assert_eq!(functions.name_bytes, 0);
    }

    /// Changes in short: time, sign, name or address.
    fn shown(changes: &[JitChange]) -> Vec<String> {
        let shown = changes.iter().map(|change| match change {
            JitChange::Begin { at_ns, name, .. } => format!("{at_ns}+{name}"),
            JitChange::End { at_ns, address } => format!("{at_ns}-{address}"),
        });
        shown.collect()
    }

    #[test]
    fn times_of_an_address_increase() {
        let mut functions = JitFunctions::default();
        assert_eq!(shown(&functions.load(Nanos(9), 1, 1, b"a")), ["9+a"]);
        assert_eq!(
            shown(&functions.load(Nanos(9), 1, 1, b"b")),
            ["10-1", "11+b"]
        );
        assert_eq!(
            shown(&functions.load(Nanos(3), 1, 1, b"c")),
            ["12-1", "13+c"]
        );
        assert_eq!(
            shown(&functions.load(Nanos(50), 1, 1, b"d")),
            ["50-1", "51+d"]
        );
        // Another function may have ended there.
        assert_eq!(shown(&functions.load(Nanos(3), 5, 1, b"e")), ["51+e"]);
    }

    #[test]
    fn functions_without_a_lifetime_are_omitted() {
        let mut functions = JitFunctions::default();
        let mut changes = functions.load(Nanos(1), 1, 1, b"a");
        changes.extend(functions.load(Nanos(1), 1, 1, b"b"));
        changes.extend(functions.load(Nanos(1), 1, 1, b"c"));
        changes.extend(functions.load(Nanos(100), 1, 1, b"d"));
        without_momentary(&mut changes);
        assert_eq!(shown(&changes), ["5+c", "100-1", "101+d"]);
    }

    #[test]
    fn anonymous_memory_has_many_names() {
        let file = |path: &str| MappedFile {
            path: path.as_bytes().into(),
            build_id: Box::default(),
            identity: Default::default(),
        };
        for path in [
            "//anon",
            "[anon:v8]",
            "/memfd:doublemapper (deleted)",
            "/dev/zero (deleted)",
        ] {
            assert!(is_anonymous(&file(path)), "{path}");
        }
        for path in [
            "/usr/bin/node",
            "[vdso]",
            "[vsyscall]",
            "/tmp/jit-7.dump",
            "",
        ] {
            assert!(!is_anonymous(&file(path)), "{path}");
        }
    }

    proptest! {
        /// The functions are those that a simple model has, in which a new one removes all that it
        /// overlaps.
        #[test]
        fn last_loaded_function_is_found(
            loads in proptest::collection::vec((0_u64..64, 1_u64..32, 0_u8..20, 0_u64..9), 1..60)
        ) {
            let (mut functions, mut written) = (JitFunctions::default(), Written::default());
            let mut model = vec![None; 96];
            let mut all = Vec::new();
            // Times in any order.
            for (number, (address, size, letter, at_ns)) in loads.into_iter().enumerate() {
                let name = char::from(b'a' + letter).to_string();
                let changes = functions.load(Nanos(at_ns), address, size, name.as_bytes());
                written.apply(&changes);
                all.extend(changes);
                let here = address as usize..(address + size) as usize;
                let overlapped: Vec<_> = model[here.clone()].iter().flatten().map(|(number, _)| *number).collect();
                for byte in &mut model {
                    if byte.is_some_and(|(number, _)| overlapped.contains(&number)) {
                        *byte = None;
                    }
                }
                model[here].fill(Some((number, b'a' + letter)));
            }
            let expected: String = model
                .iter()
                .map(|byte| byte.map_or('.', |(_, letter)| char::from(letter)))
                .collect();
            prop_assert_eq!(written.drawing(96), &*expected);
            // It is the same without the functions that lasted for no time.
            without_momentary(&mut all);
            let mut again = Written::default();
            again.apply(&all);
            prop_assert_eq!(again.drawing(96), expected);
        }
    }
}
