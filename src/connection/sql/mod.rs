//! One SQL database of the app: `SQLite`, `MySQL`, `MariaDB` or `PostgreSQL`.
//!
//! Statements are written once, with identifiers in double quotes and parameters as `?`; differences between
//! servers are translated. Values are read as text ([`Database::as_text`]), because the types of Laravel's columns
//! changed over the versions and only their text did not. Tables of the app's own are read as [`Record`]s, which
//! have names and types.
//!
//! [`database`] has all that servers have in common; a [`driver`] is a file per kind of server, behind a feature.

mod database;
mod driver;
mod error;
mod failed_job;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
mod failure;
#[cfg(not(any(feature = "sqlite", feature = "mysql", feature = "postgres")))]
#[path = "no_failure.rs"]
mod failure;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
mod inside;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod literal;
#[cfg(feature = "mysql")]
mod mysql;
mod options;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod read_only;
mod row;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
mod statement;
mod tries;

pub use database::{Database, Transaction};
pub use error::SqlError;
pub use failed_job::FailedJobsTable;
pub(crate) use failed_job::{local_text, storable};
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub use inside::SqlConnection;
pub use options::{DatabaseKind, DatabaseOptions};
pub use row::{Param, Row};
pub(crate) use tries::Tries;
