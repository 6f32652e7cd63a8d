//! placeholder
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum End {
    Complete = 1,
    Deep,
    NoMapping,
    NoTable,
    NoRule,
    Unsupported,
    Unreadable,
    Astray,
}
impl End {
    pub fn from_number(n: u8) -> Option<End> {
        use End::*;
        Some(match n {
            1 => Complete,
            2 => Deep,
            3 => NoMapping,
            4 => NoTable,
            5 => NoRule,
            6 => Unsupported,
            7 => Unreadable,
            8 => Astray,
            _ => return None,
        })
    }
}
