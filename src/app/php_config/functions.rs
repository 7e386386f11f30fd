//! The functions and helpers that configuration files call.
//!
//! Every one here has no effect and depends on its arguments and the
//! [`Scope`] only. `None` means "not known", be it the function or this use of it.

use std::path::Path;
use std::rc::Rc;

use super::Scope;
use super::value::{Array, Key, Value, numeric};
use crate::app::slug::{is_exact, slug};

/// The longest text a call may make.
const MAX_TEXT: usize = 1 << 20;

/// One argument of a call.
#[derive(Debug, Clone)]
pub(super) struct Arg {
    pub(super) name: Option<Rc<str>>,
    pub(super) is_spread: bool,
    pub(super) value: Value,
}

/// True for calls whose unknown effect is none that matters here.
pub(super) fn is_harmless(function: &str) -> bool {
    matches!(
        function.trim_start_matches('\\'),
        "ini_set"
            | "set_time_limit"
            | "error_reporting"
            | "date_default_timezone_set"
            | "mb_internal_encoding"
            | "setlocale"
            | "define"
            | "defined"
    )
}

/// True for what looks up environment variables.
pub(super) fn reads_env(function: &str) -> bool {
    matches!(function, "env" | "env::get" | "getenv")
}

/// The value of a class constant, or else its name where that is enough for a key; `None` if neither.
pub(super) fn class_constant(class: &str, member: &str) -> Option<Result<Value, String>> {
    let class = class.to_ascii_lowercase();
    if let Some(driver) = class.strip_prefix("pdo\\") {
        return Some(Err(format!(
            "PDO::{}_{member}",
            driver.to_ascii_uppercase()
        )));
    }
    match class.as_str() {
        "pdo" => Some(Err(format!("PDO::{member}"))),
        "memcached" => Some(Err(format!("Memcached::{member}"))),
        "redis" => Some(
            phpredis_constant(member)
                .map(Value::Int)
                .ok_or(format!("Redis::{member}")),
        ),
        _ => None,
    }
}

/// The numbers of docs/protocol/app-config.md 5.2, which options of connections are written with.
fn phpredis_constant(member: &str) -> Option<i64> {
    Some(match member {
        "SERIALIZER_NONE" | "COMPRESSION_NONE" => 0,
        "SERIALIZER_PHP" | "COMPRESSION_LZF" => 1,
        "SERIALIZER_IGBINARY" | "COMPRESSION_ZSTD" => 2,
        "SERIALIZER_MSGPACK" | "COMPRESSION_LZ4" => 3,
        "SERIALIZER_JSON" => 4,
        _ => return None,
    })
}

/// Calls a function by its name in lower case; methods are named like `str::slug`.
pub(super) fn call(function: &str, arguments: Vec<Arg>, scope: &Scope<'_>) -> Option<Value> {
    let arguments = positional(function, arguments)?;
    call_with(function, &arguments, scope)
}

fn call_with(function: &str, arguments: &[Value], scope: &Scope<'_>) -> Option<Value> {
    if let Some(value) = with_unknown_parts(function, arguments, scope) {
        return Some(value);
    }
    // What is not known in an argument is not known of the result.
    let unknown = arguments
        .iter()
        .find(|value| value.unknown().is_some() && !is_filter(value));
    if let Some(reason) = unknown.and_then(Value::unknown) {
        return is_known(function).then(|| Value::Unknown(Rc::clone(reason)));
    }
    helper(function, arguments, scope)
        .or_else(|| of_texts(function, arguments))
        .or_else(|| of_arrays(function, arguments, scope))
        .or_else(|| of_kinds(function, arguments))
}

/// Functions not listed are reported by name, which says more than an argument would.
fn is_known(function: &str) -> bool {
    const KNOWN: &str = " env getenv env::get base_path app_path config_path database_path public_path resource_path \
        storage_path str_slug str::slug str::lower str::upper str::snake str::start str::finish str::replace \
        str::contains str::startswith str::endswith strtolower strtoupper mb_strtolower mb_strtoupper ucfirst lcfirst \
        trim ltrim rtrim explode implode join array_filter array_merge array_map array_values array_keys array_unique \
        count in_array array_key_exists str_replace sprintf intval floatval boolval strval is_null is_string is_array \
        is_numeric is_bool is_int filter_var dirname basename realpath str_contains str_starts_with str_ends_with \
        strlen value ";
    KNOWN
        .split_ascii_whitespace()
        .any(|known| known == function)
}

/// Arguments in the order of the function's parameters.
fn positional(function: &str, arguments: Vec<Arg>) -> Option<Vec<Value>> {
    let parameters: &[&str] = match function {
        "env" | "env::get" => &["key", "default"],
        "str::slug" => &["title", "separator", "language"],
        _ => &[],
    };
    let mut values = Vec::new();
    for Arg {
        name,
        is_spread,
        value,
    } in arguments
    {
        match (name, value) {
            (None, Value::Array(array)) if is_spread && array.is_list() => {
                values.extend(array.iter().map(|(_, value)| value.clone()));
            }
            (_, Value::Unknown(reason)) if is_spread => values.push(Value::Unknown(reason)),
            (None, value) if !is_spread => values.push(value),
            // A gap before a named argument would have to take a default.
            (Some(name), value) if parameters.get(values.len()) == Some(&&*name) => {
                values.push(value);
            }
            _ => return None,
        }
    }
    Some(values)
}

fn is_filter(value: &Value) -> bool {
    matches!(value, Value::Constant { name, .. } if name.starts_with("FILTER_"))
}

/// Calls whose result is known although an argument, or a part of it, is not.
fn with_unknown_parts(function: &str, arguments: &[Value], scope: &Scope<'_>) -> Option<Value> {
    match (function, arguments) {
        ("env" | "env::get", [Value::Text(name), rest @ ..]) if rest.len() < 2 => {
            Some(match (scope.env)(name) {
                Some(raw) => env_value(&raw, scope.laravel_major)?,
                None => rest.first().cloned().unwrap_or(Value::Null),
            })
        }
        ("extension_loaded", [_]) => Some(Value::Bool(true)),
        ("array_merge", arrays) => {
            let mut merged = Array::default();
            for array in arrays {
                match array {
                    Value::Array(array) if !array.is_object() => {
                        if !merged.spread(array) {
                            return None;
                        }
                    }
                    Value::Unknown(reason) => return Some(Value::Unknown(Rc::clone(reason))),
                    _ => return None,
                }
            }
            Some(Value::Array(merged.into()))
        }
        ("value", [value]) => Some(value.clone()),
        _ => None,
    }
}

/// What `env()` makes of a variable's text.
fn env_value(raw: &str, laravel_major: u32) -> Option<Value> {
    match raw.to_ascii_lowercase().as_str() {
        "true" | "(true)" => return Some(Value::Bool(true)),
        "false" | "(false)" => return Some(Value::Bool(false)),
        "empty" | "(empty)" => return Some(Value::text("")),
        "null" | "(null)" => return Some(Value::Null),
        _ => {}
    }
    for quote in ['"', '\''] {
        let inner = raw
            .strip_prefix(quote)
            .and_then(|rest| rest.strip_suffix(quote));
        // The pattern's `.` does not match a line break.
        if let Some(inner) = inner.filter(|inner| !inner.contains('\n')) {
            // Laravel 5.5 to 5.7 strip double quotes only, 5.8 both.
            return (quote == '"' || laravel_major > 5).then(|| Value::text(inner));
        }
    }
    Some(Value::text(raw))
}

/// Laravel's helpers.
fn helper(function: &str, arguments: &[Value], scope: &Scope<'_>) -> Option<Value> {
    let base = |directory: &str| scope.base.join(directory);
    match (function, arguments) {
        ("getenv", [Value::Text(name)]) => {
            Some((scope.env)(name).map_or(Value::Bool(false), |raw| Value::text(&raw)))
        }
        ("base_path", rest) => path(scope.base, rest, scope.laravel_major >= 10),
        ("app_path", rest) => path(&base("app"), rest, scope.laravel_major >= 10),
        ("config_path", rest) => path(&base("config"), rest, scope.laravel_major >= 10),
        ("database_path", rest) => path(&base("database"), rest, scope.laravel_major >= 10),
        ("resource_path", rest) => path(&base("resources"), rest, scope.laravel_major >= 10),
        ("public_path", rest) => path(&base("public"), rest, true),
        ("storage_path", rest) => path(scope.storage, rest, scope.laravel_major >= 10),
        ("str_slug" | "str::slug", [title, rest @ ..]) => {
            let separator = match rest {
                [] => '-',
                [separator] => only_char(separator)?,
                [separator, Value::Text(language)] if &**language == "en" => only_char(separator)?,
                _ => return None,
            };
            let title = title.to_text()?;
            let exact = is_exact(&title, scope.laravel_major);
            exact.then(|| Value::text(&slug(&title, separator, scope.laravel_major)))
        }
        _ => None,
    }
}

fn only_char(value: &Value) -> Option<char> {
    let text = value.to_text()?;
    let mut chars = text.chars();
    chars
        .next()
        .filter(|c| c.is_ascii() && chars.next().is_none())
}

/// Later versions take slashes off the front of the path.
fn path(directory: &Path, arguments: &[Value], trims: bool) -> Option<Value> {
    let directory = directory.to_str()?;
    let directory = if directory.len() > 1 {
        directory.trim_end_matches('/')
    } else {
        directory
    };
    let path = match arguments {
        [] => "".into(),
        [path] => path.to_text()?,
        _ => return None,
    };
    if path.is_empty() {
        return Some(Value::text(directory));
    }
    let path = if trims {
        path.trim_start_matches('/')
    } else {
        &path
    };
    Some(Value::text(&format!("{directory}/{path}")))
}

fn of_texts(function: &str, arguments: &[Value]) -> Option<Value> {
    let texts: Option<Vec<Rc<str>>> = arguments.iter().map(Value::to_text).collect();
    let texts = texts?;
    let texts: Vec<&str> = texts.iter().map(|text| &**text).collect();
    let text = match (function, texts.as_slice()) {
        ("strtolower", [text]) => text.to_ascii_lowercase(),
        ("strtoupper", [text]) => text.to_ascii_uppercase(),
        // Beyond ASCII, PHP's and Rust's tables may be of different years.
        ("str::lower" | "mb_strtolower", [text]) if text.is_ascii() => text.to_ascii_lowercase(),
        ("str::upper" | "mb_strtoupper", [text]) if text.is_ascii() => text.to_ascii_uppercase(),
        ("str::snake", [text]) if text.is_ascii() => snake(text, "_"),
        ("str::snake", [text, delimiter]) if text.is_ascii() => snake(text, delimiter),
        ("ucfirst" | "lcfirst", [text]) => {
            let mut text = (*text).to_owned();
            match text.get_mut(..1) {
                Some(first) if function == "ucfirst" => first.make_ascii_uppercase(),
                Some(first) => first.make_ascii_lowercase(),
                None => {}
            }
            text
        }
        ("trim" | "ltrim" | "rtrim", [text]) => trim(function, text, " \n\r\t\u{b}\0"),
        ("trim" | "ltrim" | "rtrim", [text, set]) if set.is_ascii() && !set.contains("..") => {
            trim(function, text, set)
        }
        ("str_replace" | "str::replace", [search, replace, subject]) if !search.is_empty() => {
            let found = subject.matches(search).count();
            let longest = subject
                .len()
                .checked_add(found.checked_mul(replace.len())?)?;
            if longest > MAX_TEXT {
                return None;
            }
            subject.replace(search, replace)
        }
        ("str::start", [text, prefix]) if !prefix.is_empty() => {
            format!("{prefix}{}", text.trim_start_matches(prefix))
        }
        ("str::finish", [text, cap]) if !cap.is_empty() => {
            format!("{}{cap}", text.trim_end_matches(cap))
        }
        ("sprintf", [format, values @ ..]) => sprintf(format, values)?,
        ("basename", [path]) => path.trim_end_matches('/').rsplit('/').next()?.to_owned(),
        ("dirname", [path]) => dirname(path)?.to_owned(),
        ("dirname", [path, levels]) => {
            let levels: u8 = levels.parse().ok().filter(|levels| *levels > 0)?;
            let mut path = *path;
            for _ in 0..levels {
                path = dirname(path)?;
            }
            path.to_owned()
        }
        ("realpath", [path]) if path.starts_with('/') => {
            let Ok(path) = std::fs::canonicalize(path) else {
                return Some(Value::Bool(false));
            };
            path.to_str()?.to_owned()
        }
        ("strval", [text]) => (*text).to_owned(),
        _ => return test_of_texts(function, &texts),
    };
    Some(Value::text(&text))
}

fn test_of_texts(function: &str, texts: &[&str]) -> Option<Value> {
    Some(match (function, texts) {
        ("strlen", [text]) => Value::Int(text.len().try_into().ok()?),
        ("str_contains", [text, part]) => Value::Bool(text.contains(part)),
        ("str_starts_with", [text, part]) => Value::Bool(text.starts_with(part)),
        ("str_ends_with", [text, part]) => Value::Bool(text.ends_with(part)),
        // Laravel's own say no to an empty part.
        ("str::contains", [text, part]) => Value::Bool(!part.is_empty() && text.contains(part)),
        ("str::startswith", [text, part]) => {
            Value::Bool(!part.is_empty() && text.starts_with(part))
        }
        ("str::endswith", [text, part]) => Value::Bool(!part.is_empty() && text.ends_with(part)),
        ("explode", [separator, text]) if !separator.is_empty() => {
            Value::list(text.split(separator).map(Value::text))
        }
        ("explode", [separator, text, limit]) if !separator.is_empty() => {
            let limit: usize = limit.parse().ok().filter(|limit| *limit > 0)?;
            Value::list(text.splitn(limit, separator).map(Value::text))
        }
        _ => return None,
    })
}

/// `fooBar` and `Foo Bar` become `foo_bar`.
fn snake(text: &str, delimiter: &str) -> String {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase()) {
        return text.to_owned();
    }
    let mut words = String::new();
    let mut starts_word = true;
    for c in text.chars() {
        let is_space = matches!(c, ' ' | '\t'..='\r');
        if !is_space {
            words.push(if starts_word {
                c.to_ascii_uppercase()
            } else {
                c
            });
        }
        starts_word = is_space;
    }
    let mut snake = String::new();
    for c in words.chars() {
        if c.is_ascii_uppercase() && !snake.is_empty() {
            snake.push_str(delimiter);
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

fn trim(function: &str, text: &str, set: &str) -> String {
    let is_in = |c: char| set.contains(c);
    let text = if function == "rtrim" {
        text
    } else {
        text.trim_start_matches(is_in)
    };
    let text = if function == "ltrim" {
        text
    } else {
        text.trim_end_matches(is_in)
    };
    text.to_owned()
}

fn dirname(path: &str) -> Option<&str> {
    let path = path.trim_end_matches('/');
    let (parent, _) = path.rsplit_once('/')?;
    let parent = parent.trim_end_matches('/');
    Some(if parent.is_empty() { "/" } else { parent })
}

/// `%s`, `%d` and `%%`.
fn sprintf(format: &str, values: &[&str]) -> Option<String> {
    let mut text = String::new();
    let mut values = values.iter();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '%' { chars.next() } else { None }) {
            ('%', Some('%')) => text.push('%'),
            ('%', Some('s')) => text.push_str(values.next()?),
            ('%', Some('d')) => text.push_str(&Value::text(values.next()?).to_int()?.to_string()),
            ('%', _) => return None,
            (c, _) => text.push(c),
        }
    }
    (text.len() <= MAX_TEXT).then_some(text)
}

fn of_arrays(function: &str, arguments: &[Value], scope: &Scope<'_>) -> Option<Value> {
    let values =
        |array: &Array| -> Vec<Value> { array.iter().map(|(_, value)| value.clone()).collect() };
    match (function, arguments) {
        (
            "implode" | "join",
            [Value::Text(glue), Value::Array(array)] | [Value::Array(array), Value::Text(glue)],
        ) => {
            let parts: Option<Vec<Rc<str>>> =
                array.iter().map(|(_, value)| value.to_text()).collect();
            let parts = parts?;
            let len: usize = parts.iter().map(|part| part.len() + glue.len()).sum();
            (len <= MAX_TEXT).then(|| Value::text(&parts.join(glue)))
        }
        ("array_filter", [Value::Array(array)]) => {
            let mut kept = Array::default();
            for (key, value) in array.iter().filter(|(_, value)| value.is_true()) {
                kept.insert(key.clone(), value.clone());
            }
            Some(Value::Array(kept.into()))
        }
        ("array_map", [Value::Text(callback), Value::Array(array)]) => {
            let callback = callback.to_ascii_lowercase();
            let mut mapped = Array::default();
            for (key, value) in array.iter() {
                mapped.insert(
                    key.clone(),
                    call_with(&callback, std::slice::from_ref(value), scope)?,
                );
            }
            Some(Value::Array(mapped.into()))
        }
        ("array_values", [Value::Array(array)]) => Some(Value::list(values(array))),
        ("array_keys", [Value::Array(array)]) => {
            Some(Value::list(array.iter().map(|(key, _)| key.to_value())))
        }
        ("array_unique", [Value::Array(array)]) => {
            let mut seen = std::collections::HashSet::new();
            let mut unique = Array::default();
            for (key, value) in array.iter() {
                if seen.insert(value.to_text()?) {
                    unique.insert(key.clone(), value.clone());
                }
            }
            Some(Value::Array(unique.into()))
        }
        ("count", [Value::Array(array)]) if !array.is_object() => {
            Some(Value::Int(array.len().try_into().ok()?))
        }
        ("in_array", [needle, Value::Array(array), rest @ ..]) => {
            let strict = match rest {
                [] => false,
                [strict] => strict.is_true(),
                _ => return None,
            };
            for (_, value) in array.iter() {
                let found = if strict {
                    needle.is_identical(value)?
                } else {
                    needle.equals(value)?
                };
                if found {
                    return Some(Value::Bool(true));
                }
            }
            Some(Value::Bool(false))
        }
        ("array_key_exists", [key, Value::Array(array)]) => {
            let key: Key = key.to_key()?;
            Some(Value::Bool(array.get(&key).is_some()))
        }
        _ => None,
    }
}

fn of_kinds(function: &str, arguments: &[Value]) -> Option<Value> {
    Some(match (function, arguments) {
        ("intval", [value]) => Value::Int(value.to_int()?),
        ("floatval", [value]) => Value::Float(value.to_float()?),
        ("boolval", [value]) => Value::Bool(value.is_true()),
        ("is_null", [value]) => Value::Bool(*value == Value::Null),
        ("is_string", [value]) => Value::Bool(matches!(value, Value::Text(_))),
        ("is_array", [value]) => {
            Value::Bool(matches!(value, Value::Array(array) if !array.is_object()))
        }
        ("is_bool", [value]) => Value::Bool(matches!(value, Value::Bool(_))),
        ("is_int", [value]) => Value::Bool(matches!(value, Value::Int(_))),
        ("is_numeric", [value]) => Value::Bool(match value {
            Value::Int(_) | Value::Float(_) => true,
            // PHP 7 refuses blanks at the end, PHP 8 takes them.
            Value::Text(text) if text.ends_with(|c: char| c.is_ascii_whitespace()) => return None,
            Value::Text(text) => numeric(text).is_some(),
            _ => false,
        }),
        ("filter_var", [value, Value::Constant { name, .. }])
            if matches!(&**name, "FILTER_VALIDATE_BOOLEAN" | "FILTER_VALIDATE_BOOL") =>
        {
            let text = value.to_text()?.trim().to_ascii_lowercase();
            Value::Bool(matches!(text.as_str(), "1" | "true" | "on" | "yes"))
        }
        _ => return None,
    })
}
