//! The call tree of stock gprofng, taken apart: each node with the path that leads to it.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::gprofng::script;

/// The metrics that are the ten states of a thread, in the order of their numbers.
pub const STATES: [&str; 10] = [
    "user",
    "system",
    "trap",
    "textpfault",
    "datapfault",
    "kernelpfault",
    "lock",
    "sleep",
    "wait",
    "stop",
];

/// A function that was reached on one path.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Functions from the root of the stacks to this one.
    pub path: Vec<String>,
    /// Seconds in it and all it called on this path, by number of the state.
    pub seconds: [f64; 10],
}

/// A call tree. Its first node is the total, with an empty path.
#[derive(Clone, Debug)]
pub struct CallTree {
    /// The nodes, parents before children.
    pub nodes: Vec<Node>,
}

impl CallTree {
    /// Returns the call tree of an experiment, in all states at once.
    ///
    /// # Errors
    /// When gprofng fails or complains, or shows no tree.
    pub fn of(experiment: &Path) -> Result<Self> {
        let metrics = STATES.map(|state| format!("i.{state}")).join(":");
        let output = script(
            &[&format!("metrics {metrics}:name"), "calltree"],
            experiment,
        )?;
        let text = output.content()?.text;
        let tree = Self::parse(&text);
        ensure!(
            tree.nodes.first().is_some_and(|node| node.path.is_empty()),
            "no call tree in\n{text}"
        );
        Ok(tree)
    }

    /// Parses the tree. The depth of a node follows from its column: a child is further right than
    /// its parent.
    fn parse(text: &str) -> Self {
        let mut open: Vec<(usize, &str)> = Vec::new();
        let mut nodes = Vec::new();
        for line in text.lines() {
            let Some((column, seconds, name)) = row(line) else {
                continue;
            };
            while open.last().is_some_and(|(last, _)| *last >= column) {
                open.pop();
            }
            open.push((column, name));
            let path = open.iter().skip(1).map(|(_, name)| (*name).to_owned());
            nodes.push(Node {
                path: path.collect(),
                seconds,
            });
        }
        Self { nodes }
    }

    /// Returns the total seconds, by number of the state.
    pub fn total(&self) -> [f64; 10] {
        self.nodes.first().map_or([0.0; 10], |node| node.seconds)
    }

    /// Returns the sum of the nodes that pass. No node should pass that is below another that does.
    pub fn sum(&self, passes: impl Fn(&[String]) -> bool) -> [f64; 10] {
        let mut sum = [0.0; 10];
        for node in self.nodes.iter().filter(|node| passes(&node.path)) {
            for (sum, seconds) in sum.iter_mut().zip(node.seconds) {
                *sum += seconds;
            }
        }
        sum
    }
}

/// Parses a row: ten numbers, lines that connect, `+-`, and a name.
fn row(line: &str) -> Option<(usize, [f64; 10], &str)> {
    let column = line.find("+-")?;
    let mut words = line[..column].split_whitespace();
    let mut seconds = [0.0; 10];
    for number in &mut seconds {
        *number = words.next()?.parse().ok()?;
    }
    words
        .all(|word| word == "|")
        .then(|| (column, seconds, line[column + 2..].trim_end()))
}

/// Returns a function's name as in its source, without the C library's prefixes and the compiler's
/// suffixes.
pub fn plain(name: &str) -> &str {
    let name = name.trim_start_matches('_');
    let name = name.strip_prefix("GI_").unwrap_or(name);
    let name = name.trim_start_matches('_');
    let name = name.strip_prefix("libc_").unwrap_or(name);
    name.split('.').next().unwrap_or(name)
}

/// Expands a path such as `f/g*3/h` into its functions, from a thread's first function on.
///
/// # Errors
/// What follows a `*` is not a number.
pub fn expand(path: &str) -> Result<Vec<&str>> {
    let mut expanded = Vec::new();
    for part in path.split('/') {
        let (name, times) = part.split_once('*').unwrap_or((part, "1"));
        let times: usize = times.parse().with_context(|| path.to_owned())?;
        expanded.extend(std::iter::repeat_n(name, times));
    }
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "\
Functions Call Tree. Metric: Attributed User CPU Time

Attr.  Name
 sec.
3. 0. 0. 0. 0. 0. 0. 0. 0. 1.        +-<Total>
2. 0. 0. 0. 0. 0. 0. 0. 0. 0.          +-main
2. 0. 0. 0. 0. 0. 0. 0. 0. 0.          |  +-serve
1.5 0. 0. 0. 0. 0. 0. 0. 0. 0.          |    +-spin
1. 0. 0. 0. 0. 0. 0. 0. 0. 1.          +-<static>@0x1 (<libc.so.6>)
1. 0. 0. 0. 0. 0. 0. 0. 0. 0.            +-spin
";

    #[test]
    fn nodes_have_their_paths() {
        let tree = CallTree::parse(TREE);
        assert_eq!(tree.total()[0], 3.0);
        let paths: Vec<_> = tree.nodes.iter().map(|node| node.path.join("/")).collect();
        assert_eq!(
            paths,
            [
                "",
                "main",
                "main/serve",
                "main/serve/spin",
                "<static>@0x1 (<libc.so.6>)",
                "<static>@0x1 (<libc.so.6>)/spin"
            ]
        );
        let spin = tree.sum(|path| path.last().is_some_and(|name| name == "spin"));
        assert_eq!((spin[0], spin[9]), (2.5, 0.0));
    }

    #[test]
    fn paths_are_expanded_and_names_are_plain() {
        assert_eq!(expand("a/b*3/c").unwrap(), ["a", "b", "b", "b", "c"]);
        assert!(expand("a*x").is_err());
        for name in ["read", "__read", "__GI___libc_read", "read.part.0"] {
            assert_eq!(plain(name), "read");
        }
        assert_eq!(plain("<static>@0x1"), "<static>@0x1");
    }
}
