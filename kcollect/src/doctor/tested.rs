//! The kernels that kcollect was tested on.
//!
//! `make test-kernels ALL=1` writes the list, once every check has passed on each of them.

/// Releases, as `uname -r` prints them, oldest first, a line each.
const TESTED: &str = include_str!("tested_kernels.txt");

/// The releases, oldest first.
pub fn releases() -> impl Iterator<Item = &'static str> {
    TESTED.lines()
}

/// Major and minor number of a release: `6.12.9-amd64` as (6, 12).
pub(super) fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// What is known of a version: that it was tested, or that it is newer than all that were.
pub(super) fn describe(version: (u32, u32)) -> String {
    let mut versions: Vec<_> = releases().filter_map(parse_version).collect();
    versions.dedup();
    let names: Vec<_> = versions
        .iter()
        .map(|(major, minor)| format!("{major}.{minor}"))
        .collect();
    let names = names.join(", ");
    match versions.last() {
        Some(newest) if version > *newest => {
            format!(
                "newer than the kernels that kcollect was tested on ({names}): the self-test says whether it works"
            )
        }
        _ if versions.contains(&version) => "tested".to_owned(),
        _ => format!("between the kernels that kcollect was tested on ({names})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed() {
        assert_eq!(parse_version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(parse_version("6.1-rc3"), Some((6, 1)));
        assert_eq!(parse_version("v6"), None);
    }

    #[test]
    fn tested_releases_ascend() {
        let versions: Vec<_> = releases().map(parse_version).collect();
        assert!(!versions.is_empty() && versions.iter().all(Option::is_some));
        assert!(versions.is_sorted());
    }

    #[test]
    fn newer_kernels_than_the_tested_ones_are_told_apart() {
        assert!(describe((99, 0)).starts_with("newer"));
        assert_eq!(describe((6, 1)), "tested");
        assert!(describe((6, 5)).starts_with("between"));
    }
}
