//! Random mutations of known inputs. The few seconds of a test use them instead of a fuzzer that
//! sees which code was reached.

use ::tests::random::SplitMix;

/// The size to which an input is truncated.
const MAX_INPUT_BYTES: usize = 1 << 16;

/// Numbers near which readers fail: the limits of integer types, and small ones.
const EDGES: [u64; 12] = [
    0,
    1,
    7,
    8,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    u64::MAX,
];

/// Returns a mutation of an input of the corpus.
pub(crate) fn mutated(corpus: &[Vec<u8>], random: &mut SplitMix) -> Vec<u8> {
    let mut bytes = pick(corpus, random).to_vec();
    for _ in 0..=random.below(8) {
        change(&mut bytes, corpus, random);
    }
    bytes.truncate(MAX_INPUT_BYTES);
    bytes
}

fn pick<'a>(corpus: &'a [Vec<u8>], random: &mut SplitMix) -> &'a [u8] {
    let index = random.below(corpus.len() as u64) as usize;
    corpus.get(index).map_or(&[], Vec::as_slice)
}

fn change(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut SplitMix) {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    let length = random.below(16) as usize;
    let end = bytes.len().min(at + length);
    match random.below(9) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.any() as u8;
            }
        }
        2 => drop(bytes.drain(at..end)),
        3 => {
            let copy = bytes[at..end].to_vec();
            bytes.splice(at..at, copy);
        }
        4 => bytes.truncate(at),
        5 => {
            let more: Vec<u8> = (0..length).map(|_| random.any() as u8).collect();
            bytes.splice(at..at, more);
        }
        6 => write_edge(bytes, at, random),
        7 => replace_number(bytes, random),
        _ => {
            let other = pick(corpus, random);
            let from = random.below(other.len() as u64 + 1) as usize;
            let to = other.len().min(from + 4 * length);
            bytes.splice(at..end, other[from..to].iter().copied());
        }
    }
}

/// Overwrites 1, 2, 4 or 8 bytes with one of [`EDGES`], or a number close to one.
fn write_edge(bytes: &mut [u8], at: usize, random: &mut SplitMix) {
    let near = random.below(5).wrapping_sub(2);
    let edge = EDGES[random.below(EDGES.len() as u64) as usize].wrapping_add(near);
    let width = 1 << random.below(4);
    for (place, byte) in bytes.iter_mut().skip(at).zip(&edge.to_le_bytes()[..width]) {
        *place = *byte;
    }
}

/// Replaces a number in a text by one of [`EDGES`].
fn replace_number(bytes: &mut Vec<u8>, random: &mut SplitMix) {
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|at| bytes[*at].is_ascii_digit() && (*at == 0 || !bytes[at - 1].is_ascii_digit()))
        .collect();
    let Some(start) = starts.get(random.below(starts.len() as u64) as usize) else {
        return;
    };
    let digits = bytes[*start..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit());
    let end = start + digits.count();
    let edge = EDGES[random.below(EDGES.len() as u64) as usize];
    let sign = if random.below(4) == 0 { "-" } else { "" };
    bytes.splice(*start..end, format!("{sign}{edge}").into_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs() {
        let corpus = [b"name 12 0x40\n".to_vec(), vec![0; 40]];
        let made = |seed| {
            let mut random = SplitMix(seed);
            (0..200)
                .map(|_| mutated(&corpus, &mut random))
                .collect::<Vec<_>>()
        };
        assert_eq!(made(1), made(1));
        assert_ne!(made(1), made(2));
        assert!(made(3).iter().all(|bytes| bytes.len() <= MAX_INPUT_BYTES));
        assert!(mutated(&[], &mut SplitMix(5)).len() <= MAX_INPUT_BYTES);
    }
}
