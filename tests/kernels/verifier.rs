//! The cost of the BPF programs for the verifier, which refuses those above a million instructions.
//! How many it checks depends on the kernel: newer ones recognise more of what they have checked.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use libbpf_rs::query::ProgInfoIter;

use crate::runs::VerifiedProgram;

/// Maximum instructions that a program may cost: a tenth of the verifier's limit.
const BUDGET: u32 = 100_000;

/// Returns the programs that are loaded on this machine. All are kcollect's, since no other program
/// loads any.
pub(crate) fn loaded() -> Vec<VerifiedProgram> {
    ProgInfoIter::default()
        .map(|program| VerifiedProgram {
            name: program.name.to_string_lossy().into_owned(),
            verified: program.verified_insns,
        })
        .collect()
}

/// Returns the costs on each kernel, as a table.
pub(crate) fn table(kernels: &[(String, Vec<VerifiedProgram>)]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    let titles = kernels.iter().map(|(kernel, _)| kernel.clone());
    table.set_header(
        ["verified instructions".to_owned()]
            .into_iter()
            .chain(titles),
    );
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let costs: Vec<BTreeMap<_, _>> = kernels
        .iter()
        .map(|(_, programs)| {
            let pairs = programs.iter();
            pairs
                .map(|program| (program.name.as_str(), program.verified))
                .collect()
        })
        .collect();
    let names: BTreeSet<_> = costs.iter().flat_map(BTreeMap::keys).collect();
    for name in names {
        let cells = costs
            .iter()
            .map(|costs| costs.get(*name).map_or("-".to_owned(), u32::to_string));
        table.add_row([(*name).to_owned()].into_iter().chain(cells));
    }
    table
}

/// Passes when none is beyond the budget.
///
/// # Errors
/// When one is, or none is there.
pub(crate) fn within_budget(programs: &[VerifiedProgram]) -> Result<()> {
    ensure!(!programs.is_empty(), "no BPF program was loaded");
    let beyond: Vec<_> = programs
        .iter()
        .filter(|program| !(1..=BUDGET).contains(&program.verified))
        .collect();
    ensure!(
        beyond.is_empty(),
        "more than {BUDGET} instructions, or none, to verify: {beyond:?}"
    );
    Ok(())
}
