//! The databases of an app by connection name, each opened on first use.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::{Database, DatabaseOptions, Error};

/// All database connections of an app.
///
/// Each is opened once, on first use, and then shared.
#[derive(Debug, Default)]
pub struct Databases {
    default: Option<String>,
    known: BTreeMap<String, Result<DatabaseOptions, String>>,
    open: Mutex<BTreeMap<String, Database>>,
}

impl Databases {
    /// Connections by name; for an unusable connection, the reason.
    pub fn new(
        default: Option<String>,
        known: impl IntoIterator<Item = (String, Result<DatabaseOptions, String>)>,
    ) -> Self {
        Self {
            default: default.filter(|name| !name.is_empty()),
            known: known.into_iter().collect(),
            open: Mutex::default(),
        }
    }

    /// The database of a connection; the default one if no name is given.
    ///
    /// Laravel's names `NAME::read` and `NAME::write` both mean the connection that writes.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDatabase`], [`Error::Unusable`], or an error of [`Database::new`].
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn get(&self, name: Option<&str>) -> Result<Database, Error> {
        let unknown = |name: &str| Error::UnknownDatabase {
            name: name.to_owned(),
            known: self.known.keys().cloned().collect::<Vec<_>>().join(", "),
        };
        let name = name.filter(|name| !name.is_empty());
        let Some(name) = name.or(self.default.as_deref()) else {
            return Err(unknown("default"));
        };
        let name = name.split("::").next().unwrap_or_default();
        let options = match self.known.get(name) {
            Some(Ok(options)) => options,
            Some(Err(problem)) => {
                return Err(Error::Unusable {
                    name: name.to_owned(),
                    problem: problem.clone(),
                });
            }
            None => return Err(unknown(name)),
        };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = open.get(name) {
            return Ok(database.clone());
        }
        let database = Database::new(options)?;
        open.insert(name.to_owned(), database.clone());
        Ok(database)
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::connection::DatabaseKind;

    #[tokio::test]
    async fn connections_are_found_by_name_and_opened_once() {
        let options = |name: &str| DatabaseOptions {
            database: format!("/nonexistent/{name}"),
            ..DatabaseOptions::new(name, DatabaseKind::Sqlite)
        };
        let databases = Databases::new(
            Some("a".into()),
            [
                ("a".to_owned(), Ok(options("a"))),
                ("b".to_owned(), Ok(options("b"))),
                ("c".to_owned(), Err("it is sqlsrv".to_owned())),
            ],
        );
        let name = |asked| {
            let found = databases
                .get(asked)
                .map(|database| database.name().to_owned());
            found.map_err(|error| error.to_string())
        };
        let unknown = "no database connection `x` (configured: a, b, c)".to_owned();
        let unusable = "cannot use the database connection `c`: it is sqlsrv".to_owned();
        for (asked, expected) in [
            (None, Ok("a")),
            (Some(""), Ok("a")),
            (Some("b"), Ok("b")),
            (Some("b::read"), Ok("b")),
            (Some("x"), Err(unknown)),
            (Some("c"), Err(unusable)),
        ] {
            assert_eq!(name(asked), expected.map(str::to_owned), "{asked:?}");
        }
        assert_eq!(databases.open.lock().unwrap().len(), 2);
    }
}
