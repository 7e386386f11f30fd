//! Operators: how tightly they bind and what they give.

use std::cmp::Ordering;
use std::rc::Rc;

use super::super::lexer::Kind;
use super::super::value::{Array, Value, int_to_float};
use super::{ASSIGN, Mode, Parsed, Parser, Truth};

/// PHP 8's order.
mod bind {
    pub(super) const TERNARY: u8 = 5;
    pub(super) const COALESCE: u8 = 6;
    pub(super) const OR: u8 = 7;
    pub(super) const AND: u8 = 8;
    pub(super) const NOT: u8 = 18;
    pub(super) const UNARY: u8 = 19;
    pub(super) const POWER: u8 = 20;
}

impl Parser<'_> {
    pub(super) fn expression(&mut self, least: u8) -> Parsed<Value> {
        self.nested(|parser| {
            let mut left = parser.prefix()?;
            while let Some((sign, binds)) = parser.operator() {
                if binds < least {
                    break;
                }
                left = parser.operate(left, sign, binds)?;
            }
            Ok(left)
        })
    }

    fn operator(&self) -> Option<(&'static str, u8)> {
        let sign = match self.kind() {
            Kind::Sign(sign) => *sign,
            Kind::Name(_) => match self.word()?.as_str() {
                "or" => return Some(("or", 1)),
                "xor" => return Some(("xor", 2)),
                "and" => return Some(("and", 3)),
                "instanceof" => return Some(("instanceof", bind::UNARY)),
                _ => return None,
            },
            _ => return None,
        };
        let binds = match sign {
            "?" => bind::TERNARY,
            "??" => bind::COALESCE,
            "||" => bind::OR,
            "&&" => bind::AND,
            "|" => 9,
            "^" => 10,
            "&" => 11,
            "==" | "!=" | "<>" | "===" | "!==" | "<=>" => 12,
            "<" | "<=" | ">" | ">=" => 13,
            "." => 14,
            "<<" | ">>" => 15,
            "+" | "-" => 16,
            "*" | "/" | "%" => 17,
            "**" => bind::POWER,
            _ => return None,
        };
        Some((sign, binds))
    }

    fn operate(&mut self, left: Value, sign: &str, binds: u8) -> Parsed<Value> {
        let line = self.line();
        self.at += 1;
        match sign {
            "?" => self.ternary(left),
            "??" => {
                let needed = match &left {
                    Value::Null => Ok(true),
                    Value::Unknown(reason) => Err(Rc::clone(reason)),
                    _ => Ok(false),
                };
                let mode = Mode::of(&needed);
                let right = self.within(mode, |parser| parser.expression(bind::COALESCE))?;
                Ok(if matches!(left, Value::Null) {
                    right
                } else {
                    left
                })
            }
            "&&" | "and" | "||" | "or" => {
                let left = truth(&left);
                let is_or = matches!(sign, "||" | "or");
                let needed = if is_or { negated(&left) } else { left.clone() };
                let mode = Mode::of(&needed);
                let right = truth(&self.within(mode, |parser| parser.expression(binds + 1))?);
                Ok(of_truth(if is_or {
                    negated(&and(&negated(&left), &negated(&right)))
                } else {
                    and(&left, &right)
                }))
            }
            "**" => {
                self.expression(bind::POWER)?;
                Ok(self.unknown(line, "a power"))
            }
            _ => {
                let right = self.expression(binds + 1)?;
                // The union of two arrays keeps what is not known in its place.
                let is_union =
                    sign == "+" && matches!((&left, &right), (Value::Array(_), Value::Array(_)));
                if !is_union && let Some(reason) = left.unknown().or(right.unknown()) {
                    return Ok(Value::Unknown(Rc::clone(reason)));
                }
                let value = match sign {
                    "." => {
                        let texts = left.to_text().zip(right.to_text());
                        texts.map(|(left, right)| Value::Text(format!("{left}{right}").into()))
                    }
                    "+" | "-" | "*" | "/" | "%" => arithmetic(sign, &left, &right),
                    "<=>" => left
                        .compare(&right)
                        .map(|ordering| Value::Int(ordering as i64)),
                    _ => compare(sign, &left, &right).map(Value::Bool),
                };
                match value {
                    Some(value) => self.made(value),
                    None => Ok(self.unknown(line, format_args!("the result of `{sign}`"))),
                }
            }
        }
    }

    fn ternary(&mut self, condition: Value) -> Parsed<Value> {
        let truth = truth(&condition);
        let then = if self.is(":") {
            condition
        } else {
            let mode = Mode::of(&truth);
            self.within(mode, |parser| parser.expression(ASSIGN))?
        };
        self.expect(":")?;
        let mode = Mode::of(&negated(&truth));
        let otherwise = self.within(mode, |parser| parser.expression(bind::COALESCE))?;
        Ok(match truth {
            Ok(true) => then,
            Ok(false) => otherwise,
            Err(reason) => agreed(then, &otherwise).unwrap_or(Value::Unknown(reason)),
        })
    }

    fn prefix(&mut self) -> Parsed<Value> {
        let line = self.line();
        if let Kind::Sign(sign @ ("!" | "-" | "+" | "@" | "&" | "~" | "++" | "--")) = *self.kind() {
            self.at += 1;
            let value = self.expression(if sign == "!" { bind::NOT } else { bind::UNARY })?;
            return Ok(match sign {
                "!" => of_truth(negated(&truth(&value))),
                _ if value.unknown().is_some() => value,
                "@" => value,
                "-" | "+" => {
                    let factor = if sign == "-" {
                        Value::Int(-1)
                    } else {
                        Value::Int(1)
                    };
                    let product = arithmetic("*", &value, &factor);
                    product.unwrap_or_else(|| {
                        self.unknown(line, format_args!("the result of `{sign}`"))
                    })
                }
                _ => self.unknown(line, format_args!("the result of `{sign}`")),
            });
        }
        if self.is("(")
            && self.is_sign_at(2, ")")
            && let Kind::Name(name) = self.kind_at(1)
            && let Some(cast) = Cast::named(name)
        {
            self.at += 3;
            let value = self.expression(bind::UNARY)?;
            return Ok(self.cast(value, cast, line));
        }
        self.operand()
    }

    fn cast(&self, value: Value, cast: Cast, line: u32) -> Value {
        if !matches!(cast, Cast::Array | Cast::Object)
            && let Some(reason) = value.unknown()
        {
            return Value::Unknown(Rc::clone(reason));
        }
        let cast_value = match (cast, &value) {
            (_, Value::Unknown(_) | Value::Constant { .. }) => None,
            (Cast::Text, _) => value.to_text().map(Value::Text),
            (Cast::Int, _) => value.to_int().map(Value::Int),
            (Cast::Float, _) => value.to_float().map(Value::Float),
            (Cast::Bool, _) => Some(Value::Bool(value.is_true())),
            (Cast::Array, Value::Array(array)) => (!array.is_object()).then(|| value.clone()),
            (Cast::Array, Value::Null) => Some(Value::list([])),
            (Cast::Array, _) => Some(Value::list([value.clone()])),
            (Cast::Object, Value::Array(array)) => {
                Some(Value::Array(Array::clone(array).into_object().into()))
            }
            (Cast::Object, _) => None,
        };
        match (cast_value, value) {
            (Some(value), _) | (None, value @ Value::Unknown(_)) => value,
            _ => self.unknown(line, "the result of a cast"),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Cast {
    Text,
    Int,
    Float,
    Bool,
    Array,
    Object,
}

impl Cast {
    fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "string" | "binary" => Self::Text,
            "int" | "integer" => Self::Int,
            "float" | "double" | "real" => Self::Float,
            "bool" | "boolean" => Self::Bool,
            "array" => Self::Array,
            "object" => Self::Object,
            _ => return None,
        })
    }
}

pub(super) fn truth(value: &Value) -> Truth {
    match value {
        Value::Unknown(reason) | Value::Constant { reason, .. } => Err(Rc::clone(reason)),
        // An array is true for having members, known or not.
        value => Ok(value.is_true()),
    }
}

pub(super) fn of_truth(truth: Truth) -> Value {
    truth.map_or_else(Value::Unknown, Value::Bool)
}

pub(super) fn negated(truth: &Truth) -> Truth {
    truth.clone().map(|truth| !truth)
}

pub(super) fn and(left: &Truth, right: &Truth) -> Truth {
    match (left, right) {
        (Ok(false), _) | (_, Ok(false)) => Ok(false),
        (Err(reason), _) | (_, Err(reason)) => Err(Rc::clone(reason)),
        (Ok(true), Ok(true)) => Ok(true),
    }
}

/// The value of a choice whose sides are the same.
fn agreed(left: Value, right: &Value) -> Option<Value> {
    let agree = match (&left, right) {
        (Value::Constant { name: left, .. }, Value::Constant { name: right, .. }) => left == right,
        (Value::Unknown(_), _) => false,
        _ => left.unknown().is_none() && left.is_identical(right) == Some(true),
    };
    agree.then_some(left)
}

pub(super) fn arithmetic(sign: &str, left: &Value, right: &Value) -> Option<Value> {
    if let (Value::Array(left), Value::Array(right), "+") = (left, right, sign) {
        let mut sum = Array::clone(left);
        for (key, value) in right.iter() {
            if left.get(key).is_none() {
                sum.insert(key.clone(), value.clone());
            }
        }
        return (!left.is_object() && !right.is_object()).then(|| Value::Array(sum.into()));
    }
    let (left, right) = (left.to_number()?, right.to_number()?);
    if let (Value::Int(left), Value::Int(right)) = (&left, &right) {
        let (left, right) = (*left, *right);
        let exact = match sign {
            "+" => left.checked_add(right),
            "-" => left.checked_sub(right),
            "*" => left.checked_mul(right),
            "%" => return left.checked_rem(right).map(Value::Int),
            _ if right == 0 => return None,
            _ => left
                .checked_div(right)
                .filter(|quotient| quotient.checked_mul(right) == Some(left)),
        };
        if let Some(exact) = exact {
            return Some(Value::Int(exact));
        }
        return Some(Value::Float(float_arithmetic(
            sign,
            int_to_float(left),
            int_to_float(right),
        )?));
    }
    Some(Value::Float(float_arithmetic(
        sign,
        left.to_float()?,
        right.to_float()?,
    )?))
}

fn float_arithmetic(sign: &str, left: f64, right: f64) -> Option<f64> {
    match sign {
        "+" => Some(left + right),
        "-" => Some(left - right),
        "*" => Some(left * right),
        "/" if right != 0.0 => Some(left / right),
        _ => None,
    }
}

fn compare(sign: &str, left: &Value, right: &Value) -> Option<bool> {
    match sign {
        "===" => left.is_identical(right),
        "!==" => left.is_identical(right).map(|same| !same),
        "==" => left.equals(right),
        "!=" | "<>" => left.equals(right).map(|same| !same),
        "xor" => Some(left.is_true() != right.is_true()),
        _ => {
            let ordering = left.compare(right)?;
            match sign {
                "<" => Some(ordering == Ordering::Less),
                "<=" => Some(ordering != Ordering::Greater),
                ">" => Some(ordering == Ordering::Greater),
                ">=" => Some(ordering != Ordering::Less),
                _ => None,
            }
        }
    }
}
