//! Which file uses which: `use` declarations and paths of Rust source, resolved to files.
//!
//! No compiler: tokens without comments and what is only for tests. A name leads through re-exports to the file that
//! defines it. Calls of methods are not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Path of a module, without `crate`.
type Module = Vec<String>;

/// A source file.
#[derive(Debug)]
struct File {
    path: PathBuf,
    tokens: Vec<String>,
    /// Names that `use` brings in, with where they come from.
    imports: Vec<Import>,
}

#[derive(Debug, Clone)]
struct Import {
    name: String,
    path: Vec<String>,
}

/// The files of a source tree, and who uses whom.
pub(super) struct Tree {
    root: PathBuf,
    files: BTreeMap<Module, File>,
}

impl Tree {
    /// Reads all files below `src`.
    pub(super) fn read(src: &Path) -> Self {
        let mut texts = Vec::new();
        collect(src, &mut texts);
        Self::of(src, texts)
    }

    fn of(src: &Path, texts: Vec<(PathBuf, String)>) -> Self {
        let mut files = BTreeMap::new();
        let mut only_tests = BTreeSet::new();
        for (path, text) in texts {
            let module = module_of(path.strip_prefix(src).unwrap());
            let (tokens, for_tests) = without_tests(&tokens(&text));
            only_tests.extend(for_tests.into_iter().map(|name| child(&module, &name)));
            let (imports, tokens) = split_imports(&tokens);
            files.insert(
                module,
                File {
                    path,
                    tokens,
                    imports,
                },
            );
        }
        files.retain(|module, _| !only_tests.iter().any(|tests| module.starts_with(tests)));
        Self {
            root: src.to_owned(),
            files,
        }
    }

    /// Each file with the files that it uses and the names by which it does, all below `src`.
    pub(super) fn uses(&self) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
        let mut all = BTreeMap::new();
        for (module, file) in &self.files {
            let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for path in self.paths(module, file) {
                if let Some(found) = self.resolve(module, &path, 0)
                    && found != *module
                {
                    let name = path.last().cloned().unwrap_or_default();
                    used.entry(self.name(&found)).or_default().insert(name);
                }
            }
            all.insert(self.name(module), used);
        }
        all
    }

    /// The strings in all files, each with its file.
    pub(super) fn strings(&self) -> impl Iterator<Item = (String, &str)> {
        self.files.iter().flat_map(|(module, file)| {
            let strings = file
                .tokens
                .iter()
                .filter_map(|token| token.strip_prefix('"'));
            strings.map(|string| (self.name(module), string))
        })
    }

    fn name(&self, module: &Module) -> String {
        let path = self.files[module].path.strip_prefix(&self.root);
        path.unwrap().to_string_lossy().into_owned()
    }

    /// All paths in a file that may lead to another one.
    fn paths(&self, module: &Module, file: &File) -> Vec<Vec<String>> {
        let mut paths = written_paths(&file.tokens);
        let words = words_of_items(&file.tokens);
        for import in &file.imports {
            let Some(found) = self.resolve(module, &import.path, 0) else {
                continue;
            };
            // A module that is imported counts where something of it is used.
            let is_module = import.name != "*" && self.is_module(&found, &import.path);
            // What is handed on to others is not used here.
            let is_used = || !found.starts_with(module) || words.contains(&*import.name);
            if !is_module && is_used() {
                paths.push(import.path.clone());
            }
        }
        paths
    }

    /// Whether a path that leads to this file names a module: the file itself, or one within it.
    fn is_module(&self, found: &Module, path: &[String]) -> bool {
        let last = path.last();
        let is_within = |pair: &[String]| pair[0] == "mod" && Some(&pair[1]) == last;
        last == found.last() || self.files[found].tokens.windows(2).any(is_within)
    }

    /// The file that a path in the file of `module` leads to; `None` if that is none of these.
    fn resolve(&self, module: &Module, path: &[String], depth: usize) -> Option<Module> {
        if depth > 20 {
            return None;
        }
        let mut at = module.clone();
        let mut segments = path.iter().peekable();
        match path.first()?.as_str() {
            "crate" | "$crate" => {
                segments.next();
                at.clear();
            }
            "self" => {
                segments.next();
            }
            "super" => {
                while segments.next_if(|segment| *segment == "super").is_some() {
                    at.pop();
                }
            }
            first => {
                let is_child = self.files.contains_key(&child(&at, first));
                let is_import = self.files[&at]
                    .imports
                    .iter()
                    .any(|import| import.name == first && import.path[0] != first);
                if !is_child && !is_import {
                    return None;
                }
            }
        }
        while let Some(segment) = segments.next() {
            let below = child(&at, segment);
            if self.files.contains_key(&below) {
                at = below;
                continue;
            }
            let imports = &self.files.get(&at)?.imports;
            let Some(import) = imports.iter().find(|import| import.name == *segment) else {
                break;
            };
            let mut whole = import.path.clone();
            whole.extend(segments.cloned());
            return self.resolve(&at, &whole, depth + 1);
        }
        self.files.contains_key(&at).then_some(at)
    }
}

/// Sets of files that use each other in a circle.
pub(super) fn circles<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<BTreeSet<&'a str>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = uses
        .keys()
        .map(|from| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![*from]);
            while let Some(file) = next.pop() {
                for to in uses.get(file).into_iter().flatten() {
                    if seen.insert(*to) {
                        next.push(to);
                    }
                }
            }
            (*from, seen)
        })
        .collect();
    let mut circles: Vec<BTreeSet<&str>> = Vec::new();
    for from in uses.keys() {
        let is_in = |to: &&&str| reach[**to].contains(from);
        let circle: BTreeSet<&str> = reach[from].iter().filter(is_in).copied().collect();
        if !circle.is_empty() && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

fn collect(directory: &Path, texts: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, texts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            texts.push((path, text));
        }
    }
}

fn module_of(path: &Path) -> Module {
    let path = path.with_extension("");
    let mut module: Module = path
        .iter()
        .map(|segment| segment.to_string_lossy().into_owned())
        .collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
        module.pop();
    }
    module
}

fn child(module: &Module, name: &str) -> Module {
    let mut module = module.clone();
    module.push(name.to_owned());
    module
}

/// Words, signs, and strings after a `"`, without comments and characters.
fn tokens(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let at = |place: usize| chars.get(place).copied().unwrap_or('\0');
    let (mut tokens, mut place) = (Vec::new(), 0);
    while place < chars.len() {
        let c = chars[place];
        if c == '/' && at(place + 1) == '/' {
            while place < chars.len() && chars[place] != '\n' {
                place += 1;
            }
        } else if c == '/' && at(place + 1) == '*' {
            while place < chars.len() && !(chars[place] == '*' && at(place + 1) == '/') {
                place += 1;
            }
            place += 2;
        } else if c == '"' {
            let end = after_string(&chars, place);
            tokens.push(chars[place..end - 1].iter().collect());
            place = end;
        } else if c == '\'' {
            // A character, or a lifetime.
            if at(place + 1) == '\\' {
                place += 3;
                while at(place) != '\'' {
                    place += 1;
                }
                place += 1;
            } else {
                place += if at(place + 2) == '\'' { 3 } else { 1 };
            }
        } else if c == '_' || c == '$' || c.is_alphanumeric() {
            let start = place;
            place += 1;
            while at(place) == '_' || at(place).is_alphanumeric() {
                place += 1;
            }
            let word: String = chars[start..place].iter().collect();
            let hashes = chars[place..].iter().take_while(|c| **c == '#').count();
            if matches!(&*word, "r" | "br") && at(place + hashes) == '"' {
                let end = ["\"", &"#".repeat(hashes)].concat();
                place += hashes;
                let start = place;
                place += 1;
                while !chars[place..].starts_with(&end.chars().collect::<Vec<_>>()) {
                    place += 1;
                }
                tokens.push(chars[start..place].iter().collect());
                place += end.len();
            } else if word == "b" && matches!(at(place), '"' | '\'') {
                // The string or the character follows.
            } else {
                tokens.push(word);
            }
        } else if c == ':' && at(place + 1) == ':' {
            tokens.push("::".to_owned());
            place += 2;
        } else {
            if !c.is_whitespace() {
                tokens.push(c.to_string());
            }
            place += 1;
        }
    }
    tokens
}

/// Where a string ends that begins here.
fn after_string(chars: &[char], mut place: usize) -> usize {
    place += 1;
    while chars[place] != '"' {
        place += if chars[place] == '\\' { 2 } else { 1 };
    }
    place + 1
}

/// The tokens without items for tests, and the names of modules for tests that are other files.
fn without_tests(tokens: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut kept, mut modules, mut place) = (Vec::new(), Vec::new(), 0);
    while place < tokens.len() {
        if tokens[place] == "#" && tokens.get(place + 1).is_some_and(|token| token == "[") {
            let end = closing(tokens, place + 1);
            let attribute = &tokens[place + 2..end];
            let has = |word: &str| attribute.iter().any(|token| token == word);
            if attribute.first().is_some_and(|token| token == "cfg") && has("test") && !has("not") {
                let after = item_end(tokens, end + 1);
                if let [.., word, name, _] = &tokens[end + 1..=after]
                    && word == "mod"
                {
                    modules.push(name.clone());
                }
                place = after + 1;
                continue;
            }
        }
        kept.push(tokens[place].clone());
        place += 1;
    }
    (kept, modules)
}

/// Where the bracket that opens here is closed.
fn closing(tokens: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (place, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return place;
        }
    }
    tokens.len() - 1
}

/// Where the item that begins here ends: at its semicolon, or with its block.
fn item_end(tokens: &[String], start: usize) -> usize {
    let is_use = tokens[start..].iter().take(6).any(|token| token == "use");
    let mut place = start;
    while place < tokens.len() {
        match tokens[place].as_str() {
            ";" => return place,
            "{" if !is_use => return closing(tokens, place),
            "(" | "[" | "{" => place = closing(tokens, place),
            _ => {}
        }
        place += 1;
    }
    tokens.len() - 1
}

/// What `use` declarations bring in, and the other tokens; declarations of modules are left out of these.
fn split_imports(tokens: &[String]) -> (Vec<Import>, Vec<String>) {
    let (mut imports, mut rest, mut place) = (Vec::new(), Vec::new(), 0);
    while place < tokens.len() {
        // `use<..>` is a bound.
        if tokens[place] == "use" && tokens.get(place + 1).is_some_and(|token| token != "<") {
            let end = item_end(tokens, place);
            read_use(&tokens[place + 1..end], &[], &mut imports);
            place = end + 1;
        } else if tokens[place] == "mod" && tokens.get(place + 2).is_some_and(|token| token == ";")
        {
            place += 3;
        } else {
            rest.push(tokens[place].clone());
            place += 1;
        }
    }
    (imports, rest)
}

/// Reads a tree of a `use` declaration.
fn read_use(tokens: &[String], before: &[String], imports: &mut Vec<Import>) {
    let mut path = before.to_vec();
    let mut place = 0;
    while place < tokens.len() {
        match tokens[place].as_str() {
            "::" => {}
            "{" => {
                let end = closing(tokens, place);
                let mut start = place + 1;
                while start < end {
                    let mut stop = start;
                    while stop < end && tokens[stop] != "," {
                        stop = if tokens[stop] == "{" {
                            closing(tokens, stop) + 1
                        } else {
                            stop + 1
                        };
                    }
                    read_use(&tokens[start..stop], &path, imports);
                    start = stop + 1;
                }
                return;
            }
            "as" => {
                let name = tokens[place + 1].clone();
                imports.push(Import { name, path });
                return;
            }
            "self" if !before.is_empty() && place == 0 => {}
            segment => path.push(segment.to_owned()),
        }
        place += 1;
    }
    let Some(name) = path.last().cloned() else {
        return;
    };
    if name == "*" {
        path.pop();
    }
    imports.push(Import { name, path });
}

/// All words but the names of variants where they are defined, and what follows in a path.
fn words_of_items(tokens: &[String]) -> BTreeSet<&str> {
    let (mut words, mut place) = (BTreeSet::new(), 0);
    while place < tokens.len() {
        if tokens[place] == "enum"
            && let Some(open) = (place..tokens.len()).find(|place| tokens[*place] == "{")
        {
            let end = closing(tokens, open);
            let mut before = open;
            for (at, token) in tokens.iter().enumerate().take(end).skip(open + 1) {
                let depth = tokens[open + 1..at]
                    .iter()
                    .fold(0, |depth, token| match &**token {
                        "(" | "[" | "{" => depth + 1,
                        ")" | "]" | "}" => depth - 1,
                        _ => depth,
                    });
                let is_variant = depth == 0 && matches!(&*tokens[before], "{" | "," | "]");
                if !is_variant && tokens[before] != "::" {
                    words.insert(token.as_str());
                }
                before = at;
            }
            place = end;
        }
        if place == 0 || tokens[place - 1] != "::" {
            words.insert(&tokens[place]);
        }
        place += 1;
    }
    words
}

/// Paths of at least two segments.
fn written_paths(tokens: &[String]) -> Vec<Vec<String>> {
    let is_word =
        |token: &String| token.starts_with(|c: char| c == '_' || c == '$' || c.is_alphabetic());
    let (mut paths, mut place) = (Vec::new(), 0);
    while place < tokens.len() {
        let follows = |before: &[&str]| {
            let start = place.checked_sub(before.len());
            start.is_some_and(|start| tokens[start..place] == *before)
        };
        // A path within a path, and where an item may be seen.
        let is_start =
            is_word(&tokens[place]) && !follows(&["::"]) && !follows(&["pub", "(", "in"]);
        let mut path = vec![tokens[place].clone()];
        while is_start
            && tokens.get(place + 1).is_some_and(|token| token == "::")
            && tokens.get(place + 2).is_some_and(is_word)
        {
            path.push(tokens[place + 2].clone());
            place += 2;
        }
        if path.len() > 1 {
            paths.push(path);
        }
        place += 1;
    }
    paths
}

#[test]
fn paths_lead_to_the_files_that_define_a_name() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        (
            "a/mod.rs",
            "//! crate::b::No\nmod one; mod two; pub use one::One; use two::{Two as Other, up}; fn f() -> Other { one::f() }",
        ),
        (
            "a/one.rs",
            "use super::Other; pub struct One; /* crate::b::No */ const T: &str = \"crate::b::No\";",
        ),
        (
            "a/two.rs",
            "pub struct Two<'a>(char); fn f() { let _ = ('\\'', '\"', r#\"\"crate::b::No\"#); crate::a::One } #[cfg(test)] mod tests { use crate::b::B; }",
        ),
        (
            "c.rs",
            "pub use d::{D, E, keys}; enum C { D(u8), #[x] E, F } pub(in crate::b) fn f(keys: u8) { x::D }",
        ),
        (
            "c/d.rs",
            "use super::C; pub struct D; pub struct E; pub mod keys { }",
        ),
        (
            "b.rs",
            "use crate::a::{self, One}; pub struct B; fn f(_: One) { a::Other }",
        ),
    ];
    let texts = files.map(|(path, text)| (Path::new("/src").join(path), text.to_owned()));
    let tree = Tree::of(Path::new("/src"), texts.into());
    let strings: Vec<_> = tree.strings().map(|(_, string)| string).collect();
    assert_eq!(strings, ["crate::b::No", "\"crate::b::No"]);
    let uses = tree.uses();
    let of = |file: &str| uses[file].keys().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(of("a/mod.rs"), ["a/one.rs", "a/two.rs"]);
    assert_eq!(of("a/one.rs"), ["a/two.rs"]);
    assert_eq!(of("a/two.rs"), ["a/one.rs"]);
    assert_eq!(of("c.rs"), [""; 0]);
    assert_eq!(of("c/d.rs"), ["c.rs"]);
    assert_eq!(of("b.rs"), ["a/one.rs", "a/two.rs"]);
    let graph = uses
        .iter()
        .map(|(from, to)| (&**from, to.keys().map(String::as_str).collect()))
        .collect();
    assert_eq!(circles(&graph), [BTreeSet::from(["a/one.rs", "a/two.rs"])]);
}
