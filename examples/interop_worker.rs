//! A custom worker program: all of `artisand`, with handlers in it.
//!
//! ```sh
//! cargo build --example interop_worker
//! target/debug/examples/interop_worker queue:work redis --concurrency=16
//! ```
//!
//! It runs two jobs of the app in `php-interop/app` as PHP runs them there:
//! `App\Jobs\Counted` writes its number, `App\Jobs\Journal`
//! writes each of its runs and follows its script. `artisand.toml` maps
//! classes to handlers:
//!
//! ```toml
//! [[map]]
//! job = 'App\Jobs\Counted'
//! handler = "counted"
//!
//! [[map]]
//! job = 'App\Jobs\Journal'
//! handler = "journal"
//! ```
//!
//! `journal_blocking` does the same as a blocking handler.
//!
//! The handlers write to the lists `interop:done` and
//! `interop:journal` of the Redis at `REDIS_HOST` and `REDIS_PORT`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use artisand::Registry;
use artisand::cli::Application;
use artisand::event::Event;
use artisand::handler::{
    self, BatchJob, BoxError, Collection, EndInPhp, FailureText, JobContext, Model, RunInPhp,
};
use artisand::job::JobUuid;
use artisand::php::{Object, Value};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

fn main() -> ExitCode {
    let registry = Registry::new()
        .with("counted", handler::function(counted))
        .with("model", handler::function(model))
        .with("models", handler::function(models))
        .with(
            "journal",
            handler::function(journal)
                .on_failed(journal_failure)
                .with_compare(compare),
        )
        .with("strict", handler::function(strict))
        .with(
            "journal_blocking",
            handler::blocking(journal_blocking).on_failed(journal_failure),
        );
    let registry = match std::env::var("INTEROP_DISPATCHES").as_deref() {
        Ok("misspelt") => registry.dispatches::<Misspelt>(),
        Ok(_) => registry.dispatches::<Next>(),
        Err(_) => registry,
    };
    let application = Application::new(registry);
    if std::env::var_os("INTEROP_EVENTS").is_some() {
        return application.on(write_down).run();
    }
    application.run()
}

/// Appends an event of the worker to the list `interop:events`, as the app in PHP does.
fn write_down(event: &Event<'_>) {
    let (job, failure, delay) = match event {
        Event::JobPopped(job) | Event::JobProcessing { job, .. } => (Some(*job), None, None),
        Event::JobExceptionOccurred(it) => (Some(it.job), Some(it.failure), None),
        Event::JobProcessed(end) | Event::JobReleased(end) => (Some(end.job), None, None),
        Event::JobReleasedAfterException(end) => (Some(end.job), end.failure, end.delay),
        Event::JobFailed(end) | Event::JobTimedOut(end) | Event::JobAttempted(end) => {
            (Some(end.job), end.failure, None)
        }
        _ => (None, None, None),
    };
    let (status, processed) = match event {
        Event::WorkerStopping {
            reason,
            jobs_processed,
            ..
        } => (Some(reason.exit_code()), Some(*jobs_processed)),
        _ => (None, None),
    };
    let uuid = job.and_then(|job| job.payload.uuid.as_ref());
    let line = serde_json::json!({
        "event": event.name(),
        "uuid": uuid.map(ToString::to_string),
        "attempts": job.map(|job| job.attempts),
        "exception": failure.map(|failure| &failure.class),
        "message": failure.map(|failure| &failure.message),
        "backoff": delay.map(|delay| delay.as_secs()),
        "status": status,
        "processed": processed,
    });
    // Observers are called one after another and must not wait; this task keeps the events in order.
    let write = || -> Result<(), BoxError> {
        let port: u16 = std::env::var("REDIS_PORT")?.parse()?;
        let client = redis::Client::open((std::env::var("REDIS_HOST")?, port))?;
        let mut command = redis::cmd("RPUSH");
        command.arg("interop:events").arg(line.to_string());
        Ok(command.exec(&mut client.get_connection()?)?)
    };
    if let Err(error) = write() {
        tracing::error!(error, "could not write down an event");
    }
}

/// `App\Jobs\Counted`. A struct names the properties it needs; serde ignores Laravel's own.
#[derive(Deserialize)]
struct Counted {
    n: i64,
}

async fn counted(job: Counted, _: JobContext) -> Result<(), BoxError> {
    append("interop:done", &job.n.to_string()).await
}

/// A row of the table `users`.
#[derive(Deserialize, Serialize)]
struct User {
    id: u64,
    name: String,
    email: Option<String>,
    created_at: String,
}

/// `App\Jobs\WithModel` and `App\Jobs\ModelDeleteWhenMissing`.
#[derive(Deserialize)]
struct WithModel {
    user: Model<User>,
}

/// Writes the row of the job's model.
async fn model(job: WithModel, context: JobContext) -> Result<(), BoxError> {
    let user = job.user.load(&context).await?;
    append("interop:models", &serde_json::to_string(&user)?).await
}

/// `App\Jobs\ModelCollection`.
#[derive(Deserialize)]
struct ModelCollection {
    users: Collection<User>,
    nobody: Collection<User>,
}

/// Writes the rows of the job's collections.
async fn models(job: ModelCollection, context: JobContext) -> Result<(), BoxError> {
    let users = job.users.load(&context).await?;
    let nobody = job.nobody.load(&context).await?;
    append("interop:models", &serde_json::to_string(&(users, nobody))?).await
}

/// `App\Jobs\Journal`.
#[derive(Deserialize)]
struct Journal {
    id: String,
    /// One entry per attempt; `ok` when there are none left.
    #[serde(default)]
    script: Vec<String>,
    /// What `App\Jobs\AddingJournal` adds to its batch: a list, serialized, in Base64.
    #[serde(default)]
    jobs: String,
}

/// The same job, read more strictly: only names of one letter.
#[derive(Debug, Deserialize)]
struct Strict {
    #[serde(rename = "id")]
    _id: char,
}

async fn strict(_: Strict, _: JobContext) -> Result<(), BoxError> {
    Err("a shadow runs nothing".into())
}

/// Compares the script's step for this attempt with what PHP did.
async fn compare(job: Journal, context: JobContext, run: Arc<RunInPhp>) -> Result<(), String> {
    let attempt = usize::try_from(context.attempts()).map_err(|error| error.to_string())?;
    let step = job.script.get(attempt - 1).map_or("ok", String::as_str);
    let is_expected = match step.split(':').next() {
        Some("throw") => run.thrown.is_some(),
        Some("release") => matches!(run.end, EndInPhp::Released { .. }),
        Some("fail") => matches!(run.end, EndInPhp::Failed(_)),
        Some("exit" | "kill") => run.end == EndInPhp::Left,
        // With this word in the script, tests make the two differ.
        Some("note") => false,
        _ => run.has_succeeded(),
    };
    if is_expected {
        Ok(())
    } else {
        Err(format!("`{step}` became {:?}", run.end))
    }
}

async fn journal(job: Journal, context: JobContext) -> Result<(), BoxError> {
    note(&job, &context, "run", None).await?;
    let attempt = usize::try_from(context.attempts())?;
    let entry = job.script.get(attempt - 1).map_or("ok", String::as_str);
    for step in entry.split('+') {
        act(step, &job, &context).await?;
    }
    if job.jobs.is_empty() {
        return Ok(());
    }
    let batch = context.batch().await?.ok_or("there is no batch")?;
    batch.add(batch_jobs(&job.jobs)?).await?;
    Ok(())
}

/// A journal job that follows another.
#[derive(Serialize, Deserialize)]
#[serde(rename = "App\\Jobs\\Journal")]
struct Next {
    id: String,
    script: Vec<String>,
}

impl Next {
    fn named(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            script: Vec::new(),
        }
    }
}

/// A struct whose field the class does not have.
#[derive(Deserialize)]
#[serde(rename = "App\\Jobs\\Journal")]
#[expect(dead_code, reason = "only its names matter")]
struct Misspelt {
    idd: String,
    script: Vec<String>,
}

/// The same on a separate thread, which cannot be cancelled.
fn journal_blocking(job: Journal, context: JobContext) -> Result<(), BoxError> {
    tokio::runtime::Handle::current().block_on(journal(job, context))
}

/// Jobs for a batch; a list among them is a chain.
fn batch_jobs(text: &str) -> Result<Vec<BatchJob>, BoxError> {
    let list = Value::from_bytes(&BASE64.decode(text)?)?;
    let objects = |list: &Value| -> Result<Vec<Object>, BoxError> {
        let jobs = list.as_array().ok_or("no list")?.values();
        let jobs = jobs.map(|job| job.as_object().cloned().ok_or_else(|| "no job".into()));
        jobs.collect()
    };
    let jobs = list.as_array().ok_or("no list")?.values();
    let jobs = jobs.map(|job| match job {
        Value::Object(job) => Ok(job.clone().into()),
        chain => Ok(objects(chain)?.into()),
    });
    jobs.collect()
}

/// One step of a script.
///
/// A handler makes a request and continues: the worker releases, fails or deletes the job
/// when the handler has returned. An error works like an exception in PHP.
async fn act(step: &str, job: &Journal, context: &JobContext) -> Result<(), BoxError> {
    let (verb, argument) = step.split_once(':').unwrap_or((step, ""));
    match verb {
        "ok" => {}
        "throw" => return Err(format!("thrown by the script of {}", job.id).into()),
        "release" => context.release(Duration::from_secs(argument.parse()?)),
        "fail" => context.fail(format!("failed by the script of {}", job.id)),
        "delete" => context.delete(),
        "cancel" => {
            let batch = context.batch().await?.ok_or("there is no batch")?;
            batch.cancel().await?;
        }
        "panic" => panic!("panicked by the script of {}", job.id),
        "note" => note(job, context, argument, None).await?,
        "then" => context.then(&Next::named(argument))?,
        "dispatch" => drop(context.dispatch().job(&Next::named(argument)).await?),
        "sleep" => {
            let time = Duration::try_from_secs_f64(argument.parse()?)?;
            tokio::time::sleep(time).await;
        }
        "await" => {
            let key = format!("interop:{argument}");
            let mut redis = connection().await?;
            while !redis::cmd("EXISTS")
                .arg(&key)
                .query_async(&mut redis)
                .await?
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        // No async handler should do this.
        "block" => std::thread::sleep(Duration::try_from_secs_f64(argument.parse()?)?),
        // Both end the process at once, with all its running jobs.
        "exit" | "kill" => std::process::abort(),
        _ => return Err(format!("no verb `{verb}` in scripts").into()),
    }
    Ok(())
}

/// Called when a journal job has failed for good, like `failed()` of the PHP class.
async fn journal_failure(context: JobContext, failure: Arc<FailureText>) {
    // The hook gets no input: the job may have failed because it cannot be read.
    let Ok(job) = handler::input::<Journal>(&context) else {
        return;
    };
    if let Err(error) = note(&job, &context, "failed", Some(&failure)).await {
        tracing::error!(
            error = &*error as &dyn std::error::Error,
            "could not write to the journal"
        );
    }
}

/// A line of the journal.
#[derive(Serialize)]
struct Line<'a> {
    by: &'a str,
    id: &'a str,
    uuid: Option<&'a str>,
    attempts: u32,
    pid: u32,
    at: f64,
    event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exception: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

async fn note(
    job: &Journal,
    context: &JobContext,
    event: &str,
    failure: Option<&FailureText>,
) -> Result<(), BoxError> {
    let line = Line {
        by: "rust",
        id: &job.id,
        uuid: context.uuid().map(JobUuid::as_str),
        attempts: context.attempts(),
        pid: std::process::id(),
        at: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64(),
        event,
        exception: failure.map(|failure| failure.class.as_str()),
        message: failure.map(|failure| failure.message.as_str()),
    };
    append("interop:journal", &serde_json::to_string(&line)?).await
}

/// Appends to a list.
async fn append(list: &str, value: &str) -> Result<(), BoxError> {
    let mut redis = connection().await?;
    let mut command = redis::cmd("RPUSH");
    command.arg(list).arg(value);
    command.exec_async(&mut redis).await?;
    Ok(())
}

/// The connection that all jobs share; opened by the first of them.
async fn connection() -> Result<MultiplexedConnection, BoxError> {
    static CONNECTION: OnceCell<MultiplexedConnection> = OnceCell::const_new();
    let open = || async {
        let variable = |name, default: &str| std::env::var(name).unwrap_or_else(|_| default.into());
        let port: u16 = variable("REDIS_PORT", "6379").parse()?;
        let client = redis::Client::open((variable("REDIS_HOST", "127.0.0.1"), port))?;
        // The default, half a second, is too short for a server flooded with jobs.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(5)))
            .set_response_timeout(Some(Duration::from_secs(30)));
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await?;
        // By this name, tests that cut connections leave this one alone.
        let mut name = redis::cmd("CLIENT");
        name.arg("SETNAME").arg("interop");
        name.exec_async(&mut connection).await?;
        Ok::<_, BoxError>(connection)
    };
    CONNECTION.get_or_try_init(open).await.cloned()
}
