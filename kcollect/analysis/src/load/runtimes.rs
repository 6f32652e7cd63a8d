//! Corrects the causes of waits in language runtimes that pass work between threads in one place.
//!
//! Wake-ups alone cannot tell there whether a thread had nothing to do or competed for a lock: in
//! both cases another thread of the program wakes it. The name of the function in which it waits
//! can.

use experiment_format::cause::Cause;

use crate::model::{Model, TickRow, WaitReason};

/// A place in a runtime where threads wait for one reason.
struct RuntimePlace {
    /// The function, or a module or type all functions of which wait for that reason. Methods are
    /// written with their type, without generic arguments.
    symbol: &'static str,
    /// What they wait for: new work or a lock.
    cause: Cause,
}

const fn idle(symbol: &'static str) -> RuntimePlace {
    let cause = Cause::NewWork;
    RuntimePlace { symbol, cause }
}

const fn lock(symbol: &'static str) -> RuntimePlace {
    let cause = Cause::Lock;
    RuntimePlace { symbol, cause }
}

/// The places; docs/waits.md has the same list.
const PLACES: [RuntimePlace; 9] = [
    // Go: a thread without a goroutine to run.
    idle("runtime.findRunnable"),
    idle("runtime.findrunnable"),
    idle("runtime.stopm"),
    // Rust: workers of Rayon and Tokio.
    idle("rayon_core::sleep::Sleep::sleep"),
    idle("tokio::runtime::scheduler::multi_thread::park"),
    idle("tokio::runtime::scheduler::multi_thread::worker::Context::park"),
    // Java: workers of a ForkJoinPool, and synchronized.
    idle("java.util.concurrent.ForkJoinPool.awaitWork"),
    lock("ObjectMonitor::enter"),
    // CPython: the global interpreter lock.
    lock("take_gil"),
];

/// Parts of the names of kernel functions in which a runtime waits: for a futex or for events.
const KERNEL_WAITS: [&str; 3] = ["futex", "ep_poll", "epoll_wait"];

/// Gives waits in [`PLACES`] their cause, unless the state of the waiting thread said another one.
pub(super) fn correct(model: &mut Model) {
    let causes: Vec<_> = model
        .functions
        .iter()
        .map(|function| {
            (!function.kernel)
                .then(|| place_of(&function.name))
                .flatten()
        })
        .collect();
    if causes.iter().all(Option::is_none) {
        return;
    }
    // For each stack: the cause of its innermost place, and whether the thread waits in a function
    // of the kernel as a runtime does. Callers come first.
    let mut stacks = vec![(None, false); model.stacks.len()];
    for (stack, caller, leaf) in model.stacks.iter() {
        let id = model.frame(leaf).function;
        let function = model.function(id);
        let (cause, waits) = stacks[caller.index()];
        stacks[stack.index()] = if function.kernel {
            let name = &*function.name;
            (
                cause,
                waits || KERNEL_WAITS.iter().any(|part| name.contains(part)),
            )
        } else {
            (causes[id.index()].or(cause), false)
        };
    }
    for row in &mut model.rows {
        if let (Some(cause), true) = stacks[row.stack.index()]
            && is_open(row)
        {
            row.cause = cause as u8;
        }
    }
}

/// Returns whether the cause of a wait is undecided, or comes from its wake-up.
fn is_open(row: &TickRow) -> bool {
    use Cause::{Answer, Middle, NewWork, Outside, Timer, Undecided};
    matches!(
        row.wait_reason(),
        Some(WaitReason::Blocked(
            Undecided | Answer | Middle | NewWork | Timer | Outside
        ))
    )
}

/// Returns the cause of the waits in a function. None: it is in no place.
fn place_of(name: &str) -> Option<Cause> {
    // Most functions are in no place, and need no second look.
    let mut places = PLACES.iter();
    if !places.any(|place| name.contains(last_part(place.symbol))) {
        return None;
    }
    let name = plain(name);
    let mut places = PLACES.iter();
    let place = places.find(|place| is_in(&name, place.symbol));
    place.map(|place| place.cause)
}

/// Returns what follows the last `.` or `:` of a symbol.
fn last_part(symbol: &str) -> &str {
    symbol.rsplit(['.', ':']).next().unwrap_or(symbol)
}

/// Returns a name without what compilers and runtimes add to it: the brackets around a type, as in
/// `<rayon_core::sleep::Sleep>::sleep`, and Java's notation of a class in
/// `Ljava/util/concurrent/ForkJoinPool;::awaitWork`.
fn plain(name: &str) -> String {
    let name = name.trim_start_matches('<').replace(">::", "::");
    match name
        .strip_prefix('L')
        .and_then(|rest| rest.split_once(";::"))
    {
        Some((class, method)) => format!("{}.{method}", class.replace('/', ".")),
        None => name,
    }
}

/// Returns whether a name is a symbol or begins with it: with arguments, as a function of that
/// module, as a variant such as `enter_internal`, or as a part such as `take_gil.cold`. In front of
/// it may be only the type of the result.
fn is_in(name: &str, symbol: &str) -> bool {
    let Some(at) = name.find(symbol) else {
        return false;
    };
    let (before, rest) = (&name[..at], &name[at + symbol.len()..]);
    let is_word = |character: char| character.is_alphanumeric();
    (before.is_empty() || before.ends_with(' ')) && !rest.starts_with(is_word)
}

#[cfg(test)]
mod tests {
    use experiment_format::microstate::Microstate::{self, DataFault, Sleep, UserLock};

    use super::*;
    use crate::model::tests::{add_stack, model_of_threads, row};

    const FUTEX: &[(&str, bool)] = &[("do_futex", true), ("futex_wait_queue", true)];
    const EPOLL: &[(&str, bool)] = &[("do_epoll_wait", true), ("ep_poll", true)];

    /// Returns the cause that a wait has in the end.
    fn corrected(user: &[&str], kernel: &[(&str, bool)], state: Microstate, cause: Cause) -> Cause {
        let mut model = model_of_threads(&[("p", 7, "p")]);
        let user = user.iter().map(|name| (*name, false));
        let frames: Vec<_> = user.chain(kernel.iter().copied()).collect();
        let stack = add_stack(&mut model, &frames);
        model.rows = vec![TickRow {
            stack,
            state: state as u8,
            cause: cause as u8,
            ..row(0, 10)
        }];
        correct(&mut model);
        Cause::try_from(model.rows[0].cause).unwrap()
    }

    #[test]
    fn each_place_has_its_cause() {
        for (name, cause) in [
            ("runtime.findRunnable", Cause::NewWork),
            ("runtime.findrunnable", Cause::NewWork),
            ("runtime.stopm", Cause::NewWork),
            ("rayon_core::sleep::Sleep::sleep", Cause::NewWork),
            ("<rayon_core::sleep::Sleep>::sleep::<F>", Cause::NewWork),
            (
                "<tokio::runtime::scheduler::multi_thread::park::Inner>::park_condvar",
                Cause::NewWork,
            ),
            (
                "tokio::runtime::scheduler::multi_thread::park::Parker::park",
                Cause::NewWork,
            ),
            (
                "<tokio::runtime::scheduler::multi_thread::worker::Context>::park_internal",
                Cause::NewWork,
            ),
            (
                "java.util.concurrent.ForkJoinPool.awaitWork",
                Cause::NewWork,
            ),
            (
                "int java.util.concurrent.ForkJoinPool.awaitWork(java.util.concurrent.ForkJoinPool$WorkQueue)",
                Cause::NewWork,
            ),
            (
                "Ljava/util/concurrent/ForkJoinPool;::awaitWork",
                Cause::NewWork,
            ),
            ("ObjectMonitor::enter(JavaThread*)", Cause::Lock),
            ("ObjectMonitor::enter_internal(JavaThread*)", Cause::Lock),
            ("take_gil", Cause::Lock),
            ("take_gil.cold", Cause::Lock),
        ] {
            let open = [
                Cause::Undecided,
                Cause::Answer,
                Cause::Middle,
                Cause::NewWork,
                Cause::Timer,
                Cause::Outside,
            ];
            for before in open {
                let user = ["main", name, "pthread_cond_wait"];
                assert_eq!(corrected(&user, FUTEX, UserLock, before), cause, "{name}");
                assert_eq!(corrected(&user, EPOLL, Sleep, before), cause, "{name}");
            }
        }
        for place in &PLACES {
            assert_eq!(
                place_of(place.symbol),
                Some(place.cause),
                "{}",
                place.symbol
            );
        }
    }

    #[test]
    fn other_functions_and_causes_stay() {
        for name in [
            "runtime.stopmillis",
            "my_take_gil",
            "runtime.stoplockedm",
            "tokio::runtime::park::Inner::park",
            "my::ObjectMonitor::enter",
            "rayon_core::latch::LockLatch::wait",
            "java.util.concurrent.ForkJoinPool.awaitWorker",
        ] {
            let after = corrected(&[name], FUTEX, UserLock, Cause::Answer);
            assert_eq!(after, Cause::Answer, "{name}");
        }
        // The thread's own state said these.
        for cause in [
            Cause::Device,
            Cause::Kernel,
            Cause::Lock,
            Cause::Write,
            Cause::NotEnded,
        ] {
            assert_eq!(corrected(&["runtime.stopm"], FUTEX, UserLock, cause), cause);
        }
        // It neither waits for a futex nor for events.
        let pipe = [("vfs_read", true), ("pipe_read", true)];
        assert_eq!(
            corrected(&["take_gil"], &pipe, Sleep, Cause::Answer),
            Cause::Answer
        );
        let fault = [("handle_mm_fault", true)];
        let after = corrected(&["take_gil"], &fault, DataFault, Cause::Undecided);
        assert_eq!(after, Cause::Undecided);
    }

    #[test]
    fn the_place_nearest_to_the_leaf_counts() {
        let user = ["runtime.findRunnable", "take_gil"];
        assert_eq!(corrected(&user, FUTEX, UserLock, Cause::Timer), Cause::Lock);
        let user = ["take_gil", "runtime.findRunnable", "runtime.futexsleep"];
        assert_eq!(
            corrected(&user, FUTEX, UserLock, Cause::Timer),
            Cause::NewWork
        );
    }
}
