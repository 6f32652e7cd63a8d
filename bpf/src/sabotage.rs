//! Parts that tests switch off, to see that kcollect notices.

/// A part that does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The hook on context switches is not attached.
    SchedSwitch,
    /// The hook on page faults of the kernel is not attached.
    PageFault,
    /// No thread gets BPF task storage.
    Storage,
    /// No user stack is captured.
    Unwinder,
    /// The verifier refuses a program.
    Load,
}

impl Sabotage {
    /// Every part by its name.
    pub const ALL: [(&str, Sabotage); 5] = [
        ("sched_switch", Sabotage::SchedSwitch),
        ("page_fault", Sabotage::PageFault),
        ("storage", Sabotage::Storage),
        ("unwinder", Sabotage::Unwinder),
        ("load", Sabotage::Load),
    ];

    /// The part that the environment variable `KCOLLECT_SABOTAGE` names, for tests.
    #[must_use]
    pub fn of_environment() -> Option<Sabotage> {
        let name = std::env::var("KCOLLECT_SABOTAGE").ok()?;
        let mut all = Sabotage::ALL.into_iter();
        all.find(|(known, _)| *known == name)
            .map(|(_, sabotage)| sabotage)
    }
}
