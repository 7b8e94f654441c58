//! A browser, controlled over WebDriver: chromedriver and headless Chromium, as Debian packages them.
//!
//! Source: <https://www.w3.org/TR/webdriver2/>, and chromedriver's `goog/cdp/execute` for what WebDriver lacks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Limit of each step, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A browser with one window. Dropping it ends it.
pub struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    _profile: TempDir,
}

impl Browser {
    pub fn start() -> Browser {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver");
        let mut lines = BufReader::new(driver.stdout.take().expect("a pipe")).lines();
        let port = lines.find_map(|line| {
            let line = line.expect("text");
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        let address = SocketAddr::from(([127, 0, 0, 1], port.expect("a port")));
        let profile = TempDir::new().expect("a folder");
        let mut browser = Browser { driver, address, session: String::new(), _profile: profile };
        let profile = format!("--user-data-dir={}", browser._profile.path().display());
        // The sandbox needs rights that containers do not have, and the page is our own. Most of the other arguments
        // prevent requests that Chromium makes to other machines on its own.
        let args = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            "--hide-scrollbars",
            profile.as_str(),
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": args},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let session = browser.ask("POST", "/session", &wanted);
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        browser
    }

    pub fn open(&self, url: &str) {
        self.tell("url", &json!({"url": url}));
    }

    /// A command of the DevTools protocol.
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.tell("goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    /// The value of an expression in the page.
    pub fn value(&self, expression: &str) -> Value {
        self.tell("execute/sync", &json!({"script": format!("return {expression}"), "args": []}))
    }

    /// Waits until an expression is true.
    pub fn until(&self, expression: &str) {
        let end = Instant::now() + LIMIT;
        while self.value(expression) != Value::Bool(true) {
            assert!(Instant::now() < end, "never true: {expression}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Lines that were added to a log since it was last read: `browser` (the console), `performance` (the DevTools
    /// protocol).
    pub fn log(&self, kind: &str) -> Vec<Value> {
        self.tell("se/log", &json!({"type": kind})).as_array().expect("lines").clone()
    }

    fn tell(&self, command: &str, body: &Value) -> Value {
        self.ask("POST", &format!("/session/{}/{command}", self.session), body)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.send(method, path, body).expect("chromedriver answers");
        assert!(answer["value"]["error"].is_null(), "{path}: {answer}");
        answer["value"].clone()
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> std::io::Result<Value> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let body = if method == "DELETE" { String::new() } else { body.to_string() };
        let (address, length) = (self.address, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )?;
        // The connection may stay open despite `Connection: close`, so the length says where the response ends.
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().expect("a number");
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer)?;
        Ok(serde_json::from_slice(&answer).expect("JSON"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends Chromium, and then the driver.
        let _ = self.send("DELETE", &format!("/session/{}", self.session), &Value::Null);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
