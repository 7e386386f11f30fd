//! What a request has to know to change something.

use std::str::FromStr;

use sha2::{Digest, Sha256};
#[cfg(feature = "cli")]
use subtle::ConstantTimeEq as _;

/// Fewest characters of a token: a guess per microsecond does not find one that long.
const SHORTEST: usize = 16;

/// What a request has to know to change something. Only its digest is kept.
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Token([u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(set)")
    }
}

/// The text is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a token has at least {SHORTEST} characters, without blanks, such as `openssl rand -hex 16` prints"
)]
pub struct TokenError;

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let is_token = text.len() >= SHORTEST && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_token
            .then(|| Self(Sha256::digest(text.as_bytes()).into()))
            .ok_or(TokenError)
    }
}

impl TryFrom<String> for Token {
    type Error = TokenError;

    fn try_from(text: String) -> Result<Self, TokenError> {
        text.parse()
    }
}

impl Token {
    /// Whether this is the token; the time it takes says nothing about it.
    #[cfg(feature = "cli")]
    pub(super) fn is(&self, said: &[u8]) -> bool {
        let said: [u8; 32] = Sha256::digest(said).into();
        said.ct_eq(&self.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_never_shown() {
        for bad in ["", "short", "with blanks 0123456789", "0123456789abcde"] {
            assert_eq!(bad.parse::<Token>(), Err(TokenError));
        }
        let token = "0123456789abcdef".parse::<Token>().unwrap();
        assert_eq!(format!("{token:?}"), "Token(set)");
    }
}
