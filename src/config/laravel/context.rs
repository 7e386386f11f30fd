//! How an app secures TLS to Redis: the options of PHP's streams.

use serde_json::Value;

use super::Laravel;
use super::error::{SettingError, SettingResult};
use crate::connection::{TlsOptions, Trust};

/// Options that change nothing of what a connection proves or shows.
const HARMLESS: [&str; 5] = [
    "SNI_enabled",
    "capture_peer_cert",
    "capture_peer_cert_chain",
    "disable_compression",
    "single_dh_use",
];

impl Laravel {
    /// What the options of PHP's streams say, which are at `path`.
    ///
    /// # Errors
    ///
    /// An option that would be silently without effect here.
    ///
    /// # Source
    ///
    /// php-src, `ext/openssl/xp_ssl.c` (`php_openssl_setup_crypto`, `php_openssl_apply_peer_verification_policy`);
    /// docs/protocol/sentinel.md 4.
    pub(super) fn tls_of_context(
        &self,
        context: Option<&Value>,
        path: &[&str],
    ) -> SettingResult<TlsOptions> {
        let mut tls = TlsOptions::default();
        let Some(context) = context.filter(|context| !context.is_null()) else {
            return Ok(tls);
        };
        self.known(context, path)?;
        for (key, value) in context.as_object().into_iter().flatten() {
            let path = [path, &[key.as_str()]].concat();
            let Some(text) = self.scalar(value, &path)? else {
                continue;
            };
            let is_true = !matches!(text.as_str(), "" | "0");
            let file = || (!text.is_empty()).then(|| self.base.join(&text));
            match key.as_str() {
                "verify_peer" if !is_true => tls.trust = Trust::Nothing,
                // PHP accepts any certificate that signed itself. An attacker between both sides can make one, too.
                "allow_self_signed" if is_true => tls.trust = Trust::Nothing,
                "verify_peer_name" if !is_true && tls.trust == Trust::Name => {
                    tls.trust = Trust::AnyName;
                }
                "verify_peer" | "allow_self_signed" | "verify_peer_name" => {}
                "cafile" => tls.authorities = file(),
                "local_cert" => tls.certificate = file(),
                "local_pk" => tls.key = file(),
                "peer_name" => tls.name = Some(text).filter(|name| !name.is_empty()),
                "passphrase" | "capath" if text.is_empty() => {}
                other if HARMLESS.contains(&other) => {}
                _ => return Err(unsupported(&path)),
            }
        }
        if tls.trust == Trust::Nothing {
            tls.name = None;
        }
        Ok(tls)
    }
}

fn unsupported(path: &[&str]) -> SettingError {
    let instead = match path.last() {
        Some(&"passphrase") => "a key without a passphrase",
        Some(&"capath") => "`cafile`, one file with the authorities",
        _ => {
            "none of the kind: artisand knows verify_peer, verify_peer_name, allow_self_signed, cafile, local_cert, local_pk and peer_name"
        }
    };
    SettingError::Wrong {
        path: path.join("."),
        found: "an option that artisand would not obey".into(),
        expected: instead.into(),
    }
}

/// Where a connection keeps these options: below `ssl` for predis, below `context` and `stream` for phpredis, which
/// takes no notice of what is in `context` itself.
pub(super) fn place_of_context(is_predis: bool) -> (&'static str, &'static [&'static str]) {
    if is_predis {
        ("ssl", &[])
    } else {
        ("context", &["stream"])
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;
    use crate::config::laravel::tests::laravel;

    #[test]
    fn options_of_streams_are_obeyed_or_refused() {
        let of = |context: Value| {
            let app = laravel("13.0", json!({}));
            let found = app.tls_of_context(Some(&context), &["context", "stream"]);
            found.map_err(|error| error.to_string())
        };
        let trust = |trust| TlsOptions {
            trust,
            ..TlsOptions::default()
        };
        let path = |path: &str| Some(PathBuf::from(path));
        #[rustfmt::skip]
        let rows = [
            (json!(null), TlsOptions::default()),
            (json!([]), TlsOptions::default()),
            (json!({"verify_peer": true, "verify_peer_name": 1, "allow_self_signed": false, "passphrase": null}), TlsOptions::default()),
            (json!({"verify_peer": false}), trust(Trust::Nothing)),
            (json!({"verify_peer_name": "0", "verify_peer": 0, "peer_name": "x"}), trust(Trust::Nothing)),
            (json!({"verify_peer_name": false, "disable_compression": true}), trust(Trust::AnyName)),
            (json!({"allow_self_signed": true}), trust(Trust::Nothing)),
            (json!({"cafile": "/ca.pem", "local_cert": "cert.pem", "local_pk": "/key.pem", "peer_name": "redis"}), TlsOptions {
                trust: Trust::Name, authorities: path("/ca.pem"), certificate: path("/app/cert.pem"),
                key: path("/key.pem"), name: Some("redis".into()),
            }),
        ];
        for (context, expected) in rows {
            assert_eq!(of(context.clone()), Ok(expected), "{context}");
        }
        for (key, expected) in [
            ("passphrase", "a key without a passphrase"),
            ("capath", "`cafile`"),
            ("ciphers", "none of the kind"),
            ("peer_fingerprint", "none of the kind"),
        ] {
            let error = of(json!({key: "x"})).unwrap_err();
            let begin = format!("`context.stream.{key}` of the app is an option that artisand");
            assert!(
                error.starts_with(&begin) && error.contains(expected),
                "{error}"
            );
        }
    }
}
