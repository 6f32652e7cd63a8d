//! Fields of `/proc/PID/status` and `/proc/PID/stat`.
//!
//! The procfs package would read them too, but fails for a process whose name is not UTF-8.

use std::str::FromStr;

use experiment_format::ids::Pid;

/// Returns the numbers in a line of a `/proc/PID/status`.
pub(crate) fn numbers_of<'a>(status: &'a [u8], line: &'a str) -> impl Iterator<Item = u32> + 'a {
    let line = status
        .split(|byte| *byte == b'\n')
        .find_map(|text| text.strip_prefix(line.as_bytes()));
    let numbers = std::str::from_utf8(line.unwrap_or_default()).unwrap_or_default();
    numbers
        .split_whitespace()
        .map_while(|number| number.parse().ok())
}

/// Returns real, effective, saved and file-system user id by a `/proc/PID/status`. The kernel
/// escapes newlines in the process's name, so that no name can look like another line.
pub(crate) fn user_ids_of(status: &[u8]) -> Option<[u32; 4]> {
    let users: Vec<_> = numbers_of(status, "Uid:").collect();
    users.try_into().ok()
}

/// Returns the effective user id in a `/proc/PID/status`.
#[must_use]
pub fn effective_uid_of(status: &[u8]) -> Option<u32> {
    numbers_of(status, "Uid:").nth(1)
}

/// Returns when a process started, by its `/proc/PID/stat`: field 22, clock ticks since boot.
pub(crate) fn start_ticks_of(stat: &[u8]) -> Option<u64> {
    field_of(stat, 22)
}

/// Returns parent, process group and session by a `/proc/PID/stat`: fields 4 to 6.
pub(crate) fn relatives_of(stat: &[u8]) -> [Option<Pid>; 3] {
    [4, 5, 6].map(|number| field_of(stat, number))
}

/// Returns a number of a `/proc/PID/stat` that comes after the name. The name is the second field,
/// in parentheses, and may have any bytes.
fn field_of<T: FromStr>(stat: &[u8], number: usize) -> Option<T> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let text = std::str::from_utf8(&stat[end + 1..]).ok()?;
    text.split_whitespace().nth(number - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_and_status_are_read_whatever_the_name() {
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let stat = format!("7 (a) R 1 () S {}\n", fields.join(" "));
        assert_eq!(start_ticks_of(stat.as_bytes()), Some(22));
        assert_eq!(
            relatives_of(stat.as_bytes()),
            [4, 5, 6].map(|number| Some(Pid(number)))
        );
        assert_eq!(start_ticks_of(b"7 (a) S 1 2"), None);
        let numbers = |status: &[u8], line| numbers_of(status, line).collect::<Vec<u32>>();
        let status = b"Name:\tx\nNSpid:\t4211\t12\t1\nNSpgid:\t1\n";
        assert_eq!(numbers(status, "NSpid:"), [4211, 12, 1]);
        assert!(numbers(status, "Uid:").is_empty());
        let status =
            b"Name:\tUid:\\n 7\nUmask:\t0022\nUid:\t1000\t1001\t1002\t1003\nGid:\t1\t1\t1\t1\n";
        assert_eq!(user_ids_of(status), Some([1000, 1001, 1002, 1003]));
        assert_eq!(user_ids_of(b"Uid:\t1\t1\t1\nNSpid:\t1\n"), None);
    }
}
