//! Hashes of keys.

use std::fmt::Write as _;

use md5::{Digest as _, Md5};

/// PHP's `md5()`: 32 lowercase digits.
pub(super) fn md5(text: &str) -> String {
    let mut digits = String::with_capacity(32);
    for byte in Md5::digest(text.as_bytes()) {
        // Writing to a `String` cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}
