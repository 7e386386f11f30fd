//! Parses any text as an app's `.env`: what is read can be written and read again, and its size is bounded.

use artisand::app::{EnvFile, cast};

/// Most bytes that references add.
const MOST_REFERRED: usize = 16 << 20;

/// Checks an input.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let _ = cast(text);
    let real = |name: &str| (name == "REAL").then(|| "of the process".to_owned());
    let file = EnvFile::parse(text, real);
    if !text.contains('\r') {
        assert_eq!(EnvFile::parse(&text.replace('\n', "\r\n"), real), file);
    }
    let file = match file {
        Ok(file) => file,
        Err(error) => {
            let lines = text.split(['\r', '\n']).count();
            assert!((1..=lines).contains(&error.line));
            return;
        }
    };
    let (mut size, mut written) = (0, String::new());
    for (name, value) in file.all() {
        size += value.len();
        written.extend([name, "=\""]);
        for c in value.chars() {
            match c {
                '\n' => written += "\\n",
                '\r' => written += "\\r",
                '"' | '\\' | '$' => written.extend(['\\', c]),
                c => written.push(c),
            }
        }
        written += "\"\n";
        if let Some(text) = cast(value) {
            assert!(text.len() <= value.len());
        }
    }
    assert!(size <= text.len() + MOST_REFERRED);
    let again = EnvFile::parse(&written, |_| None);
    assert!(again.is_ok_and(|again| again == file), "{written:?}");
    // Values are secrets.
    let names: usize = file
        .all()
        .map(|(name, _)| format!("{name:?}, ").len())
        .sum();
    assert!(format!("{file:?}").len() <= names + 2);
}
