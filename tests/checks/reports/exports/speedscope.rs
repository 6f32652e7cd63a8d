//! speedscope, checked against its published schema.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::reader;

/// A script that validates a file by the JSON schema that speedscope is published with.
const SPEEDSCOPE: &str = r#"
import json, sys
try:
    import jsonschema
except ImportError:
    sys.exit(print("no package"))
jsonschema.validate(json.load(open(sys.argv[1])), json.load(open(sys.argv[2])))
print("valid")
"#;

/// Validates a file, if there is a schema.
pub(super) fn read(file: &Path) -> Result<()> {
    match std::env::var_os("SPEEDSCOPE_SCHEMA") {
        None => eprintln!(
            "SPEEDSCOPE_SCHEMA names no file-format-schema.json: nothing is held against it"
        ),
        Some(schema) => {
            let mut python = Command::new("python3");
            python.args(["-c", SPEEDSCOPE]).arg(file).arg(schema);
            let output = reader(&mut python)?.unwrap_or_default();
            ensure!(output == "valid\n", "{output}");
        }
    }
    Ok(())
}
