//! Servers that are reached over TLS.

use std::path::Path;
use std::process::Command;

use artisand::connection::{
    Address, Redis, RedisAddress, RedisOptions, SentinelServer, Sentinels, TlsOptions, Trust,
};
use artisand::queue::{Queue as _, QueueName, RedisQueue, RedisQueueOptions};

use crate::harness::cluster::Cluster;
use crate::harness::process::artisand;
use crate::harness::redis::{FREE_PORT, RedisServer, free_port};

fn queue(options: &RedisOptions) -> RedisQueue {
    RedisQueue::new(Redis::new(options).unwrap(), RedisQueueOptions::default())
}

/// A directory with a key and a certificate of its own.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    certificate(home.path());
    home
}

/// A key and a self-signed certificate for `localhost`.
pub(crate) fn certificate(directory: &Path) {
    let status = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(directory.join("key.pem"))
        .arg("-out")
        .arg(directory.join("cert.pem"))
        .output()
        .expect("openssl runs")
        .status;
    assert!(status.success());
}

#[test]
#[ignore = "needs openssl"]
fn tls_is_used_and_a_stranger_is_not_trusted() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path());
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let port = free_port().to_string();
    let (certificate, key) = (path("cert.pem"), path("key.pem"));
    let tls = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-auth-clients",
        "no",
    ];
    let server = RedisServer::start_with(&[&["--save", ""], &tls[..]].concat());
    server.query::<i64>(&[b"RPUSH", b"queues:default", b"not json"]);
    let peek = |trusted: &str| {
        let mut command = artisand(&["queue:peek"]);
        command
            .env("REDIS_HOST", "tls://localhost")
            .env("REDIS_PORT", &port)
            .env("REDIS_PREFIX", "")
            .env("SSL_CERT_FILE", trusted);
        command.output().unwrap()
    };
    let output = peek(&certificate);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("default: 1 pending"));
    let stranger = tempfile::tempdir().unwrap();
    self::certificate(stranger.path());
    let output = peek(stranger.path().join("cert.pem").to_str().unwrap());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("could not connect to Redis at tls://localhost")
    );
}

/// What each way to secure a connection makes of a real server.
#[tokio::test]
#[ignore = "needs openssl"]
async fn a_server_is_trusted_as_far_as_the_app_says() {
    let [home, stranger] = [(); 2].map(|()| home());
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let (own, key) = (path("cert.pem"), path("key.pem"));
    let start = |auth: &str| {
        let options = [
            "--save",
            "",
            "--tls-port",
            FREE_PORT,
            "--tls-cert-file",
            &own,
            "--tls-key-file",
            &key,
            "--tls-ca-cert-file",
            &own,
            "--tls-auth-clients",
            auth,
        ];
        let server = RedisServer::start_with(&options);
        let port = server.tls_port().unwrap();
        (server, port)
    };
    let (open, closed) = (start("no"), start("yes"));
    let trusting = |trust| TlsOptions {
        trust,
        ..TlsOptions::default()
    };
    let by = |authority: &Path, trust| TlsOptions {
        authorities: Some(authority.join("cert.pem")),
        ..trusting(trust)
    };
    let home = home.path();
    let named = TlsOptions {
        name: Some("localhost".into()),
        ..by(home, Trust::Name)
    };
    let shown = TlsOptions {
        certificate: Some(home.join("cert.pem")),
        key: Some(home.join("key.pem")),
        ..by(home, Trust::Name)
    };
    #[rustfmt::skip]
    let rows = [
        // server, host, options => connects
        (&open, "localhost", trusting(Trust::Name), false),
        (&open, "localhost", trusting(Trust::AnyName), false),
        (&open, "localhost", by(home, Trust::Name), true),
        (&open, "localhost", by(stranger.path(), Trust::Name), false),
        (&open, "localhost", by(stranger.path(), Trust::AnyName), false),
        (&open, "127.0.0.1", by(home, Trust::Name), false),
        (&open, "127.0.0.1", by(home, Trust::AnyName), true),
        (&open, "127.0.0.1", named, true),
        (&open, "127.0.0.1", trusting(Trust::Nothing), true),
        (&closed, "localhost", by(home, Trust::Name), false),
        (&closed, "localhost", shown, true),
    ];
    for ((_, port), host, tls, connects) in rows {
        let options = RedisOptions {
            address: RedisAddress::Tls(host.into(), *port),
            tls,
            ..RedisOptions::default()
        };
        let answer = queue(&options).ping().await;
        assert_eq!(
            answer.is_ok(),
            connects,
            "{host} {:?}: {answer:?}",
            options.tls
        );
    }
    let gone = TlsOptions {
        authorities: Some("/nonexistent/ca.pem".into()),
        ..TlsOptions::default()
    };
    let options = RedisOptions {
        address: RedisAddress::Tls("localhost".into(), open.1),
        tls: gone,
        ..RedisOptions::default()
    };
    let error = Redis::new(&options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "could not read /nonexistent/ca.pem for TLS"
    );
}

/// Options of a server with TLS, whose certificate is in this directory.
fn secured(home: &Path) -> Vec<String> {
    let path = |name: &str| home.join(name).to_str().unwrap().to_owned();
    let options = [
        ("--tls-port", FREE_PORT.to_owned()),
        ("--tls-cert-file", path("cert.pem")),
        ("--tls-key-file", path("key.pem")),
        ("--tls-ca-cert-file", path("cert.pem")),
        ("--tls-auth-clients", "no".to_owned()),
        ("--tls-replication", "yes".to_owned()),
    ];
    let options = options.into_iter();
    options
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
}

/// Trusts the certificate of this directory. Nodes and sentinels name servers by their addresses.
fn trusted(home: &Path) -> TlsOptions {
    TlsOptions {
        authorities: Some(home.join("cert.pem")),
        name: Some("localhost".into()),
        ..TlsOptions::default()
    }
}

/// Queues whose keys are on different masters, one of which redirects to another.
#[tokio::test]
#[ignore = "needs openssl"]
async fn all_nodes_of_a_cluster_are_reached_over_tls() {
    let [home, stranger] = [(); 2].map(|()| home());
    let cluster = Cluster::secured(&secured(home.path()));
    let options = |tls| RedisOptions {
        address: RedisAddress::Cluster {
            seeds: vec![Address::new(
                "127.0.0.1",
                cluster.node(1).tls_port().unwrap(),
            )],
            tls: true,
        },
        prefix: "p_".into(),
        tls,
        ..RedisOptions::default()
    };
    let queues = queue(&options(trusted(home.path())));
    let mut masters: Vec<usize> = Vec::new();
    for number in 0..12 {
        let name = format!("{{q{number}}}");
        masters.push(cluster.first_master_of(&name));
        let name = QueueName::from(name);
        queues.push(&name, &[b"{}".to_vec()]).await.unwrap();
        assert_eq!(queues.sizes(&name).await.unwrap().pending, 1);
    }
    masters.sort_unstable();
    masters.dedup();
    assert_eq!(masters, [0, 1, 2]);
    // Nothing went over connections that can be read.
    for node in 0..3 {
        let clients: String = cluster.node(node).query(&[b"CLIENT", b"LIST"]);
        let plain = format!("laddr=127.0.0.1:{} ", cluster.node(node).port());
        // This question itself.
        assert_eq!(clients.matches(&plain).count(), 1, "{clients}");
    }
    let error = queue(&options(trusted(stranger.path()))).ping().await;
    let error = error.unwrap_err();
    assert!(
        error.is_lost_connection() && !error.is_of_unknown_outcome(),
        "{error:?}"
    );
}

#[tokio::test]
#[ignore = "needs openssl"]
async fn sentinels_and_the_master_that_they_name_are_reached_over_tls() {
    let [home, stranger] = [(); 2].map(|()| home());
    let secured = secured(home.path());
    let secured: Vec<&str> = secured.iter().map(String::as_str).collect();
    let master = RedisServer::start_with(&[&["--save", ""][..], &secured].concat());
    let config = format!(
        "sentinel monitor main 127.0.0.1 {} 1\n",
        master.tls_port().unwrap()
    );
    let sentinel =
        RedisServer::start_configured(&[&["--sentinel"][..], &secured].concat(), &config);
    let port = sentinel.tls_port().unwrap();
    let options = |of_sentinel, of_master| RedisOptions {
        address: RedisAddress::Sentinel(Sentinels {
            service: "main".into(),
            servers: vec![SentinelServer {
                tls: of_sentinel,
                ..SentinelServer::new("127.0.0.1", port)
            }],
            has_tls: true,
        }),
        tls: of_master,
        ..RedisOptions::default()
    };
    let (known, other) = (trusted(home.path()), trusted(stranger.path()));
    let name = QueueName::from("default");
    let queues = queue(&options(Some(known.clone()), known.clone()));
    patiently(async || queues.ping().await).await.unwrap();
    queues.push(&name, &[b"{}".to_vec()]).await.unwrap();
    assert_eq!(master.length("queues:default"), 1);
    #[rustfmt::skip]
    let refused = [
        (Some(other.clone()), known.clone(), "no sentinel answers"),
        // Its port of TLS, without.
        (None, known.clone(), "no sentinel answers"),
        (Some(known), other, "the master of `main`"),
    ];
    for (of_sentinel, of_master, problem) in refused {
        let queues = queue(&options(of_sentinel, of_master));
        let error = patiently(async || queues.ping().await).await.unwrap_err();
        assert!(format!("{error:?}").contains(problem), "{error:?}");
    }
}

/// Asks again while a sentinel gets no processor for the second that it has to answer.
pub(crate) async fn patiently<T, E: std::fmt::Debug>(
    ask: impl AsyncFn() -> Result<T, E>,
) -> Result<T, E> {
    for _ in 0..60 {
        match ask().await {
            Err(error) if format!("{error:?}").contains("timed out") => {}
            answer => return answer,
        }
    }
    ask().await
}
