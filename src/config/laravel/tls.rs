//! What PDO's options say of TLS.

use serde_json::Value;

use super::Laravel;
use super::error::{SettingError, SettingResult};

/// What a database connection says of TLS, as text.
#[derive(Default)]
pub(super) struct Tls {
    pub(super) mode: Option<String>,
    pub(super) ca: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
}

impl Laravel {
    /// What PDO's options say of TLS: any of them asks for it, and the server is verified unless they say otherwise.
    ///
    /// # Source
    ///
    /// php-src, `ext/pdo_mysql/mysql_driver.c` (`pdo_mysql_handle_factory`) and `mysqlnd_vio.c` (`enable_ssl`).
    pub(super) fn mysql_tls(
        &self,
        options: Option<&Value>,
        connection: &str,
    ) -> SettingResult<Tls> {
        let path = |name| ["database", "connections", connection, "options", name];
        let Some(options) = options else {
            return Ok(Tls::default());
        };
        self.known(options, &path("")[..4])?;
        // By the number that it has in every PHP with mysqlnd.
        let option = |name: &'static str, number: &str| {
            let value = options.get(number);
            let text = value.map(|value| self.scalar(value, &path(name)));
            // Null counts as set, and is as good as an empty text.
            SettingResult::Ok(text.transpose()?.map(Option::unwrap_or_default))
        };
        for (name, number) in [
            ("PDO::MYSQL_ATTR_SSL_CAPATH", "1010"),
            ("PDO::MYSQL_ATTR_SSL_CIPHER", "1011"),
        ] {
            if let Some(found) = option(name, number)? {
                return Err(SettingError::Wrong {
                    path: path(name).join("."),
                    found: format!("`{found}`"),
                    expected: "no such option, because artisand does not support it: name the certificate authority in PDO::MYSQL_ATTR_SSL_CA".into(),
                });
            }
        }
        let ca = option("PDO::MYSQL_ATTR_SSL_CA", "1009")?;
        let cert = option("PDO::MYSQL_ATTR_SSL_CERT", "1008")?;
        let key = option("PDO::MYSQL_ATTR_SSL_KEY", "1007")?;
        let verify = option("PDO::MYSQL_ATTR_SSL_VERIFY_SERVER_CERT", "1014")?;
        let is_asked_for = ca.is_some() || cert.is_some() || key.is_some();
        let is_verified = !matches!(verify.as_deref(), Some("" | "0"));
        let mode = if is_verified {
            "verify-full"
        } else {
            "require"
        };
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        Ok(Tls {
            mode: is_asked_for.then(|| mode.to_owned()),
            ca: filled(ca),
            cert: filled(cert),
            key: filled(key),
        })
    }
}
