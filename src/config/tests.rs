//! What the file, the environment and the app say together.

use std::time::Duration;

use super::*;
use crate::config::policy::unmapped;
use crate::connection::{RedisAddress, RedisOptions};
use crate::payload::Encrypter;
use crate::routing::{Registry, UnmappedPolicy};
use crate::shown::with_causes;

fn redis_of(connection: &Connection) -> &RedisOptions {
    connection.redis().unwrap()
}

fn config(toml: &str, env: &[(&str, &str)]) -> Config {
    let process = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Config {
        file: toml::from_str(toml).unwrap(),
        path: "artisand.toml".into(),
        process: Arc::new(process),
        ..Config::default()
    }
}

#[test]
fn the_file_beats_the_environment_and_that_the_defaults() {
    let env = [
        ("REDIS_HOST", "h"),
        ("REDIS_PORT", "7"),
        ("REDIS_PASSWORD", "null"),
        ("REDIS_PREFIX", "p_"),
        ("REDIS_QUEUE", "q"),
    ];
    let from_env = connection(&config("", &env), "redis").unwrap();
    assert_eq!(
        redis_of(&from_env).address,
        RedisAddress::Tcp("h".into(), 7)
    );
    assert_eq!(
        (
            redis_of(&from_env).password.clone(),
            redis_of(&from_env).prefix.as_str()
        ),
        (None, "p_")
    );
    assert_eq!(from_env.default_queue.as_str(), "q");
    assert_eq!(from_env.retry_after(), Some(Duration::from_secs(90)));
    let toml = "[connections.redis]\nport = 8\nprefix = ''\nretry_after = 5\nqueue = 'x'";
    let from_file = connection(&config(toml, &env), "redis").unwrap();
    assert_eq!(
        redis_of(&from_file).address,
        RedisAddress::Tcp("h".into(), 8)
    );
    assert_eq!(
        (
            redis_of(&from_file).prefix.as_str(),
            from_file.default_queue.as_str()
        ),
        ("", "x")
    );
    assert_eq!(from_file.retry_after(), Some(Duration::from_secs(5)));
    let error = connection(&config(toml, &env), "rediss")
        .unwrap_err()
        .to_string();
    assert_eq!(error, "no queue connection `rediss` (configured: redis)");
    let error = connection(&config("", &[("REDIS_PORT", "x")]), "redis")
        .unwrap_err()
        .to_string();
    assert_eq!(error, "`REDIS_PORT` is `x`, expected a port number");
}

#[test]
fn debug_output_holds_no_secret() {
    let toml = r#"
[connections.redis]
url = "redis://user:hunter2@127.0.0.1"
prefix = ""
password = "hunter2"
[[map]]
job = 'A'
handler = { exec = ["x"], env = { TOKEN = "hunter2" } }
[[map]]
job = 'B'
handler = { exec = ["x"], env = { TOKEN = "hunter2" }, persistent = true }
"#;
    let mut config = config(toml, &[("REDIS_PASSWORD", "hunter2")]);
    let env = EnvFile::parse("APP_KEY=hunter2\n", |_| None).unwrap();
    let manifest = r#"{"artisand":1,"laravel":"13.31.0","generated_at":1,"paths":{"base":"/a","storage":"/a/storage"},"config":{"app":{"key":"hunter2"}}}"#;
    let manifest = Manifest::parse(Path::new("artisand.json"), manifest.as_bytes()).unwrap();
    config.env_file = Arc::new(env.clone());
    config.manifest = Some(("artisand.json".into(), Arc::new(manifest.clone())));
    let router = router(&config, &Registry::new()).unwrap();
    let key = "base64:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    let encrypter = Encrypter::new(Version::default(), key, Laravel::CIPHER).unwrap();
    let shown = [
        format!("{config:?}"),
        format!("{env:?}"),
        format!("{manifest:?}"),
        format!("{router:?}"),
        format!("{:?}", connection(&config, "redis").unwrap()),
        format!("{:?}", services(&config).unwrap()),
    ];
    for shown in shown {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    let shown = format!("{encrypter:?}");
    assert!(
        !shown.contains("MDEy") && !shown.contains("0123") && !shown.contains("48, 49"),
        "{shown}"
    );
}

#[test]
fn a_mistake_in_env_counts_where_laravel_reads_the_file() {
    let app = tempfile::tempdir().unwrap();
    std::fs::write(app.path().join(".env"), "A=1\nB=a b").unwrap();
    let load = |settings: &str| {
        let process = [("ARTISAND_SETTINGS".to_owned(), settings.to_owned())];
        let config = Config::load(None, Some(app.path()), process);
        let config = config.map_err(|error| with_causes(&error))?;
        Ok::<_, String>(config.ignored_env().unwrap_or_default().to_owned())
    };
    assert!(load("").unwrap_err().contains("line 2"));
    std::fs::create_dir_all(app.path().join("bootstrap/cache")).unwrap();
    std::fs::write(app.path().join("bootstrap/cache/config.php"), "<?php").unwrap();
    assert!(load("").unwrap().contains("line 2"));
    assert!(load("env").unwrap_err().contains("line 2"));
    let elsewhere = tempfile::tempdir().unwrap();
    let judged = |kind: std::io::ErrorKind, origin: Option<Origin>| {
        let process = [("ARTISAND_SETTINGS".to_owned(), "env".to_owned())];
        let mut config = Config::load(None, Some(elsewhere.path()), process).unwrap();
        if let (Some(origin), Some(laravel)) = (origin, &mut config.laravel) {
            laravel.origin = origin;
        }
        let (path, source) = (".env".into(), kind.into());
        config.env_mistake = Some(Error::Read { path, source });
        config.judge_env().map(|()| config.ignored_env.is_some())
    };
    let of_php = || Some(Origin::Php { cached: None });
    // What `settings = "env"` names is needed.
    assert!(judged(std::io::ErrorKind::PermissionDenied, None).is_err());
    assert!(judged(std::io::ErrorKind::PermissionDenied, of_php()).unwrap());
    assert!(judged(std::io::ErrorKind::TimedOut, None).is_err());
    assert!(judged(std::io::ErrorKind::TimedOut, of_php()).unwrap());
}

#[test]
fn mistakes_are_named_with_their_line() {
    let error = |toml: &str| router(&config(toml, &[]), &Registry::new()).unwrap_err();
    let unknown = error("\n[[map]]\njob = 'A'\nhandler = 'nope'\n");
    assert!(matches!(unknown, Error::Mapping { .. }), "{unknown:?}");
    let pattern = error("[[map]]\njob = '/(/'\nhandler = 'log'\n");
    assert!(matches!(pattern, Error::Pattern { .. }), "{pattern:?}");
    let forwarded = error("[[map]]\njob = 'A'\nhandler = { forward = 'q' }\ndebounce = 'x'\n");
    assert!(matches!(forwarded, Error::Mapping { .. }), "{forwarded:?}");
    let policy = error("[unmapped]\npolicy = 'forward'\n").to_string();
    assert!(policy.contains("needs a `queue`"), "{policy}");
    assert!(
        toml::from_str::<File>("[worker]\nconcurency = 3")
            .unwrap_err()
            .to_string()
            .contains("concurrency")
    );
}

#[test]
fn the_variable_names_php_before_the_file() {
    let toml = "[php]\nbinary = ['php99', '-d']\n";
    #[rustfmt::skip]
    let rows = [
        (toml, Some("php8.4"), vec!["php8.4"], false), ("", Some("php8.4"), vec!["php8.4"], false),
        (toml, Some(""), vec!["php99", "-d"], true), (toml, None, vec!["php99", "-d"], true), ("", None, vec!["php"], false),
    ];
    for (toml, variable, expected, is_doubted) in rows {
        let variable_of_php = variable.map(|php| ("ARTISAND_PHP", php));
        let env: Vec<_> = [("PATH", "/nowhere")]
            .into_iter()
            .chain(variable_of_php)
            .collect();
        let config = config(toml, &env);
        assert_eq!(config.php_program(), expected, "{variable:?}");
        assert_eq!(config.doubt_of_php().is_some(), is_doubted, "{variable:?}");
    }
}

#[test]
fn an_app_that_is_too_old_for_php_processes_leaves_its_jobs() {
    let unmapped = |laravel: &str, more: &str| {
        let php = "[php]\napp = '/srv/app'\nbinary = '/opt/php/bin/php'\n";
        unmapped(&config(&format!("laravel = '{laravel}'\n{php}{more}"), &[]))
    };
    assert_eq!(unmapped("7.30.4", "").unwrap(), UnmappedPolicy::Leave);
    assert_eq!(unmapped("8.0.0", "").unwrap(), UnmappedPolicy::Php);
    let error = unmapped("7.30.4", "[unmapped]\npolicy = 'php'\n").unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("policy `php` needs Laravel 8 or later, and the app is 7.30.4"),
        "{error}"
    );
}

#[test]
fn a_mapping_is_for_one_kind_of_job() {
    let error = |toml: &str| {
        let toml = format!("[[map]]\n{toml}\nhandler = 'log'\n");
        let error = router(&config(&toml, &[]), &Registry::new()).unwrap_err();
        with_causes(&error)
    };
    #[rustfmt::skip]
    let rows = [
        ("", "it needs one of job, listener"),
        ("job = 'A'\nlistener = 'B'", "this one has `job` and `listener`"),
        ("job = 'A'\nchannel = 'mail'", "`channel` goes with `notification`, and this mapping has `job`"),
        ("mailable = 'A'\nevent = 'E'", "`event` goes with `listener`"),
        ("notification = 'A'\nchannel = ''", "`channel` is empty"),
        ("closure = true", "only PHP can run"),
        ("batch = true", "only PHP can run"),
        ("listener = '/(/@handle'", "is not a pattern"),
        ("listener = 'A@'", "it is empty"),
        ("string = ''", "it is empty"),
        (r"job = 'Illuminate\Mail\SendQueuedMailable'", "write `mailable = '..'`"),
    ];
    for (toml, expected) in rows {
        let error = error(toml);
        assert!(error.contains(expected), "{toml}: {error}");
    }
    let unknown = toml::from_str::<File>("[[map]]\nlistner = 'A'\nhandler = 'log'\n");
    let unknown = unknown.unwrap_err().to_string();
    assert!(unknown.contains("`listener`"), "{unknown}");
    let all = r"
[[map]]
listener = 'L@handle'
event = 'E'
handler = 'log'
[[map]]
notification = 'N'
channel = 'mail'
handler = 'log'
[[map]]
mailable = 'M'
handler = 'log'
[[map]]
broadcast = 'B'
handler = 'log'
[[map]]
command = 'c:d'
handler = 'log'
[[map]]
string = 'S'
handler = 'log'
";
    let router = router(&config(all, &[]), &Registry::new()).unwrap();
    let names = router.mappings().map(|mapping| mapping.target.to_string());
    #[rustfmt::skip]
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["listener L@handle of E", "notification N by mail", "mailable M", "broadcast B", "command c:d", "string S@fire"]
    );
}

#[test]
fn middleware_is_written_as_a_list_of_tables() {
    let toml = r#"
[[map]]
job = 'A'
handler = "log"
middleware = [
{ without_overlapping = { key = "{podcast.id}", release_after = 5, expires_after = 60, shared = true } },
{ rate_limited = "backups" },
{ rate_limited_with_redis = { limiter = "backups", dont_release = true, connection = "counters" } },
{ throttles_exceptions = { max = 3, decay = 60, by = "x", spend_attempt = false, when = ['/timed out/'] } },
{ fail_on_exception = ['Illuminate\Database\Eloquent\*'] },
{ release = { when = "{podcast.busy}", after = 30 } },
{ throttles_exceptions_with_redis = { connection = "counters" } },
{ skip = "{muted}" },
"skip_if_batch_cancelled",
]
debounce = "{podcast.id}"

[limiters.backups]
limits = [{ max = 10, per = 60, by = "{user.id}" }, { max = 100, per = 3600 }]
"#;
    let config = config(toml, &[]);
    let router = router(&config, &Registry::new()).unwrap();
    assert_eq!(
        router.mappings().next().unwrap().middleware.iter().count(),
        9
    );
    assert_eq!(router.has_middleware("A"), Some(true));
    let services = services(&config).unwrap();
    assert!(services.middleware.limiter("backups").is_ok());
    let error = check_middleware(&config, &router, &services).unwrap_err();
    let error = with_causes(&error);
    assert!(
        error.contains("the app's default cache store cannot be used: no Laravel app is known"),
        "{error}"
    );
}

#[test]
fn mistakes_in_middleware_are_named() {
    #[rustfmt::skip]
    let rows = [
        (r"{ without_overlaping = {} }", "unknown variant `without_overlaping`"),
        (r"{ without_overlapping = { release = 5 } }", "unknown field `release`"),
        (r#"{ without_overlapping = { key = "{podcast" } }"#, "a `{` is not closed"),
        (r#"{ rate_limited = { limit = "x" } }"#, "unknown field `limit`"),
        (r"{ rate_limited = 5 }", "the name of a limiter"),
        (r#"{ skip = "muted" }"#, "expected one property of the job"),
        (r#"{ skip = "{a}", rate_limited = "b" }"#, "`skip` does not go with `rate_limited`"),
        (r#""log""#, "unknown variant"),
        (r#"{ throttles_exceptions = { when = "X" } }"#, "invalid type: string"),
        (r#"{ throttles_exceptions = { fail_when = ["/(/"] } }"#, "`/(/` is not a pattern"),
        (r"{ throttles_exceptions = { report = true } }", "`report` is not needed"),
        (r"{ fail_on_exception = true }", "invalid type: boolean"),
        (r#"{ release = "{busy}" }"#, "invalid type: string"),
        (r"{ release = { after = 5 } }", "missing field `when`"),
        (r#"{ rate_limited = { limiter = "x", connection = "y" } }"#, "write `rate_limited_with_redis = { connection = \"y\""),
        (r#"{ throttles_exceptions = { connection = "y" } }"#, "write `throttles_exceptions_with_redis = { connection = \"y\""),
    ];
    for (middleware, expected) in rows {
        let toml = format!(
            "[worker]\n\n[[map]]\njob = 'A'\nhandler = 'log'\nmiddleware = [\n  {middleware},\n]\n"
        );
        let error = toml::from_str::<File>(&toml).unwrap_err();
        assert!(
            error.to_string().contains(expected),
            "{middleware}: {error}"
        );
        assert!(
            error.to_string().contains("line 7"),
            "{middleware}: {error}"
        );
    }
}

#[test]
fn sentinels_of_the_file_lie_over_the_app_and_below_a_connection() {
    let address = |toml: &str| {
        let env = [
            ("REDIS_PREFIX", ""),
            ("REDIS_HOST", "h"),
            ("ARTISAND_SENTINEL_PASSWORD", "s3cret"),
        ];
        let found =
            connection(&config(toml, &env), "redis").map_err(|error| with_causes(&error))?;
        let redis = redis_of(&found);
        assert!(!format!("{redis:?}").contains("s3cret"));
        if let RedisAddress::Sentinel(sentinels) = &redis.address {
            assert_eq!(sentinels.servers[0].password.as_deref(), Some("s3cret"));
        }
        Ok::<_, String>(redis.address.to_string())
    };
    let redis = "[redis]\nsentinels = ['a', 'b:7']\nservice = 'm'\n[connections.redis]\n";
    #[rustfmt::skip]
    let rows = [
        ("", Ok("m via a:26379, b:7")),
        ("database = 3", Ok("m via a:26379, b:7")),
        ("host = 'x'\nport = 9", Ok("x:9")),
        ("url = 'redis://x'", Ok("x:6379")),
        ("port = 9", Err("queue connection `redis`: `port` is `9`, expected `host` beside it, or neither: the app's sentinels or cluster name the servers")),
    ];
    for (rest, expected) in rows {
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(address(&format!("{redis}{rest}")), expected, "{rest}");
    }
    for (redis, expected) in [
        ("[redis]\nservice = 'm'", "needs `sentinels`"),
        ("[redis]\nsentinels = ['a']", "needs `service`"),
        (
            "[redis]\nsentinels = ['tcp://:hush@a:1']\nservice = 'm'",
            "has to be `host`",
        ),
        (
            "[redis]\nsentinels = ['a:b']\nservice = 'm'",
            "has to be `host`",
        ),
        (
            "[redis]\nsentinels = ['http://a']\nservice = 'm'",
            "has to be `host`",
        ),
    ] {
        let error = config(redis, &[]).check_redis_table().unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!error.to_string().contains("hush"), "{error}");
    }
}
