//! Literals, arrays and variables, and what is hung on them in brackets.

use std::rc::Rc;

use super::super::functions::Arg;
use super::super::lexer::{Kind, Part};
use super::super::value::{Array, MAX_DEPTH, MAX_SIZE, Value};
use super::operators::arithmetic;
use super::{ANY, ASSIGN, Mode, Parsed, Parser};

impl Parser<'_> {
    pub(super) fn operand(&mut self) -> Parsed<Value> {
        let line = self.line();
        let value = match self.kind().clone() {
            Kind::Variable(name) => {
                self.at += 1;
                return self.variable(&name, line);
            }
            Kind::Name(name) => self.named(&name, line)?,
            Kind::Sign("(") => {
                self.at += 1;
                let value = self.expression(ANY)?;
                self.expect(")")?;
                value
            }
            Kind::Sign("[") => {
                self.at += 1;
                self.array("]", line)?
            }
            Kind::Sign("$") => return self.error("a variable variable is not understood"),
            Kind::Sign(sign) => return self.error(format!("unexpected `{sign}`")),
            Kind::End => return self.error("unexpected end of the file"),
            kind => {
                self.at += 1;
                self.literal(kind, line)?
            }
        };
        self.suffixes(value)
    }

    fn literal(&mut self, kind: Kind, line: u32) -> Parsed<Value> {
        Ok(match kind {
            Kind::Int(value) => Value::Int(value),
            Kind::Float(value) => Value::Float(value),
            Kind::Text(text) => Value::Text(text),
            Kind::Opaque(why) => self.unknown(line, why),
            Kind::Template(parts) => {
                let mut text = String::new();
                for part in parts.iter() {
                    match part {
                        Part::Text(part) => text.push_str(part),
                        Part::Variable(name) => {
                            let value = self.read_variable(name, line);
                            if let Some(reason) = value.unknown() {
                                return Ok(Value::Unknown(Rc::clone(reason)));
                            }
                            let Some(part) = value.to_text() else {
                                return Ok(
                                    self.unknown(line, format_args!("the text of `${name}`"))
                                );
                            };
                            self.charge(u64::try_from(part.len()).unwrap_or(u64::MAX))?;
                            text.push_str(&part);
                        }
                    }
                }
                self.made(Value::Text(text.into()))?
            }
            _ => return self.error("expected a value"),
        })
    }

    pub(super) fn read_variable(&self, name: &str, line: u32) -> Value {
        let known = self.variables.get(name).cloned();
        known.unwrap_or_else(|| self.unknown(line, format_args!("reads `${name}`")))
    }

    /// A variable and what is done with it: read, indexed or set.
    fn variable(&mut self, name: &Rc<str>, line: u32) -> Parsed<Value> {
        let start = self.at - 1;
        let mut path = Vec::new();
        while self.accept("[") {
            if self.accept("]") {
                path.push(None);
                continue;
            }
            path.push(Some(self.expression(ANY)?));
            self.expect("]")?;
        }
        let sign = match *self.kind() {
            Kind::Sign(
                sign @ ("=" | ".=" | "+=" | "-=" | "*=" | "/=" | "%=" | "??=" | "**=" | "&=" | "|="
                | "^="),
            ) => sign,
            Kind::Sign(sign @ ("++" | "--")) => {
                self.at += 1;
                self.assignments += 1;
                self.forget(start, line, &format!("is after a `{sign}`"));
                return Ok(self.unknown(line, format_args!("the result of `{sign}`")));
            }
            _ => {
                let mut value = self.read_variable(name, line);
                for key in path {
                    let Some(key) = key else {
                        return self.error("expected an index");
                    };
                    value = self.index(&value, &key, line);
                }
                return self.suffixes(value);
            }
        };
        self.at += 1;
        let right = self.expression(ASSIGN)?;
        self.assignments += 1;
        let is_env = matches!(&**name, "_ENV" | "_SERVER");
        let is_dead = matches!(self.mode, Mode::Dead);
        if is_dead {
            return Ok(right);
        }
        let certain = matches!(self.mode, Mode::Live) && !is_env;
        if certain && sign == "=" && path.is_empty() {
            self.charge(1)?;
            self.variables.insert(Rc::clone(name), right.clone());
        } else if certain && sign == "=" {
            let old = self.variables.remove(name).unwrap_or(Value::Null);
            let new = self.with_path(old, &path, &right, line);
            let new = self.made_by_index(new)?;
            self.variables.insert(Rc::clone(name), new);
        } else if certain && path.is_empty() && matches!(sign, ".=" | "+=" | "-=" | "*=") {
            let old = self.read_variable(name, line);
            let operator = sign.trim_end_matches('=');
            let unknown = old.unknown().or(right.unknown()).cloned();
            let new = match (unknown, operator) {
                (Some(reason), _) => Value::Unknown(reason),
                (None, ".") => match old.to_text().zip(right.to_text()) {
                    Some((old, right)) => Value::Text(format!("{old}{right}").into()),
                    None => self.unknown(line, format_args!("the result of `{sign}`")),
                },
                (None, _) => arithmetic(operator, &old, &right)
                    .unwrap_or_else(|| self.unknown(line, format_args!("the result of `{sign}`"))),
            };
            let new = self.made(new)?;
            self.variables.insert(Rc::clone(name), new.clone());
            return Ok(new);
        } else if let (Mode::Maybe(reason), false) = (&self.mode, is_env) {
            self.variables
                .insert(Rc::clone(name), Value::Unknown(Rc::clone(reason)));
        } else {
            self.forget(start, line, "is after an assignment that is not understood");
        }
        Ok(right)
    }

    /// An array that was changed in place cost one step, not one per member.
    fn made_by_index(&mut self, value: Value) -> Parsed<Value> {
        self.charge(1)?;
        if value.depth() > MAX_DEPTH || value.size() > MAX_SIZE {
            return Err(self.too_large());
        }
        Ok(value)
    }

    /// `old` with the value at `path`; recursion ends with the path.
    fn with_path(&mut self, old: Value, path: &[Option<Value>], value: &Value, line: u32) -> Value {
        let Some((first, rest)) = path.split_first() else {
            return value.clone();
        };
        if path.len() > 16 {
            return self.unknown(line, "an assignment that is not understood");
        }
        let mut array = match old {
            Value::Null => Rc::new(Array::default()),
            Value::Array(array) if !array.is_object() => array,
            Value::Unknown(reason) => return Value::Unknown(reason),
            _ => return self.unknown(line, "an assignment that is not understood"),
        };
        if Rc::strong_count(&array) > 1 {
            self.work = self
                .work
                .saturating_add(u64::try_from(array.len()).unwrap_or(u64::MAX));
        }
        let inner = Rc::make_mut(&mut array);
        let is_set = match first {
            None => {
                let new = self.with_path(Value::Null, rest, value, line);
                inner.push(new)
            }
            Some(key) => match key.to_key() {
                Some(key) => {
                    let old = inner.take(&key).unwrap_or(Value::Null);
                    let new = self.with_path(old, rest, value, line);
                    inner.insert(key, new);
                    true
                }
                None => false,
            },
        };
        if is_set {
            Value::Array(array)
        } else {
            self.unknown(line, "a key that is not known")
        }
    }

    fn index(&self, value: &Value, key: &Value, line: u32) -> Value {
        let key_is_unknown = matches!(key, Value::Unknown(_));
        match (value, key.to_key()) {
            (Value::Unknown(_), _) => value.clone(),
            _ if key_is_unknown => key.clone(),
            (Value::Array(array), Some(key)) if !array.is_object() => {
                array.get(&key).cloned().unwrap_or(Value::Null)
            }
            (Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_), _) => Value::Null,
            _ => self.unknown(line, "an index that is not understood"),
        }
    }

    /// Indexes, calls and members after a value.
    fn suffixes(&mut self, mut value: Value) -> Parsed<Value> {
        loop {
            let line = self.line();
            if self.accept("[") {
                let key = self.expression(ANY)?;
                self.expect("]")?;
                value = self.index(&value, &key, line);
            } else if self.is("(") {
                self.arguments()?;
                value = self.unless_unknown(value, line, "calls a value");
            } else if self.accept("->") || self.accept("?->") {
                let what = self.member("->")?;
                value = self.unless_unknown(value, line, &what);
            } else if self.accept("::") {
                let what = self.member("::")?;
                value = self.unless_unknown(value, line, &what);
            } else {
                return Ok(value);
            }
        }
    }

    fn unless_unknown(&self, value: Value, line: u32, what: &str) -> Value {
        match value {
            // The first cause of a chain says more than its last link.
            Value::Unknown(reason) => Value::Unknown(reason),
            _ => self.unknown(line, what),
        }
    }

    /// Steps over `name`, `name(..)`, `$name` or `{..}` and says what it was.
    pub(super) fn member(&mut self, arrow: &str) -> Parsed<String> {
        let name = match self.kind().clone() {
            Kind::Name(name) => {
                self.at += 1;
                name
            }
            Kind::Variable(name) => {
                self.at += 1;
                format!("${name}").into()
            }
            Kind::Sign("{") => {
                self.skip_brackets()?;
                "{..}".into()
            }
            _ => return self.error("expected a name"),
        };
        if self.is("(") {
            self.arguments()?;
            return Ok(format!("calls `{arrow}{name}()`"));
        }
        Ok(format!("reads `{arrow}{name}`"))
    }

    /// The arguments of a call, from its opening bracket past the closing one.
    pub(super) fn arguments(&mut self) -> Parsed<Vec<Arg>> {
        self.expect("(")?;
        let mut arguments = Vec::new();
        while !self.accept(")") {
            let is_spread = self.accept("...");
            if is_spread && self.is(")") {
                continue; // `name(...)` names the function itself
            }
            let name = match self.kind() {
                Kind::Name(name) if self.is_sign_at(1, ":") => Some(Rc::clone(name)),
                _ => None,
            };
            if name.is_some() {
                self.at += 2;
            }
            let value = self.expression(ANY)?;
            arguments.push(Arg {
                name,
                is_spread,
                value,
            });
            if !self.is(")") {
                self.expect(",")?;
            }
        }
        Ok(arguments)
    }

    /// The members of an array up to its closing bracket.
    pub(super) fn array(&mut self, close: &str, line: u32) -> Parsed<Value> {
        let start = self.at;
        let mut array = Array::default();
        let mut unknown = None;
        while !self.accept(close) {
            if self.is(",") {
                self.at += 1; // an empty place, in `[, $a] = ..`
                continue;
            }
            self.member_of(&mut array, &mut unknown)?;
            if !self.is(close) {
                self.expect(",")?;
            }
        }
        if self.accept("=") {
            let right = self.expression(ASSIGN)?;
            self.assignments += 1;
            self.forget(
                start,
                line,
                "is after a list assignment, which is not followed",
            );
            return Ok(right);
        }
        self.made(unknown.map_or_else(|| Value::Array(array.into()), Value::Unknown))
    }

    fn member_of(&mut self, array: &mut Array, unknown: &mut Option<Rc<str>>) -> Parsed<()> {
        let line = self.line();
        if self.accept("...") {
            let value = self.expression(ANY)?;
            let added = match &value {
                Value::Array(spread) if !spread.is_object() => {
                    self.charge(u64::try_from(spread.len()).unwrap_or(u64::MAX))?;
                    array.spread(spread)
                }
                _ => false,
            };
            if !added {
                let reason = match value {
                    Value::Unknown(reason) => reason,
                    _ => self.reason(line, "spreads what is no array"),
                };
                unknown.get_or_insert(reason);
            }
            return Ok(());
        }
        let first = self.expression(ANY)?;
        let added = if self.accept("=>") {
            let value = self.expression(ANY)?;
            let key = first.to_key();
            key.map(|key| array.insert(key, value)).is_some()
        } else {
            array.push(first.clone())
        };
        if !added {
            let reason = first.unknown().cloned();
            let reason = reason.unwrap_or_else(|| self.reason(line, "a key that is not known"));
            unknown.get_or_insert(reason);
        }
        Ok(())
    }
}
