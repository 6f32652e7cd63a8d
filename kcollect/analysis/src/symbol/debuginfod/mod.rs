//! Fetches debug files and sources by build id from the servers in `DEBUGINFOD_URLS`.
//!
//! A request tells a server which program ran, so nothing is fetched unless the user names servers,
//! nor as root, whose environment is often a script's, unless the user asks for it.
//!
//! `settings` reads the environment, as elfutils does; `cache` has the files that were fetched
//! before, where elfutils and gdb have theirs; `download` fetches one. A server may answer
//! anything: its answers are bounded in size and time, and count only if they have the build id
//! that was asked for. The crate named debuginfod does none of this, so an HTTP client is used
//! directly.

mod cache;
mod download;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kcollect_elf::section_build_id;

use cache::{Cache, Cached};
use download::{Downloader, FetchError};
use settings::Settings;

/// Whether files may be fetched from the servers in `DEBUGINFOD_URLS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DebuginfodUse {
    /// No, and files that were fetched before are not used either.
    #[default]
    Never,
    /// Yes, unless this is root.
    IfNotRoot,
    /// Yes.
    Always,
}

/// The failures after which a server is not asked again: each may take minutes.
const MAX_FAILURES: u32 = 3;

/// The kind of a fetched file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted<'a> {
    DebugFile,
    /// The source file with this path in the line table.
    Source(&'a str),
}

/// A client that fetches each file only once.
#[derive(Debug)]
pub struct DebuginfodClient {
    cache: Option<Cache>,
    downloader: Downloader,
    servers: Vec<String>,
    state: Mutex<ClientState>,
}

/// What was fetched so far, and what failed.
#[derive(Debug, Default)]
struct ClientState {
    /// A lock for each file, by its place in the cache. It holds whether the file is missing.
    files: BTreeMap<PathBuf, Arc<Mutex<bool>>>,
    /// The number of failures of each server. One that does not answer has the most at once.
    failures: BTreeMap<String, u32>,
    problems: BTreeSet<String>,
}

impl DebuginfodClient {
    /// Returns the client of this process, by its environment; none if files must not be fetched.
    pub fn of_process(how: DebuginfodUse) -> Option<Arc<DebuginfodClient>> {
        static CLIENTS: [OnceLock<Arc<DebuginfodClient>>; 2] = [OnceLock::new(), OnceLock::new()];
        let [if_not_root, always] = &CLIENTS;
        let client = match how {
            DebuginfodUse::Never => return None,
            DebuginfodUse::IfNotRoot => if_not_root,
            DebuginfodUse::Always => always,
        };
        let client = client.get_or_init(|| {
            let mut settings = Settings::read(|name| std::env::var_os(name));
            let mut problems = std::mem::take(&mut settings.problems);
            if how != DebuginfodUse::Always && nix::unistd::geteuid().is_root() {
                settings.servers.clear();
                problems.clear();
            } else if how == DebuginfodUse::Always && settings.servers.is_empty() {
                problems.push(
                    "--debuginfod: DEBUGINFOD_URLS names no server, such as \
                     https://debuginfod.elfutils.org"
                        .to_owned(),
                );
            }
            let client = DebuginfodClient::new(settings);
            client.state().problems.extend(problems);
            Arc::new(client)
        });
        Some(Arc::clone(client))
    }

    /// Returns whether the user has named servers that are not asked, because this is root.
    #[must_use]
    pub fn is_refused_to_root(how: DebuginfodUse) -> bool {
        how == DebuginfodUse::IfNotRoot
            && nix::unistd::geteuid().is_root()
            && !Settings::read(|name| std::env::var_os(name))
                .servers
                .is_empty()
    }

    fn new(settings: Settings) -> DebuginfodClient {
        DebuginfodClient {
            cache: settings.cache.map(Cache::new),
            downloader: Downloader::new(settings.limits),
            servers: settings.servers,
            state: Mutex::default(),
        }
    }

    /// Returns the debug file of this build id.
    #[must_use]
    pub fn debug_file(&self, id: &[u8]) -> Option<File> {
        self.find(id, Wanted::DebugFile)
    }

    /// Returns a source file, by its absolute path in the line table, of the object with this build
    /// id.
    #[must_use]
    pub fn source(&self, id: &[u8], path: &str) -> Option<(File, PathBuf)> {
        if !path.starts_with('/') {
            return None;
        }
        let wanted = Wanted::Source(path);
        let place = self.cache.as_ref()?.place(id, wanted);
        Some((self.find(id, wanted)?, place))
    }

    /// Returns what went wrong since this was last called, one sentence each.
    #[must_use]
    pub fn take_problems(&self) -> Vec<String> {
        let problems = std::mem::take(&mut self.state().problems);
        problems.into_iter().collect()
    }

    fn state(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: &[u8], wanted: Wanted<'_>) -> Option<File> {
        // Shorter ids, and ids that a linker filled with zeros, are shared by many files.
        if id.len() < 8 || id.iter().all(|byte| *byte == 0) {
            return None;
        }
        let cache = self.cache.as_ref()?;
        let lock = {
            let mut state = self.state();
            Arc::clone(state.files.entry(cache.place(id, wanted)).or_default())
        };
        // Another thread may be fetching it.
        let mut missing = lock.lock().unwrap_or_else(PoisonError::into_inner);
        if *missing {
            return None;
        }
        let found = match cache.find(id, wanted) {
            Cached::File(file) if is_of_build(&file, id, wanted) => Some(file),
            Cached::KnownMissing => None,
            Cached::File(_) | Cached::Nothing => self.fetch(cache, id, wanted),
        };
        *missing = found.is_none();
        found
    }

    /// Asks the servers in their order.
    fn fetch(&self, cache: &Cache, id: &[u8], wanted: Wanted<'_>) -> Option<File> {
        let mut not_found = 0;
        for server in &self.servers {
            let failures = self.state().failures.get(server).copied();
            if failures.is_some_and(|failures| failures >= MAX_FAILURES) {
                continue;
            }
            let url = download::url(server, id, wanted);
            let fetched = cache.temporary(id, wanted).and_then(|mut temporary| {
                self.downloader.fetch(&url, temporary.as_file_mut())?;
                Ok(temporary)
            });
            let checked = fetched.and_then(|temporary| {
                let own = is_of_build(temporary.as_file(), id, wanted);
                own.then_some(temporary).ok_or(FetchError::OtherBuild)
            });
            match checked.and_then(|temporary| cache.keep(temporary, id, wanted)) {
                Ok(file) => return Some(file),
                Err(FetchError::NotFound) => not_found += 1,
                Err(error) => {
                    let mut state = self.state();
                    let (about, failures) = if error.is_of_server() {
                        (server, MAX_FAILURES)
                    } else {
                        (&url, 1)
                    };
                    *state.failures.entry(server.clone()).or_default() += failures;
                    state
                        .problems
                        .insert(format!("debuginfod: {about} {error}"));
                }
            }
        }
        if not_found > 0 && not_found == self.servers.len() {
            cache.keep_missing(id, wanted);
        } else {
            cache.remove_empty_directory(id);
        }
        None
    }
}

/// Returns whether a file has the build id that was asked for. Sources have none.
fn is_of_build(file: &File, id: &[u8], wanted: Wanted<'_>) -> bool {
    match wanted {
        Wanted::DebugFile => *section_build_id(file) == *id,
        Wanted::Source(_) => true,
    }
}

#[cfg(test)]
mod tests;
