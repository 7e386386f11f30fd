//! Pushes failed jobs again: for `queue:retry` and for the page.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{failed, open, output, record_for_horizon};
use crate::config::{self, Config, Laravel, QueuePlace, php};
use crate::failed::{FailedJobs, StoredJob};
use crate::horizon::Horizon;
use crate::payload::{self, Payload};
use crate::queue::{Driver, Error, QueueName};
use crate::time::{Clock, Micros, UnixSeconds};

/// The result of retrying one failed job.
#[derive(Debug)]
pub(super) enum Retried {
    /// The job is on its queue again, after this time.
    Pushed(Duration),
    /// It is on its queue again and still a failed job: why, and what to do. Records of others would stay, too.
    RecordStays(Duration, anyhow::Error),
    /// No job has this id.
    Unknown,
    /// The job stays a failed job.
    Stays {
        /// How long a try took, if there was one.
        tried: Option<Duration>,
        /// Why it stays.
        why: String,
    },
    /// Its queue did not take it, so that others will not do better.
    Refused(Duration, Error),
}

/// The state shared by all retried jobs.
pub(super) struct Retrying<'a> {
    config: &'a Config,
    /// `--env`, for PHP.
    env: Option<String>,
    pub(super) store: FailedJobs,
    connections: HashMap<String, Arc<dyn Driver>>,
    /// Writers of Horizon's records, one for each connection.
    horizons: Vec<Horizon>,
}

impl<'a> Retrying<'a> {
    pub(super) fn new(config: &'a Config, env: Option<String>) -> anyhow::Result<Self> {
        Ok(Self {
            config,
            env,
            store: failed::store(config)?,
            connections: HashMap::new(),
            horizons: Vec::new(),
        })
    }

    /// Waits for Horizon's records.
    pub(super) async fn finish(self) {
        for horizon in self.horizons {
            horizon.finish().await;
        }
    }

    /// Pushes a failed job onto its queue, and then removes its record.
    ///
    /// # Errors
    ///
    /// The store cannot be read, or the job's connection not be opened: it stays a failed job.
    pub(super) async fn retry(&mut self, id: &str) -> anyhow::Result<Retried> {
        let Some(job) = self.store.find(id).await? else {
            return Ok(Retried::Unknown);
        };
        let parsed = Payload::parse(&job.payload);
        let ready = parsed.and_then(|parsed| {
            Ok((
                parsed,
                payload::for_retry(&job.payload, self.pushed_at(&job.connection))?,
            ))
        });
        let (parsed, payload) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                let error = output::with_causes(&error.into());
                let text = format!("Job [{id}] has a payload that cannot be decoded: {error}");
                return Ok(stays(text));
            }
        };
        let until = parsed.limits.retry_until;
        if until.is_some_and(|until: UnixSeconds| until < Clock::System.now()) {
            return self.retry_with_php(id).await;
        }
        if let Err(error) = self.connect(&job).await {
            // A connection that cannot be reached would fail for the next job too.
            let error = error.downcast::<config::Error>()?;
            let error = output::with_causes(&error.into());
            let text = format!(
                "Job [{id}] cannot be pushed onto its connection [{}]: {error}",
                job.connection
            );
            return Ok(stays(text));
        }
        let started = Instant::now();
        let queue = QueueName::from(job.queue.as_str());
        let pushed = self.connections[&job.connection]
            .push(&queue, &[payload])
            .await;
        let took = started.elapsed();
        if let Err(error) = pushed {
            return Ok(Retried::Refused(took, error));
        }
        Ok(match self.store.forget(id).await {
            Ok(_) => Retried::Pushed(took),
            Err(error) => Retried::RecordStays(
                took,
                anyhow::Error::from(error).context(format!(
                    "Job [{id}] is on its queue again, and its record could not be deleted (`queue:forget {id}` deletes it)"
                )),
            ),
        })
    }

    /// What Horizon adds to what is pushed onto Redis, if the app has it.
    fn pushed_at(&self, connection: &str) -> Option<Micros> {
        let has_horizon = self.config.laravel().is_some_and(Laravel::has_horizon);
        let place = || Some(config::connection(self.config, connection).ok()?.place);
        let is_its = |place| matches!(place, QueuePlace::Redis { .. } | QueuePlace::Failover(_));
        (has_horizon && place().is_some_and(is_its)).then(Micros::now)
    }

    async fn connect(&mut self, job: &StoredJob) -> anyhow::Result<()> {
        if !self.connections.contains_key(&job.connection) {
            let (queue, connection) = open(self.config, &job.connection).await?;
            if let QueuePlace::Nowhere(driver) = connection.place {
                let name = job.connection.clone();
                return Err(config::Error::Nowhere { name, driver }.into());
            }
            self.horizons
                .extend(record_for_horizon(self.config, &job.connection, &*queue)?);
            self.connections.insert(job.connection.clone(), queue);
        }
        Ok(())
    }

    /// Leaves a job to PHP, because only its class can compute a new `retryUntil`.
    async fn retry_with_php(&mut self, id: &str) -> anyhow::Result<Retried> {
        let program = self.config.php_program();
        let artisan = self.config.artisan();
        let Some(artisan) = artisan.filter(|_| php::version(&program).is_some()) else {
            return Ok(stays(format!(
                "Job [{id}] has a retryUntil in the past that only its PHP class can renew: retry it with `php artisan queue:retry {id}`."
            )));
        };
        let mut args = vec!["queue:retry".to_owned()];
        args.extend(self.env.as_ref().map(|env| format!("--env={env}")));
        // An id may look like an option.
        args.extend(["--".to_owned(), id.to_owned()]);
        let started = Instant::now();
        // Waits for a process.
        let asking = tokio::task::spawn_blocking(move || {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            php::artisan(&program, &artisan, &args)
        });
        let answer = asking.await?;
        let elapsed = started.elapsed();
        let error = match answer {
            Err(error) => Some(error),
            Ok(_) if self.store.find(id).await?.is_some() => {
                Some("it is still a failed job after `php artisan queue:retry`".to_owned())
            }
            Ok(_) => None,
        };
        Ok(match error {
            Some(error) => Retried::Stays {
                tried: Some(elapsed),
                why: format!("Job [{id}] could not be retried: {error}"),
            },
            None => Retried::Pushed(elapsed),
        })
    }
}

fn stays(why: String) -> Retried {
    Retried::Stays { tried: None, why }
}
