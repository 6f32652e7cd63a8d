//! A command line as text, quoted for a shell.

use experiment_format::text::printable;

/// The command line of words that each end with a NUL, quoted so that a shell would split it into
/// the same words. A line that was cut ends in ` ...`. `None` if there are no words, as with kernel
/// threads.
#[must_use]
pub fn quoted(words: &[u8], cut: bool) -> Option<String> {
    // setproctitle may leave one long word and many NULs.
    let end = words.iter().rposition(|byte| *byte != 0)? + 1;
    let mut line = String::new();
    for word in words[..end].split(|byte| *byte == 0) {
        if !line.is_empty() {
            line.push(' ');
        }
        quote(&mut line, word);
    }
    if cut {
        line.push_str(" ...");
    }
    Some(line)
}

fn quote(line: &mut String, word: &[u8]) {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./=:,+@%^".contains(byte);
    let text = printable(word);
    if !word.is_empty() && word.iter().all(plain) {
        line.push_str(&text);
    } else if text.as_bytes() == word {
        line.push('\'');
        line.push_str(&text.replace('\'', "'\\''"));
        line.push('\'');
    } else {
        // A shell decodes the escapes of unprintable bytes in these quotes. Backslashes of the word
        // itself are escaped too.
        line.push_str("$'");
        for chunk in word.split_inclusive(|byte| matches!(byte, b'\\' | b'\'')) {
            match chunk.split_last() {
                Some((last @ (b'\\' | b'\''), before)) => {
                    line.push_str(&printable(before));
                    line.push('\\');
                    line.push(char::from(*last));
                }
                _ => line.push_str(&printable(chunk)),
            }
        }
        line.push('\'');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_given_to_a_shell() {
        let line = |words: &[u8]| quoted(words, false);
        assert_eq!(line(b"ls\0-l\0/tmp/a b\0").unwrap(), "ls -l '/tmp/a b'");
        assert_eq!(line(b"x\0\0it's\0").unwrap(), "x '' 'it'\\''s'");
        assert_eq!(line(b"x\0a\nb\\'\0").unwrap(), "x $'a\\x0Ab\\\\\\''");
        assert_eq!(line(b"x\0\xff\0").unwrap(), "x $'\\xFF'");
        assert_eq!(line("é".as_bytes()).unwrap(), "'é'");
        assert_eq!(
            line(b"postgres: writer   \0\0\0\0").unwrap(),
            "'postgres: writer   '"
        );
        assert_eq!(line(b"\0\0"), None);
        assert_eq!(line(b""), None);
        assert_eq!(quoted(b"x\0yy", true).unwrap(), "x yy ...");
    }
}
