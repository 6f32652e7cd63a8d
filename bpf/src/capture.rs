//! How the user stacks of threads are captured.

use std::fmt;

use libbpf_rs::btf::types::Func;

use crate::KernelTypes;

/// When the user stack of a thread that was off the CPU is captured. A tick captures it at once.
/// Records and stacks are joined by thread and number of the return to user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserStackCapture {
    /// When the thread returns to user mode.
    OnReturn,
    /// At switch-out, once for each place in user mode.
    AtSwitchOut,
}

impl UserStackCapture {
    /// Returns what the running kernel supports: on return if its types have the callback for that
    /// (`bpf_task_work_schedule_resume_impl`, Linux 6.18).
    #[must_use]
    pub fn of(types: &KernelTypes) -> UserStackCapture {
        let callback = types
            .btf()
            .and_then(|types| types.type_by_name::<Func<'_>>("bpf_task_work_schedule_resume_impl"));
        match callback.is_some() {
            true => UserStackCapture::OnReturn,
            false => UserStackCapture::AtSwitchOut,
        }
    }
}

impl fmt::Display for UserStackCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UserStackCapture::OnReturn => "when the thread returns to user mode",
            UserStackCapture::AtSwitchOut => "at switch-out, once for each place in user mode",
        })
    }
}
