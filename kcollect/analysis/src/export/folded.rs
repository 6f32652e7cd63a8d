//! Folded stacks, one line each: `process;main;read;ksys_read_[k];[sleep] 10007`, as inferno,
//! flamegraph.pl and many others read them.
//!
//! The number is microseconds, and the last frame the state; of memory the number is bytes, without
//! a state; kernel functions end in `_[k]`, as with
//! perf's collapsers. The format cannot quote, so names that would break it are changed: see
//! [`clean`].

use std::io::{self, Write};

use experiment_format::text::is_printable;
use rustc_hash::FxHashMap;

use super::selected::{Selected, state_name};
use crate::model::{
    GroupKind, Model, NOT_SAMPLED, STATE_SLOTS, ShownUnit, StackId, ThreadInfo, TickRow, WaitReason,
};
use crate::wakers::{WakerNames, Wakers};

/// The frames below the outermost function of a stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GroupBy {
    /// The process's name: processes with equal names are merged.
    #[default]
    Name,
    /// The process's name and pid.
    Process,
    /// Process and thread, with name and id.
    Thread,
    /// What the process belongs to, and its name.
    Group(GroupKind),
    /// None.
    Nothing,
}

impl GroupBy {
    /// All choices with their names.
    pub const ALL: [(GroupBy, &'static str); 9] = [
        (GroupBy::Name, "name"),
        (GroupBy::Process, "process"),
        (GroupBy::Thread, "thread"),
        (GroupBy::Group(GroupKind::Unit), "unit"),
        (GroupBy::Group(GroupKind::Container), "container"),
        (GroupBy::Group(GroupKind::Pod), "pod"),
        (GroupBy::Group(GroupKind::Cgroup), "cgroup"),
        (GroupBy::Group(GroupKind::User), "user"),
        (GroupBy::Nothing, "nothing"),
    ];

    fn frames(self, model: &Model, thread: &ThreadInfo) -> Vec<String> {
        let name = clean(&model.process_name(thread));
        let numbered = || clean(&format!("{name} ({})", model.process(thread.process).pid));
        match self {
            GroupBy::Nothing => Vec::new(),
            GroupBy::Name => vec![name],
            GroupBy::Group(kind) => {
                vec![clean(&model.process(thread.process).group(kind)), name]
            }
            GroupBy::Process => vec![numbered()],
            GroupBy::Thread => {
                let own = format!("{} ({})", model.thread_name(thread), thread.tid);
                vec![numbered(), clean(&own)]
            }
        }
    }
}

/// Maximum number of characters of a name that are kept. Template names can have any length, and
/// would be in many lines.
const MAX_NAME_CHARS: usize = 500;

/// Returns a name that breaks no line, stack or picture: without `;`, characters that XML excludes,
/// or a number at its end that would be read as a count; neither too long nor empty.
#[must_use]
pub fn clean(name: &str) -> String {
    let fits = |character: char| match character {
        ';' => ':',
        '\u{fffe}' | '\u{ffff}' => '?',
        // Some readers end lines at some of these.
        other if other.is_whitespace() && !other.is_control() => ' ',
        other if !is_printable(other) => '?',
        other => other,
    };
    let mut fitting: String = name.chars().take(MAX_NAME_CHARS).map(fits).collect();
    if name.chars().nth(MAX_NAME_CHARS).is_some() {
        // The ellipsis takes the place of one character.
        fitting.pop();
        fitting.push('\u{2026}');
    }
    let trimmed = fitting.trim();
    if trimmed.len() < fitting.len() {
        fitting = trimmed.to_owned();
    }
    if let Some(space) = fitting.rfind(' ') {
        let mut last = fitting[space + 1..].chars();
        if last.all(|character| character.is_ascii_digit() || character == '.') {
            fitting.replace_range(space..=space, "_");
        }
    }
    match fitting.as_str() {
        "" => "?".to_owned(),
        // It would be a comment.
        name if name.starts_with('#') => format!("_{name}"),
        _ => fitting,
    }
}

/// The selected time by root frames, stack, and the frames on top of the stack.
#[derive(Debug)]
pub struct Folded<'m> {
    model: &'m Model,
    /// The root frames of stacks, joined by `;`, each combination once.
    below: Vec<String>,
    functions: Vec<String>,
    /// The frames on top of stacks, joined by `;`: a state, or why a thread waited and what woke
    /// it. Empty: none.
    tops: Vec<String>,
    sums: Vec<((u32, StackId, u32), u64)>,
}

/// Returns the frame of a state.
#[must_use]
pub fn state_frame(slot: usize) -> String {
    format!("[{}]", state_name(slot))
}

/// Returns the frame between the stack of a thread that waited and what woke it.
#[must_use]
pub fn wait_frame(reason: WaitReason) -> String {
    format!("[waits for {}]", reason.title())
}

/// Returns the frames of what woke a thread: its process, and its own name if that is another.
fn waker_frames(names: &WakerNames<'_>) -> Vec<String> {
    let Some(process) = names.process_name() else {
        return vec![NOT_SAMPLED.to_owned()];
    };
    let mut frames = vec![process];
    if !names.thread.is_empty() && names.thread != names.process {
        frames.push(names.thread.to_owned());
    }
    frames.iter().map(|name| clean(name)).collect()
}

impl<'m> Folded<'m> {
    /// Adds up the selected ticks, with their states on top of the stacks.
    #[must_use]
    pub fn new(selected: &Selected<'m>, by: GroupBy) -> Folded<'m> {
        let tops = match selected.model.unit() {
            ShownUnit::Time => (0..STATE_SLOTS).map(state_frame).collect(),
            ShownUnit::Bytes => vec![String::new(); STATE_SLOTS],
        };
        Folded::with_tops(selected, by, tops, |_, row| row.slot() as u32)
    }

    /// Adds up the selected waits, with cause and waker on top of the stacks. The waker's own stack
    /// is not recorded.
    #[must_use]
    pub fn of_waits(selected: &Selected<'m>, by: GroupBy) -> Folded<'m> {
        let model = selected.model;
        let wakers = Wakers::new(model);
        let mut numbers: FxHashMap<_, u32> = FxHashMap::default();
        Folded::with_tops(selected, by, Vec::new(), |tops, row| {
            let (reason, waker) = (row.wait_reason(), wakers.of(row));
            *numbers.entry((reason, waker)).or_insert_with(|| {
                let mut frames: Vec<_> = reason.map(wait_frame).into_iter().collect();
                let names = waker.map(|waker| wakers.names(model, waker));
                frames.extend(names.iter().flat_map(waker_frames));
                tops.push(frames.join(";"));
                tops.len() as u32 - 1
            })
        })
    }

    /// Adds up the selected ticks. `top` returns which of `tops` a row has, and may add to them.
    fn with_tops(
        selected: &Selected<'m>,
        by: GroupBy,
        mut tops: Vec<String>,
        mut top: impl FnMut(&mut Vec<String>, &TickRow) -> u32,
    ) -> Folded<'m> {
        let model = selected.model;
        let mut numbers: FxHashMap<String, u32> = FxHashMap::default();
        let mut sums: FxHashMap<_, u64> = FxHashMap::default();
        for thread in selected.threads() {
            let below = by.frames(model, thread.thread()).join(";");
            let next = numbers.len() as u32;
            let number = *numbers.entry(below).or_insert(next);
            for row in thread.rows() {
                let top = top(&mut tops, row);
                let sum = sums.entry((number, row.stack, top)).or_default();
                *sum += row.micros as u64;
            }
        }
        let mut below = vec![String::new(); numbers.len()];
        for (frames, number) in numbers {
            below[number as usize] = frames;
        }
        let functions = model.functions.iter().map(|function| {
            let name = clean(&function.name);
            if function.kernel { name + "_[k]" } else { name }
        });
        let mut sums: Vec<_> = sums.into_iter().filter(|(_, sum)| *sum > 0).collect();
        sums.sort_unstable();
        Folded {
            functions: functions.collect(),
            below,
            tops,
            model,
            sums,
        }
    }

    /// Returns the functions' names as they are in stacks, by position in the model.
    #[must_use]
    pub fn functions(&self) -> &[String] {
        &self.functions
    }

    /// Returns the root frames, joined by `;`.
    #[must_use]
    pub fn below(&self) -> &[String] {
        &self.below
    }

    /// Returns the frames on top of stacks, joined by `;`.
    #[must_use]
    pub fn tops(&self) -> &[String] {
        &self.tops
    }

    /// Returns root frames, stack, the frames on top of it, and microseconds; stacks with equal
    /// root frames are adjacent.
    pub fn sums(&self) -> impl Iterator<Item = (&str, StackId, &str, u64)> {
        self.sums.iter().map(|((below, stack, top), sum)| {
            let below = self.below[*below as usize].as_str();
            (below, *stack, self.tops[*top as usize].as_str(), *sum)
        })
    }

    /// Calls `each` with every stack and its microseconds, in a fixed order.
    ///
    /// # Errors
    /// The first error of `each`.
    pub fn each<E>(&self, mut each: impl FnMut(&str, u64) -> Result<(), E>) -> Result<(), E> {
        let mut line = String::new();
        let mut path: Vec<usize> = Vec::new();
        for ((below, stack, top), sum) in &self.sums {
            line.clear();
            line.push_str(&self.below[*below as usize]);
            path.clear();
            path.extend(self.model.stack(*stack).map(|frame| frame.function.index()));
            for function in path.iter().rev() {
                push(&mut line, &self.functions[*function]);
            }
            match self.tops[*top as usize].as_str() {
                "" => {}
                frames => push(&mut line, frames),
            }
            each(&line, *sum)?;
        }
        Ok(())
    }
}

fn push(line: &mut String, frame: &str) {
    if !line.is_empty() {
        line.push(';');
    }
    line.push_str(frame);
}

/// Writes the folded stacks.
///
/// # Errors
/// When writing fails.
pub fn write(selected: &Selected<'_>, by: GroupBy, out: &mut dyn Write) -> io::Result<()> {
    Folded::new(selected, by).each(|line, sum| writeln!(out, "{line} {sum}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_would_break_a_line_are_changed() {
        for (name, cleaned) in [
            ("main", "main"),
            ("std::vector<int, A>", "std::vector<int, A>"),
            ("<[u8; 8] as T>::f", "<[u8: 8] as T>::f"),
            (" a\nb\0c\t", "a?b?c?"),
            ("worker 7", "worker_7"),
            ("a 1 2.5", "a 1_2.5"),
            ("# x", "_# x"),
            ("", "?"),
            (&"x".repeat(501), &("x".repeat(499) + "\u{2026}")),
            (&"x".repeat(500), &"x".repeat(500)),
            (" ", "?"),
            ("\u{ffff}\u{2028}x", "? x"),
        ] {
            assert_eq!(clean(name), cleaned, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn clean_names_stay_unchanged(name in "\\PC{0,8}|[ ;#0-9.\n\r\t\u{0}-\u{7f}]{0,8}") {
            let cleaned = clean(&name);
            prop_assert_eq!(clean(&cleaned), cleaned.clone());
            prop_assert!(!cleaned.is_empty());
            prop_assert!(!cleaned.contains([';', '\n', '\r', '\0']));
            let line = format!("{cleaned} 5");
            prop_assert_eq!(line.trim(), line.as_str());
        }
    }
}
