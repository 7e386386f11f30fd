//! Debian's Chromium without a window, driven over the `DevTools` protocol through two pipes.

use std::io::{BufRead as _, BufReader, PipeWriter, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use command_fds::{CommandFdExt as _, FdMapping};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::process::{ManagedChild, eventually, poll};

const SOON: Duration = Duration::from_secs(60);

/// A browser with one page.
pub(crate) struct Chromium {
    commands: PipeWriter,
    messages: Receiver<Value>,
    session: String,
    last: u64,
    /// What the page complained of: refused scripts, errors.
    pub(crate) complaints: Vec<String>,
    _child: ManagedChild,
    _profile: TempDir,
}

impl Chromium {
    /// Starts the browser.
    pub(crate) fn start() -> Self {
        let profile = tempfile::Builder::new()
            .prefix("artisand-chromium-")
            .tempdir()
            .unwrap();
        let (for_browser, commands) = std::io::pipe().unwrap();
        let (answers, of_browser) = std::io::pipe().unwrap();
        let mut command = Command::new("chromium");
        command
            .args([
                "--headless",
                "--remote-debugging-pipe",
                // Tests run as root in containers, and show one page of their own.
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-extensions",
                "--disable-background-networking",
                "--hide-scrollbars",
                "--no-first-run",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("HOME", profile.path())
            .env("TMPDIR", profile.path())
            .fd_mappings(vec![
                FdMapping {
                    parent_fd: for_browser.into(),
                    child_fd: 3,
                },
                FdMapping {
                    parent_fd: of_browser.into(),
                    child_fd: 4,
                },
            ])
            .unwrap();
        let child = ManagedChild::spawn(command);
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0) {
                let Ok(message) = message else { return };
                let message = serde_json::from_slice(&message).unwrap();
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            commands,
            messages,
            session: String::new(),
            last: 0,
            complaints: Vec::new(),
            _child: child,
            _profile: profile,
        };
        let page = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let target = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", &target);
        attached["sessionId"]
            .as_str()
            .unwrap()
            .clone_into(&mut browser.session);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, &json!({}));
        }
        browser
    }

    /// Sends a command and waits for its answer.
    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": params});
        if !self.session.is_empty() {
            command["sessionId"] = json!(self.session);
        }
        self.commands
            .write_all(format!("{command}\0").as_bytes())
            .unwrap();
        let end = Instant::now() + SOON;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let message = self.messages.recv_timeout(left);
            let message = message.unwrap_or_else(|_| panic!("no answer to {method}"));
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            match message["method"].as_str() {
                Some("Log.entryAdded") => {
                    let entry = &message["params"]["entry"];
                    self.complaints.push(entry.to_string());
                }
                Some("Runtime.exceptionThrown") => self.complaints.push(message.to_string()),
                _ => {}
            }
        }
    }

    /// Opens an address.
    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", &json!({"url": url}));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
    }

    /// The value of an expression, also of a promise.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", &asked);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let wanted = format!("Boolean({expression})");
        let found = poll(SOON, || (self.value(&wanted) == true).then_some(()));
        if found.is_none() {
            let text = self.value("document.body.innerText");
            panic!("never {expression}:\n{text}\n{:?}", self.complaints);
        }
    }

    /// Clicks the middle of an element as a person does: what covers it gets the click instead. If the page moved in
    /// the meantime, it tries again.
    pub(crate) fn click(&mut self, element: &str) {
        let aim = format!(
            "(() => {{ const e = {element}; window.isHit = false; e.addEventListener('click', () => {{ window.isHit = true; }}, {{once: true}}); e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }})()"
        );
        eventually(&format!("a click on {element}"), SOON, || {
            let middle = self.value(&aim);
            for kind in ["mousePressed", "mouseReleased"] {
                let click = json!({"type": kind, "x": middle[0], "y": middle[1], "button": "left", "clickCount": 1});
                self.call("Input.dispatchMouseEvent", &click);
            }
            (self.value("window.isHit") == true).then_some(())
        });
    }

    /// Types into what has the focus.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", &json!({"text": text}));
    }

    /// Sets the width of the window and the colours that the person prefers.
    pub(crate) fn look_like(&mut self, width: u32, scheme: &str) {
        let size =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", &media);
    }

    /// A picture of the page from its top, this high.
    pub(crate) fn picture(&mut self, width: u32, height: u32) -> Vec<u8> {
        self.value("scrollTo(0, 0)");
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let shot = json!({"format": "png", "clip": clip, "captureBeyondViewport": true});
        let shot = self.call("Page.captureScreenshot", &shot);
        let engine = base64::engine::general_purpose::STANDARD;
        engine.decode(shot["data"].as_str().unwrap()).unwrap()
    }

    /// Writes such a picture to a file.
    pub(crate) fn save(&mut self, path: &Path, width: u32, height: u32) {
        let picture = self.picture(width, height);
        std::fs::write(path, picture).unwrap();
    }
}
