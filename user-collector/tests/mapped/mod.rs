//! Files that every process maps.

/// The file with this in its path that this process maps.
pub(crate) fn mapped(name: &str) -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().find_map(|line| {
        line.split_ascii_whitespace()
            .nth(5)
            .filter(|path| path.contains(name))
    });
    std::fs::read(path.unwrap_or_else(|| panic!("{name} is not mapped here"))).unwrap()
}
