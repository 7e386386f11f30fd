//! Hears any bytes from a PHP process of the pool, and any line from a persistent program: what is heard depends
//! neither on how the bytes come nor on what other processes write, and errors are short.

use std::io;
use std::time::Duration;

use artisand::process::Answer;
use artisand::process::pool::{Inbox, PoolMessage};

const KEY: &str = "k";
const UUID: &str = "0b6b6a5e-9f0e-4c0b-8f4e-0d0c0b0a0908";
/// Longest error, in bytes: a line of the log in characters, and what is around it.
const LONGEST: usize = 4 * 2000 + 500;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// All that is heard, to the first error.
fn heard<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    running: u64,
) -> Vec<Result<PoolMessage, String>> {
    let mut inbox = Inbox::new(KEY.to_owned());
    let mut heard = Vec::new();
    for piece in pieces {
        inbox.room().extend_from_slice(piece);
        loop {
            let said: io::Result<Option<PoolMessage>> = inbox.next(running);
            match said {
                Ok(None) => break,
                Ok(Some(said)) => heard.push(Ok(said)),
                Err(error) => {
                    heard.push(Err(error.to_string()));
                    return heard;
                }
            }
        }
        // No whole line is left, so nothing more than the last one.
        assert!(!inbox.room().contains(&b'\n'));
    }
    heard
}

/// Checks an input.
pub fn check(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else {
        return;
    };
    let running = u64::from(first % 4);
    let all = heard([bytes].into_iter(), running);
    let size = usize::from(first / 4) + 1;
    assert_eq!(heard(bytes.chunks(size), running), all);
    for said in &all {
        match said {
            Ok(PoolMessage::Released { delay }) => {
                assert!(i64::try_from(PoolMessage::wait(*delay).as_secs()).is_ok());
            }
            Ok(PoolMessage::Ended(_)) => panic!("no process says that of itself"),
            Ok(_) => {}
            Err(error) => assert!(error.len() <= LONGEST),
        }
    }
    // Another process, which does not know the key, writes between the lines, and ends its own ones or not.
    for noise in [&b"x 9 {\"is\":\"deleted\"}\n"[..], b"x 9 {\"is\":"] {
        let noisy: Vec<u8> = bytes
            .split_inclusive(|byte| *byte == b'\n')
            .flat_map(|line| [noise, line].concat())
            .collect();
        assert_eq!(heard([&*noisy].into_iter(), running), all);
    }
    for line in bytes.split(|byte| *byte == b'\n') {
        match Answer::parse(line, Some(UUID)) {
            Ok(Answer::Release(wait)) => assert!((Duration::from_secs(1)..=DAY).contains(&wait)),
            Ok(Answer::Fail(text) | Answer::Exception(text)) => {
                assert!(text.chars().count() <= 8192);
            }
            Ok(Answer::Done) => {}
            Err(problem) => assert!(problem.len() <= LONGEST),
        }
    }
}
