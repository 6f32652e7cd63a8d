//! The names that are meant by one that is none.

use std::cmp::Reverse;

/// How many are said.
const MOST: usize = 3;

/// Below this likeness, of 1000, a name is another one.
const LIKE: u32 = 700;

/// The names most like `wanted`, the most likely first.
#[must_use]
pub(crate) fn nearest(names: impl IntoIterator<Item = String>, wanted: &str) -> Vec<String> {
    let wanted = letters(wanted);
    let mut near: Vec<(Reverse<u32>, String)> = names
        .into_iter()
        .map(|name| {
            let like = strsim::jaro_winkler(&letters(&name), &wanted);
            (Reverse((1000.0 * like) as u32), name)
        })
        .filter(|(Reverse(like), _)| *like >= LIKE)
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().map(|(_, name)| name).take(MOST).collect()
}

/// Without what is typed in several ways.
fn letters(name: &str) -> String {
    name.to_lowercase().replace(['-', '_', '.'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_finger() {
        let names = || {
            [
                "page-faults",
                "major-faults",
                "minor-faults",
                "cycles",
                "ref-cycles",
                "instructions",
            ]
            .map(str::to_owned)
        };
        assert_eq!(nearest(names(), "pagefaults")[0], "page-faults");
        assert_eq!(nearest(names(), "cylces")[0], "cycles");
        assert_eq!(nearest(names(), "INSTRUCTION")[0], "instructions");
        assert_eq!(nearest(names(), "xyzzy"), Vec::<String>::new());
    }
}
