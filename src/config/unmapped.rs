//! The `[unmapped]` table of `artisand.toml`.

use serde::Deserialize;
use toml::Spanned;

use crate::routing::UnmappedPolicy;

/// `[unmapped]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnmappedTable {
    policy: Option<Spanned<String>>,
    queue: Option<String>,
}

impl UnmappedTable {
    pub(super) fn offset(&self) -> usize {
        self.policy.as_ref().map_or(0, |policy| policy.span().start)
    }

    /// The policy as it is written; `None` if it is not.
    pub(super) fn to_policy(&self) -> Result<Option<UnmappedPolicy>, String> {
        let policy = self.policy.as_ref().map(Spanned::get_ref);
        let policy = match (policy.map(String::as_str), &self.queue) {
            (None, None) => return Ok(None),
            (Some("php"), None) => UnmappedPolicy::Php,
            (Some("leave"), None) => UnmappedPolicy::Leave,
            (Some("fail"), None) => UnmappedPolicy::Fail,
            (Some("forward"), Some(queue)) if !queue.is_empty() => {
                UnmappedPolicy::Forward(queue.as_str().into())
            }
            (Some("forward"), _) => {
                return Err("policy `forward` needs a `queue` to forward to".into());
            }
            (None | Some("php" | "leave" | "fail"), Some(_)) => {
                return Err("`queue` goes with policy `forward` only".into());
            }
            (Some(other), _) => {
                return Err(format!(
                    "unknown policy `{other}` (there are: php, leave, forward, fail)"
                ));
            }
        };
        Ok(Some(policy))
    }
}
