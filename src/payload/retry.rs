//! The payload of a failed job as `queue:retry` pushes it again.
//!
//! Laravel decodes the payload to PHP arrays, sets `attempts` to zero and encodes
//! it with PHP's default flags. This module reproduces the effects on the text:
//! non-ASCII becomes `\uXXXX`, `/` becomes `\/`, `{}` becomes `[]`, an object
//! with the keys 0, 1, .. becomes a list, `1.0` becomes `1`, and an integer
//! beyond 64 bits a float.

use crate::time::Micros;

use super::json::Reader;
use super::json_value::{Json, Key};

/// The payload of a failed job, ready to be pushed again: `attempts` is zero.
///
/// `retryUntil` stays unchanged; only the PHP class could compute a new one. In an app with Horizon, `pushed_at` is the
/// moment of the push: Horizon does not look at the object of a job that is pushed again, so that it becomes a plain
/// `job` with the tags that it had.
///
/// # Errors
///
/// The payload is not a JSON object.
///
/// # Source
///
/// `Illuminate\Queue\Console\RetryCommand::resetAttempts`.
pub fn for_retry(payload: &[u8], pushed_at: Option<Micros>) -> Result<Vec<u8>, super::Error> {
    let mut reader = Reader::new(payload)?;
    let mut json = Json::read(&mut reader)?;
    reader.end()?;
    if let Json::Array(items) = &mut json {
        for (key, value) in items.iter_mut() {
            if *key == Key::Text("attempts".into()) && *value != Json::Null {
                *value = Json::Int(0);
            }
        }
        if let Some(pushed_at) = pushed_at {
            let has_tags = items
                .iter()
                .any(|(key, _)| *key == Key::Text("tags".into()));
            set(items, "type", Json::Text("job".into()));
            if !has_tags {
                set(items, "tags", Json::Array(Vec::new()));
            }
            set(items, "silenced", Json::Bool(false));
            set(items, "pushedAt", Json::Text(pushed_at.to_string()));
        }
    }
    let mut text = String::with_capacity(payload.len() + 64);
    json.write(&mut text);
    Ok(text.into_bytes())
}

fn set(items: &mut Vec<(Key, Json)>, name: &str, value: Json) {
    let key = Key::Text(name.to_owned());
    match items.iter_mut().find(|(known, _)| *known == key) {
        Some(item) => item.1 = value,
        None => items.push((key, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_written_anew_as_php_writes_it() {
        #[rustfmt::skip]
        let rows = [
            (r#"{"u":"é","s":"a/b","e":{},"f":1.0,"attempts":3,"nul":"\u0000*\u0000x"}"#,
             r#"{"u":"\u00e9","s":"a\/b","e":[],"f":1,"attempts":0,"nul":"\u0000*\u0000x"}"#),
            (r#"{"a":{"0":1,"1":2},"b":{"1":1},"n":12345678901234567890,"attempts":null}"#,
             r#"{"a":[1,2],"b":{"1":1},"n":1.2345678901234567e+19,"attempts":null}"#),
            (r#"{"a":1,"b":2,"a":3,"x":[0.1,1e3,-0.0,-0,true,"😀"]}"#,
             r#"{"a":3,"b":2,"x":[0.1,1000,-0,0,true,"\ud83d\ude00"]}"#),
        ];
        for (payload, expected) in rows {
            let text = for_retry(payload.as_bytes(), None).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
        let horizon = for_retry(
            br#"{"type":"mail","attempts":2,"silenced":true}"#,
            Some(Micros(1_500_000)),
        );
        assert_eq!(
            String::from_utf8(horizon.unwrap()).unwrap(),
            r#"{"type":"job","attempts":0,"silenced":false,"tags":[],"pushedAt":"1.5"}"#
        );
        assert!(for_retry(b"{\"a\":", None).is_err());
        let deep = "[".repeat(600) + &"]".repeat(600);
        assert!(for_retry(deep.as_bytes(), None).is_err());
    }
}
