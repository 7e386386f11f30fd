//! The app's encryption key.

use serde_json::Value;

use super::Laravel;
use super::error::{SettingError, SettingResult};
use crate::payload::Encrypter;

impl Laravel {
    /// The app's encrypter.
    ///
    /// # Errors
    ///
    /// There is no key, it cannot be told, or does not fit the cipher.
    ///
    /// # Source
    ///
    /// `Illuminate\Encryption\EncryptionServiceProvider`.
    pub fn encrypter(&self) -> SettingResult<Encrypter> {
        let version = self.known_version();
        let key = match self.text(&["app", "key"]) {
            // The key that the manifest left out may be in this process's environment alone.
            Err(SettingError::Secret { path, .. }) => {
                let key = (self.env)("APP_KEY");
                Some(key.ok_or_else(|| SettingError::Secret {
                    path,
                    remedy: "set APP_KEY in the environment or in the app's .env, or write the manifest with --with-secrets".into(),
                })?)
            }
            key => key?,
        };
        let cipher = self.text(&["app", "cipher"])?;
        let cipher = cipher.as_deref().unwrap_or(Self::CIPHER);
        let encrypter = Encrypter::new(version, &key.unwrap_or_default(), cipher)?;
        if !version.is_at_least(11, 0) {
            return Ok(encrypter);
        }
        Ok(encrypter.with_previous_keys(self.previous_keys()?)?)
    }

    /// The cipher of an app that does not say.
    pub(in crate::config) const CIPHER: &str = "AES-256-CBC";

    fn previous_keys(&self) -> SettingResult<Vec<String>> {
        let path = ["app", "previous_keys"];
        let of_items = |items: Vec<&Value>| {
            let keys = items.into_iter().map(|item| self.scalar(item, &path));
            keys.map(|key| key.map(Option::unwrap_or_default)).collect()
        };
        match self.at(&path)? {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => of_items(items.iter().collect()),
            Some(Value::Object(object)) if object.contains_key("$env") => {
                Ok(split_keys(&self.secret(object, &path)?))
            }
            Some(Value::Object(items)) if !items.contains_key("$secret") => {
                of_items(items.values().collect())
            }
            Some(other) => of_items(vec![other]),
        }
    }
}

/// `APP_PREVIOUS_KEYS`, as the skeleton splits it: nothing is trimmed.
pub(in crate::config) fn split_keys(text: &str) -> Vec<String> {
    let is_filled = |key: &&str| !matches!(*key, "" | "0");
    text.split(',')
        .filter(is_filled)
        .map(str::to_owned)
        .collect()
}
