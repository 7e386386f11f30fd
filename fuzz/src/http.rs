//! Judges any answer of an http handler: waits are within bounds, and exceptions are short, printable and hold no
//! password of a redirect.
//!
//! The input is two bytes of the status, a line of `Retry-After`, a line of `Location`, and the body.

use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderValue, StatusCode};
use artisand::handler::{HttpAnswer, Verdict};
use artisand::time::UnixSeconds;
use reqwest::{Response, Url};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use super::secrets::is_telling;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// A status, a redirect's note with its address, and a body of 1024 characters.
const LONGEST: usize = 1024 + 200 + 200;

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
}

/// Checks an input.
pub fn check(bytes: &[u8]) {
    let Some((status, rest)) = bytes.split_at_checked(2) else {
        return;
    };
    let status = 100 + u16::from_be_bytes([status[0], status[1]]) % 900;
    let mut parts = rest.splitn(3, |byte| *byte == b'\n');
    let mut part = || parts.next().unwrap_or_default();
    let (retry_after, location, body) = (part(), part(), part());
    let mut response = ::http::Response::builder()
        .status(StatusCode::from_u16(status).expect("from 100 to 999"))
        .body(body.to_vec())
        .expect("a response");
    for (name, value) in [("retry-after", retry_after), ("location", location)] {
        if let (false, Ok(value)) = (value.is_empty(), HeaderValue::from_bytes(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    let drains = Arc::new(Semaphore::new(1));
    let reading = HttpAnswer::read(Response::from(response), &drains);
    let answer = RUNTIME.with(|runtime| runtime.block_on(reading));
    match answer.verdict(UnixSeconds(784_111_777)) {
        Verdict::Done => assert!((200..300).contains(&status)),
        Verdict::Release(wait) => {
            assert!([429, 503].contains(&status) && !retry_after.is_empty());
            assert!((Duration::from_secs(1)..=DAY).contains(&wait));
        }
        Verdict::Fail => assert!((400..500).contains(&status)),
        Verdict::Exception => {}
    }
    let shown = answer.to_string();
    assert!(
        shown.chars().count() <= LONGEST,
        "{} characters",
        shown.chars().count()
    );
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n' && c != '\t'));
    let location = String::from_utf8_lossy(location);
    if let Ok(url) = Url::parse(&location)
        && let Some(password) = url.password()
        && is_telling(&String::from_utf8_lossy(rest), password)
    {
        assert!(!shown.contains(password), "{shown}");
    }
}
