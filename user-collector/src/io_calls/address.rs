//! Addresses of sockets as text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns a socket address as text; `None` for one without an address.
pub(super) fn address(bytes: &[u8]) -> Option<String> {
    let (family, rest) = bytes.split_first_chunk()?;
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => {
            let (port, rest) = rest.split_first_chunk()?;
            endpoint(rest.get(..4)?, u16::from_be_bytes(*port))
        }
        libc::AF_INET6 => {
            let (port, rest) = rest.split_first_chunk()?;
            // After the flow information.
            endpoint(rest.get(4..20)?, u16::from_be_bytes(*port))
        }
        libc::AF_UNIX => {
            // An abstract name begins with NUL.
            let (name, mark) = match rest.strip_prefix(b"\0") {
                Some(name) => (name, "@"),
                None => (rest, ""),
            };
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            (!name.is_empty()).then(|| format!("{mark}{}", String::from_utf8_lossy(name)))
        }
        _ => None,
    }
}

/// Returns an address of 4 or 16 bytes, in network order, with a port.
pub(super) fn endpoint(bytes: &[u8], port: u16) -> Option<String> {
    let address: IpAddr = match bytes.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(address.to_canonical(), port).to_string())
}
