//! The cache store that keeps payloads too long for a message of SQS (`overflow`, Laravel 13.9).

use std::fmt;

use crate::cache::Cache;
use crate::php::Value;
use crate::queue::{Answer, PayloadStore, StoreProblem};

/// A cache store of the app, as the place of payloads.
pub(super) struct CachedPayloads(pub(super) Cache);

impl fmt::Debug for CachedPayloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.describe())
    }
}

impl PayloadStore for CachedPayloads {
    fn get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<String>, StoreProblem> {
        Box::pin(async move {
            Ok(match self.0.get(key).await? {
                Some(Value::String(payload)) => String::from_utf8(payload).ok(),
                _ => None,
            })
        })
    }

    fn put<'a>(&'a self, key: &'a str, payload: &'a str) -> Answer<'a, (), StoreProblem> {
        Box::pin(async move {
            let payload = Value::String(payload.as_bytes().to_vec());
            Ok(self.0.forever(key, &payload).await?)
        })
    }

    fn forget<'a>(&'a self, key: &'a str) -> Answer<'a, (), StoreProblem> {
        Box::pin(async move { Ok(self.0.forget(key).await.map(drop)?) })
    }
}
