//! Tables of text for terminals and pipes: columns are aligned by the cells that characters take on
//! a terminal, and text is wrapped to the terminal's width.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Blanks between two columns.
const GAP: usize = 2;
/// Text is not wrapped into pieces narrower than this, in terminal columns.
const MIN_WRAPPED_WIDTH: usize = 16;

/// Columns that a cell is at most filled up to with blanks. A name may be a million bytes long, and
/// would make each row as long.
const MAX_ALIGNED_WIDTH: usize = 1000;

/// On which side of its column a cell stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// On the left, as text. Only such columns are wrapped.
    Left,
    /// On the right, as numbers.
    Right,
}

/// A table of text without lines around its cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextTable {
    columns: Vec<Align>,
    /// Blanks before each line.
    indent: usize,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table of these columns, without rows.
    #[must_use]
    pub fn new(columns: impl IntoIterator<Item = Align>) -> TextTable {
        TextTable {
            columns: columns.into_iter().collect(),
            indent: 0,
            rows: Vec::new(),
        }
    }

    /// The same table with each line moved to the right by `blanks`.
    #[must_use]
    pub fn indented(self, blanks: usize) -> TextTable {
        TextTable {
            indent: blanks,
            ..self
        }
    }

    /// Adds a row. A line feed in a cell begins a new line of that cell.
    pub fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Adds a row of titles, which stand at the bottom of the row if others have more lines.
    pub fn titles<C: Into<String>>(&mut self, titles: impl IntoIterator<Item = C>) {
        let titles: Vec<String> = titles.into_iter().map(Into::into).collect();
        let height = titles.iter().map(|title| title.lines().count()).max();
        let height = height.unwrap_or(0);
        self.row(titles.into_iter().map(|title| {
            let above = "\n".repeat(height - title.lines().count());
            above + &title
        }));
    }

    /// Returns the lines, each with its line feed. They are no wider than `width` if numbers leave
    /// space for that. None: as wide as needed, which is right for a pipe.
    #[must_use]
    pub fn text(&self, width: Option<usize>) -> String {
        let widths = self.widths(width);
        let wrapped = |own: usize| width.map_or(usize::MAX, |_| own);
        let last = self.columns.len().saturating_sub(1);
        let mut out = String::new();
        for row in &self.rows {
            let cells: Vec<_> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| wrap(cell, wrapped(*width)))
                .collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for line in 0..height {
                let begin = out.len();
                out.extend(std::iter::repeat_n(' ', self.indent));
                for (column, lines) in cells.iter().enumerate() {
                    if column > 0 {
                        out.extend(std::iter::repeat_n(' ', GAP));
                    }
                    let text = lines.get(line).copied().unwrap_or_default();
                    let aligned = widths[column].min(MAX_ALIGNED_WIDTH);
                    let blanks = aligned.saturating_sub(width_of(text));
                    let blanks = std::iter::repeat_n(' ', blanks);
                    match self.columns[column] {
                        Align::Left if column == last => out.push_str(text),
                        Align::Left => {
                            out.push_str(text);
                            out.extend(blanks);
                        }
                        Align::Right => {
                            out.extend(blanks);
                            out.push_str(text);
                        }
                    }
                }
                out.truncate(begin + out[begin..].trim_end().len());
                out.push('\n');
            }
        }
        out
    }

    /// The width of each column, when all of them fit into `width` as far as possible.
    fn widths(&self, width: Option<usize>) -> Vec<usize> {
        let mut widths = vec![0; self.columns.len()];
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                let lines = cell.split('\n').map(width_of);
                *widest = lines.max().unwrap_or(0).max(*widest);
            }
        }
        let gaps = self.indent + GAP * widths.len().saturating_sub(1);
        let Some(available) = width.map(|width| width.saturating_sub(gaps)) else {
            return widths;
        };
        // The widest text is wrapped first.
        while let Some(over @ 1..) = widths.iter().sum::<usize>().checked_sub(available) {
            let texts = widths.iter_mut().zip(&self.columns);
            let texts = texts
                .filter(|(width, align)| **align == Align::Left && **width > MIN_WRAPPED_WIDTH);
            let Some((widest, _)) = texts.max_by_key(|(width, _)| **width) else {
                break;
            };
            *widest = widest.saturating_sub(over).max(MIN_WRAPPED_WIDTH);
        }
        widths
    }
}

/// Returns how many terminal columns a text takes.
#[must_use]
pub fn width_of(text: &str) -> usize {
    text.width()
}

/// Returns the lines of a text, each at most `width` terminal columns wide: broken after a blank
/// where the second half of the line has one, else within a word.
#[must_use]
pub fn wrap(text: &str, width: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    for mut line in text.split('\n') {
        while let Some(end) = end_of_line(line, width) {
            let blank = line[..end].rfind(' ').map(|blank| blank + 1);
            let end = blank.filter(|blank| *blank > end / 2).unwrap_or(end);
            lines.push(line[..end].trim_end());
            line = &line[end..];
        }
        lines.push(line);
    }
    lines
}

/// Where a line that is too wide has to end, in bytes: after its first character at least.
fn end_of_line(line: &str, width: usize) -> Option<usize> {
    let mut columns = 0;
    for (at, character) in line.char_indices() {
        columns += character.width().unwrap_or(0);
        if columns > width && at > 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_what_characters_take_on_a_terminal() {
        let mut table = TextTable::new([Align::Right, Align::Left, Align::Left]).indented(1);
        table.titles(["Excl.\nsec.", "Name", "Object"]);
        table.row(["1.5", "漢字", "a"]);
        table.row(["10.25", "e\u{301}", "b"]);
        table.row(["0.", "main", ""]);
        assert_eq!(
            table.text(None),
            " Excl.\n  sec.  Name  Object\n   1.5  漢字  a\n 10.25  e\u{301}     b\n    0.  main\n"
        );
    }

    #[test]
    fn a_long_text_does_not_make_every_row_long() {
        let long = "x".repeat(1 << 20);
        let mut table = TextTable::new([Align::Left, Align::Left]);
        for _ in 0..1000 {
            table.row(["a", "b"]);
        }
        table.row([&*long, "b"]);
        table.row(["a", &*long]);
        let text = table.text(None);
        assert!(text.len() < 4 << 20, "{}", text.len());
        assert_eq!(text.matches(&long).count(), 2);
        assert_eq!(text.lines().count(), 1002);
    }

    #[test]
    fn the_widest_text_is_wrapped_to_the_width() {
        let mut table = TextTable::new([Align::Left, Align::Right, Align::Left]);
        table.row(["name", "1.000", "one two three four five six seven eight"]);
        table.row(["other", "2.000", "漢字漢字漢字漢字漢字漢字漢字漢字"]);
        for width in 32..60 {
            let text = table.text(Some(width));
            assert!(text.lines().all(|line| width_of(line) <= width), "{text}");
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).count();
            assert_eq!(letters(&text), letters(&table.text(None)), "{text}");
        }
        // Without enough space, numbers are whole and text has its minimum width.
        let text = table.text(Some(1));
        assert!(text.contains("name   1.000  one two three"), "{text}");
    }

    #[test]
    fn lines_end_behind_a_blank_or_within_a_long_word() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("a onetwothree", 8), ["a onetwo", "three"]);
        assert_eq!(wrap("漢字漢字", 5), ["漢字", "漢字"]);
        assert_eq!(wrap("漢字", 1), ["漢", "字"]);
        assert_eq!(wrap("a\n\nb", 1), ["a", "", "b"]);
        assert_eq!(wrap("", 0), [""]);
    }
}
