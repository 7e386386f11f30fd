//! Rows of models, on every kind of database.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use artisand::app;
use artisand::connection::{Database, DatabaseKind, DatabaseOptions, Databases};
use artisand::handler::{ModelError, ModelId, ModelIdentifier, ModelKey, Models};
use serde::Deserialize;
use serde_json::json;

use crate::harness::sql::{Engine, MariaDbServer, PostgresServer, SqlServer};

/// Models of a database with the prefix `app_`.
fn models(options: DatabaseOptions) -> (Models, Database) {
    let options = DatabaseOptions {
        prefix: "app_".into(),
        ..options
    };
    let name = options.name.clone();
    let databases = Databases::new(Some(name.clone()), [(name, Ok(options))]);
    let database = databases.get(None).unwrap();
    let manifest: BTreeMap<String, app::Model> = serde_json::from_value(json!({
        "App\\Thing": {"table": "things", "key": "id", "key_type": "int", "morph_class": "thing"},
        "App\\Named": {"table": "named", "key": "name", "key_type": "string", "connection": "elsewhere"},
        "App\\Tagged": {"table": "tagged", "key": "id", "key_type": "int", "pivot": "plain"},
        "App\\Taggable": {"table": "tagged", "key": "id", "key_type": "int", "pivot": "morph"},
        "App\\Line": {"table": "things", "key": ["order_id", "product_id"], "key_type": "int", "morph_class": 1},
    }))
    .unwrap();
    (Models::new(manifest, Arc::new(databases)), database)
}

fn sqlite(directory: &Path) -> DatabaseOptions {
    let path = directory.join("database.sqlite");
    std::fs::write(&path, b"").unwrap();
    DatabaseOptions {
        database: path.to_str().unwrap().into(),
        ..DatabaseOptions::new("main", DatabaseKind::Sqlite)
    }
}

fn of_server<E: Engine>(server: &SqlServer<E>, kind: DatabaseKind) -> DatabaseOptions {
    let env = server.env();
    let setting = |name: &str| {
        let value = env.iter().find(|(variable, _)| *variable == name);
        value.unwrap().1.clone()
    };
    DatabaseOptions {
        port: setting("DB_PORT").parse().unwrap(),
        database: setting("DB_DATABASE"),
        username: setting("DB_USERNAME"),
        password: Some(setting("DB_PASSWORD")),
        ..DatabaseOptions::new("main", kind)
    }
}

fn identifier(class: &str, id: ModelId) -> ModelIdentifier {
    ModelIdentifier {
        class: Some(class.into()),
        id,
        relations: Vec::new(),
        connection: Some("main".into()),
        collection_class: None,
    }
}

fn text(key: &str) -> ModelKey {
    ModelKey::Text(key.into())
}

fn single(class: &str, key: impl Into<Option<i64>>) -> ModelIdentifier {
    let id = key
        .into()
        .map_or(ModelId::Missing, |key| ModelId::Single(ModelKey::Int(key)));
    identifier(class, id)
}

/// A row with a column of every kind.
#[derive(Debug, PartialEq, Deserialize)]
struct Wide {
    id: u64,
    big: i64,
    small: u8,
    flag: bool,
    ratio: f64,
    price: String,
    title: String,
    body: Option<String>,
    made_on: String,
    made_at: String,
    settings: Settings,
    tags: Vec<String>,
    data: Vec<u8>,
    deleted_at: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Settings {
    theme: String,
}

/// The same columns, taken as other types.
#[derive(Debug, PartialEq, Deserialize)]
struct Otherwise {
    id: String,
    flag: u8,
    price: f64,
    settings: String,
}

fn wide() -> Wide {
    Wide {
        id: 7,
        big: i64::MAX,
        small: 200,
        flag: true,
        ratio: 0.1,
        price: "9.90".into(),
        title: "Żółw 'quoted' \"and\" \\ ?".into(),
        body: None,
        made_on: "2026-01-02".into(),
        made_at: "2026-01-02 03:04:05".into(),
        settings: Settings {
            theme: "dark".into(),
        },
        tags: vec!["a".into(), "b".into()],
        data: vec![0, 255, 39],
        deleted_at: Some("2026-02-03 00:00:00".into()),
    }
}

#[derive(Debug, Deserialize)]
struct Id {
    id: i64,
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Pivot {
    id: i64,
}

#[derive(Debug, Deserialize)]
struct Wrong {
    #[expect(dead_code, reason = "only its error is of interest")]
    title: u8,
}

#[derive(Debug, PartialEq, Deserialize)]
struct OfMariaDb {
    huge: u64,
    bits: u8,
    moment: String,
    span: String,
    made_in: u16,
    kind: String,
    hash: String,
    flag: Option<i8>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct OfPostgres {
    uuid: String,
    moment: String,
    huge: i128,
    span: String,
    several: String,
    none: Option<Settings>,
    flag: Option<bool>,
}

/// Checks that apply to every database whose tables [`fill`] has made.
async fn rows_are_what_the_job_means(models: &Models) {
    let thing: Wide = models.one(&single("App\\Thing", 7)).await.unwrap();
    assert_eq!(thing, wide());
    // By its alias, and on the default connection.
    let alias = ModelIdentifier {
        connection: None,
        ..single("thing", 7)
    };
    let other: Otherwise = models.one(&alias).await.unwrap();
    assert_eq!(
        (&*other.id, other.flag, other.price),
        ("7", 1, 9.9),
        "{other:?}"
    );
    let settings: Settings = serde_json::from_str(&other.settings).unwrap();
    assert_eq!(settings.theme, "dark");

    // A row that is gone, and a model that was never saved.
    for id in [Some(8), None] {
        let error = models.one::<Wide>(&single("App\\Thing", id)).await;
        let error = error.unwrap_err();
        assert!(matches!(error, ModelError::NotFound(_)), "{error:?}");
        assert_eq!(
            error.to_string(),
            "No query results for model [App\\Thing]."
        );
    }

    // In the order of the job, duplicates twice, missing rows left out.
    let keys =
        |keys: &[i64]| ModelId::Collection(keys.iter().copied().map(ModelKey::Int).collect());
    let collection = identifier("App\\Thing", keys(&[9, 7, 1000, 9]));
    let found: Vec<Id> = models.many(&collection).await.unwrap();
    let ids: Vec<i64> = found.iter().map(|row| row.id).collect();
    assert_eq!(ids, [9, 7, 9]);
    let many = identifier("App\\Thing", keys(&(0..2500).rev().collect::<Vec<_>>()));
    let found: Vec<Id> = models.many(&many).await.unwrap();
    let ids: Vec<i64> = found.iter().map(|row| row.id).collect();
    assert_eq!(ids, [9, 7]);
    let empty = ModelIdentifier {
        class: None,
        ..identifier("", keys(&[]))
    };
    assert!(models.many::<Id>(&empty).await.unwrap().is_empty());

    // Keys are unchecked text.
    for name in NAMES {
        let id = identifier("App\\Named", ModelId::Single(text(name)));
        let row: Named = models.one(&id).await.unwrap();
        assert_eq!(row.name, name);
    }
    let all = ModelId::Collection(NAMES.into_iter().rev().map(text).collect());
    let rows: Vec<Named> = models.many(&identifier("App\\Named", all)).await.unwrap();
    assert!(
        rows.iter()
            .map(|row| &*row.name)
            .eq(NAMES.into_iter().rev())
    );
    for name in ["' or '1'='1", "x' or 1=1 -- ", "\\", "7", ""] {
        let id = identifier("App\\Named", ModelId::Single(text(name)));
        let error = models.one::<Named>(&id).await.unwrap_err();
        assert!(
            matches!(error, ModelError::NotFound(_)),
            "{name}: {error:?}"
        );
    }
    // A number is text in a text key column.
    let number = models
        .one::<Named>(&single("App\\Named", 42))
        .await
        .unwrap();
    assert_eq!(number.name, "42");

    pivots_are_found_by_what_they_connect(models).await;
}

async fn pivots_are_found_by_what_they_connect(models: &Models) {
    let one = async |class: &str, key: &str| {
        let id = identifier(class, ModelId::Single(text(key)));
        models.one::<Pivot>(&id).await.map(|row| row.id)
    };
    assert_eq!(one("App\\Tagged", "tag_id:2:thing_id:7").await.unwrap(), 1);
    let morph = "tag_id:2:thing_id:7:kind:App\\Thing";
    assert_eq!(one("App\\Taggable", morph).await.unwrap(), 1);
    assert_eq!(one("App\\Tagged", "2").await.unwrap(), 2);
    let gone = one("App\\Taggable", "tag_id:2:thing_id:7:kind:x").await;
    assert!(matches!(gone, Err(ModelError::NotFound(_))), "{gone:?}");
    let short = one("App\\Tagged", "tag_id:2").await.unwrap_err();
    assert_eq!(
        short.to_string(),
        "`App\\Tagged` has no key like that of the job: expected `column:value:column:value`"
    );
    let keys = [
        "tag_id:3:thing_id:7",
        "tag_id:2:thing_id:7",
        "tag_id:9:thing_id:9",
    ];
    let all = ModelId::Collection(keys.into_iter().map(text).collect());
    let rows: Vec<Pivot> = models.many(&identifier("App\\Tagged", all)).await.unwrap();
    let mut ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
}

const NAMES: [&str; 6] = ["plain", "42", "a'b", "a\\b", "a?\"`$1\n", "żółw 🐢"];

/// Makes and fills the tables that are alike everywhere.
async fn fill(database: &Database) {
    let run = async |sql: &str| {
        database
            .execute(sql, &[])
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e:?}"))
    };
    run("create table app_named (name varchar(50) primary key)").await;
    for name in NAMES {
        let sql = "insert into app_named (name) values (?)";
        database.execute(sql, &[name.into()]).await.unwrap();
    }
    run("create table app_tagged (id integer, tag_id integer, thing_id integer, kind varchar(50))")
        .await;
    for (id, tag) in [(1, 2), (2, 3)] {
        let sql = "insert into app_tagged (id, tag_id, thing_id, kind) values (?, ?, 7, ?)";
        let params = [
            i64::from(id).into(),
            i64::from(tag).into(),
            "App\\Thing".into(),
        ];
        let params = match database.kind() {
            // Its parameters have types.
            DatabaseKind::Postgres => {
                let sql = format!("insert into app_tagged values ({id}, {tag}, 7, ?)");
                database.execute(&sql, &params[2..]).await.unwrap();
                continue;
            }
            _ => params,
        };
        database.execute(sql, &params).await.unwrap();
    }
}

/// Fills `app_things` with [`wide`] and another row.
async fn fill_things(database: &Database, columns: &str, bytes: &str) {
    let run = async |sql: &str, params: &[_]| {
        database
            .execute(sql, params)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e:?}"))
    };
    run(&format!("create table app_things ({columns})"), &[]).await;
    let title = wide().title;
    let (settings, tags) = (r#"{"theme": "dark"}"#, r#"["a", "b"]"#);
    let all = [title.as_str().into(), settings.into(), tags.into()];
    // Parameters of PostgreSQL have a type, and in MySQL's statements double quotes are for names.
    let (flag, json, params) = match database.kind() {
        DatabaseKind::Postgres => ("true", format!("'{settings}', '{tags}'"), &all[..1]),
        _ => ("1", "?, ?".to_owned(), &all[..]),
    };
    let sql = format!(
        "insert into app_things (id, big, small, flag, ratio, price, title, body, made_on, made_at, settings, tags, data, deleted_at) \
         values (7, 9223372036854775807, 200, {flag}, 0.1, '9.90', ?, null, '2026-01-02', '2026-01-02 03:04:05', \
         {json}, {bytes}, '2026-02-03 00:00:00')"
    );
    run(&sql, params).await;
    run("insert into app_things (id) values (9)", &[]).await;
}

#[tokio::test]
async fn sqlite_has_the_rows() {
    let directory = tempfile::tempdir().unwrap();
    let (models, database) = models(sqlite(directory.path()));
    fill(&database).await;
    let columns = "id integer primary key, big integer, small integer, flag tinyint(1), ratio float, price varchar, title varchar, \
                   body text, made_on date, made_at datetime, settings text, tags text, data blob, deleted_at datetime";
    fill_things(&database, columns, "x'00ff27'").await;
    rows_are_what_the_job_means(&models).await;

    // The error names a column that does not fit, and does not show its content.
    let error = models.one::<Wrong>(&single("App\\Thing", 7)).await;
    let error = error.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(error.to_string(), "a row of `App\\Thing` does not fit");
    assert_eq!(cause, "column `title` (TEXT): expected u8, found text");
    let unknown = models.one::<Wide>(&single("App\\Other", 7)).await;
    assert_eq!(
        unknown.unwrap_err().to_string(),
        "the manifest has no model `App\\Other`: write it again with `artisand manifest`"
    );
    // As of an app with a key of two columns, whose manifest an older exporter wrote.
    let keys = ModelId::Collection(vec![ModelKey::Int(7)]);
    let line = models.many::<Id>(&identifier("App\\Line", keys)).await;
    assert_eq!(
        line.unwrap_err().to_string(),
        "`App\\Line` has no key that is one column, by which its rows could be found: take the id, or leave such jobs to PHP"
    );
    let elsewhere = ModelIdentifier {
        connection: Some("elsewhere".into()),
        ..single("App\\Thing", 7)
    };
    let error = models.one::<Wide>(&elsewhere).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(
        cause,
        "no database connection `elsewhere` (configured: main)"
    );
    let collection = identifier("App\\Thing", ModelId::Collection(vec![]));
    let error = models.one::<Wide>(&collection).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "expected one model in the job, found a collection"
    );
}

#[tokio::test]
#[ignore = "needs MariaDB (make test)"]
async fn mariadb_has_the_rows() {
    let server = tokio::task::spawn_blocking(MariaDbServer::start)
        .await
        .unwrap();
    let (models, database) = models(of_server(&server, DatabaseKind::MySql));
    fill(&database).await;
    let columns = "id bigint unsigned primary key, big bigint, small tinyint unsigned, flag tinyint(1), ratio double, \
                   price decimal(8, 2), title varchar(100), body text, made_on date, made_at datetime, settings json, \
                   tags json, data blob, deleted_at timestamp null, huge bigint unsigned default 18446744073709551615, \
                   bits bit(3) default 5, moment datetime(6) default '2026-01-02 03:04:05.678901', span time default '-01:02:03', \
                   made_in year default 2026, kind enum('a', 'b') default 'b', hash varbinary(4) default 'ab'";
    fill_things(&database, columns, "x'00ff27'").await;
    rows_are_what_the_job_means(&models).await;

    let special: OfMariaDb = models.one(&single("App\\Thing", 9)).await.unwrap();
    let expected = OfMariaDb {
        huge: u64::MAX,
        bits: 5,
        moment: "2026-01-02 03:04:05.678901".into(),
        span: "-01:02:03".into(),
        made_in: 2026,
        kind: "b".into(),
        hash: "ab".into(),
        flag: None,
    };
    assert_eq!(special, expected);
}

#[tokio::test]
#[ignore = "needs PostgreSQL (make test)"]
async fn postgresql_has_the_rows() {
    let server = tokio::task::spawn_blocking(PostgresServer::start)
        .await
        .unwrap();
    let options = DatabaseOptions {
        search_path: Some("public".into()),
        ..of_server(&server, DatabaseKind::Postgres)
    };
    let (models, database) = models(options);
    fill(&database).await;
    let columns = "id bigint primary key, big bigint, small smallint, flag boolean, ratio double precision, \
                   price numeric(8, 2), title varchar(100), body text, made_on date, made_at timestamp(0), settings jsonb, \
                   tags json, data bytea, deleted_at timestamp(0), \
                   uuid uuid default '9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d', moment timestamptz default '2026-01-02 03:04:05.678901+00', \
                   huge numeric default 123456789012345678901234567890, kind varchar(9) default 'b', span interval default '1 day', \
                   several integer[] default '{1,2}', none json";
    fill_things(&database, columns, "'\\x00ff27'").await;
    rows_are_what_the_job_means(&models).await;

    database.execute("set time zone 'UTC'", &[]).await.unwrap();
    let special: OfPostgres = models.one(&single("App\\Thing", 9)).await.unwrap();
    assert!(
        special.moment.starts_with("2026-01-0") && special.moment.contains(":05.678901"),
        "{special:?}"
    );
    let expected = OfPostgres {
        uuid: "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d".into(),
        moment: special.moment.clone(),
        huge: 123_456_789_012_345_678_901_234_567_890,
        span: "1 day".into(),
        several: "{1,2}".into(),
        none: None,
        flag: None,
    };
    assert_eq!(special, expected);

    // A key of another type than text, given as text: the column's type decides.
    database
        .execute("create table app_named_by_uuid (name uuid)", &[])
        .await
        .unwrap();
    database.execute("drop table app_named", &[]).await.unwrap();
    database
        .execute("alter table app_named_by_uuid rename to app_named", &[])
        .await
        .unwrap();
    database
        .execute(
            "insert into app_named values ('9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d')",
            &[],
        )
        .await
        .unwrap();
    let id = ModelId::Single(text("9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d"));
    let row: Named = models.one(&identifier("App\\Named", id)).await.unwrap();
    assert_eq!(row.name.len(), 36);
}
