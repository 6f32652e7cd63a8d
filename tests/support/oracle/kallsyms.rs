//! The kernel's own table of its functions, `/proc/kallsyms`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};

/// The lowest address of the kernel's half of the address space on the machines we run on.
pub const KERNEL: u64 = 1 << 63;

/// Functions by address. A name may stand at several addresses and an address may have several
/// names.
#[derive(Debug, Default)]
pub struct Kallsyms {
    by_address: BTreeMap<u64, BTreeSet<String>>,
    by_name: BTreeMap<String, BTreeSet<u64>>,
}

impl Kallsyms {
    /// Reads the running kernel's table.
    ///
    /// # Errors
    /// When it is not readable or hides the addresses.
    pub fn running() -> Result<Self> {
        let table = Self::parse(&fs::read_to_string("/proc/kallsyms").context("/proc/kallsyms")?);
        ensure!(
            table.by_address.len() > 1000,
            "/proc/kallsyms hides its addresses: are you root?"
        );
        Ok(table)
    }

    /// Reads a table: lines of `address type name [module]`. Lines that are not functions are left
    /// out.
    pub fn parse(text: &str) -> Self {
        let mut table = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let Ok(address) = u64::from_str_radix(address, 16) else {
                continue;
            };
            if address == 0 || !matches!(kind, "t" | "T" | "w" | "W") {
                continue;
            }
            table
                .by_address
                .entry(address)
                .or_default()
                .insert(name.to_owned());
            table
                .by_name
                .entry(name.to_owned())
                .or_default()
                .insert(address);
        }
        table
    }

    /// Returns the addresses of the functions of this name: several for static functions of several
    /// files.
    pub fn addresses(&self, name: &str) -> impl Iterator<Item = u64> {
        self.by_name.get(name).into_iter().flatten().copied()
    }

    /// Returns the start and all names of the function that an address is in.
    pub fn function(&self, address: u64) -> Option<(u64, &BTreeSet<String>)> {
        self.by_address
            .range(..=address)
            .next_back()
            .map(|(start, names)| (*start, names))
    }

    /// Returns one name for all aliases of a function, so that tools that prefer different ones can
    /// be compared; the name itself if it is not a kernel function's.
    pub fn canonical(&self, name: &str) -> String {
        self.addresses(name)
            .next()
            .and_then(|address| self.by_address.get(&address))
            .and_then(|names| names.iter().min_by_key(|name| name.len()))
            .cloned()
            .unwrap_or_else(|| name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
ffffffff81000000 T _text\n\
ffffffff81000000 t startup_64\n\
ffffffff81000100 t foo.isra.0\n\
ffffffff81000180 d not_code\n\
ffffffff81000200 t foo.cold\n\
ffffffffc0000000 t helper\t[ext4]\n\
ffffffffc0001000 t helper\t[xfs]\n\
0000000000000000 T hidden\n";

    #[test]
    fn addresses_have_functions_and_functions_have_aliases() {
        let table = Kallsyms::parse(TABLE);
        let (start, names) = table.function(0xffff_ffff_8100_0190).unwrap();
        assert_eq!(
            (start, names.contains("foo.isra.0")),
            (0xffff_ffff_8100_0100, true)
        );
        assert_eq!(table.canonical("startup_64"), "_text");
        assert_eq!(table.canonical("elsewhere"), "elsewhere");
        assert_eq!(table.addresses("helper").count(), 2);
        assert_eq!(table.addresses("hidden").count(), 0);
    }
}
