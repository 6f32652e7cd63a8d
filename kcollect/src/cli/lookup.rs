//! The options of all commands that name functions, for debug files from servers.

use analysis::load::lines::LookupPaths;
use analysis::symbol::DebuginfodUse;
use clap::Args;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub(super) struct DebuginfodArgs {
    /// Fetch missing debug files from the servers in DEBUGINFOD_URLS even as root. Others do it
    /// without this option
    #[arg(long, conflicts_with = "no_debuginfod")]
    debuginfod: bool,
    /// Fetch nothing, even if DEBUGINFOD_URLS is set
    #[arg(long)]
    no_debuginfod: bool,
}

impl DebuginfodArgs {
    /// Returns where files are looked for, with nothing but these options.
    pub(super) fn resolve(self) -> LookupPaths {
        LookupPaths {
            debuginfod: match (self.debuginfod, self.no_debuginfod) {
                (_, true) => DebuginfodUse::Never,
                (true, _) => DebuginfodUse::Always,
                _ => DebuginfodUse::IfNotRoot,
            },
            ..LookupPaths::default()
        }
    }
}
