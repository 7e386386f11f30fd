//! What an error of a driver means.

use sqlx::error::DatabaseError;

/// An error of a driver.
pub(super) use sqlx::Error as Failure;

pub(super) fn is_pool_timeout(failure: &Failure) -> bool {
    matches!(failure, sqlx::Error::PoolTimedOut)
}

pub(super) fn is_duplicate(failure: &Failure) -> bool {
    failure
        .as_database_error()
        .is_some_and(DatabaseError::is_unique_violation)
}

/// Whether the server says that another transaction was in the way.
pub(super) fn is_lock_conflict(failure: &Failure) -> bool {
    let Some(error) = failure.as_database_error() else {
        return false;
    };
    if let Some(number) = mysql_number(error) {
        // Lock wait timeout, deadlock, changed since it was read (MariaDB), no wait.
        return matches!(number, 1205 | 1213 | 1020 | 3572);
    }
    let code = error.code().unwrap_or_default();
    if code.len() == 5 {
        return matches!(&*code, "40001" | "40P01" | "55P03");
    }
    // SQLite: busy, locked; the low byte is the kind.
    let kind = code.parse::<u32>().map_or(0, |code| code & 0xff);
    matches!(kind, 5 | 6)
}

pub(super) fn is_missing_table(failure: &Failure) -> bool {
    let Some(error) = failure.as_database_error() else {
        return false;
    };
    if let Some(number) = mysql_number(error) {
        return number == 1146;
    }
    // SQLite has no number for it.
    error.code().as_deref() == Some("42P01") || error.message().starts_with("no such table")
}

/// Whether a moment is refused, such as one in the hour that a change to summer time skips.
pub(super) fn is_no_moment(failure: &Failure) -> bool {
    failure
        .as_database_error()
        .is_some_and(|error| mysql_number(error) == Some(1292))
}

/// Whether the server refuses to write at all: another one may have taken its place.
pub(super) fn is_read_only(failure: &Failure) -> bool {
    let Some(error) = failure.as_database_error() else {
        return false;
    };
    if let Some(number) = mysql_number(error) {
        return matches!(number, 1290 | 1836);
    }
    error.code().as_deref() == Some("25006")
}

/// Whether the statement may have been sent, and there is no reply.
pub(super) fn is_reply_lost(failure: &Failure) -> bool {
    matches!(
        failure,
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed
    )
}

/// Whether another connection, or the same one later, may do better.
pub(super) fn is_lost(failure: &Failure) -> bool {
    match failure {
        sqlx::Error::Database(error) => is_outage(&**error),
        sqlx::Error::RowNotFound
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::Encode(_)
        | sqlx::Error::TypeNotFound { .. } => false,
        _ => true,
    }
}

/// Whether the server's error concerns more than this one statement.
fn is_outage(error: &dyn DatabaseError) -> bool {
    if let Some(number) = mysql_number(error) {
        // Connections, resources, shutdown, locks, read only, disk full; no right to it, or no such database or table.
        const OUTAGES: [u16; 18] = [
            1040, 1203, 1037, 1041, 1053, 1205, 1213, 1290, 1836, 1021, 1030, 1114, 1044, 1045,
            1049, 1054, 1142, 1146,
        ];
        return OUTAGES.contains(&number);
    }
    let code = error.code().unwrap_or_default();
    if code.len() == 5 {
        // PostgreSQL: connection, read only, login, database, rollback and deadlock, resources, operators, system.
        let classes = ["08", "25", "28", "3D", "40", "53", "57", "58"];
        // No such table, no such column, no right to it; a lock that was waited for too long.
        let whole = ["42P01", "42703", "42501", "55P03"];
        return classes.iter().any(|class| code.starts_with(class)) || whole.contains(&&*code);
    }
    // SQLite: no such table or column, busy, locked, read only, I/O, full, cannot open; the low byte is the kind.
    let kind = code.parse::<u32>().map_or(0, |code| code & 0xff);
    matches!(kind, 1 | 5 | 6 | 8 | 10 | 13 | 14)
}

/// The number of an error of `MySQL`.
#[cfg(feature = "mysql")]
fn mysql_number(error: &dyn DatabaseError) -> Option<u16> {
    let error = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>();
    error.map(sqlx::mysql::MySqlDatabaseError::number)
}

#[cfg(not(feature = "mysql"))]
fn mysql_number(_: &dyn DatabaseError) -> Option<u16> {
    None
}
