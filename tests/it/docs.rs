//! What `docs/` says of the program.

use std::path::Path;

use crate::harness::fixtures::project;

/// All sources as one text, lines of a literal joined.
fn sources(directory: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path);
        } else if path.extension().is_some_and(|name| name == "rs") {
            text += &std::fs::read_to_string(path).unwrap();
        }
    }
    text
}

#[test]
fn messages_that_troubleshooting_explains_are_messages_of_the_program() {
    /// What others say.
    const FOREIGN: [&str; 2] = ["database is locked", "InvalidSignatureException"];
    let page = std::fs::read_to_string(project().join("docs/troubleshooting.md")).unwrap();
    let sources = sources(&project().join("src"));
    let headings = page.lines().filter_map(|line| line.strip_prefix("### `"));
    let messages: Vec<&str> = headings
        .map(|heading| heading.split_once('`').expect("a closing backtick").0)
        .filter(|message| !FOREIGN.contains(message))
        .collect();
    assert!(messages.len() > 20, "{messages:?}");
    for message in messages {
        assert!(sources.contains(message), "nothing says `{message}`");
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    let docs = project().join("docs");
    let pages = std::fs::read_dir(&docs)
        .unwrap()
        .map(|page| page.unwrap().path());
    let mut checked = 0;
    for page in pages
        .chain([project().join("README.md")])
        .filter(|page| page.is_file())
    {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1) {
            let (link, _) = link.split_once(')').expect("a closing parenthesis");
            let file = link.split('#').next().unwrap();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let target = page.parent().unwrap().join(file);
            assert!(target.exists(), "{}: no {link}", page.display());
            checked += 1;
        }
    }
    assert!(checked > 10, "{checked}");
}
