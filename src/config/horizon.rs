//! The app's Horizon.

use super::laravel::{Laravel, QueuePlace, SettingError};
use super::{Config, Error, connection};
use crate::app::slug;
use crate::connection::{RedisOptions, tag};
use crate::horizon::{HorizonOptions, Supervisor, Trim};
use crate::queue::ConnectionName;
use crate::shown::with_causes;
use crate::worker::WorkerOptions;

/// What to write for the app's Horizon when jobs of this queue connection are pushed or moved; `None` if the app has
/// none, with `enabled = false`, for connections that Horizon does not know, and, after a warning, if Horizon's Redis
/// is not supported.
///
/// # Errors
///
/// With `enabled = true`: as [`horizon_settings`].
pub fn horizon(config: &Config, name: &str) -> Result<Option<HorizonOptions>, Error> {
    let options = tolerated(config, horizon_settings(config, name))?;
    Ok(options
        .filter(|options| options.name_of(&name.into()).is_some() || is_failover(config, name)))
}

/// A worker does not stay down for records of a dashboard, unless its operator asks for them.
fn tolerated(
    config: &Config,
    options: Result<Option<HorizonOptions>, Error>,
) -> Result<Option<HorizonOptions>, Error> {
    match options {
        Err(error) if config.file.horizon.enabled != Some(true) => {
            tracing::warn!(
                error = with_causes(&error),
                "nothing is written for Horizon; `enabled = false` under [horizon] says that it is not wanted"
            );
            Ok(None)
        }
        options => options,
    }
}

fn is_failover(config: &Config, name: &str) -> bool {
    let place = connection(config, name).map(|connection| connection.place);
    matches!(place, Ok(QueuePlace::Failover(_)))
}

/// Connections whose jobs Horizon knows: only its own queue, in place of Laravel's on Redis, tells it of jobs. A job of
/// a failover connection is popped from the first one, under that one's name.
fn recorded(config: &Config) -> Vec<(ConnectionName, ConnectionName)> {
    let place = |name: &str| Some(connection(config, name).ok()?.place);
    let is_on_redis = |name: &String| matches!(place(name), Some(QueuePlace::Redis { .. }));
    let with_name = |name: String| {
        let known = match place(&name)? {
            QueuePlace::Redis { .. } => name.clone(),
            QueuePlace::Failover(names) => names.into_iter().next().filter(is_on_redis)?,
            _ => return None,
        };
        Some((name.as_str().into(), known.as_str().into()))
    };
    // PHP does not know those that only artisand.toml names.
    let names = config.laravel.as_ref().map(Laravel::queue_connections);
    let names = names.and_then(Result::ok).unwrap_or_default();
    names.into_iter().filter_map(with_name).collect()
}

/// What to write for the app's Horizon beside jobs of this connection; `None` if the app has none, or
/// `enabled = false`.
///
/// # Errors
///
/// Horizon's Redis cannot be told or is not supported, or `enabled = true` in an app without Horizon.
pub fn horizon_settings(config: &Config, name: &str) -> Result<Option<HorizonOptions>, Error> {
    let table = &config.file.horizon;
    if table.enabled == Some(false) {
        return Ok(None);
    }
    let found = config
        .laravel
        .as_ref()
        .filter(|laravel| laravel.has_horizon());
    let Some(laravel) = found else {
        return match table.enabled {
            Some(true) => Err(Error::NoHorizon),
            _ => Ok(None),
        };
    };
    let redis = config.setting(laravel.horizon_redis())?;
    // What artisand.toml says of the server counts for Horizon too, if the app has both on one.
    let of_app = laravel.queue(name, None).ok();
    let is_same = of_app.is_some_and(|of_app| match of_app.place {
        QueuePlace::Redis { redis: of_app, .. } => {
            let of_app = RedisOptions {
                prefix: redis.prefix.clone(),
                ..of_app
            };
            of_app == redis
        }
        _ => false,
    });
    let worked = if is_same {
        connection(config, name)?.redis().cloned()
    } else {
        None
    };
    let redis = match worked {
        Some(worked) => RedisOptions {
            prefix: redis.prefix,
            ..worked
        },
        None => redis,
    };
    Ok(Some(HorizonOptions {
        redis,
        connections: recorded(config),
        trim: config.setting(laravel.horizon_trim())?,
        completed: table.completed,
        worker: None,
    }))
}

/// What a worker writes for the app's Horizon; `slots` is how many jobs can run at once, in PHP processes too.
///
/// # Errors
///
/// As [`horizon`]. A worker of a connection that Horizon does not know may push to one that it knows.
pub fn horizon_of_worker(
    config: &Config,
    options: &WorkerOptions,
    slots: usize,
) -> Result<Option<HorizonOptions>, Error> {
    let settings = horizon_settings(config, options.connection.as_str());
    let (Some(horizon), Some(laravel)) = (tolerated(config, settings)?, &config.laravel) else {
        return Ok(None);
    };
    let worker = |connection: &ConnectionName| Supervisor {
        registration: config.file.horizon.register,
        host: host(),
        environment: environment(laravel),
        connection: connection.to_string(),
        queues: options.queues.clone(),
        slots,
        tries: options.defaults.tries,
        timeout: options.defaults.timeout,
    };
    Ok(Some(HorizonOptions {
        worker: horizon.name_of(&options.connection).map(worker),
        ..horizon
    }))
}

/// The name of this host as Horizon makes it; `None` for a name that only PHP can convert, and for the first process
/// of a container, whose number means another process elsewhere.
///
/// # Source
///
/// `Laravel\Horizon\MasterSupervisor::basename`.
fn host() -> Option<String> {
    if std::process::id() == 1 {
        return None;
    }
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy().into_owned();
    slug(&name, '-').filter(|slug| !slug.is_empty())
}

/// A name that is none of the app's environments: Horizon would expect the supervisors of that one here.
fn environment(laravel: &Laravel) -> String {
    let mut name = "artisand".to_owned();
    while laravel.horizon_environments().contains(&name) {
        name.push('-');
    }
    name
}

impl Laravel {
    /// Whether the app has Horizon.
    pub fn has_horizon(&self) -> bool {
        self.config
            .get("horizon")
            .is_some_and(serde_json::Value::is_object)
    }

    /// Horizon's Redis, with Horizon's prefix instead of the app's.
    ///
    /// # Errors
    ///
    /// It is missing, a cluster with keys in many slots, or its client encodes values.
    ///
    /// # Source
    ///
    /// `Laravel\Horizon\Horizon::use`; docs/protocol/horizon.md 1.
    fn horizon_redis(&self) -> Result<RedisOptions, SettingError> {
        let name = self
            .text(&["horizon", "use"])?
            .unwrap_or_else(|| "default".into());
        let prefix = self
            .text(&["horizon", "prefix"])?
            .filter(|prefix| !prefix.is_empty());
        let prefix = prefix.unwrap_or_else(|| "horizon:".into());
        let settings = self.horizon_connection(&name, &prefix)?;
        if let Some((path, found)) = settings.encoded {
            return Err(SettingError::Wrong {
                path,
                found: format!("`{found}`"),
                expected: "none, because Horizon's records would be encoded with it; `enabled = false` under [horizon] works without them".into(),
            });
        }
        if settings.options.is_cluster() && tag(settings.options.prefix.as_bytes()).is_none() {
            return Err(SettingError::Wrong {
                path: "horizon.prefix".into(),
                found: format!("`{prefix}`, and Horizon's Redis is a cluster"),
                expected: "a prefix with a tag, such as `{app}_horizon:`, so that all of Horizon's keys are in one slot; `enabled = false` under [horizon] works without them".into(),
            });
        }
        Ok(settings.options)
    }

    fn horizon_trim(&self) -> Result<Trim, SettingError> {
        let of = Trim::default();
        let minutes = |key: &str, default: u64| {
            let minutes = self.number(&["horizon", "trim", key])?;
            Ok::<_, SettingError>(
                minutes.map_or(default, |minutes| u64::try_from(minutes).unwrap_or(0)),
            )
        };
        let failed = minutes("failed", of.failed)?;
        Ok(Trim {
            recent: minutes("recent", of.recent)?,
            pending: minutes("pending", of.pending)?,
            completed: minutes("completed", of.completed)?,
            failed,
            recent_failed: minutes("recent_failed", failed)?,
            monitored: minutes("monitored", of.monitored)?,
        })
    }

    fn horizon_environments(&self) -> Vec<String> {
        self.names(&["horizon", "environments"]).unwrap_or_default()
    }
}
