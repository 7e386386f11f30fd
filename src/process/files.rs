//! How many files this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Enough for thousands of programs with their pipes. Programs inherit the limit, and some close all numbers up to it
/// when they start.
const MOST_FILES: u64 = 65_536;

/// Raises the limit of open files as far as this process may, or to as many as a worker can need.
///
/// Programs that it starts from now on inherit the limit.
pub fn raise_file_limit() {
    if let Some(limit) = raised(getrlimit(Resource::Nofile)) {
        // Where it is refused, the old limit holds.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// The limit to set; `None` if the given one suffices.
fn raised(limit: Rlimit) -> Option<Rlimit> {
    let most = limit
        .maximum
        .map_or(MOST_FILES, |hard| hard.min(MOST_FILES));
    let is_low = limit.current.is_some_and(|soft| soft < most);
    is_low.then_some(Rlimit {
        current: Some(most),
        ..limit
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_to_the_hard_one_and_never_lowered() {
        #[rustfmt::skip]
        let rows = [
            // soft, hard => set to
            (Some(1024),    Some(4096),    Some(4096)),
            (Some(1024),    Some(524_288), Some(MOST_FILES)),
            (Some(1024),    None,          Some(MOST_FILES)),
            (Some(4096),    Some(4096),    None),
            (Some(100_000), Some(524_288), None),
            (None,          None,          None),
        ];
        for (current, maximum, expected) in rows {
            let found = raised(Rlimit { current, maximum });
            let soft = found.as_ref().and_then(|limit| limit.current);
            assert_eq!(soft, expected, "{current:?} {maximum:?}");
            assert!(found.is_none_or(|limit| limit.maximum == maximum));
        }
    }
}
