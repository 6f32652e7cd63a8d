//! Matches of a process's groups, which are in its experiment's comments, with those that were
//! asked for: a unit of systemd, a container, a control group.

/// Returns whether a unit is meant: a service also without its ending, `nginx` for `nginx.service`.
#[must_use]
pub fn is_unit(unit: &str, wanted: &str) -> bool {
    unit == wanted || unit.strip_suffix(".service") == Some(wanted)
}

/// Returns whether a container is meant, by the beginning of its id or name.
#[must_use]
pub fn is_container(id: &str, wanted: &str) -> bool {
    id.starts_with(wanted)
}

/// Whether a path is a control group's, or the path of one below it.
#[must_use]
pub fn is_in_cgroup(path: &str, wanted: &str) -> bool {
    let below = path.strip_prefix(wanted.trim_end_matches('/'));
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
