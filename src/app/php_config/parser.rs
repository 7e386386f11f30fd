//! Reads tokens and evaluates them in the same pass.
//!
//! Both sides of a choice are read, in a [`Mode`] that says whether they happen:
//! that is how an unknown condition makes the variables set behind it unknown
//! and nothing else. Errors are for syntax and limits only.

use std::collections::HashMap;
use std::fmt::Display;
use std::rc::Rc;

use super::lexer::{Kind, Token};
use super::value::{MAX_DEPTH, MAX_SIZE, Value};
use super::{ConfigError, Scope, from_json};

mod names;
mod operands;
mod operators;
mod statements;

/// Expressions and blocks in each other.
const MAX_NESTING: u32 = 64;
/// Members and bytes made along the way; a configuration needs a hundredth.
const MAX_WORK: u64 = 1 << 24;

/// How tightly operators bind: any of them.
const ANY: u8 = 0;
/// All that bind at least like an assignment, which leaves out `and` and `or`.
const ASSIGN: u8 = 4;

/// Whether the code at hand runs.
#[derive(Debug, Clone)]
enum Mode {
    Live,
    /// Depends on what is not known, for this reason.
    Maybe(Rc<str>),
    Dead,
}

impl Mode {
    fn of(happens: &Truth) -> Self {
        match happens {
            Ok(true) => Self::Live,
            Ok(false) => Self::Dead,
            Err(reason) => Self::Maybe(Rc::clone(reason)),
        }
    }
}

enum Flow {
    Next,
    Returned(Value),
}

/// A condition, or why it is not known.
type Truth = Result<bool, Rc<str>>;

pub(super) struct Parser<'a> {
    tokens: Vec<Token>,
    at: usize,
    file: &'a str,
    scope: &'a Scope<'a>,
    variables: HashMap<Rc<str>, Value>,
    constants: HashMap<Rc<str>, Value>,
    /// Imported names, in lower case, and what they stand for.
    uses: HashMap<String, Rc<str>>,
    imported_functions: HashMap<String, Rc<str>>,
    namespace: Rc<str>,
    mode: Mode,
    /// Set once a statement may have changed the environment.
    env_doubt: Option<Rc<str>>,
    /// Set once the file may have returned already.
    return_doubt: Option<Rc<str>>,
    assignments: usize,
    nesting: u32,
    work: u64,
}

type Parsed<T> = Result<T, ConfigError>;

impl<'a> Parser<'a> {
    pub(super) fn new(tokens: Vec<Token>, file: &'a str, scope: &'a Scope<'a>) -> Self {
        let variables = scope.variables.iter();
        Self {
            tokens,
            at: 0,
            file,
            scope,
            variables: variables
                .map(|(name, value)| ((*name).into(), from_json(value)))
                .collect(),
            constants: HashMap::new(),
            uses: HashMap::new(),
            imported_functions: HashMap::new(),
            namespace: "".into(),
            mode: Mode::Live,
            env_doubt: None,
            return_doubt: None,
            assignments: 0,
            nesting: 0,
            work: 0,
        }
    }

    /// Runs the file up to its `return`.
    pub(super) fn file(mut self) -> Parsed<Value> {
        while *self.kind() != Kind::End {
            if let Flow::Returned(value) = self.statement()? {
                return Ok(self.return_doubt.map_or(value, Value::Unknown));
            }
        }
        match self.return_doubt.take() {
            Some(reason) => Ok(Value::Unknown(reason)),
            None => self.error("expected a `return`"),
        }
    }

    // Tokens.

    fn kind(&self) -> &Kind {
        self.kind_at(0)
    }

    fn kind_at(&self, ahead: usize) -> &Kind {
        self.tokens
            .get(self.at + ahead)
            .map_or(&Kind::End, |token| &token.kind)
    }

    fn line(&self) -> u32 {
        let token = self.tokens.get(self.at).or(self.tokens.last());
        token.map_or(1, |token| token.line)
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.kind(), Kind::Sign(found) if *found == sign)
    }

    fn is_sign_at(&self, ahead: usize, sign: &str) -> bool {
        matches!(self.kind_at(ahead), Kind::Sign(found) if *found == sign)
    }

    fn accept(&mut self, sign: &str) -> bool {
        let found = self.is(sign);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Parsed<()> {
        if self.accept(sign) {
            Ok(())
        } else {
            self.error(format!("expected `{sign}`"))
        }
    }

    /// The word at hand in lower case, if it is one of PHP's own kind (without a namespace).
    fn word(&self) -> Option<String> {
        match self.kind() {
            Kind::Name(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        }
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let found = self.word().is_some_and(|found| found == word);
        self.at += usize::from(found);
        found
    }

    fn name(&mut self) -> Parsed<Rc<str>> {
        if let Kind::Name(name) = self.kind() {
            let name = Rc::clone(name);
            self.at += 1;
            return Ok(name);
        }
        self.error("expected a name")
    }

    fn error<T>(&self, problem: impl Into<String>) -> Parsed<T> {
        Err(ConfigError::Syntax {
            file: self.file.to_owned(),
            line: self.line(),
            problem: problem.into(),
        })
    }

    fn reason(&self, line: u32, what: impl Display) -> Rc<str> {
        format!("{}:{line}: {what}", self.file).into()
    }

    fn unknown(&self, line: u32, what: impl Display) -> Value {
        Value::Unknown(self.reason(line, what))
    }

    /// Steps from an opening bracket past its closing one.
    fn skip_brackets(&mut self) -> Parsed<()> {
        let mut open = 0_usize;
        loop {
            match self.kind() {
                Kind::End => return self.error("a bracket is not closed"),
                Kind::Sign("(" | "[" | "{") => open += 1,
                Kind::Sign(")" | "]" | "}") => open = open.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if open == 0 {
                return Ok(());
            }
        }
    }

    // Limits.

    fn charge(&mut self, work: u64) -> Parsed<()> {
        self.work = self.work.saturating_add(work);
        if self.work > MAX_WORK {
            Err(self.too_large())
        } else {
            Ok(())
        }
    }

    fn too_large(&self) -> ConfigError {
        ConfigError::TooLarge {
            file: self.file.to_owned(),
        }
    }

    /// Accounts for a new value.
    fn made(&mut self, value: Value) -> Parsed<Value> {
        match &value {
            Value::Text(text) => self.charge(u64::try_from(text.len()).unwrap_or(u64::MAX))?,
            Value::Array(array) => self.charge(u64::try_from(array.len()).unwrap_or(u64::MAX))?,
            _ => self.charge(1)?,
        }
        if value.depth() > MAX_DEPTH || value.size() > MAX_SIZE {
            return Err(self.too_large());
        }
        Ok(value)
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.nesting >= MAX_NESTING {
            return self.error("nested too deeply");
        }
        self.nesting += 1;
        let result = read(self);
        self.nesting -= 1;
        result
    }

    /// Reads code in a mode, unless the code around it is less certain to run.
    fn within<T>(&mut self, mode: Mode, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        let inner = match (&self.mode, mode) {
            (Mode::Dead, _) | (_, Mode::Dead) => Mode::Dead,
            (Mode::Maybe(reason), _) => Mode::Maybe(Rc::clone(reason)),
            (Mode::Live, mode) => mode,
        };
        let outer = std::mem::replace(&mut self.mode, inner);
        let result = read(self);
        self.mode = outer;
        result
    }
}
