//! Queue connections on a Redis cluster: what the file says, and what cannot work.

use super::file::ConnectionTable;
use super::laravel::QueuePlace;
use super::{Config, Error};
use crate::app::Version;
use crate::connection::{Address, RedisAddress, RedisOptions, tag};
use crate::queue::{Keys, QueueName, QueueRefusal, Tagging};

/// The server of a connection, which may be a cluster in the file.
pub(super) fn of(
    name: &str,
    table: &ConnectionTable,
    of_app: RedisOptions,
) -> Result<RedisOptions, Error> {
    let refused = |problem: String, remedy: &str| Error::Cluster {
        connection: name.to_owned(),
        problem,
        remedy: remedy.to_owned(),
    };
    let mut redis = of_app;
    if let Some(nodes) = &table.cluster {
        let was_tls = redis.address.has_tls();
        redis.address = RedisAddress::Cluster {
            seeds: seeds(name, table, nodes)
                .map_err(|(problem, remedy)| refused(problem, remedy))?,
            tls: table.tls.unwrap_or(was_tls),
        };
    } else if let (RedisAddress::Cluster { tls, .. }, Some(is_tls)) =
        (&mut redis.address, table.tls)
    {
        *tls = is_tls;
    }
    if !redis.is_cluster() {
        return Ok(redis);
    }
    if table.database.is_some_and(|database| database != 0) {
        return Err(refused(
            "`database` is not 0".to_owned(),
            "take it out: a cluster has one database",
        ));
    }
    redis.database = 0;
    if redis.prefix.contains('{') && tag(redis.prefix.as_bytes()).is_none() {
        return Err(refused(
            format!(
                "the prefix of its keys is `{}`, with a brace that makes no tag",
                redis.prefix
            ),
            "the keys of a queue and artisand's own records of it would lie in different slots; take the brace out, or write a tag such as `{app}`",
        ));
    }
    Ok(redis)
}

/// The nodes that the file names; or what is wrong with them, and what would work.
fn seeds(
    name: &str,
    table: &ConnectionTable,
    nodes: &[String],
) -> Result<Vec<Address>, (String, &'static str)> {
    let others = [
        ("url", table.url.is_some()),
        ("host", table.host.is_some()),
        ("port", table.port.is_some()),
        ("socket", table.socket.is_some()),
    ];
    if let Some((key, _)) = others.iter().find(|(_, is_set)| *is_set) {
        return Err((
            format!("[connections.{name}] also has `{key}`, which names a single server"),
            "keep one of the two",
        ));
    }
    let remedy = "write each as `host:port`, such as `cluster = [\"10.0.0.1:7000\", \"10.0.0.2:7000\"]`; `tls`, `username` and `password` stand beside it, for all nodes";
    let seeds: Vec<_> = nodes.iter().map_while(|node| address(node)).collect();
    if seeds.len() < nodes.len() {
        // Without the text, which may hold a password.
        let problem = format!("node {} of `cluster` is no `host:port`", seeds.len() + 1);
        return Err((problem, remedy));
    }
    if seeds.is_empty() {
        return Err(("`cluster` names no node".to_owned(), remedy));
    }
    Ok(seeds)
}

/// Host and port, as `host:port`.
fn address(node: &str) -> Option<Address> {
    let (host, port) = node.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (!host.is_empty() && !host.contains(['/', '@'])).then_some(())?;
    Some(Address::new(host, port.parse().ok()?))
}

/// How the names of queues stand in keys on this server.
pub(super) fn tagging(
    config: &Config,
    redis: &RedisOptions,
    of_app: Option<Tagging>,
) -> Option<Tagging> {
    if !redis.is_cluster() {
        return None;
    }
    let of_version = || {
        let version = config.file.laravel.as_deref();
        let version = version.or_else(|| config.laravel.as_ref()?.version.as_deref());
        let version: Version = version
            .and_then(|version| version.parse().ok())
            .unwrap_or_default();
        if version.is_at_least(13, 5) {
            Tagging::Braces
        } else {
            Tagging::AsNamed
        }
    };
    Some(of_app.unwrap_or_else(of_version))
}

/// Refuses queues whose keys lie in different slots of a cluster: the app's Laravel gives them no tag.
pub(super) fn check_tags<'q>(
    connection: &str,
    place: &QueuePlace,
    queues: impl IntoIterator<Item = &'q QueueName>,
) -> Result<(), Error> {
    let QueuePlace::Redis { redis, queue } = place else {
        return Ok(());
    };
    let keys = Keys::new(&*redis.prefix)
        .with_forwards(queue.forwards.clone())
        .with_tagging(queue.tagging);
    let Some(queue) = (queues.into_iter()).find(|queue| !keys.is_usable(queue)) else {
        return Ok(());
    };
    Err(Error::Slots {
        connection: connection.to_owned(),
        queue: queue.clone(),
        why: QueueRefusal::Slots(queue.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_some_nodes_of_a_cluster() {
        let rows = [
            ("10.0.0.1:7000", Some(("10.0.0.1", 7000))),
            ("[::1]:7000", Some(("::1", 7000))),
            ("redis-1.example:6379", Some(("redis-1.example", 6379))),
            ("redis-1.example", None),
            (":7000", None),
            ("h:port", None),
            ("tls://h:7000", None),
            ("redis://:hush@h:7000", None),
        ];
        for (text, expected) in rows {
            let expected = expected.map(|(host, port)| Address::new(host, port));
            assert_eq!(address(text), expected, "{text}");
        }
        let table = |cluster: &[&str]| ConnectionTable {
            cluster: Some(cluster.iter().map(ToString::to_string).collect()),
            ..ConnectionTable::default()
        };
        let of_app = RedisOptions {
            database: 3,
            ..RedisOptions::default()
        };
        let redis = of("redis", &table(&["a:1", "b:2"]), of_app.clone()).unwrap();
        assert_eq!(redis.address.to_string(), "the cluster of a:1, b:2");
        assert_eq!(redis.database, 0);
        // The password must not go in clear text where the app had TLS.
        let tls = RedisOptions {
            address: RedisAddress::Tls("h".into(), 1),
            ..RedisOptions::default()
        };
        let redis = of("redis", &table(&["a:1"]), tls).unwrap();
        assert!(redis.address.has_tls());
        let beside = ConnectionTable {
            port: Some(7),
            ..table(&["a:1"])
        };
        let prefixed = RedisOptions {
            prefix: "a{b".to_owned(),
            ..of_app.clone()
        };
        let rows = [
            (
                of(
                    "redis",
                    &table(&["a:1", "redis://:hush@b:2"]),
                    of_app.clone(),
                ),
                "node 2 of `cluster` is no `host:port`",
            ),
            (
                of("redis", &table(&[]), of_app.clone()),
                "`cluster` names no node",
            ),
            (of("redis", &beside, of_app), "also has `port`"),
            (
                of("redis", &table(&["a:1"]), prefixed),
                "with a brace that makes no tag",
            ),
        ];
        for (refused, expected) in rows {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
            assert!(!refused.contains("hush"), "{refused}");
        }
    }
}
