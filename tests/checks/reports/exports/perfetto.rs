//! Perfetto, read with its published schema and by trace_processor.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use tests::experiment::exported::{self, States};

use super::reader;

/// A script that reads with python's `perfetto` package: the published schema, and trace_processor,
/// if it is available.
const PERFETTO: &str = r#"
import sys
try:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema
except ImportError:
    sys.exit(print("no package"))
trace = schema.Trace.FromString(open(sys.argv[1], "rb").read())
from google.protobuf.unknown_fields import UnknownFieldSet
def known(message):
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.message_type:
            [known(one) for one in (value if hasattr(value, "__len__") else [value])]
[known(packet) for packet in trace.packet]
print("schema", sum(packet.HasField("perf_sample") for packet in trace.packet))
if len(sys.argv) < 3:
    sys.exit(0)
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
processor = TraceProcessor(trace=sys.argv[1], config=TraceProcessorConfig(bin_path=sys.argv[2]))
print("samples", [row.n for row in processor.query("select count(*) n from perf_sample")][0])
for row in processor.query("select name, sum(dur) / 1000 us from slice where category = 'state' group by name"):
    print("slice", row.us, row.name)
for row in processor.query("select name, value from stats where severity = 'error' and value > 0"):
    print("error", row.value, row.name)
processor.close()
"#;

/// Reads a trace, if there is a program for it.
pub(super) fn read(trace_file: &Path) -> Result<()> {
    let mut python = Command::new("python3");
    python.args(["-c", PERFETTO]).arg(trace_file);
    let processor = std::env::var_os("TRACE_PROCESSOR");
    python.args(processor.as_slice());
    match reader(&mut python)?.as_deref() {
        None => {}
        Some("no package\n") => {
            eprintln!("python3 has no perfetto: the trace is read by our test alone")
        }
        Some(output) => {
            let trace = exported::perfetto(&std::fs::read(trace_file)?)?;
            let samples: i64 = trace.samples.values().sum();
            ensure!(
                output.starts_with(&format!("schema {samples}\n")),
                "{output}"
            );
            if processor.is_some() {
                processed(output, &trace)?;
            } else {
                eprintln!(
                    "TRACE_PROCESSOR names no trace_processor_shell: the trace is not loaded"
                );
            }
        }
    }
    Ok(())
}

/// Judges the output of trace_processor.
fn processed(output: &str, trace: &exported::Trace) -> Result<()> {
    let mut states = States::new();
    let samples: i64 = trace.samples.values().sum();
    for line in output.lines() {
        let mut words = line.splitn(3, ' ');
        let (kind, number) = (words.next(), words.next().unwrap_or_default());
        match (kind, words.next()) {
            (Some("slice"), Some(name)) => {
                states.insert(name.to_owned(), number.parse()?);
            }
            (Some("samples"), _) => ensure!(number.parse() == Ok(samples), "{line}"),
            (Some("error"), _) => anyhow::bail!("{line}"),
            _ => {}
        }
    }
    ensure!(states == trace.states, "{states:?} {:?}", trace.states);
    Ok(())
}
