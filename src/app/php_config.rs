//! What a PHP configuration file returns, without PHP.
//!
//! [`evaluate`] understands the PHP that `config/*.php` and the cached
//! `bootstrap/cache/config.php` of Laravel apps are written in: arrays, texts,
//! operators, variables, `if`, and the functions and helpers such files call.
//! It does no I/O but `realpath`, runs nothing, and does not guess: a value that
//! depends on something else (a method call, an unknown function, a constant)
//! becomes an object with the one key [`UNKNOWN`], which says where and why, and
//! the values around it stay. Texts in it name code, never values, which may be
//! secrets.
//!
//! What surprises:
//!
//! * Kinds are kept as `env()` makes them: `X=1` is the text `"1"`, `X=true` is a
//!   boolean, and `X=` and `X=null` do not take the default.
//! * A PHP array with the keys 0, 1, 2 .. in this order is a JSON array, and so is
//!   an empty one; every other is an object.
//! * Class constants are known by name only, which is enough for a key:
//!   `PDO::MYSQL_ATTR_SSL_CA` and the newer `Pdo\Mysql::ATTR_SSL_CA` both become
//!   the key `PDO::MYSQL_ATTR_SSL_CA`. A cached configuration has the number.
//! * `extension_loaded()` is true: what a worker asks for is not behind it.
//! * Operators bind as in PHP 8.
//!
//! The facts are in `docs/protocol/app-config.md` 1, 3 and 4.

use std::path::Path;

use serde_json::{Map, Value as Json};

use self::parser::Parser;
use self::value::{Array, Key, Value};

mod functions;
mod lexer;
mod parser;
mod value;

/// The key of the object that stands for a value this module could not find out.
///
/// Its value is a text such as ``config/cache.php:12: calls `foo()` ``.
pub const UNKNOWN: &str = "$unknown";

/// Bytes of a file; a cached configuration has some hundred thousand.
const MAX_SOURCE: usize = 8 << 20;

/// What a configuration file can see of the app around it.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// Looks up the raw text of a variable: the real environment first, then the `.env` file.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The app's root, for `base_path()` and its like.
    pub base: &'a Path,
    /// The app's storage directory, for `storage_path()`.
    pub storage: &'a Path,
    /// The major version of the framework, for `Str::slug`, `env` and paths.
    pub laravel_major: u32,
    /// Variables that exist before the first line, without the `$`.
    pub variables: &'a [(&'a str, Json)],
}

impl std::fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values of variables may be secrets.
        f.debug_struct("Scope")
            .field("base", &self.base)
            .field("storage", &self.storage)
            .field("laravel_major", &self.laravel_major)
            .finish_non_exhaustive()
    }
}

/// A file of which nothing can be said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// This is not PHP, or none that this module can follow to its end.
    #[error("{file}:{line}: {problem}")]
    Syntax {
        /// The file, as the caller named it.
        file: String,
        /// Line, from 1.
        line: u32,
        /// What was expected or found.
        problem: String,
    },
    /// The file or what it builds is larger than any configuration.
    #[error("{file}: larger than a configuration can be")]
    TooLarge {
        /// The file, as the caller named it.
        file: String,
    },
}

/// The value that the file returns.
///
/// `file` is what messages call it, best relative to the app's root, which is
/// also how `__DIR__` is found.
///
/// # Errors
///
/// Only if the file as a whole cannot be followed; see [`UNKNOWN`] for the rest.
pub fn evaluate(source: &str, file: &str, scope: &Scope<'_>) -> Result<Json, ConfigError> {
    let too_large = || ConfigError::TooLarge {
        file: file.to_owned(),
    };
    if source.len() > MAX_SOURCE {
        return Err(too_large());
    }
    let tokens = lexer::tokens(source).map_err(|error| ConfigError::Syntax {
        file: file.to_owned(),
        line: error.line,
        problem: error.problem.to_owned(),
    })?;
    let value = Parser::new(tokens, file, scope).file()?;
    to_json(&value).ok_or_else(too_large)
}

/// The JSON object that stands for an unknown value.
pub fn unknown(reason: &str) -> Json {
    let mut object = Map::new();
    object.insert(UNKNOWN.to_owned(), Json::from(reason));
    Json::Object(object)
}

/// The reason, if this value is one that could not be found out.
pub fn unknown_reason(value: &Json) -> Option<&str> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.get(UNKNOWN)?.as_str()
}

/// `None` for a value with more members than a configuration has.
fn to_json(value: &Value) -> Option<Json> {
    if let Value::Array(array) = value
        && array.size() > value::MAX_SIZE
    {
        return None;
    }
    Some(convert(value))
}

/// The recursion ends at [`value::MAX_DEPTH`], which no array exceeds.
fn convert(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::from(*value),
        Value::Int(value) => Json::from(*value),
        Value::Float(value) => serde_json::Number::from_f64(*value)
            .map_or_else(|| unknown("a float that JSON does not have"), Json::Number),
        Value::Text(value) => Json::from(&**value),
        Value::Array(array) if array.is_list() => {
            array.iter().map(|(_, value)| convert(value)).collect()
        }
        Value::Array(array) => {
            let entries = array
                .iter()
                .map(|(key, value)| (key.to_string(), convert(value)));
            Json::Object(entries.collect())
        }
        Value::Constant { reason, .. } | Value::Unknown(reason) => unknown(reason),
    }
}

fn from_json(value: &Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match number.as_i64() {
            Some(value) => Value::Int(value),
            None => number.as_f64().map_or(Value::Null, Value::Float),
        },
        Json::String(value) => Value::text(value),
        Json::Array(values) => Value::list(values.iter().map(from_json)),
        Json::Object(object) => {
            if let Some(reason) = unknown_reason(value) {
                return Value::Unknown(reason.into());
            }
            let mut array = Array::default();
            for (key, value) in object {
                array.insert(Key::of_text(key), from_json(value));
            }
            Value::Array(array.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run_on(source: &str, laravel_major: u32, env: &[(&str, &str)]) -> Result<Json, ConfigError> {
        let look_up = |name: &str| {
            let found = env.iter().find(|(known, _)| *known == name)?;
            Some(found.1.to_owned())
        };
        let scope = Scope {
            env: &look_up,
            base: Path::new("/srv/app"),
            storage: Path::new("/srv/app/storage"),
            laravel_major,
            variables: &[("given", json!({"a": [1, "x"]}))],
        };
        evaluate(source, "config/test.php", &scope)
    }

    fn run(source: &str) -> Result<Json, ConfigError> {
        let env = [
            ("NAME", "My App"),
            ("T", "true"),
            ("F", "(false)"),
            ("N", "NULL"),
            ("E", "empty"),
            ("BLANK", ""),
            ("ONE", "1"),
            ("QUOTED", "'q'"),
            ("LIST", "a, b,,c"),
        ];
        run_on(source, 13, &env)
    }

    #[test]
    fn expressions_have_the_value_they_have_in_php() {
        #[rustfmt::skip]
        let rows = [
            // literals
            ("[1, -2, 0x1F, 0b101, 017, 0o17, 1_000, 1.5, .5, 1e3]", json!([1, -2, 31, 5, 15, 15, 1000, 1.5, 0.5, 1000.0])),
            ("[true, FALSE, Null]", json!([true, false, null])),
            (r"['it\'s', 'a\nb', '\\', '\q']", json!(["it's", r"a\nb", r"\", r"\q"])),
            (r#"["a\tb\x41\u{e9}\101\0", "\$x {y} $ \q"]"#, json!(["a\tbA\u{e9}A\0", r"$x {y} $ \q"])),
            ("'' . \"\\0\" . 'x'", json!("\0x")),
            ("<<<'X'\n  a $b\n    c\n  X", json!("a $b\n  c")),
            ("<<<X\na {$given2}\nX", json!({UNKNOWN: "config/test.php:1: reads `$given2`"})),
            // arrays
            ("[]", json!([])),
            ("array('a' => array(1, 2), )", json!({"a": [1, 2]})),
            ("[1 => 'a', 0 => 'b']", json!({"1": "a", "0": "b"})),
            ("['0' => 'a', '1' => 'b', true => 'c']", json!(["a", "c"])),
            ("[5 => 'a', 'b', null => 'c', '08' => 'd']", json!({"5": "a", "6": "b", "": "c", "08": "d"})),
            ("[...[1, 2], ...['k' => 3], ...[4]]", json!({"0": 1, "1": 2, "k": 3, "2": 4})),
            ("['a' => 1] + ['a' => 2, 'b' => 3]", json!({"a": 1, "b": 3})),
            ("['a' => ['b' => 1]]['a']['b']", json!(1)),
            ("$given['a'][1] . ($given['zz'] ?? '!')", json!("x!")),
            ("(object) ['a' => 1]", json!({"a": 1})),
            ("[PDO::MYSQL_ATTR_SSL_CA => 1, \\Pdo\\Mysql::ATTR_SSL_KEY => 2]",
                json!({"PDO::MYSQL_ATTR_SSL_CA": 1, "PDO::MYSQL_ATTR_SSL_KEY": 2})),
            ("[(PHP_VERSION_ID >= 80500 ? \\Pdo\\Mysql::ATTR_SSL_CA : \\PDO::MYSQL_ATTR_SSL_CA) => 1]",
                json!({"PDO::MYSQL_ATTR_SSL_CA": 1})),
            ("['serializer' => Redis::SERIALIZER_IGBINARY, 'c' => \\Redis::COMPRESSION_LZ4]", json!({"serializer": 2, "c": 3})),
            // operators
            ("[1 + 2 * 3, (1 + 2) * 3, 7 / 2, 8 / 2, 60 * 24 % 7, '5' + 3, 2 - 3 - 4]", json!([7, 9, 3.5, 4, 5, 8, -5])),
            ("'a' . 1 + 2 . 'b'", json!("a3b")),
            ("[1 == '1', '1' == '01', null == false, '' == null, 1 === 1.0, '10' < '9', 1 <=> 2]",
                json!([true, true, true, true, false, false, -1])),
            ("[!true, true && false, false || true, true and false, 0 ?: 'x', '' ?: null ?: 'y', null ?? 'z']",
                json!([false, false, true, false, "x", "y", "z"])),
            ("false ? 1 : (true ? 2 : 3)", json!(2)),
            ("match (true) { 1 === 2 => 'a', 2 === 2, foo() => 'b', default => 'c' }", json!("b")),
            ("[(int) '12abc', (int) ' 42', (int) 3.9, (string) true, (string) 1.0, (bool) '0', (array) null, (float) '1.5x']",
                json!([12, 42, 3, "1", "1", false, [], 1.5])),
            ("-9223372036854775807-1", json!(i64::MIN)),
            // env
            ("[env('T'), env('F', 1), env('N', 1), env('E', 1), env('BLANK', 1), env('ONE'), env('QUOTED'), env('NOPE'), env('NOPE', 1)]",
                json!([true, false, null, "", "", "1", "q", null, 1])),
            ("\\Illuminate\\Support\\Env::get('NAME') . env(key: 'NOPE', default: 'd') . getenv('T')", json!("My Appdtrue")),
            ("env('ONE', foo())", json!("1")),
            // functions
            ("Illuminate\\Support\\Str::slug(env('NAME'), '_') . '_database_'", json!("my_app_database_")),
            ("str_slug('A B') . Str::snake('fooBar') . Str::upper('x')", json!("a-bfoo_barX")),
            ("array_map('trim', array_filter(explode(',', env('LIST'))))", json!({"0": "a", "1": "b", "3": "c"})),
            ("[...array_filter(explode(',', (string) env('NOPE', '')))]", json!([])),
            ("array_merge(['a', 'k' => 1], ['b', 'k' => 2])", json!({"0": "a", "k": 2, "1": "b"})),
            ("[in_array('1', [1]), in_array('1', [1], true), implode('-', ['a', 1]), sprintf('%s:%d%%', 'a', 7)]",
                json!([true, false, "a-1", "a:7%"])),
            ("[base_path('x'), storage_path('/y'), database_path(), dirname(__DIR__), __DIR__ . '/z']",
                json!(["/srv/app/x", "/srv/app/storage/y", "/srv/app/database", "/srv/app", "/srv/app/config/z"])),
            ("filter_var(env('ONE'), FILTER_VALIDATE_BOOLEAN)", json!(true)),
            ("extension_loaded('pdo_mysql') ? array_filter([PDO::MYSQL_ATTR_SSL_CA => env('NOPE')]) : []", json!([])),
            ("[isset($given['a']), isset($given['b']), empty(''), \\Foo\\Bar::class]", json!([true, false, true, "Foo\\Bar"])),
        ];
        for (expression, expected) in rows {
            let result = run(&format!("<?php return {expression};"));
            assert_eq!(result, Ok(expected), "{expression}");
        }
    }

    #[test]
    fn what_cannot_be_known_is_said_where_it_is() {
        #[rustfmt::skip]
        let rows = [
            ("['a' => foo(), 'b' => 1]", json!({"a": {UNKNOWN: "config/test.php:1: calls `foo()`"}, "b": 1})),
            ("['a' => 'x' . foo() . 'y']", json!({"a": {UNKNOWN: "config/test.php:1: calls `foo()`"}})),
            ("['a' => fn ($x) => $x['y']['z'] . '}', 'b' => static function () use ($x): int { return '}'; }]",
                json!({"a": {UNKNOWN: "config/test.php:1: a closure"}, "b": {UNKNOWN: "config/test.php:1: a closure"}})),
            ("['a' => A\\B::c()->d(['x'])->e]", json!({"a": {UNKNOWN: "config/test.php:1: calls `A\\B::c()`"}})),
            ("['a' => new \\DateTimeZone('UTC')]", json!({"a": {UNKNOWN: "config/test.php:1: makes a `\\DateTimeZone`"}})),
            ("['a' => \\Foo\\Bar::__set_state(array('x' => 1))]",
                json!({"a": {UNKNOWN: "config/test.php:1: calls `\\Foo\\Bar::__set_state()`"}})),
            ("['a' => Queue::Default]", json!({"a": {UNKNOWN: "config/test.php:1: reads the constant `Queue::Default`"}})),
            ("['a' => [Queue::Default => 1, 'b' => 2]]",
                json!({"a": {UNKNOWN: "config/test.php:1: reads the constant `Queue::Default`"}})),
            ("['a' => foo() ? 1 : 2, 'b' => foo() ? 1 : 1, 'c' => false && foo(), 'd' => 1 ?: foo()]",
                json!({"a": {UNKNOWN: "config/test.php:1: calls `foo()`"}, "b": 1, "c": false, "d": 1})),
            ("['a' => [CURLOPT_TIMEOUT => 1]]", json!({"a": {UNKNOWN: "config/test.php:1: reads the constant `CURLOPT_TIMEOUT`"}})),
            ("array_filter(['a' => foo()])", json!({UNKNOWN: "config/test.php:1: calls `foo()`"})),
            ("array_merge(['a' => foo()], ['b' => 1])", json!({"a": {UNKNOWN: "config/test.php:1: calls `foo()`"}, "b": 1})),
            ("[require __DIR__ . '/x.php', $nope, \"{$nope['x']}\"]", json!([
                {UNKNOWN: "config/test.php:1: uses `require`"},
                {UNKNOWN: "config/test.php:1: reads `$nope`"},
                {UNKNOWN: "config/test.php:1: an expression inside a text"},
            ])),
            ("\"\\xff\"", json!({UNKNOWN: "config/test.php:1: a text that is not UTF-8"})),
            ("0 == 'x'", json!({UNKNOWN: "config/test.php:1: the result of `==`"})),
        ];
        for (expression, expected) in rows {
            let result = run(&format!("<?php return {expression};"));
            assert_eq!(result, Ok(expected), "{expression}");
        }
    }

    #[test]
    fn statements_before_the_return_are_followed_as_far_as_they_can_be() {
        let unknown = |reason: &str| json!({UNKNOWN: format!("config/test.php:{reason}")});
        #[rustfmt::skip]
        let rows = [
            ("$a = 'x'; $a .= 'y'; $b = [1]; $b[] = 2; $b['k']['l'] = 3; return [$a, $b, \"{$a}z$a\"];",
                json!(["xy", {"0": 1, "1": 2, "k": {"l": 3}}, "xyzxy"])),
            ("if (env('T')) { $a = 1; } else { $a = 2; } return $a;", json!(1)),
            ("if (env('F')) $a = 1; elseif (1 > 2) $a = 2; else if (true) { $a = 3; } return $a;", json!(3)),
            ("if (env('T')) { return 1; } return 2;", json!(1)),
            ("$a = 1; if (foo()) { $a = 2; } return [$a, 3];", json!([unknown("1: calls `foo()`"), 3])),
            ("if (foo()) { return 1; } return 2;", unknown("1: returns under a condition that is not known")),
            ("foreach ([1] as $x) { $a[] = $x; } return [$a, 'b'];",
                json!([unknown("1: is after a `foreach`, which is not followed"), "b"])),
            ("putenv('A=1'); return [env('A'), 'b'];", json!([unknown("1: may have changed the environment"), "b"])),
            ("ini_set('a', '1'); function f() { return ['}']; } const C = 7; define('D', 8); return [env('ONE'), C, D];",
                json!(["1", 7, 8])),
            ("[$a, $b] = foo(); return [$a];", json!([unknown("1: is after a list assignment, which is not followed")])),
            ("namespace X; use Illuminate\\Support\\{Str as S, Env}; return [S::slug('a b'), Y::class, Env::get('ONE')];",
                json!(["a-b", "X\\Y", "1"])),
            ("use App\\Str; return [Str::slug('a b')];", json!([unknown("1: calls `Str::slug()`")])),
        ];
        for (source, expected) in rows {
            assert_eq!(run(&format!("<?php {source}")), Ok(expected), "{source}");
        }
        let tagged = "#!/usr/bin/php\n\u{feff}<?php /* a */ return [ // b ] \n 1, # c ]\n]; ?>\n";
        assert_eq!(run(tagged), Ok(json!([1])));
    }

    #[test]
    fn old_versions_have_their_own_rules() {
        let env = [("NAME", "Ёлка"), ("SCRIPT", "বাংলা"), ("QUOTED", "'x'")];
        let slug = "<?php return Str::slug(env('NAME'), '_');";
        assert_eq!(run_on(slug, 8, &env), Ok(json!("yolka")));
        assert_eq!(run_on(slug, 9, &env), Ok(json!("elka")));
        let paths = "<?php return [storage_path('/a'), public_path('/a')];";
        assert_eq!(
            run_on(paths, 9, &env),
            Ok(json!(["/srv/app/storage//a", "/srv/app/public/a"]))
        );
        for source in ["env('QUOTED')", "Str::slug(env('SCRIPT'))"] {
            let value = run_on(&format!("<?php return {source};"), 5, &env).unwrap();
            assert!(unknown_reason(&value).is_some(), "{source}: {value}");
        }
    }

    #[test]
    fn a_cached_configuration_is_what_var_export_wrote() {
        let cached = r#"<?php return array (
  'database' =>
  array (
    'default' => 'mysql',
    'redis' =>
    array (
      'options' =>
      array (
        'prefix' => 'it\'s_',
        1009 => '/ca.pem',
      ),
      'default' =>
      array (
        'password' => NULL,
        'read_timeout' => -1,
        'timeout' => 1.0E+25,
        'bytes' => 'a' . "\0" . 'b',
        'none' =>
        array (
        ),
        'zone' =>
        \DateTimeZone::__set_state(array(
           'timezone_type' => 3,
        )),
        'kind' =>
        \App\Kind::Fast,
        'plain' =>
        (object) array(
           'a' => true,
        ),
      ),
    ),
    'list' =>
    array (
      0 => 'x',
      1 => 2,
    ),
  ),
);
"#;
        let expected = json!({"database": {
            "default": "mysql",
            "list": ["x", 2],
            "redis": {
                "options": {"prefix": "it's_", "1009": "/ca.pem"},
                "default": {
                    "password": null, "read_timeout": -1, "timeout": 1e25, "bytes": "a\0b", "none": [], "plain": {"a": true},
                    "zone": {UNKNOWN: "config/test.php:22: calls `\\DateTimeZone::__set_state()`"},
                    "kind": {UNKNOWN: "config/test.php:26: reads the constant `\\App\\Kind::Fast`"},
                },
            },
        }});
        assert_eq!(run(cached), Ok(expected));
    }

    #[test]
    fn what_is_not_understood_at_all_is_an_error_with_its_line() {
        #[rustfmt::skip]
        let rows = [
            ("return 1;", "config/test.php:1: expected `<?php`"),
            ("<?php\n\nreturn [1", "config/test.php:3: expected `,`"),
            ("<?php\nreturn 'x", "config/test.php:2: a text without a closing quote"),
            ("<?php\n/* x", "config/test.php:2: a comment without an end"),
            ("<?php $a = 1;\n", "config/test.php:2: expected a `return`"),
            ("<?php return [\n1 2];", "config/test.php:2: expected `,`"),
            ("<?php return [)];", "config/test.php:1: unexpected `)`"),
            ("<?php if (1): return 1; endif;", "config/test.php:1: the `if (..):` form is not understood"),
            ("<p><?php return 1;", "config/test.php:1: expected `<?php`"),
            ("<?php $a = 1; ?> text", "config/test.php:1: text outside of PHP"),
        ];
        for (source, expected) in rows {
            let shown =
                run(source).map_or_else(|error| error.to_string(), |value| value.to_string());
            assert_eq!(shown, expected, "{source}");
        }
    }

    #[test]
    fn hostile_files_end_in_an_error() {
        let deep = [
            format!(
                "<?php return {}1{};",
                "[".repeat(10_000),
                "]".repeat(10_000)
            ),
            format!("<?php return {}1;", "-".repeat(10_000)),
            format!("<?php return {}1;", "!(".repeat(10_000)),
            format!("<?php {}", "if (1) ".repeat(10_000)),
            format!("<?php return {}1;", "1 ?? ".repeat(10_000)),
            format!("<?php $a = [1]; {} return $a;", "$a = [$a];".repeat(10_000)),
            format!("<?php $a = [1]; {} return $a;", "$a = [$a, $a];".repeat(40)),
            format!(
                "<?php $a = [1]; {} return $a;",
                "$a = [...$a, ...$a];".repeat(60)
            ),
            format!("<?php $a = 'aa'; {} return $a;", "$a = $a . $a;".repeat(60)),
            format!(
                "<?php $a = 'aa'; {} return $a;",
                "$a .= \"$a$a\";".repeat(60)
            ),
        ];
        for source in deep {
            assert!(
                run(&source).is_err(),
                "{}",
                source.get(..60).unwrap_or_default()
            );
        }
        let long = format!("<?php return {}1;", "$a[1]".repeat(10_000));
        assert!(run(&long).is_err());
        let chain = format!("<?php return 1{};", " + 1".repeat(10_000));
        assert_eq!(run(&chain), Ok(json!(10_001)));
        let path = format!("<?php $a{} = 1; return 1;", "[1]".repeat(10_000));
        assert_eq!(run(&path), Ok(json!(1)));
    }

    #[test]
    fn no_prefix_of_a_file_panics() {
        let source = "<?php use A\\{B, C as D}; $a = \"x{$b}\\u{e9}\\x4\"; if ($a) { return fn (int $x): int => $x; }\n\
            $c['é'][] = <<<X\n  y $z\n  X; return ['k' => [...$q, 1.5e3, 0x1F], PDO::X => match (1) { 1, 2 => 3 }, 'é'];";
        for (end, _) in source.char_indices() {
            let _ = run(&source[..end]);
        }
        for (start, _) in source.char_indices() {
            let _ = run(&format!("<?php return {}", &source[start..]));
        }
    }
}
