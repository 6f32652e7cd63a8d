//! A browser that opens a page: Chromium without a window, by the DevTools protocol.
//!
//! The protocol goes through a pair of pipes, not a port: no port has to be found, no other program
//! can reach it, and no library is needed. The browser's end of them is its file descriptors 3 and
//! 4, to which a shell moves what it was given as standard input and output. Messages are JSON,
//! each followed by a zero byte.
//!
//! The browser has no network (every name is unresolvable), has a new profile each time, and is
//! killed when its value is dropped. Errors of the page, on its console or by an exception, are
//! kept: [`Browser::complaints`].

use std::env;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The names of its program.
const NAMES: [&str; 4] = [
    "chromium-headless-shell",
    "chromium",
    "google-chrome",
    "chromium-browser",
];

/// Maximum time that an answer takes on a busy machine; without an answer the check fails.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<Value>,
    output: File,
    number: u64,
    session: String,
    complaints: Vec<String>,
    requests: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser with an empty page.
    ///
    /// # Errors
    /// When none is installed, or it doesn't answer.
    pub fn start() -> Result<Browser> {
        let directories = env::var_os("PATH").unwrap_or_default();
        let program = NAMES
            .iter()
            .flat_map(|name| env::split_paths(&directories).map(move |path| path.join(name)))
            .find(|program| program.is_file())
            .context("no Chromium is installed; scripts/packages.sh test installs it")?;
        let profile = tempfile::tempdir()?;
        let output = tempfile::tempfile()?;
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null"])
            .arg(program)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args([
                "--headless",
                // Root's browser has no sandbox; the page is our own.
                "--no-sandbox",
                "--remote-debugging-pipe",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-extensions",
                "--disable-background-networking",
                "--no-first-run",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                "--force-color-profile=srgb",
                "about:blank",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(output.try_clone()?)
            .process_group(0)
            .spawn()?;
        let orders = child.stdin.take().context("no pipe")?;
        let answers = listen(child.stdout.take().context("no pipe")?);
        let mut browser = Browser {
            child,
            orders,
            answers,
            output,
            number: 0,
            session: String::new(),
            complaints: Vec::new(),
            requests: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))?;
        let attached = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target["targetId"], "flatten": true}),
        )?;
        browser.session = attached["sessionId"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    /// Makes a call of the protocol, and returns its result.
    ///
    /// # Errors
    /// When it is refused, or not answered.
    pub fn call(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.number += 1;
        let mut order = json!({"id": self.number, "method": method, "params": parameters});
        if !self.session.is_empty() {
            order["sessionId"] = self.session.clone().into();
        }
        write!(self.orders, "{order}\0")?;
        loop {
            let mut message = self.next(method)?;
            if message["id"] != self.number {
                continue;
            }
            ensure!(message["error"].is_null(), "{method}: {}", message["error"]);
            return Ok(message["result"].take());
        }
    }

    fn next(&mut self, waiting_for: &str) -> Result<Value> {
        let Ok(message) = self.answers.recv_timeout(ANSWER_LIMIT) else {
            let mut output = String::new();
            self.output.rewind()?;
            self.output.read_to_string(&mut output)?;
            bail!("the browser doesn't answer to {waiting_for}; its output:\n{output}");
        };
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self
                .complaints
                .push(parameters["exceptionDetails"].to_string()),
            Some("Log.entryAdded") => self.complaints.push(parameters["entry"].to_string()),
            Some("Runtime.consoleAPICalled") => {
                self.complaints.push(parameters["args"].to_string());
            }
            Some("Network.requestWillBeSent") => self.requests.push(
                parameters["request"]["url"]
                    .as_str()
                    .unwrap_or("?")
                    .to_owned(),
            ),
            _ => {}
        }
        Ok(message)
    }

    /// Opens a page and waits until it is loaded.
    ///
    /// # Errors
    /// When it can't be opened.
    pub fn open(&mut self, url: &str) -> Result<()> {
        let opened = self.call("Page.navigate", json!({"url": url}))?;
        ensure!(opened["errorText"].is_null(), "{url}: {opened}");
        while self.next("the page's load")?["method"] != "Page.loadEventFired" {}
        Ok(())
    }

    /// Opens a file of HTML.
    ///
    /// # Errors
    /// When it can't be opened.
    pub fn open_file(&mut self, path: &Path) -> Result<()> {
        self.open(&format!("file://{}", path.display()))
    }

    /// Returns the value of an expression in the page; of a promise, what it resolves to.
    ///
    /// # Errors
    /// When it throws.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let mut answer = self.call(
            "Runtime.evaluate",
            json!({"expression": expression, "awaitPromise": true, "returnByValue": true}),
        )?;
        ensure!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {}",
            answer["exceptionDetails"]
        );
        Ok(answer["result"]["value"].take())
    }

    /// Makes the window this large, in CSS pixels; each is `ratio` pixels wide and high.
    ///
    /// # Errors
    /// When the browser refuses.
    pub fn resize(&mut self, width: u32, height: u32, ratio: f64) -> Result<()> {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": ratio, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        self.settle()
    }

    /// Prefers `light` or `dark` pages.
    ///
    /// # Errors
    /// When the browser refuses.
    pub fn prefer(&mut self, scheme: &str) -> Result<()> {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}))?;
        self.settle()
    }

    /// Waits until the page has drawn what it was asked to.
    ///
    /// # Errors
    /// When it doesn't.
    pub fn settle(&mut self) -> Result<()> {
        const TWO_FRAMES: &str = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))";
        self.evaluate(TWO_FRAMES).map(drop)
    }

    /// Drags the mouse from one point to another, or clicks where they are equal.
    ///
    /// # Errors
    /// When the browser refuses.
    pub fn stroke(&mut self, from: (f64, f64), to: (f64, f64)) -> Result<()> {
        let events = [
            ("mouseMoved", from, 0),
            ("mousePressed", from, 1),
            ("mouseMoved", to, 1),
            ("mouseReleased", to, 0),
        ];
        for (kind, (x, y), buttons) in events {
            self.call(
                "Input.dispatchMouseEvent",
                json!({"type": kind, "x": x, "y": y, "buttons": buttons, "clickCount": 1,
                    "button": if kind == "mouseMoved" && buttons == 0 { "none" } else { "left" }}),
            )?;
        }
        self.settle()
    }

    /// Moves the mouse to a point.
    ///
    /// # Errors
    /// When the browser refuses.
    pub fn hover(&mut self, (x, y): (f64, f64)) -> Result<()> {
        self.call(
            "Input.dispatchMouseEvent",
            json!({"type": "mouseMoved", "x": x, "y": y, "buttons": 0, "button": "none"}),
        )?;
        self.settle()
    }

    /// Clicks into the middle of an element.
    ///
    /// # Errors
    /// No such element.
    pub fn click(&mut self, selector: &str) -> Result<()> {
        let (x, y) = self.place(selector, 0.5, 0.5)?;
        self.stroke((x, y), (x, y))
    }

    /// Returns a point of an element, by shares of its width and height.
    ///
    /// # Errors
    /// No such element.
    pub fn place(&mut self, selector: &str, across: f64, down: f64) -> Result<(f64, f64)> {
        let expression = format!(
            "(() => {{ const box = document.querySelector({selector:?}).getBoundingClientRect(); \
             return [box.x + {across} * box.width, box.y + {down} * box.height]; }})()"
        );
        let point = self.evaluate(&expression)?;
        point[0]
            .as_f64()
            .zip(point[1].as_f64())
            .context("no such place")
    }

    /// Presses a key; `key` as JavaScript calls it.
    ///
    /// # Errors
    /// When the browser refuses.
    pub fn press(&mut self, key: &str) -> Result<()> {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => 0,
        };
        let mut event = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if code == 0 {
            event["text"] = key.into();
        }
        self.call("Input.dispatchKeyEvent", event.clone())?;
        event["type"] = "keyUp".into();
        self.call("Input.dispatchKeyEvent", event)?;
        self.settle()
    }

    /// Returns a screenshot, as PNG in base64.
    ///
    /// # Errors
    /// When the browser refuses.
    pub fn screenshot(&mut self) -> Result<String> {
        let mut picture = self.call("Page.captureScreenshot", json!({"format": "png"}))?;
        match picture["data"].take() {
            Value::String(data) => Ok(data),
            other => bail!("no picture: {other}"),
        }
    }

    /// Returns all errors of pages so far.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Returns all addresses that were requested so far, with the pages' own.
    #[must_use]
    pub fn requests(&self) -> &[String] {
        &self.requests
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // All of its processes: others would write the profile again after it is removed.
        let group = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Receives messages in a thread. The channel closes when the browser ends.
fn listen(answers: ChildStdout) -> Receiver<Value> {
    let (send, receive) = channel();
    thread::spawn(move || {
        let mut answers = BufReader::new(answers);
        let mut message = Vec::new();
        while let Ok(1..) = answers.read_until(0, &mut message) {
            message.pop();
            let Ok(value) = serde_json::from_slice(&message) else {
                return;
            };
            if send.send(value).is_err() {
                return;
            }
            message.clear();
        }
    });
    receive
}
