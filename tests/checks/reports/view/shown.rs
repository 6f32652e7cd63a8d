//! A page in a browser.

use std::fs;

use analysis::view::{Payload, page};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tests::oracle::browser::Browser;

use super::truth::{Selection, Truth};

/// A browser that shows a page, and the page's file.
pub(super) struct Shown {
    pub(super) browser: Browser,
    /// The value of `kcollect.ready`, milliseconds.
    pub(super) times: Value,
    pub(super) bytes: usize,
    _directory: TempDir,
}

const READY: &str = "new Promise(done => { \
     const look = () => { const trouble = document.getElementById('trouble'); \
       if (window.kcollect) done(kcollect.ready); \
       else if (!trouble.hidden) done(trouble.textContent); \
       else setTimeout(look, 5); }; \
     look(); })";

pub(super) fn show(payload: &Payload) -> Result<Shown> {
    let directory = tempfile::tempdir()?;
    fs::write(directory.path().join(PAGE), page(payload)?)?;
    open(directory)
}

/// The name of the page's file.
pub(super) const PAGE: &str = "view.html";

pub(super) fn open(directory: TempDir) -> Result<Shown> {
    let file = directory.path().join(PAGE);
    let bytes = usize::try_from(fs::metadata(&file)?.len())?;
    let mut browser = Browser::start()?;
    browser.resize(1280, 800, 1.0)?;
    browser.open_file(&file)?;
    let times = browser.evaluate(READY)?;
    ensure!(times.is_object(), "{times}");
    Ok(Shown {
        browser,
        times,
        bytes,
        _directory: directory,
    })
}

impl Shown {
    pub(super) fn select(&mut self, selection: &Selection, by_process: bool) -> Result<Truth> {
        let argument = selection.argument();
        let totals = self
            .browser
            .evaluate(&format!("kcollect.select({argument})"))?;
        let flame = self
            .browser
            .evaluate(&format!("kcollect.flame({{byProcess: {by_process}}})"))?;
        Truth::of_page(&totals, &flame)
    }

    /// Returns the ticks that the page shows now.
    pub(super) fn micros(&mut self) -> Result<u64> {
        let shown = self
            .browser
            .evaluate("document.querySelector('#total').dataset.micros")?;
        shown
            .as_str()
            .and_then(|text| text.parse().ok())
            .context("no total")
    }

    /// Checks that the page complained of nothing, and requested only itself.
    pub(super) fn is_content(&self) -> Result<()> {
        ensure!(
            self.browser.complaints().is_empty(),
            "{:#?}",
            self.browser.complaints()
        );
        let requests = self.browser.requests();
        ensure!(
            requests.len() == 1 && requests[0].starts_with("file://"),
            "{requests:?}"
        );
        Ok(())
    }
}
