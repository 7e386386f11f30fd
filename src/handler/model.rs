//! Models of the app in jobs: their identifiers, and their rows in the database.
//!
//! A job contains no model, only a [`ModelIdentifier`]: class, key, connection.
//! PHP reads the row when the job is unserialized; a handler here asks for the
//! row, read into a type of its own. Only the app's PHP code knows which table
//! and key belong to a class; the manifest records both.
//!
//! Rows are read as in PHP (docs/protocol/commands.md 5): on the connection that
//! the identifier names or else the default one, on the write server, and without
//! global scopes, so that soft-deleted rows are found. Relations are left to the
//! handler.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::app;
use crate::connection::{self, Database, Databases, Param, Record, RecordError};

/// The placeholder in a job for a model, or for a collection of models.
///
/// All versions of the serialized object can be read, with three, four or five
/// fields. As a field of a handler's struct:
///
/// ```
/// use artisand::handler::{ModelId, ModelIdentifier, ModelKey};
///
/// #[derive(serde::Deserialize)]
/// struct ProcessPodcast {
///     podcast: ModelIdentifier,
/// }
///
/// let text = concat!(
///     r#"O:1:"P":1:{s:7:"podcast";O:45:"Illuminate\Contracts\Database\ModelIdentifier":2:"#,
///     r#"{s:5:"class";s:11:"App\Podcast";s:2:"id";i:7;}}"#,
/// );
/// let job: ProcessPodcast = artisand::php::from_slice(text.as_bytes())?;
/// assert_eq!(job.podcast.class.as_deref(), Some("App\\Podcast"));
/// assert_eq!(job.podcast.id, ModelId::Single(ModelKey::Int(7)));
/// # Ok::<(), artisand::php::Error>(())
/// ```
///
/// # Source
///
/// `Illuminate\Contracts\Database\ModelIdentifier`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(
    rename = "Illuminate\\Contracts\\Database\\ModelIdentifier",
    rename_all = "camelCase"
)]
pub struct ModelIdentifier {
    /// Class of the model, or its morph alias; `None` for an empty collection.
    #[serde(default, alias = "$model")]
    pub class: Option<String>,
    /// Its key, or the keys of a collection.
    #[serde(default)]
    pub id: ModelId,
    /// Names of the relations that were loaded, nested ones with dots.
    #[serde(default, deserialize_with = "relations")]
    pub relations: Vec<String>,
    /// Database connection; the default connection if `None`.
    #[serde(default)]
    pub connection: Option<String>,
    /// Class of the collection, if it is not Eloquent's own.
    #[serde(default)]
    pub collection_class: Option<String>,
}

/// Key of a model, or keys of a collection; PHP distinguishes the two by this.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ModelId {
    /// A model that was never saved.
    #[default]
    Missing,
    /// One model.
    Single(ModelKey),
    /// A collection, in order.
    Collection(Vec<ModelKey>),
}

/// Key of a model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ModelKey {
    /// A number.
    Int(i64),
    /// Text: a UUID, a ULID, or a pivot's `foreignKey:value:relatedKey:value`.
    Text(String),
}

impl fmt::Display for ModelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(key) => write!(f, "{key}"),
            Self::Text(key) => f.write_str(key),
        }
    }
}

/// Reads names from a list that may have gaps, or from null.
fn relations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Names;

    impl<'de> Visitor<'de> for Names {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of relations")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut names = Vec::new();
            while let Some(name) = seq.next_element()? {
                names.push(name);
            }
            Ok(names)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut names = Vec::new();
            while let Some((_, name)) = map.next_entry::<String, _>()? {
                names.push(name);
            }
            Ok(names)
        }
    }

    deserializer.deserialize_any(Names)
}

impl Serialize for ModelKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Int(key) => serializer.serialize_i64(*key),
            Self::Text(key) => serializer.serialize_str(key),
        }
    }
}

impl Serialize for ModelId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Missing => serializer.serialize_unit(),
            Self::Single(key) => key.serialize(serializer),
            Self::Collection(keys) => keys.serialize(serializer),
        }
    }
}

impl ModelIdentifier {
    /// The saved model of this class and key; its connection is the class's own.
    pub fn of(class: impl Into<String>, key: impl Into<ModelKey>) -> Self {
        Self {
            class: Some(class.into()),
            id: ModelId::Single(key.into()),
            relations: Vec::new(),
            connection: None,
            collection_class: None,
        }
    }
}

impl From<i64> for ModelKey {
    fn from(key: i64) -> Self {
        Self::Int(key)
    }
}

impl From<&str> for ModelKey {
    fn from(key: &str) -> Self {
        Self::Text(key.to_owned())
    }
}

impl<'de> Deserialize<'de> for ModelId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IdVisitor)
    }
}

struct IdVisitor;

impl<'de> Visitor<'de> for IdVisitor {
    type Value = ModelId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the key of a model, or a list of keys")
    }

    fn visit_unit<E>(self) -> Result<ModelId, E> {
        Ok(ModelId::Missing)
    }

    fn visit_i64<E>(self, key: i64) -> Result<ModelId, E> {
        Ok(ModelId::Single(ModelKey::Int(key)))
    }

    fn visit_u64<E>(self, key: u64) -> Result<ModelId, E> {
        let key =
            i64::try_from(key).map_or_else(|_| ModelKey::Text(key.to_string()), ModelKey::Int);
        Ok(ModelId::Single(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<ModelId, E> {
        Ok(ModelId::Single(ModelKey::Text(key.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ModelId, A::Error> {
        let mut keys = Vec::new();
        while let Some(key) = seq.next_element()? {
            push(&mut keys, key)?;
        }
        Ok(ModelId::Collection(keys))
    }

    // PHP copies the keys of the array from the collection: they may be anything.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ModelId, A::Error> {
        let mut keys = Vec::new();
        while let Some((_, key)) = map.next_entry::<String, _>()? {
            push(&mut keys, key)?;
        }
        Ok(ModelId::Collection(keys))
    }
}

/// Adds a key to the keys of a collection.
fn push<E: serde::de::Error>(keys: &mut Vec<ModelKey>, id: ModelId) -> Result<(), E> {
    match id {
        // A model of the collection that was never saved has no row.
        ModelId::Missing => {}
        ModelId::Single(key) => keys.push(key),
        ModelId::Collection(_) => {
            return Err(E::invalid_type(
                serde::de::Unexpected::Seq,
                &"the key of a model",
            ));
        }
    }
    Ok(())
}

/// A model whose row is gone.
///
/// A handler that returns it, directly or as the cause of another error, ends its
/// job as Laravel ends one whose model is gone: deleted if its class sets
/// `deleteWhenMissingModels`, and failed at once otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
// The text of Laravel's exception, which names no key here.
#[error("No query results for model [{class}].")]
pub struct ModelNotFound {
    /// Class of the model.
    pub class: String,
    /// The model's key; `None` for a model that was never saved.
    pub key: Option<ModelKey>,
}

impl ModelNotFound {
    /// Finds a `ModelNotFound` in an error and its causes.
    pub fn within<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            cause = error.source();
        }
        None
    }
}

/// An error from reading a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// There is no such row. The source repeats the value, so that it is found even through an error that displays
    /// as this one.
    #[error("{0}")]
    NotFound(#[source] ModelNotFound),
    /// The tables of the models are unknown.
    #[error("the tables of models are not known: let PHP write them down with `artisand manifest`")]
    NoManifest,
    /// The manifest does not list this class.
    #[error("the manifest has no model `{class}`: write it again with `artisand manifest`")]
    Unknown {
        /// Class or morph alias in the job.
        class: String,
    },
    /// The app loads this model by a query of its own.
    #[error(
        "`{class}` is loaded by its own `newQueryForRestoration()`, which only PHP can run: take the id, or leave such jobs to PHP"
    )]
    OwnQuery {
        /// Class of the model.
        class: String,
    },
    /// The model has no key that is one column.
    #[error(
        "`{class}` has no key that is one column, by which its rows could be found: take the id, or leave such jobs to PHP"
    )]
    NoKey {
        /// Class of the model.
        class: String,
    },
    /// The handler asked for one model and the job has a collection, or the other way round.
    #[error("expected {expected} in the job, found {found}")]
    Shape {
        /// What the handler asked for: one model or a collection.
        expected: &'static str,
        /// What the job has instead.
        found: &'static str,
    },
    /// The key in the job is not of the type that this model has.
    #[error("`{class}` has no key like that of the job: expected {expected}")]
    Key {
        /// Class of the model.
        class: String,
        /// The expected form of the key.
        expected: &'static str,
    },
    /// The database query failed.
    #[error("could not load `{class}`")]
    Database {
        /// Class of the model.
        class: String,
        /// The cause.
        source: connection::Error,
    },
    /// The row does not fit the type it is read into.
    #[error("a row of `{class}` does not fit")]
    Row {
        /// Class of the model.
        class: String,
        /// The column and the problem.
        source: RecordError,
    },
}

/// Most keys in one query.
const KEYS_AT_ONCE: usize = 1000;

/// The models of an app: the table and key of each, and the databases they are in.
#[derive(Debug)]
pub struct Models {
    by_class: BTreeMap<String, app::Model>,
    /// Classes by morph alias.
    aliases: HashMap<String, String>,
    databases: Arc<Databases>,
}

impl Models {
    /// Takes the models of a manifest.
    pub fn new(models: BTreeMap<String, app::Model>, databases: Arc<Databases>) -> Self {
        let alias = |(class, model): (&String, &app::Model)| {
            let alias = model.morph_class.clone()?;
            (alias != *class).then(|| (alias, class.clone()))
        };
        Self {
            aliases: models.iter().filter_map(alias).collect(),
            by_class: models,
            databases,
        }
    }

    /// Reads the row of one model.
    ///
    /// # Errors
    ///
    /// [`ModelError::NotFound`] if the row is gone.
    pub async fn one<Row: DeserializeOwned>(
        &self,
        identifier: &ModelIdentifier,
    ) -> Result<Row, ModelError> {
        let table = self.table(identifier)?;
        let key = match &identifier.id {
            ModelId::Missing => return Err(table.not_found(None)),
            ModelId::Single(key) => key,
            ModelId::Collection(_) => {
                return Err(ModelError::Shape {
                    expected: "one model",
                    found: "a collection",
                });
            }
        };
        let records = table.select(std::slice::from_ref(key), " limit 1").await?;
        match records.first() {
            Some(record) => table.read(record),
            None => Err(table.not_found(Some(key.clone()))),
        }
    }

    /// Reads the rows of a collection by one query, in the collection's order; missing rows are left out.
    ///
    /// Rows of pivots without a key of their own come in the order of the database, as in PHP.
    ///
    /// # Errors
    ///
    /// [`ModelError`], but never [`NotFound`](ModelError::NotFound).
    pub async fn many<Row: DeserializeOwned>(
        &self,
        identifier: &ModelIdentifier,
    ) -> Result<Vec<Row>, ModelError> {
        let keys = match &identifier.id {
            ModelId::Collection(keys) => keys,
            ModelId::Missing | ModelId::Single(_) => {
                return Err(ModelError::Shape {
                    expected: "a collection",
                    found: "one model",
                });
            }
        };
        if keys.is_empty() || identifier.class.is_none() {
            return Ok(Vec::new());
        }
        let table = self.table(identifier)?;
        let mut records = Vec::new();
        for keys in keys.chunks(KEYS_AT_ONCE) {
            records.extend(table.select(keys, "").await?);
        }
        if table.model.pivot.is_some() {
            return records.iter().map(|record| table.read(record)).collect();
        }
        let mut by_key = HashMap::with_capacity(records.len());
        for record in &records {
            if let Some(key) = record.text(table.key()?) {
                by_key.insert(key.into_owned(), record);
            }
        }
        let found = keys.iter().filter_map(|key| by_key.get(&key.to_string()));
        found.map(|record| table.read(record)).collect()
    }

    /// Looks up the table of a model.
    fn table<'m>(&'m self, identifier: &'m ModelIdentifier) -> Result<Table<'m>, ModelError> {
        let named = identifier.class.as_deref().unwrap_or_default();
        let known = |class: &str| self.by_class.get_key_value(class);
        let found = known(named).or_else(|| known(self.aliases.get(named)?));
        let Some((class, model)) = found else {
            return Err(ModelError::Unknown {
                class: named.to_owned(),
            });
        };
        if model.restored_by_code {
            return Err(ModelError::OwnQuery {
                class: class.clone(),
            });
        }
        let database = self.databases.get(identifier.connection.as_deref());
        Ok(Table {
            class,
            model,
            database: database.map_err(|source| ModelError::Database {
                class: class.clone(),
                source,
            })?,
        })
    }
}

/// The table of a model.
struct Table<'m> {
    class: &'m str,
    model: &'m app::Model,
    database: Database,
}

impl Table<'_> {
    fn not_found(&self, key: Option<ModelKey>) -> ModelError {
        ModelError::NotFound(ModelNotFound {
            class: self.class.to_owned(),
            key,
        })
    }

    fn read<Row: DeserializeOwned>(&self, record: &Record) -> Result<Row, ModelError> {
        record.to().map_err(|source| ModelError::Row {
            class: self.class.to_owned(),
            source,
        })
    }

    /// Selects rows with one of these keys, of which there is at least one.
    async fn select(&self, keys: &[ModelKey], rest: &str) -> Result<Vec<Record>, ModelError> {
        // The query borrows the texts.
        let texts: Vec<String> = keys.iter().map(ModelKey::to_string).collect();
        let (condition, params) = match self.model.pivot {
            // As in PHP, the first key decides the form of all keys.
            Some(pivot) if texts[0].contains(':') => self.pivots(pivot, &texts)?,
            _ => self.keys(keys, &texts)?,
        };
        let table = self.database.table(&self.model.table);
        let sql = format!("select * from {table} where {condition}{rest}");
        let records = self.database.records(&sql, &params).await;
        records.map_err(|source| ModelError::Database {
            class: self.class.to_owned(),
            source,
        })
    }

    /// The column of the key.
    fn key(&self) -> Result<&str, ModelError> {
        self.model.key.as_deref().ok_or_else(|| ModelError::NoKey {
            class: self.class.to_owned(),
        })
    }

    fn keys<'t>(
        &self,
        keys: &[ModelKey],
        texts: &'t [String],
    ) -> Result<(String, Vec<Param<'t>>), ModelError> {
        // MySQL matches `7` with `7x` if it compares text with a number.
        let is_text = self.model.key_type.as_deref() == Some("string");
        let param = |(key, text): (&ModelKey, &'t String)| match key {
            ModelKey::Int(number) if !is_text => Param::Int(*number),
            _ => Param::Text(text),
        };
        let column = Database::column(self.key()?);
        let condition = match keys {
            [_] => format!("{column} = ?"),
            _ => format!("{column} in ({})", vec!["?"; keys.len()].join(", ")),
        };
        Ok((condition, keys.iter().zip(texts).map(param).collect()))
    }

    /// Pivot keys hold two `column:value` pairs, and a third for the type of a polymorphic relation.
    fn pivots<'t>(
        &self,
        pivot: app::Pivot,
        texts: &'t [String],
    ) -> Result<(String, Vec<Param<'t>>), ModelError> {
        let (pairs, expected) = match pivot {
            app::Pivot::Plain => (2, "`column:value:column:value`"),
            app::Pivot::Morph => (3, "`column:value:column:value:column:class`"),
        };
        let (mut conditions, mut params) = (Vec::with_capacity(texts.len()), Vec::new());
        for text in texts {
            let parts: Vec<&str> = text.split(':').collect();
            if parts.len() < 2 * pairs {
                return Err(ModelError::Key {
                    class: self.class.to_owned(),
                    expected,
                });
            }
            let both = parts.chunks(2).take(pairs);
            let all: Vec<String> = both
                .map(|pair| {
                    params.push(Param::Text(pair[1]));
                    format!("{} = ?", Database::column(pair[0]))
                })
                .collect();
            conditions.push(format!("({})", all.join(" and ")));
        }
        Ok((conditions.join(" or "), params))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ModelIdentifier, String> {
        crate::php::from_slice(text.as_bytes()).map_err(|error| error.to_string())
    }

    fn identifier(fields: &[&str]) -> ModelIdentifier {
        let class = "Illuminate\\Contracts\\Database\\ModelIdentifier";
        let text = format!("O:45:\"{class}\":{}:{{{}}}", fields.len(), fields.concat());
        read(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    const CLASS: &str = "s:5:\"class\";s:3:\"A\\B\";";

    #[test]
    fn identifiers_of_all_versions_are_read() {
        let id = r#"s:2:"id";i:7;"#;
        let relations = r#"s:9:"relations";a:1:{i:2;s:5:"posts";}"#;
        let connection = r#"s:10:"connection";s:5:"mysql";"#;
        let collection = r#"s:15:"collectionClass";N;"#;
        let expected = ModelIdentifier {
            class: Some("A\\B".into()),
            id: ModelId::Single(ModelKey::Int(7)),
            relations: Vec::new(),
            connection: Some("mysql".into()),
            collection_class: None,
        };
        assert_eq!(identifier(&[CLASS, id, connection]), expected);
        let expected = ModelIdentifier {
            relations: vec!["posts".into()],
            ..expected
        };
        assert_eq!(identifier(&[CLASS, id, relations, connection]), expected);
        let five = identifier(&[CLASS, id, relations, connection, collection]);
        assert_eq!(five, expected);
        let text = |text: &str| ModelKey::Text(text.into());
        #[rustfmt::skip]
        let rows = [
            ("N;", ModelId::Missing),
            (r#"s:2:"ab";"#, ModelId::Single(text("ab"))),
            ("a:0:{}", ModelId::Collection(vec![])),
            (r#"a:2:{i:0;i:7;i:1;s:1:"x";}"#, ModelId::Collection(vec![ModelKey::Int(7), text("x")])),
            (r#"a:2:{i:3;i:7;s:1:"k";N;}"#, ModelId::Collection(vec![ModelKey::Int(7)])),
        ];
        for (id, expected) in rows {
            let field = format!("s:2:\"id\";{id}");
            assert_eq!(identifier(&[CLASS, &field]).id, expected, "{id}");
        }
        let empty = identifier(&[
            "s:5:\"class\";N;",
            "s:2:\"id\";a:0:{}",
            "s:9:\"relations\";N;",
        ]);
        assert_eq!(empty.class, None);
        let wrong = "O:1:\"M\":1:{s:2:\"id\";b:1;}";
        assert!(read(wrong).unwrap_err().contains("key of a model"));
        assert!(read("O:1:\"M\":1:{s:2:\"id\";a:1:{i:0;a:0:{}}}").is_err());
    }

    #[test]
    fn a_missing_model_is_found_in_whatever_stands_for_it() {
        #[derive(Debug, thiserror::Error)]
        enum Own {
            #[error(transparent)]
            Model(#[from] ModelError),
            #[error("could not process")]
            Process(#[source] Box<Own>),
        }
        let not_found = || {
            ModelError::NotFound(ModelNotFound {
                class: "A\\B".into(),
                key: Some(ModelKey::Int(7)),
            })
        };
        let own = Own::Process(Box::new(Own::from(not_found())));
        let boxed: crate::handler::BoxError = own.into();
        assert!(ModelNotFound::within(&*boxed).is_some());
        let found = not_found();
        let message = crate::shown::with_causes(&found);
        assert_eq!(message, "No query results for model [A\\B].");
        let io = std::io::Error::other(found);
        assert!(ModelNotFound::within(&io).is_some());
        #[cfg(feature = "cli")]
        {
            let error = anyhow::Error::from(not_found()).context("could not process");
            let boxed: crate::handler::BoxError = error.into();
            assert!(ModelNotFound::within(&*boxed).is_some());
            let boxed: crate::handler::BoxError = anyhow::Error::from(not_found()).into();
            assert!(ModelNotFound::within(&*boxed).is_some());
        }
        assert!(ModelNotFound::within(&ModelError::NoManifest).is_none());
    }
}
