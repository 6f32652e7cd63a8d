//! Fetches one file over HTTP, within limits.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::Wanted;

/// Maximum number of redirects for one file.
const MAX_REDIRECTS: u32 = 5;
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The bytes that have to arrive within [`Limits::progress`], as for elfutils.
const MIN_PROGRESS_BYTES: u64 = 100_000;
/// The time after which a download is shown.
const SHOWN_AFTER: Duration = Duration::from_secs(1);
/// The bytes that are read at a time.
const PIECE_BYTES: usize = 128 << 10;

/// The limits of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Maximum bytes of a file. Larger debug information would not be read.
    pub(super) max_bytes: u64,
    /// Maximum time for a file.
    pub(super) whole: Duration,
    /// Maximum time for the first byte, and for each [`MIN_PROGRESS_BYTES`].
    pub(super) progress: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_bytes: 1 << 30,
            whole: Duration::from_secs(600),
            progress: Duration::from_secs(90),
        }
    }
}

/// Why a file was not fetched: the end of a sentence that begins with its address or the server's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FetchError {
    #[error("does not have it")]
    NotFound,
    #[error("answered with status {0}")]
    Status(u16),
    #[error("has more than {0} bytes; DEBUGINFOD_MAXSIZE is the limit")]
    TooLarge(u64),
    #[error("takes too long; DEBUGINFOD_MAXTIME and DEBUGINFOD_TIMEOUT are the limits")]
    TooSlow,
    #[error("is of another build than was asked for")]
    OtherBuild,
    #[error("cannot be kept in {}: {error}", .path.display())]
    Cache { path: PathBuf, error: io::ErrorKind },
    #[error("broke off: {0}")]
    BrokeOff(String),
    #[error("cannot be reached: {0}")]
    Unreachable(String),
}

impl FetchError {
    /// Returns whether the server would fail for other files too.
    pub(super) fn is_of_server(&self) -> bool {
        matches!(self, FetchError::Unreachable(_))
    }
}

/// Returns the address of a file.
pub(super) fn url(server: &str, id: &[u8], wanted: Wanted<'_>) -> String {
    let mut url = format!("{server}/buildid/{}/", hex::encode(id));
    match wanted {
        Wanted::DebugFile => url.push_str("debuginfo"),
        Wanted::Source(path) => {
            url.push_str("source");
            for byte in path.bytes() {
                // Writing to a String cannot fail.
                let _ = match byte {
                    b'/' | b'-' | b'.' | b'_' | b'~' => write!(url, "{}", char::from(byte)),
                    byte if byte.is_ascii_alphanumeric() => write!(url, "{}", char::from(byte)),
                    byte => write!(url, "%{byte:02X}"),
                };
            }
        }
    }
    url
}

/// Fetches files.
#[derive(Debug)]
pub(super) struct Downloader {
    limits: Limits,
    /// One for addresses with http and one with https, which needs the machine's certificates.
    agents: [OnceLock<Agent>; 2],
    bars: MultiProgress,
}

impl Downloader {
    pub(super) fn new(limits: Limits) -> Downloader {
        Downloader {
            limits,
            agents: Default::default(),
            bars: MultiProgress::new(),
        }
    }

    /// Writes the file of an address.
    pub(super) fn fetch(&self, url: &str, file: &mut File) -> Result<(), FetchError> {
        let begin = Instant::now();
        let response = self.agent(url).get(url).call().map_err(no_answer)?;
        match response.status().as_u16() {
            200 => {}
            404 => return Err(FetchError::NotFound),
            status => return Err(FetchError::Status(status)),
        }
        let length = response.body().content_length();
        if length.is_some_and(|length| length > self.limits.max_bytes) {
            return Err(FetchError::TooLarge(self.limits.max_bytes));
        }
        let mut progress = Progress::new(self, url, length, begin);
        let mut body = response.into_body().into_reader();
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let read = body.read(&mut piece).map_err(|error| broken(&error))?;
            let Some(read) = piece.get(..read).filter(|read| !read.is_empty()) else {
                break;
            };
            progress.add(read.len() as u64, &self.limits)?;
            file.write_all(read)
                .map_err(|error| FetchError::BrokeOff(error.to_string()))?;
        }
        match length {
            Some(length) if length != progress.bytes => {
                Err(FetchError::BrokeOff("it is incomplete".to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn agent(&self, url: &str) -> &Agent {
        let secure = url.starts_with("https:");
        let [plain_agent, secure_agent] = &self.agents;
        let agent = if secure { secure_agent } else { plain_agent };
        agent.get_or_init(|| {
            let config = Agent::config_builder()
                .user_agent(concat!("kcollect/", env!("CARGO_PKG_VERSION")))
                .http_status_as_error(false)
                .max_redirects(MAX_REDIRECTS)
                // No way from https to http.
                .https_only(secure)
                .timeout_connect(Some(CONNECT_TIMEOUT.min(self.limits.progress)))
                .timeout_recv_response(Some(self.limits.progress))
                .timeout_per_read(Some(self.limits.progress))
                .timeout_global(Some(self.limits.whole))
                // A redirect may lead from http to https.
                .tls_config(tls());
            config.build().new_agent()
        })
    }
}

/// Returns how servers are authenticated: by the certificates that this machine trusts.
fn tls() -> TlsConfig {
    let trusted = rustls_native_certs::load_native_certs().certs;
    let trusted = trusted
        .iter()
        .map(|certificate| Certificate::from_der(certificate).to_owned());
    let trusted: Vec<_> = trusted.collect();
    TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&trusted))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build()
}

/// Returns why there was no answer.
fn no_answer(error: ureq::Error) -> FetchError {
    match error {
        ureq::Error::Timeout(ureq::Timeout::Global) => FetchError::TooSlow,
        ureq::Error::TooManyRedirects | ureq::Error::RedirectFailed => {
            FetchError::BrokeOff("it leads elsewhere and on".to_owned())
        }
        ureq::Error::RequireHttpsOnly(_) => {
            FetchError::BrokeOff("it leads from https to http".to_owned())
        }
        error => FetchError::Unreachable(error.to_string()),
    }
}

fn broken(error: &io::Error) -> FetchError {
    match error.kind() {
        io::ErrorKind::TimedOut => FetchError::TooSlow,
        _ => FetchError::BrokeOff(error.to_string()),
    }
}

/// The progress of a download.
struct Progress<'a> {
    bars: &'a MultiProgress,
    bar: Option<ProgressBar>,
    name: &'a str,
    length: Option<u64>,
    begin: Instant,
    bytes: u64,
    /// The time and the number of bytes from which the next [`MIN_PROGRESS_BYTES`] are counted.
    since: (Instant, u64),
}

impl<'a> Progress<'a> {
    fn new(
        downloader: &'a Downloader,
        name: &'a str,
        length: Option<u64>,
        begin: Instant,
    ) -> Progress<'a> {
        Progress {
            bars: &downloader.bars,
            bar: None,
            name,
            length,
            begin,
            bytes: 0,
            since: (Instant::now(), 0),
        }
    }

    /// Counts bytes that arrived.
    fn add(&mut self, bytes: u64, limits: &Limits) -> Result<(), FetchError> {
        self.bytes += bytes;
        if self.bytes > limits.max_bytes {
            return Err(FetchError::TooLarge(limits.max_bytes));
        }
        let (at, before) = self.since;
        if self.bytes - before >= MIN_PROGRESS_BYTES {
            self.since = (Instant::now(), self.bytes);
        } else if at.elapsed() > limits.progress {
            return Err(FetchError::TooSlow);
        }
        if self.begin.elapsed() > limits.whole {
            return Err(FetchError::TooSlow);
        }
        if self.bar.is_none() && self.begin.elapsed() > SHOWN_AFTER {
            self.bar = Some(self.bars.add(bar(self.name, self.length)));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.bytes);
        }
        Ok(())
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
            self.bars.remove(&bar);
        }
    }
}

fn bar(name: &str, length: Option<u64>) -> ProgressBar {
    let (bar, template) = match length {
        Some(length) => (
            ProgressBar::new(length),
            "{bytes} of {total_bytes} [{bar:20}] {eta} {wide_msg}",
        ),
        None => (ProgressBar::no_length(), "{bytes} {wide_msg}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(name.to_owned());
    bar
}
