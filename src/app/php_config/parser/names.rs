//! Words: constants, classes, calls, closures, `match`.

use std::rc::Rc;

use super::super::functions::{self, Arg};
use super::super::lexer::Kind;
use super::super::value::Value;
use super::operators::{and, of_truth};
use super::{ANY, ASSIGN, Mode, Parsed, Parser, Truth};

impl Parser<'_> {
    pub(super) fn named(&mut self, name: &Rc<str>, line: u32) -> Parsed<Value> {
        let lower = name.to_ascii_lowercase();
        let next_is_function = |parser: &Self| matches!(parser.kind_at(1), Kind::Name(name) if matches!(&*name.to_ascii_lowercase(), "fn" | "function"));
        match lower.as_str() {
            "static" if next_is_function(self) => {
                self.at += 1;
                return self.closure(line);
            }
            "fn" | "function" => return self.closure(line),
            "new" => return self.object(line),
            "match" if self.is_sign_at(1, "(") => return self.matching(line),
            "include" | "include_once" | "require" | "require_once" | "clone" | "throw"
            | "print" | "yield" => {
                self.at += 1;
                self.expression(ASSIGN)?;
                return Ok(self.unknown(line, format_args!("uses `{lower}`")));
            }
            _ => {}
        }
        self.at += 1;
        if self.is("(") {
            match lower.as_str() {
                "array" | "list" => {
                    self.at += 1;
                    return self.array(")", line);
                }
                "isset" | "empty" => return self.test(lower == "isset"),
                _ => {}
            }
            return self.call(name, line);
        }
        if self.accept("::") {
            return self.class_member(name, line);
        }
        Ok(self.constant_named(name, &lower, line))
    }

    /// `isset(..)` or `empty(..)`.
    fn test(&mut self, is_isset: bool) -> Parsed<Value> {
        let mut result: Truth = Ok(true);
        for Arg { value, .. } in self.arguments()? {
            let truth = match &value {
                Value::Unknown(reason) | Value::Constant { reason, .. } => Err(Rc::clone(reason)),
                value if is_isset => Ok(!matches!(value, Value::Null)),
                value => Ok(!value.is_true()),
            };
            result = and(&result, &truth);
        }
        Ok(of_truth(result))
    }

    fn constant_named(&self, name: &Rc<str>, lower: &str, line: u32) -> Value {
        if let Some(value) = self.constants.get(name.trim_start_matches('\\')) {
            return value.clone();
        }
        match lower.trim_start_matches('\\') {
            "true" => return Value::Bool(true),
            "false" => return Value::Bool(false),
            "null" => return Value::Null,
            "__line__" => return Value::Int(line.into()),
            "__dir__" | "__file__" => {
                let path = self.scope.base.join(self.file);
                let path = if lower == "__dir__" {
                    path.parent()
                } else {
                    Some(path.as_path())
                };
                if let Some(path) = path.and_then(|path| path.to_str()) {
                    return Value::text(path);
                }
            }
            _ => {}
        }
        match name.trim_start_matches('\\') {
            "PHP_EOL" => Value::text("\n"),
            "DIRECTORY_SEPARATOR" => Value::text("/"),
            "PHP_INT_MAX" => Value::Int(i64::MAX),
            "PHP_INT_MIN" => Value::Int(i64::MIN),
            "NAN" => Value::Float(f64::NAN),
            "INF" => Value::Float(f64::INFINITY),
            name => Value::Constant {
                name: name.into(),
                reason: self.reason(line, format_args!("reads the constant `{name}`")),
            },
        }
    }

    /// The full name of a class, without a leading backslash.
    fn class_name(&self, name: &str) -> String {
        if let Some(name) = name.strip_prefix('\\') {
            return name.to_owned();
        }
        let (first, rest) = name
            .split_once('\\')
            .map_or((name, None), |(first, rest)| (first, Some(rest)));
        let imported = self.uses.get(&first.to_ascii_lowercase());
        match (imported, rest) {
            (Some(full), Some(rest)) => format!("{full}\\{rest}"),
            (Some(full), None) => full.to_string(),
            (None, _) if self.namespace.is_empty() => name.to_owned(),
            (None, _) => format!("{}\\{name}", self.namespace),
        }
    }

    /// What follows `Name::`.
    fn class_member(&mut self, name: &str, line: u32) -> Parsed<Value> {
        let class = self.class_name(name);
        let Kind::Name(member) = self.kind().clone() else {
            let what = self.member(&format!("{name}::"))?;
            return Ok(self.unknown(line, what));
        };
        self.at += 1;
        if self.is("(") {
            let arguments = self.arguments()?;
            let support = match class.to_ascii_lowercase().as_str() {
                "str" | "illuminate\\support\\str" => "str",
                "env" | "illuminate\\support\\env" => "env",
                _ => return Ok(self.unknown(line, format_args!("calls `{name}::{member}()`"))),
            };
            let function = format!("{support}::{}", member.to_ascii_lowercase());
            return self.call_known(&function, &format!("{name}::{member}"), arguments, line);
        }
        if member.eq_ignore_ascii_case("class") {
            return Ok(Value::text(&class));
        }
        let reason = self.reason(line, format_args!("reads the constant `{name}::{member}`"));
        Ok(match functions::class_constant(&class, &member) {
            Some(Ok(value)) => value,
            Some(Err(name)) => Value::Constant {
                name: name.into(),
                reason,
            },
            None => Value::Unknown(reason),
        })
    }

    fn call(&mut self, name: &str, line: u32) -> Parsed<Value> {
        let arguments = self.arguments()?;
        let lower = name.trim_start_matches('\\').to_ascii_lowercase();
        let is_foreign = !name.starts_with('\\')
            && self
                .imported_functions
                .get(&lower)
                .is_some_and(|full| full.contains('\\'));
        if is_foreign {
            return Ok(self.unknown(line, format_args!("calls `{name}()`")));
        }
        if lower == "define"
            && let [
                Arg {
                    value: Value::Text(constant),
                    ..
                },
                Arg { value, .. },
            ] = arguments.as_slice()
        {
            self.define(Rc::clone(constant), value.clone());
            return Ok(Value::Bool(true));
        }
        self.call_known(&lower, name, arguments, line)
    }

    fn call_known(
        &mut self,
        function: &str,
        shown: &str,
        arguments: Vec<Arg>,
        line: u32,
    ) -> Parsed<Value> {
        if functions::reads_env(function)
            && let Some(reason) = &self.env_doubt
        {
            return Ok(Value::Unknown(Rc::clone(reason)));
        }
        match functions::call(function, arguments, self.scope) {
            Some(value) => self.made(value),
            None => Ok(self.unknown(line, format_args!("calls `{shown}()`"))),
        }
    }

    /// `fn (..) => ..` or `function (..) use (..) {..}`, which is read and not run.
    fn closure(&mut self, line: u32) -> Parsed<Value> {
        let is_short = self.word().as_deref() == Some("fn");
        self.at += 1;
        let end = if is_short { "=>" } else { "{" };
        while !self.is(end) {
            match self.kind() {
                Kind::End => return self.error(format!("expected `{end}`")),
                Kind::Sign("(") => self.skip_brackets()?,
                _ => self.at += 1,
            }
        }
        if is_short {
            self.at += 1;
            self.within(Mode::Dead, |parser| parser.expression(ASSIGN))?;
        } else {
            self.skip_brackets()?;
        }
        Ok(self.unknown(line, "a closure"))
    }

    /// `new Name(..)` or `new class(..) {..}`.
    fn object(&mut self, line: u32) -> Parsed<Value> {
        self.at += 1;
        let mut shown = String::from("..");
        let is_anonymous = self.word().as_deref() == Some("class");
        match self.kind().clone() {
            Kind::Name(name) => {
                self.at += 1;
                shown = name.to_string();
            }
            Kind::Variable(_) => self.at += 1,
            Kind::Sign("(") => self.skip_brackets()?,
            _ => return self.error("expected a name"),
        }
        if self.is("(") {
            self.arguments()?;
        }
        if is_anonymous {
            while !self.is("{") {
                if *self.kind() == Kind::End {
                    return self.error("expected `{`");
                }
                self.at += 1;
            }
            self.skip_brackets()?;
        }
        Ok(self.unknown(line, format_args!("makes a `{shown}`")))
    }

    /// `match (..) { a, b => c, default => d }`.
    fn matching(&mut self, line: u32) -> Parsed<Value> {
        self.at += 1;
        self.expect("(")?;
        let subject = self.expression(ANY)?;
        self.expect(")")?;
        self.expect("{")?;
        let mut result = None;
        let mut default = None;
        let mut doubt: Option<Rc<str>> = subject.unknown().cloned();
        while !self.accept("}") {
            let is_default = self.word().as_deref() == Some("default");
            let mut hit = false;
            if is_default {
                self.at += 1;
                self.accept(",");
            }
            while !self.accept("=>") {
                let value = self.expression(ANY)?;
                let identical = subject.is_identical(&value);
                if result.is_none() && !hit && (value.unknown().is_some() || identical.is_none()) {
                    let reason = value.unknown().cloned();
                    let reason =
                        reason.unwrap_or_else(|| self.reason(line, "a comparison of large arrays"));
                    doubt.get_or_insert(reason);
                }
                hit |= identical == Some(true);
                if !self.is("=>") {
                    self.expect(",")?;
                }
            }
            // Assignments in arms are rare enough to count as uncertain.
            let mode = Mode::Maybe(self.reason(line, "is set in a `match`"));
            let value = self.within(mode, |parser| parser.expression(ANY))?;
            if is_default {
                default = Some(value);
            } else if hit && result.is_none() {
                result = Some(value);
            }
            if !self.is("}") {
                self.expect(",")?;
            }
        }
        let known = if doubt.is_some() {
            None
        } else {
            result.or(default)
        };
        Ok(known.unwrap_or_else(|| {
            Value::Unknown(doubt.unwrap_or_else(|| self.reason(line, "a `match` without a match")))
        }))
    }
}
