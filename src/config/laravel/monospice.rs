//! The package `monospice/laravel-redis-sentinel-drivers` (Laravel up to 8): its connections to Redis stand beside
//! Laravel's own, and its driver `redis-sentinel` takes them.

use serde_json::{Map, Value, json};

/// The driver of queue connections and cache stores, and the group of connections below `database`.
const DRIVER: &str = "redis-sentinel";

/// The configuration with the package's connections as predis has them, below `database.redis`, and the driver `redis`
/// in place of the package's.
///
/// # Source
///
/// `Monospice\LaravelRedisSentinel\Connectors\PredisConnector::connect`, `Configuration\Loader`.
pub(in crate::config) fn as_predis(mut config: Value) -> Value {
    let database = config.get_mut("database").and_then(Value::as_object_mut);
    let Some(database) = database else {
        return config;
    };
    let Some(Value::Object(mut connections)) = database.remove(DRIVER) else {
        return config;
    };
    let of_all = connections.remove("options");
    let redis = database.entry("redis").or_insert_with(|| json!({}));
    let Some(redis) = redis.as_object_mut() else {
        return config;
    };
    // Then the package also stands for Laravel's own Redis.
    let driver = redis.remove("driver");
    let is_for_all = matches!(
        driver.as_ref().and_then(Value::as_str),
        Some("redis-sentinel" | "sentinel")
    );
    for (name, servers) in connections {
        let connection = connection(servers, of_all.as_ref());
        if is_for_all {
            redis.insert(name.clone(), connection.clone());
        }
        redis.insert(named(&name), connection);
    }
    for group in ["/queue/connections", "/cache/stores"] {
        let users = config.pointer_mut(group).and_then(Value::as_object_mut);
        for user in users.into_iter().flat_map(Map::values_mut) {
            if user.get("driver").and_then(Value::as_str) == Some(DRIVER) {
                let name = user.get("connection").and_then(Value::as_str);
                user["connection"] = named(name.unwrap_or("default")).into();
                user["driver"] = "redis".into();
            }
        }
    }
    if let Some(horizon) = config.get_mut("horizon")
        && horizon.get("driver").and_then(Value::as_str) == Some(DRIVER)
    {
        let name = horizon.get("use").and_then(Value::as_str);
        horizon["use"] = named(name.unwrap_or("default")).into();
    }
    config
}

/// The name that a connection of the package has among Laravel's.
fn named(name: &str) -> String {
    format!("{DRIVER}.{name}")
}

/// A list of sentinels with its options; none of the options of Laravel's own connections count for it.
fn connection(servers: Value, of_all: Option<&Value>) -> Value {
    let mut connection = match servers {
        Value::Array(servers) => {
            let numbered = servers.into_iter().enumerate();
            numbered
                .map(|(position, server)| (position.to_string(), server))
                .collect()
        }
        Value::Object(servers) => servers,
        server => Map::from_iter([("0".to_owned(), server)]),
    };
    let mut options = Map::from_iter([
        ("prefix".to_owned(), json!("")),
        ("parameters".to_owned(), json!({})),
    ]);
    let own = connection.remove("options");
    for given in [of_all.cloned(), own].into_iter().flatten() {
        if let Value::Object(given) = given {
            options.extend(given);
        }
    }
    options.insert("replication".into(), "sentinel".into());
    connection.insert("options".into(), options.into());
    connection.into()
}
