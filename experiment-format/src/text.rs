//! Text from processes that may be hostile, made safe to print.

/// Returns text that is safe on a terminal, from bytes that any process may have chosen.
///
/// Printable UTF-8 stays. Control characters, newlines, DEL, invalid bytes and the invisible
/// characters that reorder or hide text become `\xHH`, byte by byte.
pub fn printable(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    let hex = |out: &mut String, bytes: &[u8]| {
        for byte in bytes {
            out.push_str(&format!("\\x{byte:02X}"));
        }
    };
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() || is_invisible(character) {
                hex(&mut out, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                out.push(character);
            }
        }
        hex(&mut out, chunk.invalid());
    }
    out
}

/// Returns whether a character reorders text, joins or splits it invisibly, or breaks the line.
fn is_invisible(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_stays_and_the_rest_is_spelled_out() {
        assert_eq!(printable("naïve ☂ 🦀 \"x\"".as_bytes()), "naïve ☂ 🦀 \"x\"");
        assert_eq!(
            printable(b"a\nb\x7f\xffc\t\0"),
            "a\\x0Ab\\x7F\\xFFc\\x09\\x00"
        );
        assert_eq!(
            printable("a\u{202e}b\u{200b}".as_bytes()),
            "a\\xE2\\x80\\xAEb\\xE2\\x80\\x8B"
        );
        assert_eq!(printable("\u{85}".as_bytes()), "\\xC2\\x85");
    }
}
