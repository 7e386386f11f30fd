//! Names of the locks and counters that jobs have in the cache, by version of Laravel.
//!
//! Pure functions. `display_name` is the result of the job's `displayName()`; it
//! is `None` for a class without that method, for which the payload's
//! `displayName` is the class. No name includes the store's prefix.
//!
//! # Source
//!
//! `Illuminate\Bus\UniqueLock::getKey`, `Illuminate\Bus\DebounceLock::getKey`,
//! `Illuminate\Queue\Middleware\WithoutOverlapping::getLockKey`,
//! `Illuminate\Queue\Middleware\ThrottlesExceptions::getKey`,
//! `Illuminate\Queue\Middleware\RateLimited::handle`
//! (docs/protocol/cache.md 8, 9, 10.1, 10.3, 12).

use md5::{Digest as _, Md5};
use xxhash_rust::xxh3::xxh3_128;

use crate::payload::Version;
use crate::shown::hex;

/// Default prefix, which `withPrefix` of `WithoutOverlapping` replaces.
pub const OVERLAP_PREFIX: &str = "laravel-queue-overlap:";
/// Default prefix, which `withPrefix` of `ThrottlesExceptions` replaces.
pub const THROTTLE_PREFIX: &str = "laravel_throttles_exceptions:";

/// PHP's `md5()`: 32 lowercase digits.
pub fn md5(text: &str) -> String {
    hex(&Md5::digest(text.as_bytes()))
}

/// PHP's `hash('xxh128', ..)`: XXH3 of 128 bits without a seed, 32 lowercase digits.
pub fn xxh128(text: &str) -> String {
    format!("{:032x}", xxh3_128(text.as_bytes()))
}

/// The part of a lock's name that identifies the class.
fn class_part(version: Version, class: &str, display_name: Option<&str>) -> String {
    match display_name {
        Some(name) if version.is_at_least(12, 54) => xxh128(name),
        Some(name) if version.is_at_least(12, 41) => name.to_owned(),
        _ => class.to_owned(),
    }
}

/// Name of the lock of a unique job (Laravel 8.14 and later); `id` is its `uniqueId`, empty without one.
pub fn unique_lock(version: Version, class: &str, display_name: Option<&str>, id: &str) -> String {
    let class = class_part(version, class, display_name);
    // Before Laravel 11 there is no separator: `A` with id `B1` and `AB` with id `1` share a lock.
    let separator = if version.is_at_least(11, 0) { ":" } else { "" };
    format!("laravel_unique_job:{class}{separator}{id}")
}

/// Name of the lock of `WithoutOverlapping`.
pub fn overlap_lock(
    version: Version,
    prefix: &str,
    class: &str,
    display_name: Option<&str>,
    key: &str,
) -> String {
    let class = class_part(version, class, display_name);
    format!("{prefix}{class}:{key}")
}

/// Name of the lock of `WithoutOverlapping` that jobs of several classes share (`shared()`, Laravel 9.32 and later).
pub fn shared_overlap_lock(prefix: &str, key: &str) -> String {
    format!("{prefix}{key}")
}

/// Name of the counter of `ThrottlesExceptions` that all jobs of a class share.
///
/// With `by()` or `byJob()` the name is instead the prefix followed by the given key or the uuid.
pub fn throttle_counter(
    version: Version,
    prefix: &str,
    class: &str,
    display_name: Option<&str>,
) -> String {
    let hash = if !version.is_at_least(12, 0) {
        md5(class)
    } else if version.is_at_least(12, 41) {
        xxh128(display_name.unwrap_or(class))
    } else {
        xxh128(class)
    };
    format!("{prefix}{hash}")
}

/// Name of the counter of `RateLimited`, made from the limiter's name and the limit's key.
pub fn limit_counter(limiter: &str, by: &str) -> String {
    md5(&format!("{limiter}{by}"))
}

/// Name of the key that holds the owner of a debounced job (Laravel 13.6 and later).
pub fn debounce_owner(class: &str, display_name: Option<&str>, id: &str) -> String {
    let class = display_name.map_or_else(|| class.to_owned(), xxh128);
    format!("laravel_debounced_job:{class}:{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMP: &str = "App\\Jobs\\Imp";
    const NICE: Option<&str> = Some("Nice Name");
    /// The hash of `Nice Name`.
    const HASH: &str = "180a7181531b10947f521e87aca6c302";

    fn v(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn hashes_are_phps() {
        assert_eq!(xxh128("Nice Name"), HASH);
        assert_eq!(xxh128(IMP), "2b6da8dbb4bb6fee543b36df35c11a06");
        assert_eq!(md5(IMP), "8ad2373166c47012f29c0d08a3ee3bca");
        assert_eq!(
            limit_counter("backups", ""),
            "aa5c56f3208b58a5a8cfc5a7e25ebee2"
        );
    }

    #[test]
    fn unique_locks_have_four_forms() {
        let hashed = format!("laravel_unique_job:{HASH}:x");
        #[rustfmt::skip]
        let rows = [
            ("8.83.26", None, "prod-7", "laravel_unique_job:App\\Jobs\\Impprod-7"),
            ("10.48.29", NICE, "", "laravel_unique_job:App\\Jobs\\Imp"),
            ("11.0.0", NICE, "prod-7", "laravel_unique_job:App\\Jobs\\Imp:prod-7"),
            ("12.40.2", NICE, "", "laravel_unique_job:App\\Jobs\\Imp:"),
            ("12.41.0", NICE, "x", "laravel_unique_job:Nice Name:x"),
            ("12.53.0", None, "x", "laravel_unique_job:App\\Jobs\\Imp:x"),
            ("12.54.0", NICE, "x", hashed.as_str()),
            ("13.31.0", None, "", "laravel_unique_job:App\\Jobs\\Imp:"),
        ];
        for (version, display_name, id, expected) in rows {
            assert_eq!(unique_lock(v(version), IMP, display_name, id), expected);
        }
    }

    #[test]
    fn overlap_locks_name_the_class_as_their_version_does() {
        let hashed = format!("laravel-queue-overlap:{HASH}:k");
        #[rustfmt::skip]
        let rows = [
            ("8.83.26", NICE, "laravel-queue-overlap:App\\Jobs\\Imp:k"),
            ("12.41.0", NICE, "laravel-queue-overlap:Nice Name:k"),
            ("13.31.0", None, "laravel-queue-overlap:App\\Jobs\\Imp:k"),
            ("13.31.0", NICE, hashed.as_str()),
        ];
        for (version, display_name, expected) in rows {
            let name = overlap_lock(v(version), OVERLAP_PREFIX, IMP, display_name, "k");
            assert_eq!(name, expected);
        }
        assert_eq!(shared_overlap_lock("mine:", "k"), "mine:k");
    }

    #[test]
    fn throttles_are_counted_under_three_hashes() {
        #[rustfmt::skip]
        let rows = [
            ("8.83.26", NICE, "8ad2373166c47012f29c0d08a3ee3bca"),
            ("11.51.0", None, "8ad2373166c47012f29c0d08a3ee3bca"),
            ("12.0.0",  NICE, "2b6da8dbb4bb6fee543b36df35c11a06"),
            ("13.31.0", None, "2b6da8dbb4bb6fee543b36df35c11a06"),
            ("12.41.0", NICE, HASH),
        ];
        for (version, display_name, hash) in rows {
            let name = throttle_counter(v(version), THROTTLE_PREFIX, IMP, display_name);
            assert_eq!(name, format!("laravel_throttles_exceptions:{hash}"));
        }
    }

    #[test]
    fn debounced_jobs_have_one_form() {
        assert_eq!(
            debounce_owner(IMP, None, "7"),
            "laravel_debounced_job:App\\Jobs\\Imp:7"
        );
        assert_eq!(
            debounce_owner(IMP, NICE, ""),
            format!("laravel_debounced_job:{HASH}:")
        );
    }
}
