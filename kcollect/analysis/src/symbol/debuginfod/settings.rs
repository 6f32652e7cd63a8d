//! The environment variables of elfutils' client.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::download::Limits;

/// The settings in the environment.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Addresses of servers, without the `/` at the end.
    pub(super) servers: Vec<String>,
    /// The cache's directory. None: there is no home directory.
    pub(super) cache: Option<PathBuf>,
    pub(super) limits: Limits,
    /// What could not be parsed, one sentence each.
    pub(super) problems: Vec<String>,
}

impl Settings {
    /// Returns the settings in variables.
    pub(super) fn read(variable: impl Fn(&str) -> Option<OsString>) -> Settings {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let mut settings = Settings::default();
        let urls = set("DEBUGINFOD_URLS").unwrap_or_default();
        for word in urls.to_string_lossy().split_whitespace() {
            let server = word.trim_end_matches('/');
            if ["http://", "https://"]
                .iter()
                .any(|with| server.starts_with(with))
            {
                settings.servers.push(server.to_owned());
            } else if !word.starts_with("ima:") {
                // Those say which signatures are required of the servers after them.
                settings.problems.push(format!(
                    "DEBUGINFOD_URLS: {word} is left out, since it is neither http:// nor https://"
                ));
            }
        }
        settings.cache = cache(&set);
        let number = |name: &str| {
            let text = set(name)?;
            text.to_str()?.trim().parse::<u64>().ok()
        };
        // As for elfutils, 0 stands for what there is without it.
        let positive = |name: &str| number(name).filter(|value| *value > 0);
        let limits = &mut settings.limits;
        if let Some(bytes) = positive("DEBUGINFOD_MAXSIZE") {
            limits.max_bytes = bytes;
        }
        if let Some(seconds) = positive("DEBUGINFOD_MAXTIME") {
            limits.whole = Duration::from_secs(seconds);
        }
        if let Some(seconds) = positive("DEBUGINFOD_TIMEOUT") {
            limits.progress = Duration::from_secs(seconds);
        }
        settings
    }
}

/// Returns the directory that elfutils uses.
fn cache(set: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(path) = set("DEBUGINFOD_CACHE_PATH") {
        return Some(path.into());
    }
    let home = set("HOME").map(PathBuf::from);
    let old = home
        .as_ref()
        .map(|home| home.join(".debuginfod_client_cache"));
    if let Some(old) = old.filter(|old| old.is_dir()) {
        return Some(old);
    }
    let base = set("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(home?.join(".cache")))?;
    Some(base.join("debuginfod_client"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Settings {
        Settings::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn servers_are_those_that_speak_http() {
        let urls =
            "https://one.example/ ima:permissive http://127.0.0.1:8002/x/  file:///etc ftp://a";
        let settings = read(&[("DEBUGINFOD_URLS", urls)]);
        assert_eq!(
            settings.servers,
            ["https://one.example", "http://127.0.0.1:8002/x"]
        );
        assert_eq!(settings.problems.len(), 2);
        assert!(read(&[]).servers.is_empty());
    }

    #[test]
    fn the_cache_is_that_of_elfutils() {
        let path = |variables: &[(&str, &str)]| read(variables).cache;
        let home = tempfile::tempdir().unwrap();
        let at = home.path().to_str().unwrap();
        let all = [
            ("DEBUGINFOD_CACHE_PATH", "/c"),
            ("XDG_CACHE_HOME", "/x"),
            ("HOME", at),
        ];
        assert_eq!(path(&all), Some("/c".into()));
        assert_eq!(path(&all[1..]), Some("/x/debuginfod_client".into()));
        let below = home.path().join(".cache/debuginfod_client");
        assert_eq!(path(&all[2..]), Some(below));
        let old = home.path().join(".debuginfod_client_cache");
        std::fs::create_dir(&old).unwrap();
        assert_eq!(path(&all[1..]), Some(old));
        assert_eq!(path(&[]), None);
    }

    #[test]
    fn limits_are_read() {
        let limits = read(&[
            ("DEBUGINFOD_MAXSIZE", "1000"),
            ("DEBUGINFOD_MAXTIME", "0"),
            ("DEBUGINFOD_TIMEOUT", "x"),
        ])
        .limits;
        let expected = Limits {
            max_bytes: 1000,
            ..Limits::default()
        };
        assert_eq!(limits, expected);
    }
}
