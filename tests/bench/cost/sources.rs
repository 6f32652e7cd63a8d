//! Generated sources for a compiler: the same on every machine, except for the headers of its C
//! library.

use std::fmt::Write as _;
use std::fs;

use anyhow::Result;
use tempfile::TempDir;

/// How many files are compiled.
pub(crate) const FILES: u32 = 16;

/// The number of functions in each file.
const FUNCTIONS: u32 = 20;

/// Makes a directory with C files and a Makefile. It is removed when the value is dropped.
pub(crate) fn make() -> Result<TempDir> {
    let directory = TempDir::new()?;
    let mut objects = String::new();
    for file in 0..FILES {
        fs::write(directory.path().join(format!("f{file}.c")), source(file))?;
        write!(objects, " f{file}.o")?;
    }
    let makefile = format!("CFLAGS = -O2\nall:{objects}\n");
    fs::write(directory.path().join("Makefile"), makefile)?;
    Ok(directory)
}

/// Returns a source with loops, calls and arithmetic that differ in all functions.
fn source(file: u32) -> String {
    let mut text = String::from(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <math.h>\n\n",
    );
    for function in 0..FUNCTIONS {
        let (name, prime) = (format!("work_{file}_{function}"), 31 + 2 * function + file);
        let _ = writeln!(
            text,
            "static int {name}(const char *text, int *seen, int size) {{\n\
             \tint sum = {function};\n\
             \tfor (int i = 0; i < size; i++) {{\n\
             \t\tseen[i] += (sum ^ text[i % 7]) * {prime};\n\
             \t\tif (seen[i] % {prime} == {file}) sum += (int)strlen(text) - seen[size - 1 - i];\n\
             \t\telse switch (seen[i] & 3) {{ case 0: sum -= abs(seen[i]); break;\n\
             \t\tcase 1: sum += printf(\"%d %s\", sum, text); break; default: sum ^= {prime} << (i & 7); }}\n\
             \t}}\n\treturn sum;\n}}"
        );
    }
    let _ = writeln!(
        text,
        "int all_{file}(const char *text, int *seen, int size) {{\n\tint sum = 0;"
    );
    for function in 0..FUNCTIONS {
        let _ = writeln!(text, "\tsum += work_{file}_{function}(text, seen, size);");
    }
    text + "\treturn sum;\n}\n"
}
