//! Pushes failed jobs again: for `queue:retry` and for the page.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::OnceCell;

use super::{failed, open, output, record_for_horizon};
use crate::config::{self, Config, Laravel, QueuePlace, php};
use crate::failed::{FailedJobs, StoredJob};
use crate::horizon::Horizon;
use crate::outbox::before_retry;
use crate::payload::{self, Data, Payload};
use crate::queue::{Driver, QueueName};
use crate::time::{Clock, Micros};

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
    /// Its queue did not take it, or may have without saying so; others will not do better.
    Refused(Duration, anyhow::Error),
}

/// What only the class of a job knows.
enum OfClass {
    /// Nothing that the payload does not say.
    Nothing,
    /// Something that the payload says as well.
    Wanted,
    /// Something that the payload does not say: what, for messages.
    Needed(&'static str),
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
    /// The app's `artisan`, once it is known whether PHP runs: none where it does not.
    artisan: OnceCell<Option<PathBuf>>,
    /// How many PHP processes in a row have ended with an error and pushed nothing.
    fruitless: usize,
    /// Number of jobs that were pushed without asking their classes for what was wanted.
    unasked: usize,
}

impl<'a> Retrying<'a> {
    pub(super) fn new(config: &'a Config, env: Option<String>) -> anyhow::Result<Self> {
        Ok(Self {
            config,
            env,
            store: failed::store(config)?,
            connections: HashMap::new(),
            horizons: Vec::new(),
            artisan: OnceCell::new(),
            fruitless: 0,
            unasked: 0,
        })
    }

    /// Waits for Horizon's records.
    pub(super) async fn finish(self) {
        for horizon in self.horizons {
            horizon.finish().await;
        }
    }

    /// Pushes a failed job onto its queue, and then removes its record; `None` if that is left to
    /// [PHP](Self::retry_with_php).
    ///
    /// # Errors
    ///
    /// The store cannot be read, or the job's connection not be opened or its spool not be read: it stays a failed job.
    pub(super) async fn retry(&mut self, id: &str) -> anyhow::Result<Option<Retried>> {
        let Some(job) = self.store.find(id).await? else {
            return Ok(Some(Retried::Unknown));
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
                return Ok(Some(stays(text)));
            }
        };
        let asked = self.of_class(&job, &parsed);
        if !matches!(asked, OfClass::Nothing) && self.can_php_push(&job.connection).await {
            return Ok(None);
        }
        if let OfClass::Needed(what) = asked {
            return Ok(Some(stays(format!(
                "Job [{id}] {what}: retry it with `php artisan queue:retry {id}`."
            ))));
        }
        let retried = self.push(&job, payload).await?;
        let is_queued = matches!(retried, Retried::Pushed(_) | Retried::RecordStays(..));
        self.unasked += usize::from(is_queued && matches!(asked, OfClass::Wanted));
        Ok(Some(retried))
    }

    /// Pushes a job, and then removes its record; before that, what a killed worker has left of it in the spool.
    async fn push(&mut self, job: &StoredJob, payload: Vec<u8>) -> anyhow::Result<Retried> {
        let id = &job.id;
        if let Err(error) = self.connect(job).await {
            // A connection that cannot be reached would fail for the next job too.
            let error = error.downcast::<config::Error>()?;
            let error = output::with_causes(&error.into());
            let text = format!(
                "Job [{id}] cannot be pushed onto its connection [{}]: {error}",
                job.connection
            );
            return Ok(stays(text));
        }
        let connection = Arc::clone(&self.connections[&job.connection]);
        let queue = QueueName::from(job.queue.as_str());
        let ledger = connection.part(&queue);
        let ledger = ledger.unwrap_or_else(|| Arc::clone(&connection) as _);
        match before_retry::take_out(&ledger, &self.store, job, Clock::System).await {
            Ok(true) => {}
            Ok(false) => {
                return Ok(stays(format!(
                    "Job [{id}] is still being recorded by a worker: retry it in a moment"
                )));
            }
            // The store may refuse this record alone.
            Err(before_retry::Error::Store(error)) => {
                let error = output::with_causes(&error.into());
                return Ok(stays(format!(
                    "Job [{id}] has failed once more, and this cannot be recorded: {error}"
                )));
            }
            Err(error @ before_retry::Error::Spool(_)) => return Err(error.into()),
        }
        let started = Instant::now();
        let pushed = connection.push(&queue, &[payload]).await;
        let took = started.elapsed();
        if let Err(error) = pushed {
            let is_unknown = error.is_of_unknown_outcome();
            let mut error = anyhow::Error::from(error);
            if is_unknown {
                error = error.context(format!(
                    "Job [{id}] may be on its queue again: look at the queue before you retry it"
                ));
            }
            return Ok(Retried::Refused(took, error));
        }
        Ok(match self.store.forget(id).await {
            Ok(_) => Retried::Pushed(took),
            Err(error) => Retried::RecordStays(
                took,
                anyhow::Error::from(error).context(format!(
                    "Job [{id}] is on its queue again, and its record could not be deleted (delete it with \
                     `queue:forget {id}`, unless it shows a later failure by then)"
                )),
            ),
        })
    }

    /// What the class of a job has to be asked before the job is pushed again.
    fn of_class(&self, job: &StoredJob, parsed: &Payload) -> OfClass {
        let until = parsed.limits.retry_until;
        if until.is_some_and(|until| until < Clock::System.now()) {
            return OfClass::Needed(
                "has a retryUntil in the past that only its PHP class can renew",
            );
        }
        match self.groups_itself(job, parsed) {
            Some(true) => OfClass::Needed(
                "is for a queue that keeps order, and only its PHP class knows its group",
            ),
            Some(false) if until.is_none() => OfClass::Nothing,
            _ => OfClass::Wanted,
        }
    }

    /// Whether the class of a job chooses its group on this queue of SQS; `None` if that is not known.
    fn groups_itself(&self, job: &StoredJob, parsed: &Payload) -> Option<bool> {
        let is_asked = self.config.laravel().is_some_and(|laravel| {
            // Before, `queue:retry` of PHP gives no group, and SQS refuses the job.
            laravel.known_version().is_at_least(12, 53)
                && matches!(job.queue.rsplit_once('.'), Some((_, "fifo")))
                && matches!(laravel.queue_driver(&job.connection), Ok(Some(driver)) if driver == "sqs")
        });
        match &parsed.data {
            Data::Command { name, .. } if is_asked => {
                (self.config.classes()?).groups_itself(name, &parsed.display_name)
            }
            _ => Some(false),
        }
    }

    /// Says how many jobs were pushed as they were, though their classes were to be asked.
    pub(super) fn unasked(&self) -> Option<String> {
        let are = match self.unasked {
            0 => return None,
            1 => "job was pushed as it was",
            _ => "jobs were pushed as they were",
        };
        Some(format!(
            "{} {are}: only PHP can ask classes for a new `retryUntil` or a group on SQS, and it does not run here or does not have the connection",
            self.unasked
        ))
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

    /// Whether PHP runs and has this connection, which `artisand.toml` alone may have.
    async fn can_php_push(&self, connection: &str) -> bool {
        let laravel = self.config.laravel();
        laravel.is_some_and(|laravel| laravel.has_queue_connection(connection))
            && self.artisan().await.is_some()
    }

    /// The app's `artisan`; `None` if PHP does not run, which is found out once.
    async fn artisan(&self) -> Option<PathBuf> {
        let config = self.config;
        let artisan = self.artisan.get_or_init(async || {
            let artisan = config.artisan()?;
            let runs = php::runs(&config.php_program()).await;
            runs.then_some(artisan)
        });
        artisan.await.clone()
    }

    /// Has one PHP process push these jobs, and takes those out of `ids` of which it is known what came of them: PHP
    /// stops at the first that it cannot push.
    ///
    /// # Errors
    ///
    /// The store cannot be read, so that it is not known which jobs PHP has pushed.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: PHP is killed, and may have pushed a job that is still a failed job.
    pub(super) async fn retry_with_php(
        &mut self,
        ids: &mut Vec<String>,
    ) -> anyhow::Result<Vec<(String, Retried)>> {
        let artisan = self.artisan().await.context("PHP does not run any more")?;
        let mut args: Vec<String> = Vec::with_capacity(ids.len() + 2);
        args.extend(self.env.as_ref().map(|env| format!("--env={env}")));
        // An id may look like an option.
        args.push("--".to_owned());
        args.extend(ids.iter().cloned());
        let started = Instant::now();
        let program = self.config.php_program();
        let answer = php::artisan(&program, &artisan, "queue:retry", &args).await;
        let took = started.elapsed();
        let (mut told, mut left) = (Vec::new(), Vec::new());
        for id in std::mem::take(ids) {
            let found = self.store.find(&id).await.with_context(|| {
                format!("`php artisan queue:retry` was to push job [{id}] and maybe others, and whether they are failed jobs still is not known")
            });
            match found? {
                Some(_) => left.push(id),
                None => told.push((id, Retried::Pushed(took))),
            }
        }
        let is_fruitless = answer.is_err() && told.is_empty();
        self.fruitless = if is_fruitless { self.fruitless + 1 } else { 0 };
        if took >= php::PATIENCE || self.fruitless == MOST_FRUITLESS {
            // It would be so for the other jobs, too.
            self.artisan = OnceCell::from(None);
        } else if answer.is_err() {
            *ids = left.split_off(left.len().min(1));
        }
        let why = answer.err();
        let why = why
            .as_deref()
            .unwrap_or("it is still a failed job after `php artisan queue:retry`");
        told.extend(left.into_iter().map(|id| {
            let why = format!("Job [{id}] could not be retried: {why}");
            (
                id,
                Retried::Stays {
                    tried: Some(took),
                    why,
                },
            )
        }));
        Ok(told)
    }
}

/// After as many such processes PHP counts as one that cannot run the app.
const MOST_FRUITLESS: usize = 3;

fn stays(why: String) -> Retried {
    Retried::Stays { tried: None, why }
}
