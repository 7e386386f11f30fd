//! Text that PHP libraries parse (`.env` files and names of apps), compared with the libraries themselves.

use std::io::Write as _;
use std::process::{Command, Stdio};

use artisand::app::{EnvFile, slug};
use serde_json::{Value, json};

use crate::harness::fixtures::project;
use crate::harness::laravel::VERSIONS;

/// Runs PHP code of one version with JSON on standard input.
fn php(version: u8, code: &str, input: &Value) -> Value {
    let code = format!(
        "require '/usr/share/php/Illuminate/autoload.php'; $in = json_decode(stream_get_contents(STDIN), true); {code}"
    );
    let mut child = Command::new(project().join("php-interop").join("laravel"))
        .args([&version.to_string(), "-r", &code])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_string();
    let feeder = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Files of one to three entries, composed of special parts.
fn env_files() -> Vec<String> {
    #[rustfmt::skip]
    const NAMES: [&str; 10] = ["A", "export AB", "export A", "A.B", "A-B", "'A'", "\"A\"", " A ", "", "É"];
    #[rustfmt::skip]
    const PARTS: [&str; 25] = [
        "x", "y z", "\"", "'", "\\", "\\n", "\\\"", "\\$", "#", " #", "${A}", "${NOPE}", "$A", "${", "}", "=", " ", "\t",
        "é", "null", "(true)", "1", "base64:a/+=", "\\u", "`",
    ];
    let mut random = fastrand::Rng::with_seed(7);
    let mut files = Vec::new();
    for _ in 0..4000 {
        let mut file = String::new();
        for _ in 0..random.usize(1..=3) {
            file.push_str(NAMES[random.usize(..NAMES.len())]);
            if random.u8(..) > 10 {
                file.push('=');
            }
            let quote = ["", "", "\"", "'"][random.usize(..4)];
            file.push_str(quote);
            for _ in 0..random.usize(0..=3) {
                file.push_str(PARTS[random.usize(..PARTS.len())]);
            }
            file.push_str(quote);
            file.push_str(["\n", "\r\n", " # c\n"][random.usize(..3)]);
        }
        files.push(file);
    }
    files
}

/// The variables of a file by name, `None` if it is refused.
fn ours(file: &str) -> Option<Value> {
    let parsed = EnvFile::parse(file, |_| None).ok()?;
    let names = ["A", "AB", "A.B", "É", "export A"];
    let found = names
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), json!(parsed.get(name)?))));
    Some(Value::Object(found.collect()))
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn env_files_are_read_as_phpdotenv_reads_them() {
    let files = env_files();
    // Later versions differ: 5.6 accepts names in any script, and 5.8 refuses quotes that stay open.
    let code = "echo json_encode(array_map(function ($file) { try { return (object) array_filter(Dotenv\\Dotenv::parse($file), 'is_string'); } catch (Throwable $e) { return null; } }, $in));";
    let theirs = php(13, code, &json!(files));
    let mut accepted = 0;
    for (file, theirs) in files.iter().zip(theirs.as_array().unwrap()) {
        let ours = ours(file);
        assert_eq!(ours.as_ref().unwrap_or(&Value::Null), theirs, "{file:?}");
        accepted += usize::from(ours.is_some());
    }
    assert!(
        accepted > files.len() / 4,
        "{accepted} of {} are valid",
        files.len()
    );
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn names_of_apps_are_slugged_as_laravel_does() {
    let names: Vec<String> = (1..0x80_u8)
        .map(char::from)
        .map(|c| format!("My {c}-_ @{c}App"))
        .collect();
    for version in VERSIONS {
        for separator in ['_', '-'] {
            let code = format!(
                "echo json_encode(array_map(function ($name) {{ return Illuminate\\Support\\Str::slug($name, '{separator}'); }}, $in));"
            );
            let theirs = php(version, &code, &json!(names));
            for (name, theirs) in names.iter().zip(theirs.as_array().unwrap()) {
                let ours = slug(name, separator);
                assert_eq!(
                    ours.as_deref(),
                    theirs.as_str(),
                    "{name:?} on Laravel {version}"
                );
            }
        }
    }
}
