//! Traces of jobs: what `[otlp]` says, and what the variables of OpenTelemetry say.
//!
//! The variables are those that its packages for PHP read too, in the process environment or in `.env`. What is said
//! in `artisand.toml` wins. Traces are off unless one of the two names a collector.

use std::time::Duration;

use super::laravel::QueuePlace;
use super::{Config, Error, connection};
use crate::connection::{DatabaseKind, RedisAddress, percent_decode};
use crate::payload::random_uuid;
use crate::telemetry::{Sampling, TraceOptions};

/// The target of log lines here: it stays the same when files are moved.
const TARGET: &str = "artisand::config";

/// Where traces of the jobs of this queue connection go; `None` if they are off.
///
/// # Errors
///
/// A setting cannot be used, or the program was built without OpenTelemetry and `artisand.toml` asks for it.
pub fn traces(config: &Config, name: &str) -> Result<Option<TraceOptions>, Error> {
    let (table, variables) = (&config.file.otlp, Variables(config));
    let is_asked = table
        .enabled
        .unwrap_or(table.endpoint.is_some() && variables.are_on());
    if !is_asked && (table.enabled.is_some() || !variables.wants_traces()) {
        return Ok(None);
    }
    if cfg!(not(feature = "otlp")) {
        // The variables may be for PHP.
        return if is_asked {
            Err(Error::NoOtlp)
        } else {
            Ok(None)
        };
    }
    if let Some(protocol) = variables.of_traces("PROTOCOL")
        && protocol == "grpc"
    {
        let problem = "artisand sends traces over HTTP only: name the collector's port for HTTP (4318) with `endpoint` under [otlp], and set the protocol to http/protobuf";
        if table.endpoint.is_none() {
            tracing::warn!(target: TARGET, "OTEL_EXPORTER_OTLP_PROTOCOL is `grpc`, and jobs are not traced: {problem}");
            return Ok(None);
        }
    }
    let (driver, server) = server(&connection(config, name)?.place);
    let of = TraceOptions::default();
    let (setting, endpoint) = match &table.endpoint {
        Some(endpoint) => ("`endpoint` under [otlp]", with_path(endpoint)),
        None => (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            variables.endpoint().unwrap_or(of.endpoint),
        ),
    };
    if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
        return Err(Error::Collector { name: setting });
    }
    let system = table.system.clone();
    Ok(Some(TraceOptions {
        endpoint,
        headers: pairs(&variables.of_traces("HEADERS").unwrap_or_default()),
        timeout: variables.timeout()?.unwrap_or(of.timeout),
        sampling: variables.sampling(),
        continues: table.parent,
        resource: variables.resource(),
        system: system.unwrap_or_else(|| driver.to_owned()),
        server,
    }))
}

/// The driver of a queue connection, and host and port of its server.
fn server(place: &QueuePlace) -> (&'static str, Option<(String, u16)>) {
    match place {
        QueuePlace::Redis { redis, .. } => match &redis.address {
            RedisAddress::Tcp(host, port) | RedisAddress::Tls(host, port) => {
                ("redis", Some((host.clone(), *port)))
            }
            RedisAddress::Unix(_) | RedisAddress::Sentinel(_) | RedisAddress::Cluster { .. } => {
                ("redis", None)
            }
        },
        QueuePlace::Database { database, .. } => {
            let is_local = database.kind == DatabaseKind::Sqlite || database.socket.is_some();
            let server = (!is_local).then(|| (database.host.clone(), database.port));
            ("database", server)
        }
        QueuePlace::Nowhere(driver) => (driver, None),
        QueuePlace::Failover(_) => ("failover", None),
        QueuePlace::Sqs { .. } => ("aws_sqs", None),
        QueuePlace::Beanstalkd { queue } => ("beanstalkd", Some((queue.host.clone(), queue.port))),
    }
}

/// The URL for traces of a collector.
fn with_path(endpoint: &str) -> String {
    format!("{}/v1/traces", endpoint.trim_end_matches('/'))
}

/// `name=value,name=value`, with escapes as in URLs.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then(|| (percent_decode(name), percent_decode(value.trim())))
    });
    pairs.collect()
}

/// The variables of OpenTelemetry.
struct Variables<'a>(&'a Config);

impl Variables<'_> {
    fn get(&self, name: &str) -> Option<String> {
        let value = self.0.env(name)?;
        Some(value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// A variable of the exporter: the one for traces, or the one for everything.
    fn of_traces(&self, name: &str) -> Option<String> {
        let own = self.get(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"));
        own.or_else(|| self.get(&format!("OTEL_EXPORTER_OTLP_{name}")))
    }

    /// Whether nothing switches traces off.
    fn are_on(&self) -> bool {
        // Laravel's cast makes `1` of `true`.
        let disabled = self.get("OTEL_SDK_DISABLED").unwrap_or_default();
        let exporter = self.get("OTEL_TRACES_EXPORTER");
        !matches!(&*disabled, "1" | "true") && exporter.as_deref() != Some("none")
    }

    fn wants_traces(&self) -> bool {
        let exporter = self.get("OTEL_TRACES_EXPORTER");
        let is_otlp = exporter
            .as_deref()
            .is_none_or(|exporter| exporter == "otlp");
        self.are_on() && is_otlp && (exporter.is_some() || self.endpoint().is_some())
    }

    fn endpoint(&self) -> Option<String> {
        let own = self.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        own.or_else(|| Some(with_path(&self.get("OTEL_EXPORTER_OTLP_ENDPOINT")?)))
    }

    fn timeout(&self) -> Result<Option<Duration>, Error> {
        let Some(value) = self.of_traces("TIMEOUT") else {
            return Ok(None);
        };
        match value.parse() {
            Ok(milliseconds) => Ok(Some(Duration::from_millis(milliseconds))),
            Err(_) => Err(Error::Variable {
                name: "OTEL_EXPORTER_OTLP_TIMEOUT".to_owned(),
                value,
                expected: "milliseconds",
            }),
        }
    }

    fn sampling(&self) -> Sampling {
        let Some(name) = self.get("OTEL_TRACES_SAMPLER") else {
            return Sampling::default();
        };
        let share = || {
            let share = self.get("OTEL_TRACES_SAMPLER_ARG");
            let share = share.and_then(|share| share.parse::<f64>().ok());
            share.map_or(1.0, |share| share.clamp(0.0, 1.0))
        };
        let root = name.strip_prefix("parentbased_");
        let is_parent_based = root.is_some();
        let share = match root.unwrap_or(&name) {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => share(),
            _ => {
                tracing::warn!(
                    target: TARGET,
                    "OTEL_TRACES_SAMPLER is `{name}`, which artisand does not know: all traces are recorded whose parents are"
                );
                return Sampling::default();
            }
        };
        Sampling {
            is_parent_based,
            share,
        }
    }

    /// What all spans say of this process.
    fn resource(&self) -> Vec<(String, String)> {
        let named = self.get("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        let mut resource = pairs(&named);
        let host = rustix::system::uname();
        if let Some(name) = self.get("OTEL_SERVICE_NAME") {
            resource.retain(|(known, _)| known != "service.name");
            resource.push(("service.name".to_owned(), name));
        }
        let defaults = [
            ("service.name", "artisand".to_owned()),
            ("service.instance.id", random_uuid().to_string()),
            ("host.name", host.nodename().to_string_lossy().into_owned()),
            ("process.pid", std::process::id().to_string()),
            ("telemetry.sdk.language", "rust".to_owned()),
            ("telemetry.sdk.name", "opentelemetry".to_owned()),
        ];
        for (name, value) in defaults {
            if resource.iter().all(|(known, _)| known != name) {
                resource.push((name.to_owned(), value));
            }
        }
        resource
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)], file: &str) -> Config {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config {
            file: toml::from_str(file).unwrap(),
            process: std::sync::Arc::new(variables.collect()),
            ..Config::default()
        }
    }

    #[test]
    fn traces_are_on_if_a_collector_is_named() {
        const HERE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318/");
        #[rustfmt::skip]
        let rows: [(&[_], &str, Option<&str>); 10] = [
            (&[], "", None),
            (&[], "otlp.enabled = true", Some("http://localhost:4318/v1/traces")),
            (&[], "otlp.endpoint = 'http://b'", Some("http://b/v1/traces")),
            (&[HERE], "", Some("http://a:4318/v1/traces")),
            (&[HERE], "otlp.endpoint = 'http://b'", Some("http://b/v1/traces")),
            (&[HERE], "otlp.enabled = false", None),
            (&[HERE, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/x")], "", Some("http://c/x")),
            (&[HERE, ("OTEL_SDK_DISABLED", "true")], "", None),
            (&[HERE, ("OTEL_TRACES_EXPORTER", "none")], "", None),
            (&[HERE, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "", None),
        ];
        for name in ["collector:4318", "ftp://collector"] {
            let file = format!("otlp.endpoint = '{name}'");
            let config = config(
                &[],
                &format!("connections.redis = {{ host = 'r', prefix = '' }}\n{file}"),
            );
            assert!(traces(&config, "redis").is_err(), "{file}");
        }
        for (variables, file, expected) in rows {
            let file = format!("connections.redis = {{ host = 'r', prefix = '' }}\n{file}");
            let config = config(variables, &file);
            let found = traces(&config, "redis").map(|found| found.map(|found| found.endpoint));
            if cfg!(feature = "otlp") {
                assert_eq!(found.unwrap().as_deref(), expected, "{variables:?} {file}");
            } else {
                let is_asked = file.contains("otlp") && expected.is_some();
                assert_eq!(found.is_err(), is_asked, "{variables:?} {file}");
            }
        }
    }

    #[test]
    fn variables_say_what_is_recorded_and_of_whom() {
        let sampling = |name, share| {
            config(
                &[
                    ("OTEL_TRACES_SAMPLER", name),
                    ("OTEL_TRACES_SAMPLER_ARG", share),
                ],
                "",
            )
        };
        #[rustfmt::skip]
        let rows = [
            ("always_on", "", false, 1.0), ("always_off", "", false, 0.0),
            ("traceidratio", "0.25", false, 0.25), ("traceidratio", "7", false, 1.0),
            ("parentbased_always_off", "", true, 0.0), ("parentbased_traceidratio", "x", true, 1.0),
            ("xray", "", true, 1.0),
        ];
        for (name, share, is_parent_based, share_expected) in rows {
            let found = Variables(&sampling(name, share)).sampling();
            let expected = Sampling {
                is_parent_based,
                share: share_expected,
            };
            assert_eq!(found, expected, "{name} {share}");
        }
        let config = config(
            &[
                ("OTEL_SERVICE_NAME", "shop"),
                (
                    "OTEL_RESOURCE_ATTRIBUTES",
                    "service.name=no, deployment.environment.name=a%20b,host.name=h,=x,y",
                ),
            ],
            "",
        );
        let resource = Variables(&config).resource();
        let get = |name: &str| {
            let found: Vec<_> = resource.iter().filter(|(known, _)| known == name).collect();
            assert_eq!(found.len(), 1, "{name}");
            found[0].1.clone()
        };
        assert_eq!(get("service.name"), "shop");
        assert_eq!(get("deployment.environment.name"), "a b");
        assert_eq!(get("host.name"), "h");
        assert_eq!(get("process.pid"), std::process::id().to_string());
    }
}
