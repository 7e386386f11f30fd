//! What Laravel makes of its settings, by version.

use serde_json::json;

use super::*;
use crate::connection::{DatabaseKind, RedisAddress, SentinelServer, TlsOptions, Trust};
use crate::payload::Encrypter;

pub(super) fn laravel(version: &str, config: Value) -> Laravel {
    Laravel {
        version: Some(version.to_owned()),
        config,
        base: "/app".into(),
        storage: "/app/storage".into(),
        cache_prefixes: BTreeMap::new(),
        origin: Origin::Php { cached: None },
        env: Arc::new(|name| name.ends_with("_PASSWORD").then(|| "secret".to_owned())),
        redis: RedisTable::default(),
    }
}

#[test]
fn workers_may_print_times_of_another_zone() {
    #[rustfmt::skip]
    let rows = [
        ("9.48", json!("Asia/Tokyo"), Ok(None)),
        ("9.49", json!("Asia/Tokyo"), Ok(Some("Asia/Tokyo"))),
        ("13.31", Value::Null,        Ok(None)),
        ("13.31", json!(""),          Ok(None)),
        ("13.31", json!("Mars"),      Err("`queue.output_timezone` of the app is `Mars`, expected a time zone, such as Europe/Warsaw")),
    ];
    for (version, output, expected) in rows {
        let config = json!({"app": {"timezone": "UTC"}, "queue": {"output_timezone": output}});
        let found = laravel(version, config).output_timezone();
        let found = found.map(|zone| zone.and_then(|zone| Some(zone.iana_name()?.to_owned())));
        let found = found.map_err(|error| error.to_string());
        let expected = expected.map(|name| name.map(str::to_owned));
        assert_eq!(found, expected.map_err(str::to_owned), "{version} {output}");
    }
}

fn redis(version: &str, connection: &Value, options: &Value) -> SettingResult<RedisSettings> {
    let config = json!({"database": {"redis": {"client": "phpredis", "options": options, "default": connection}}});
    laravel(version, config).redis("default")
}

#[test]
fn urls_lie_over_the_other_fields() {
    let tcp = |host: &str, port| RedisAddress::Tcp(host.into(), port);
    let tls = |host: &str, port| RedisAddress::Tls(host.into(), port);
    #[rustfmt::skip]
    let rows = [
        ("redis://user:p%40ss@h:6380/3", tcp("h", 6380), Some("user"), Some("p@ss"), 3),
        ("rediss://:secret@h", tls("h", 1), None, Some("secret"), 9),
        ("tls://h", tls("h", 1), None, None, 9),
        ("tcp://h:6379?database=5", tcp("h", 6379), None, None, 5),
        // A password of digits is a number, and then no user name is sent.
        ("redis://user:123456@h", tcp("h", 1), None, Some("123456"), 9),
    ];
    for (url, address, username, password, database) in rows {
        let fields = json!({"url": url, "host": "x", "port": "1", "database": "9"});
        let options = redis("10.0", &fields, &json!([])).unwrap().options;
        assert_eq!(options.address, address, "{url}");
        assert_eq!(options.username.as_deref(), username, "{url}");
        assert_eq!(options.password.as_deref(), password, "{url}");
        assert_eq!(options.database, database, "{url}");
    }
    let malformed = redis(
        "10.0",
        &json!({"url": "unix:///run/redis.sock"}),
        &json!([]),
    );
    assert!(malformed.unwrap_err().to_string().contains("malformed"));
}

#[test]
fn sentinels_are_read_in_the_forms_of_clients_and_packages() {
    let login = |host: &str, port, user: Option<&str>, password: Option<&str>| SentinelServer {
        username: user.map(str::to_owned),
        password: password.map(str::to_owned),
        ..SentinelServer::new(host, port)
    };
    let plain = |host: &str, port| SentinelServer::new(host, port);
    let tls = |host: &str, port| SentinelServer {
        tls: Some(TlsOptions::default()),
        ..plain(host, port)
    };
    let secure = TlsOptions {
        trust: Trust::Nothing,
        ..TlsOptions::default()
    };
    let insecure = SentinelServer {
        tls: Some(secure.clone()),
        ..plain("b", 2)
    };
    let own = json!({"replication": "sentinel", "service": "m", "parameters": {"password": "p", "database": 3}});
    let of_all = json!({"replication": "sentinel", "service": "all", "prefix": "x_",
        "parameters": {"password": "all", "default": {"username": "u", "password": "p", "scheme": "tls", "ssl": {"verify_peer": false}}}});
    let fields = json!({"sentinel_host": "a, tls://b:7", "sentinel_port": "5", "sentinel_username": "su",
        "sentinel_password": {"$env": "REDIS_SENTINEL_PASSWORD"}, "password": {"$env": "REDIS_PASSWORD"},
        "database": "2", "host": "unused"});
    #[rustfmt::skip]
    let rows = [
        // client, connection, options => service, sentinels, TLS to the master, password, database
        ("predis", json!({"0": "tcp://a:1?timeout=0.1", "1": "tls://b", "options": own}), json!({}),
            ("m", vec![plain("a", 1), tls("b", 6379)], false, Some("p"), 3)),
        ("predis", json!(["tcp://:hush@a:1", {"host": "b", "port": 2, "scheme": "tls", "ssl": {"verify_peer": false}}]), of_all,
            ("all", vec![login("a", 1, None, Some("hush")), insecure], true, Some("p"), 0)),
        ("predis", json!([{"host": "a, b", "port": 1, "password": "hush"}]), own.clone(),
            ("m", vec![login("a", 1, None, Some("hush")), login("b", 1, None, Some("hush"))], false, Some("p"), 3)),
        ("phpredis-sentinel", fields, json!({}),
            ("mymaster", vec![login("a", 5, Some("su"), Some("secret")),
                SentinelServer { tls: Some(TlsOptions::default()), ..login("b", 7, Some("su"), Some("secret")) }],
                false, Some("secret"), 2)),
        ("phpredis-sentinel", json!({"host": "old", "sentinel_service": "s", "scheme": "tls"}), json!({}),
            ("s", vec![plain("old", 26379)], true, None, 0)),
    ];
    for (client, connection, options, expected) in rows {
        let config = json!({"database": {"redis": {"client": client, "options": options, "default": connection}}});
        let found = laravel("13.0", config).redis("default").unwrap().options;
        let RedisAddress::Sentinel(sentinels) = &found.address else {
            panic!("{connection}: {found:?}");
        };
        let (service, servers, has_tls, password, database) = expected;
        let ours = (&*sentinels.service, &sentinels.servers, sentinels.has_tls);
        assert_eq!(ours, (service, &servers, has_tls), "{connection}");
        assert_eq!(found.password.as_deref(), password, "{connection}");
        assert_eq!(found.database, database, "{connection}");
        assert!(!format!("{found:?}").contains("hush"), "{found:?}");
        if options.get("prefix").is_some() {
            assert_eq!((&*found.prefix, &found.tls), ("x_", &secure));
        }
    }
}

#[test]
fn connections_of_the_package_of_monospice_are_those_of_predis() {
    let config = json!({
        "database": {
            "redis": {"options": {"prefix": "app_", "parameters": {"password": "other"}}, "default": {"host": "h"}},
            "redis-sentinel": {
                "default": [{"host": "a, tcp://b:5", "port": 26379}],
                "queue": {"0": {"host": "c", "port": 1}, "options": {"service": "q", "parameters": {"password": "p", "database": 3}}},
                "options": {"service": "m", "parameters": {"database": 2}, "retry_limit": 20},
            },
        },
        "queue": {"connections": {
            "one": {"driver": "redis-sentinel", "connection": "queue", "queue": "jobs", "retry_after": 90},
            "two": {"driver": "redis", "connection": "default"},
        }},
        "cache": {"prefix": "c", "stores": {"three": {"driver": "redis-sentinel"}}},
    });
    let found = |name: &str, config: &Value| {
        let app = laravel("8.0", as_predis(config.clone()));
        let QueuePlace::Redis { redis, .. } = app.queue(name, None).unwrap().place else {
            panic!("{name}");
        };
        let address = redis.address.to_string();
        (address, redis.database, redis.password, redis.prefix)
    };
    let prefix = || String::new();
    assert_eq!(
        found("one", &config),
        ("q via c:1".into(), 3, Some("p".into()), prefix())
    );
    assert_eq!(
        found("two", &config),
        ("h:6379".into(), 0, None, "app_".into())
    );
    let app = laravel("8.0", as_predis(config.clone()));
    let of_cache = app.redis("redis-sentinel.default").unwrap().options;
    assert_eq!(
        (of_cache.address.to_string(), of_cache.database),
        ("m via a:26379, b:5".into(), 2)
    );
    assert!(app.cache("three").is_ok());
    // With `REDIS_DRIVER=redis-sentinel` Laravel's own Redis is the package's.
    let mut for_all = config;
    for_all["database"]["redis"]["driver"] = json!("redis-sentinel");
    assert_eq!(
        found("two", &for_all),
        ("m via a:26379, b:5".into(), 2, None, prefix())
    );
}

#[test]
fn sentinels_that_lack_something_are_refused() {
    let list = json!(["tcp://a:1", "tcp://b:2"]);
    #[rustfmt::skip]
    let rows = [
        ("predis", list.clone(), json!({}), "`database.redis.default` of the app is a list of servers, expected one server, or sentinels: `'replication' => 'sentinel'` and `service` in its `options`"),
        ("predis", list.clone(), json!({"replication": "sentinel"}), "the app has no `database.redis.default.options.service`"),
        ("predis", json!(["unix:///a"]), json!({"replication": "sentinel", "service": "m"}), "expected sentinels, each as `tcp://host:port`"),
        ("phpredis-sentinel", json!({"database": 1}), json!({}), "`database.redis.default.sentinel_host` of the app is not set, expected the host of a sentinel"),
        ("phpredis-sentinel", json!({"sentinel_host": "a", "sentinel_port": "x"}), json!({}), "`database.redis.default.sentinel_port` of the app is `x`, expected a port number"),
    ];
    for (client, connection, options, expected) in rows {
        let config = json!({"database": {"redis": {"client": client, "options": options, "default": connection}}});
        let app = laravel("13.0", config.clone());
        let error = app.redis("default").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        // What artisand.toml says needs nothing of it.
        let said = "sentinels = ['h']\nservice = 'm'\nservices = { cache = 'c' }";
        let app = Laravel {
            redis: toml::from_str(said).unwrap(),
            ..app
        };
        let address = app.redis("default").unwrap().options.address;
        assert_eq!(address.to_string(), "m via h:26379");
    }
}

#[test]
fn prefixes_depend_on_where_they_stand_and_on_the_version() {
    #[rustfmt::skip]
    let rows = [
        ("8.83", json!({"prefix": "own"}), "all"),
        ("9.12", json!({"prefix": "own"}), "own"),
        ("8.83", json!({"options": {"prefix": "nested"}}), "nested"),
        ("13.0", json!({"prefix": "own", "options": {"prefix": "nested"}}), "own"),
        ("13.0", json!({}), "all"),
    ];
    for (version, connection, expected) in rows {
        let found = redis(version, &connection, &json!({"prefix": "all"})).unwrap();
        assert_eq!(found.options.prefix, expected, "{version} {connection}");
    }
    let cache =
        json!({"cache": {"prefix": "shop_cache_", "stores": {"redis": {"driver": "redis"}}}});
    let prefix = |version| laravel(version, cache.clone()).cache_prefix("redis", "redis");
    assert_eq!(prefix("10.48").unwrap(), "shop_cache_:");
    assert_eq!(prefix("11.0").unwrap(), "shop_cache_");
}

#[test]
fn locks_are_swept_as_often_as_their_store_says() {
    #[rustfmt::skip]
    let rows = [
        (json!({}),                         Some((2, 100))),
        (json!({"lock_lottery": null}),     Some((2, 100))),
        (json!({"lock_lottery": [1, 5]}),   Some((1, 5))),
        (json!({"lock_lottery": [0, 100]}), Some((0, 100))),
        (json!({"lock_lottery": []}),       None),
        (json!({"lock_lottery": [1, 0]}),   None),
    ];
    for (store, expected) in rows {
        let app = laravel("13.0", json!({"cache": {"stores": {"database": store}}}));
        assert_eq!(app.lock_lottery("database").unwrap(), expected, "{store}");
    }
}

#[test]
fn an_encoding_is_that_of_the_redis_of_the_queue() {
    #[rustfmt::skip]
    let rows = [
        ("phpredis", json!({"serializer": 1}),       Some("serializer")),
        ("phpredis", json!({"compression": "zstd"}), Some("compression")),
        ("phpredis", json!({"serializer": 0}),       None),
        ("phpredis", json!({}),                      None),
        // It has no such options.
        ("predis",   json!({"serializer": 1}),       None),
    ];
    for (client, options, expected) in rows {
        let app = laravel(
            "13.0",
            json!({
                "queue": {"connections": {
                    "redis": {"driver": "redis"}, "database": {"driver": "database"},
                }},
                "database": {"redis": {"client": client, "options": options, "default": {}}},
            }),
        );
        let found = app.queue_encoding("redis").unwrap();
        let path = found.map(|(path, _)| path);
        let expected = expected.map(|key| format!("database.redis.options.{key}"));
        assert_eq!(path, expected, "{client} {options}");
        for other in ["database", "none"] {
            assert_eq!(app.queue_encoding(other).unwrap(), None, "{other}");
        }
    }
}

#[test]
fn what_cannot_be_used_is_named() {
    let encoded = json!({
        "cache": {"default": "redis", "stores": {"redis": {"driver": "redis", "connection": "default"}}},
        "database": {"redis": {"options": {"serializer": 1}, "default": {}}},
    });
    let error = laravel("13.0", encoded)
        .cache("redis")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`database.redis.options.serializer` is 1"),
        "{error}"
    );
    let spread = json!({"database": {"redis": {"client": "predis", "clusters": {"default": [{"host": "h"}]}}}});
    let error = laravel("13.0", spread)
        .redis("default")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(
            "`database.redis.options.cluster` of the app is not `redis`: predis then spreads keys"
        ),
        "{error}"
    );
    let unknown = json!({"queue": {"default": {"$unknown": "config/queue.php:3: calls `f()`"}}});
    let error = laravel("13.0", unknown)
        .default_queue_connection()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`queue.default`") && error.contains("config/queue.php:3"),
        "{error}"
    );
    let missing = redis("13.0", &Value::Null, &json!([]))
        .unwrap_err()
        .to_string();
    assert!(missing.contains("no `database.redis.default`"), "{missing}");
    let secret = json!({"host": "h", "password": {"$env": "REDIS_PASSWORD"}});
    let found = redis("13.0", &secret, &json!([])).unwrap().options;
    assert_eq!(found.password.as_deref(), Some("secret"));
    let gone = redis("13.0", &json!({"password": {"$env": "GONE"}}), &json!([]));
    assert!(
        gone.unwrap_err()
            .to_string()
            .contains("set GONE in the environment")
    );
}

#[test]
fn the_encrypter_is_the_one_laravel_makes() {
    let (key, old) = ("k".repeat(32), "o".repeat(32));
    let text = Encrypter::new(Version::NEWEST, &old, "AES-256-CBC")
        .unwrap()
        .encrypt(b"x");
    let found = |version: &str, app: Value| {
        let mut laravel = laravel(version, json!({"app": app}));
        let (key, old) = (key.clone(), format!("{old},,0"));
        laravel.env = Arc::new(move |name| match name {
            "APP_KEY" => Some(key.clone()),
            "APP_PREVIOUS_KEYS" => Some(old.clone()),
            _ => None,
        });
        match laravel.encrypter() {
            Ok(encrypter) => format!(
                "{} {} {}",
                encrypter.cipher(),
                encrypter.previous_keys(),
                encrypter.decrypt(text.as_bytes()).is_ok()
            ),
            Err(error) => match std::error::Error::source(&error) {
                Some(source) => source.to_string(),
                None => error.to_string(),
            },
        }
    };
    #[rustfmt::skip]
    let rows = [
        ("13.0", json!({"key": old, "cipher": "aes-256-cbc"}), "AES-256-CBC 0 true"),
        ("13.0", json!({"key": {"$env": "APP_KEY"}, "previous_keys": [old]}), "AES-256-CBC 1 true"),
        ("13.0", json!({"key": {"$secret": true}, "previous_keys": {"$env": "APP_PREVIOUS_KEYS"}}), "AES-256-CBC 1 true"),
        ("13.0", json!({"key": key, "previous_keys": {"3": {"$env": "APP_KEY"}, "5": old}}), "AES-256-CBC 2 true"),
        // Laravel 10 would not take them either.
        ("10.48", json!({"key": key, "previous_keys": [old]}), "AES-256-CBC 0 false"),
        ("10.48", json!({"key": key, "cipher": "AES-256-GCM"}), "AES-256-GCM 0 false"),
        ("13.0", json!({"key": null}), "No application encryption key has been specified."),
        ("13.0", json!({"key": "short"}), "Unsupported cipher or incorrect key length. Supported ciphers are: aes-128-cbc, aes-256-cbc, aes-128-gcm, aes-256-gcm."),
        ("13.0", json!({"key": key, "previous_keys": [" x"]}), "Unsupported cipher or incorrect key length. Supported ciphers are: aes-128-cbc, aes-256-cbc, aes-128-gcm, aes-256-gcm."),
        ("13.0", json!({"key": {"$env": "GONE_KEY"}}), "AES-256-CBC 0 false"),
        ("13.0", json!({"key": key, "previous_keys": {"$secret": true}}), "the manifest leaves out the secret `app.previous_keys`: no variable of the environment held it; write the manifest with --with-secrets, or set it in artisand.toml"),
    ];
    for (version, app, expected) in rows {
        assert_eq!(found(version, app.clone()), expected, "{version} {app}");
    }
    let foreign = json!({"app": {"key": key, "cipher": {"$env": "APP_KEY"}}});
    let error = laravel("13.0", foreign)
        .encrypter()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("looked up for passwords, keys, tokens and URLs only"),
        "{error}"
    );
    let mut bare = laravel("13.0", json!({"app": {"key": {"$secret": true}}}));
    bare.env = Arc::new(|_| None);
    let error = bare.encrypter().unwrap_err().to_string();
    assert!(error.contains("set APP_KEY in the environment"), "{error}");
}

#[test]
fn the_secret_of_sqs_is_looked_up_for_a_manifest_without_secrets() {
    let named = |name: &str| json!({"$env": name});
    let sqs = json!({"driver": "sqs", "key": named("ID"), "secret": named("KEY"), "token": named("TOKEN")});
    let mut app = laravel("13.0", json!({"queue": {"connections": {"sqs": sqs}}}));
    app.env = Arc::new(|name| Some(format!("of {name}")));
    let QueuePlace::Sqs { queue } = app.queue("sqs", None).unwrap().place else {
        panic!("another driver");
    };
    let key = queue.key.unwrap();
    let found = (&*key.id, &*key.secret, key.token.as_deref());
    assert_eq!(found, ("of ID", "of KEY", Some("of TOKEN")));
}

#[test]
fn secrets_that_the_manifest_leaves_out_are_those_that_are_looked_up() {
    let exporter = include_str!("../../../php-interop/manifest.php");
    let (_, list) = exporter.split_once("const KEYS = '/^(").unwrap();
    let (list, _) = list.split_once(")$'").unwrap();
    // Nothing here reads these.
    let unread = ["passwd", "pwd", "passphrase", "auth", "sasl", "credentials"];
    let mut names: Vec<&str> = list.split('|').collect();
    names.retain(|name| !unread.contains(name));
    // By other rules of the exporter: what ends with `_password`, and URLs that hold one.
    names.extend(["sentinel_password", "url"]);
    let mut known = SECRETS.to_vec();
    names.sort_unstable();
    known.sort_unstable();
    assert_eq!(names, known);
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn the_store_of_failed_jobs_is_the_one_laravel_takes() {
    let rows = [
        (
            json!({"driver": "database-uuids", "database": "s", "table": "failed_jobs"}),
            "database-uuids, table",
        ),
        (json!({"table": "failed_jobs"}), "database, table"),
        (json!({"driver": null, "table": "failed_jobs"}), "null"),
        (
            json!({"driver": "file"}),
            "file /app/storage/framework/cache/failed-jobs.json",
        ),
        (Value::Null, "null"),
    ];
    for (failed, expected) in rows {
        let config = json!({
            "queue": {"failed": failed},
            "cache": {"stores": {"file": {"driver": "file"}}},
            "database": {"default": "s", "connections": {"s": {"driver": "sqlite", "database": "/x.sqlite"}}},
        });
        let store = laravel("13.0", config).failed_jobs().unwrap();
        assert!(
            store.describe().starts_with(expected),
            "{}",
            store.describe()
        );
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn batches_are_where_laravel_looks_for_them() {
    #[rustfmt::skip]
    let rows = [
        ("8.83", json!({}), Some("table `job_batches` at /a.sqlite")),
        ("13.31", json!({"batching": {"database": "b", "table": "t"}}), Some("table `t` at /b.sqlite")),
        ("13.31", json!({"batching": {"driver": null, "database": null}}), Some("table `job_batches` at /a.sqlite")),
        ("13.31", json!({"batching": {"driver": "dynamodb", "table": "t"}}), None),
        // Before there was a choice.
        ("10.35", json!({"batching": {"driver": "dynamodb", "table": "t"}}), Some("table `t` at /a.sqlite")),
    ];
    for (version, queue, expected) in rows {
        let sqlite = |path: &str| json!({"driver": "sqlite", "database": path});
        let connections = json!({"a": sqlite("/a.sqlite"), "b": sqlite("/b.sqlite")});
        let config =
            json!({"queue": queue, "database": {"default": "a", "connections": connections}});
        let batches = laravel(version, config).batches().unwrap();
        let place = batches.map(|batches| batches.describe());
        assert_eq!(place.as_deref(), expected, "{version} {queue}");
    }
}

#[test]
fn databases_are_found_by_fields_and_by_url() {
    let connections = json!({
        "a": {"driver": "mysql", "host": "x", "write": {"host": ["w", "v"]}, "prefix": "p_", "unix_socket": ""},
        "b": {"url": "postgres://u:p%2Fw@h:1/db?sslmode=require"},
        "c": {"driver": "sqlite", "database": "database/x.sqlite"},
        "d": {"driver": "sqlsrv"},
    });
    let laravel = laravel(
        "12.0",
        json!({"database": {"default": "a", "connections": connections}}),
    );
    let a = laravel.database(None).unwrap();
    assert_eq!(
        (&*a.host, a.port, &*a.prefix, a.socket),
        ("w", 3306, "p_", None)
    );
    let b = laravel.database(Some("b")).unwrap();
    assert_eq!((b.kind, &*b.address()), (DatabaseKind::Postgres, "h:1/db"));
    assert_eq!(
        (b.password.as_deref(), b.ssl_mode.as_deref()),
        (Some("p/w"), Some("require"))
    );
    let c = laravel.database(Some("c")).unwrap();
    assert_eq!(c.database, "/app/database/x.sqlite");
    let d = laravel.database(Some("d")).unwrap_err().to_string();
    assert!(d.contains("`sqlsrv`"), "{d}");
}

#[test]
fn tls_is_as_strict_as_pdo_makes_it() {
    let tls = |driver: &str, fields: Value| {
        let mut connection = json!({"driver": driver});
        let fields = fields.as_object().unwrap().clone();
        connection.as_object_mut().unwrap().extend(fields);
        let config = json!({"database": {"connections": {"a": connection}}});
        match laravel("12.0", config).database(Some("a")) {
            Ok(database) => format!(
                "{} {}",
                database.ssl_mode.as_deref().unwrap_or("none"),
                [database.ssl_ca, database.ssl_cert, database.ssl_key]
                    .map(|path| path.map_or("-".into(), |path| path.display().to_string()))
                    .join(" ")
            ),
            Err(error) => error.to_string(),
        }
    };
    #[rustfmt::skip]
    let rows = [
        (json!({}), "none - - -"),
        (json!({"1002": "set x", "1014": true}), "none - - -"),
        (json!({"1009": "/ca"}), "verify-full /ca - -"),
        (json!({"1009": "ca.pem"}), "verify-full /app/ca.pem - -"),
        (json!({"1009": "/ca", "1014": true}), "verify-full /ca - -"),
        (json!({"1009": "/ca", "1014": false}), "require /ca - -"),
        (json!({"1009": "/ca", "1014": "0"}), "require /ca - -"),
        (json!({"1009": "/ca", "1014": null}), "require /ca - -"),
        (json!({"1009": ""}), "verify-full - - -"),
        (json!({"1009": null, "1014": false}), "require - - -"),
        (json!({"1007": "/key", "1008": "/cert"}), "verify-full - /cert /key"),
        (json!({"1009": "/ca", "1010": "/certs"}), "`database.connections.a.options.PDO::MYSQL_ATTR_SSL_CAPATH` of the app is `/certs`, expected no such option, because artisand does not support it: name the certificate authority in PDO::MYSQL_ATTR_SSL_CA"),
        (json!({"1011": "AES"}), "`database.connections.a.options.PDO::MYSQL_ATTR_SSL_CIPHER` of the app is `AES`, expected no such option, because artisand does not support it: name the certificate authority in PDO::MYSQL_ATTR_SSL_CA"),
        (json!({"$unknown": "it is made by code"}), "cannot tell `database.connections.a.options` of the app: it is made by code; write a manifest with `artisand manifest`"),
    ];
    for (options, expected) in rows {
        assert_eq!(
            tls("mysql", json!({"options": options})),
            expected,
            "{options}"
        );
    }
    #[rustfmt::skip]
    let rows = [
        (json!({}), "none - - -"),
        (json!({"sslmode": "verify-ca", "sslrootcert": "/ca", "sslcert": "c", "sslkey": "/k"}), "verify-ca /ca /app/c /k"),
        (json!({"sslmode": "verify-full", "sslrootcert": "system"}), "verify-full system - -"),
    ];
    for (fields, expected) in rows {
        assert_eq!(tls("pgsql", fields.clone()), expected, "{fields}");
    }
}

#[test]
fn clusters_are_found_with_their_options() {
    let redis = |config: Value| json!({"database": {"redis": config}});
    let nodes = json!([
        {"host": "a", "port": "7000", "username": "u", "password": "of a node"},
        "redis://b:7001",
    ]);
    let options = json!({"prefix": "p_", "cluster": "redis"});
    let plain = json!({"options": options, "clusters": {"default": nodes}});
    let own = json!({
        "options": options,
        "clusters": {
            "default": {"0": {"host": "tls://a"}, "options": {"prefix": "own_"}},
            "options": {"prefix": "of all clusters", "password": "of all", "username": "all"},
        },
    });
    let predis = json!({"client": "predis", "options": options, "clusters": {"default": nodes}});
    #[rustfmt::skip]
    let rows = [
        // version, settings => address, user, password, prefix
        ("13.5", plain.clone(), "the cluster of a:7000, b:7001", Some("u"), Some("of a node"), "p_"),
        ("12.0", plain.clone(), "the cluster of a:7000, b:7001", None, Some("of a node"), "p_"),
        ("10.0", predis, "the cluster of a:7000, b:7001", Some("u"), Some("of a node"), "p_"),
        ("13.5", own.clone(), "the cluster of tls://a:6379", Some("all"), Some("of all"), "own_"),
        ("13.4", own, "the cluster of tls://a:6379", None, Some("of all"), "own_"),
    ];
    for (version, config, address, username, password, prefix) in rows {
        let found = laravel(version, redis(config.clone()))
            .redis("default")
            .unwrap()
            .options;
        assert_eq!(found.address.to_string(), address, "{version} {config}");
        let login = (found.username.as_deref(), found.password.as_deref());
        assert_eq!(login, (username, password), "{version} {config}");
        assert_eq!((&*found.prefix, found.database), (prefix, 0));
    }
    let names = laravel("13.5", redis(plain.clone())).redis_connections();
    assert_eq!(names.unwrap(), ["default"]);
    // A single server of the same name counts more.
    let mut both = plain;
    both["default"] = json!({"host": "single"});
    let found = laravel("13.5", redis(both.clone())).redis("default");
    assert_eq!(found.unwrap().options.address.to_string(), "single:6379");
    // Not for Horizon, as long as it has not made its connection.
    let of_horizon = |config: &Value| {
        let found = laravel("13.5", redis(config.clone())).horizon_connection("default", "{hz}:");
        let options = found.unwrap().options;
        format!("{}, {}", options.address, options.prefix)
    };
    let cluster = "the cluster of a:7000, b:7001, {hz}:";
    assert_eq!(of_horizon(&both), cluster);
    both["horizon"] = json!({"host": "single", "options": {"prefix": "{hz}:"}});
    assert_eq!(of_horizon(&both), "single:6379, {hz}:");
    let encoded = json!({"options": {"serializer": 1}, "clusters": {"default": nodes}});
    let found = laravel("13.5", redis(encoded)).redis("default").unwrap();
    assert!(found.encoded.is_some());
}

#[test]
fn tls_to_a_cluster_is_as_its_client_secures_it() {
    let of = |client: &str, options: Value| {
        let nodes = json!([{"host": "tls://a"}]);
        let redis = json!({"client": client, "options": options, "clusters": {"default": nodes}});
        let found = laravel("13.5", json!({"database": {"redis": redis}})).redis("default");
        found
            .map(|found| found.options.tls)
            .map_err(|error| error.to_string())
    };
    let trust = |trust| TlsOptions {
        trust,
        ..TlsOptions::default()
    };
    let authorities = TlsOptions {
        authorities: Some("/ca.pem".into()),
        ..TlsOptions::default()
    };
    let no_peer = json!({"verify_peer": false});
    #[rustfmt::skip]
    let rows = [
        ("phpredis", json!({}), TlsOptions::default()),
        ("phpredis", json!({"context": {"cafile": "/ca.pem"}}), authorities.clone()),
        ("phpredis", json!({"context": no_peer}), trust(Trust::Nothing)),
        ("phpredis", json!({"parameters": {"ssl": no_peer}}), TlsOptions::default()),
        ("predis", json!({"cluster": "redis", "parameters": {"ssl": {"cafile": "/ca.pem"}}}), authorities),
        ("predis", json!({"cluster": "redis", "parameters": {"ssl": {"verify_peer_name": false}}}), trust(Trust::AnyName)),
        ("predis", json!({"cluster": "redis", "context": no_peer}), TlsOptions::default()),
    ];
    for (client, options, expected) in rows {
        assert_eq!(
            of(client, options.clone()),
            Ok(expected),
            "{client} {options}"
        );
    }
    let unknown = of("phpredis", json!({"context": {"ciphers": "x"}})).unwrap_err();
    assert!(
        unknown.contains("clusters.options.context.ciphers"),
        "{unknown}"
    );
}
