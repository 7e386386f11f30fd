//! Errors of drivers, in a build that has none.

/// An error of a driver: there is none.
#[derive(Debug, thiserror::Error)]
pub enum Failure {}

pub(super) fn is_pool_timeout(failure: &Failure) -> bool {
    match *failure {}
}

pub(super) fn is_duplicate(failure: &Failure) -> bool {
    match *failure {}
}

pub(super) fn is_lock_conflict(failure: &Failure) -> bool {
    match *failure {}
}

pub(super) fn is_missing_table(failure: &Failure) -> bool {
    match *failure {}
}

pub(super) fn is_no_moment(failure: &Failure) -> bool {
    match *failure {}
}

pub(super) fn is_read_only(failure: &Failure) -> bool {
    match *failure {}
}

pub(super) fn is_reply_lost(failure: &Failure) -> bool {
    match *failure {}
}

pub(super) fn is_lost(failure: &Failure) -> bool {
    match *failure {}
}
