//! What comes before the `return`: imports, variables, conditions.

use std::rc::Rc;

use super::super::functions;
use super::super::lexer::Kind;
use super::super::value::Value;
use super::operators::{and, negated, truth};
use super::{ANY, ASSIGN, Flow, Mode, Parsed, Parser, Truth};

impl Parser<'_> {
    pub(super) fn statement(&mut self) -> Parsed<Flow> {
        self.nested(Self::statement_of_any_kind)
    }

    fn statement_of_any_kind(&mut self) -> Parsed<Flow> {
        if self.accept(";") {
            return Ok(Flow::Next);
        }
        if self.accept("{") {
            return self.block();
        }
        let is_declaration = matches!(self.kind_at(1), Kind::Name(_)) || self.is_sign_at(1, "&");
        match self.word().as_deref() {
            Some("declare") => {
                self.at += 1;
                self.skip_brackets()?;
                self.expect(";")?;
            }
            Some("namespace") => {
                self.at += 1;
                self.namespace = self.name()?;
                self.expect(";")?;
            }
            Some("use") => self.import()?,
            Some("return") => return self.returned(),
            Some("if") => return self.choice(),
            Some("const") => self.constant()?,
            Some("function" | "class" | "final" | "abstract" | "interface" | "trait" | "enum")
                if is_declaration =>
            {
                while !self.is("{") {
                    if *self.kind() == Kind::End {
                        return self.error("expected `{`");
                    }
                    self.at += 1;
                }
                self.skip_brackets()?;
            }
            Some(
                "foreach" | "for" | "while" | "do" | "switch" | "try" | "unset" | "global"
                | "static" | "echo",
            ) if !self.is_sign_at(1, "::") => {
                self.skip_statement()?;
            }
            _ => self.expression_statement()?,
        }
        Ok(Flow::Next)
    }

    fn block(&mut self) -> Parsed<Flow> {
        while !self.accept("}") {
            if *self.kind() == Kind::End {
                return self.error("a bracket is not closed");
            }
            if let Flow::Returned(value) = self.statement()? {
                return Ok(Flow::Returned(value));
            }
        }
        Ok(Flow::Next)
    }

    /// `use A\B;`, `use A\B as C;`, `use A\{B, C};`, `use function a\b;`.
    fn import(&mut self) -> Parsed<()> {
        self.at += 1;
        let is_function = self.accept_word("function");
        let is_constant = !is_function && self.accept_word("const");
        loop {
            let name = self.name()?;
            if self.accept("{") {
                while !self.accept("}") {
                    let member = self.name()?;
                    self.import_one(&format!("{name}{member}"), is_function, is_constant)?;
                    if !self.is("}") {
                        self.expect(",")?;
                    }
                }
            } else {
                self.import_one(&name, is_function, is_constant)?;
            }
            if !self.accept(",") {
                return self.expect(";");
            }
        }
    }

    fn import_one(&mut self, name: &str, is_function: bool, is_constant: bool) -> Parsed<()> {
        let name = name.trim_start_matches('\\');
        let alias = if self.accept_word("as") {
            self.name()?
        } else {
            last_segment(name).into()
        };
        if is_function {
            self.imported_functions
                .insert(alias.to_ascii_lowercase(), name.into());
        } else if !is_constant {
            self.uses.insert(alias.to_ascii_lowercase(), name.into());
        }
        Ok(())
    }

    fn returned(&mut self) -> Parsed<Flow> {
        let line = self.line();
        self.at += 1;
        let value = if self.is(";") {
            Value::Null
        } else {
            self.expression(ANY)?
        };
        self.end_of_statement()?;
        match self.mode {
            Mode::Live => return Ok(Flow::Returned(value)),
            Mode::Maybe(_) => {
                let reason = self.reason(line, "returns under a condition that is not known");
                self.return_doubt.get_or_insert(reason);
            }
            Mode::Dead => {}
        }
        Ok(Flow::Next)
    }

    fn end_of_statement(&mut self) -> Parsed<()> {
        if *self.kind() == Kind::End {
            Ok(())
        } else {
            self.expect(";")
        }
    }

    fn choice(&mut self) -> Parsed<Flow> {
        // Whether one of the branches so far has been taken.
        let mut taken: Truth = Ok(false);
        loop {
            self.at += 1;
            self.expect("(")?;
            let before = Mode::of(&negated(&taken));
            let condition = self.within(before, |parser| parser.expression(ANY))?;
            self.expect(")")?;
            let here = and(&negated(&taken), &truth(&condition));
            if let Flow::Returned(value) = self.branch(&here)? {
                return Ok(Flow::Returned(value));
            }
            taken = negated(&and(&negated(&taken), &negated(&truth(&condition))));
            if self.word().as_deref() == Some("elseif") {
                continue;
            }
            if !self.accept_word("else") {
                return Ok(Flow::Next);
            }
            if self.word().as_deref() != Some("if") {
                return self.branch(&negated(&taken));
            }
        }
    }

    fn branch(&mut self, happens: &Truth) -> Parsed<Flow> {
        if self.is(":") {
            return self.error("the `if (..):` form is not understood");
        }
        let mode = Mode::of(happens);
        self.within(mode, Self::statement)
    }

    fn constant(&mut self) -> Parsed<()> {
        self.at += 1;
        loop {
            let name = self.name()?;
            self.expect("=")?;
            let value = self.expression(ASSIGN)?;
            self.define(name, value);
            if !self.accept(",") {
                return self.end_of_statement();
            }
        }
    }

    pub(super) fn define(&mut self, name: Rc<str>, value: Value) {
        let value = match &self.mode {
            Mode::Live => value,
            Mode::Maybe(reason) => Value::Unknown(Rc::clone(reason)),
            Mode::Dead => return,
        };
        self.constants.insert(name, value);
    }

    /// Steps over a loop or the like; what it may have changed is not known any more.
    fn skip_statement(&mut self) -> Parsed<()> {
        let (start, line) = (self.at, self.line());
        let word = self.word().unwrap_or_default();
        loop {
            match self.kind() {
                Kind::End => return self.error("a statement without an end"),
                Kind::Sign(";") => {
                    self.at += 1;
                    break;
                }
                Kind::Sign("(" | "[") => {
                    self.skip_brackets()?;
                    if self.is(":") && word != "echo" {
                        return self.error("only blocks in braces are understood");
                    }
                }
                Kind::Sign("{") => {
                    self.skip_brackets()?;
                    // `try {} catch () {}`, `do {} while ();`
                    let next = self.word();
                    let goes_on = matches!(next.as_deref(), Some("catch" | "finally"))
                        || (word == "do" && next.as_deref() == Some("while"));
                    if !goes_on {
                        break;
                    }
                }
                _ => self.at += 1,
            }
        }
        self.forget(
            start,
            line,
            &format!("is after a `{word}`, which is not followed"),
        );
        Ok(())
    }

    /// Makes everything unknown that the tokens since `start` may have changed.
    pub(super) fn forget(&mut self, start: usize, line: u32, why: &str) {
        if matches!(self.mode, Mode::Dead) {
            return;
        }
        let reason = self.reason(line, why);
        for token in self.tokens.get(start..self.at).unwrap_or_default() {
            match &token.kind {
                Kind::Variable(name) => {
                    if matches!(&**name, "_ENV" | "_SERVER") {
                        self.env_doubt.get_or_insert_with(|| Rc::clone(&reason));
                    }
                    self.variables
                        .insert(Rc::clone(name), Value::Unknown(Rc::clone(&reason)));
                }
                Kind::Name(name) => match name.to_ascii_lowercase().as_str() {
                    "return" => {
                        self.return_doubt.get_or_insert_with(|| Rc::clone(&reason));
                    }
                    "putenv" | "include" | "include_once" | "require" | "require_once" => {
                        self.env_doubt.get_or_insert_with(|| Rc::clone(&reason));
                    }
                    _ => {}
                },
                _ => {}
            }
        }
    }

    fn expression_statement(&mut self) -> Parsed<()> {
        let (assignments, line) = (self.assignments, self.line());
        let is_harmless = self
            .word()
            .is_some_and(|word| functions::is_harmless(&word));
        let value = self.expression(ANY)?;
        let is_live = !matches!(self.mode, Mode::Dead);
        // A call for its effect, such as `putenv()`; nobody knows what it did.
        if is_live && !is_harmless && assignments == self.assignments && value.unknown().is_some() {
            let reason = self.reason(line, "may have changed the environment");
            self.env_doubt.get_or_insert(reason);
        }
        self.end_of_statement()
    }
}

fn last_segment(name: &str) -> &str {
    name.rsplit('\\').next().unwrap_or(name)
}
