//! Hands work to PHP: builds closures that PHP workers run.
//!
//! Callbacks of batches and chains are PHP code, and some steps of a chain need facts that only PHP has. artisand
//! hands over each as one queued closure, pushed in one step with the end of the job that it follows, so that it
//! happens once.
//!
//! A closure carries its own tries and waits, which override the PHP worker's options: the app's database may be
//! locked, or the worker may be killed. A closure may therefore run twice, and its work must not happen twice:
//!
//! * The end of a job is counted only while its mark is in the batch. The statement that counts also removes the
//!   mark ([`Batches::hand_over`]). A failure is counted only while the job is not among the batch's failed jobs.
//! * Callbacks of a batch that may have begun are not called again.
//! * Callbacks of a chain are not called again either: a key in the queue's Redis remembers them, or in the app's
//!   default cache if the queue is on no Redis. A callback that throws fails the closure at once, as it may have done
//!   half of its work.
//! * The next step of a chain is pushed again if PHP is killed between the push and the end of the closure, as
//!   with any job in Laravel.
//!
//! [`Batches::hand_over`]: crate::batch::Batches::hand_over

use std::time::Duration;

use serde_json::value::{RawValue, to_raw_value};

use crate::handler::{FailureText, JobInfo, Services};
use crate::payload::{
    BuildError, Chain, ClosureError, Envelope, HorizonFields, Inherited, InheritedFields, NewData,
    NewPayload, QueuedClosure, Scalar, Version, Waits, random_uuid,
};
use crate::php::{ClassName, EditError, ObjectText, Value};
use crate::time::UnixSeconds;

/// Makes payloads for PHP workers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandOver<'a> {
    pub(crate) services: &'a Services,
    /// Name of the queue connection that the closure goes to.
    pub(crate) connection: &'a str,
    pub(crate) now: UnixSeconds,
    /// Name of the job that the closure follows; the closure is listed under it.
    pub(crate) name: &'a str,
    /// Whether the closure is encrypted, because it carries content that was encrypted.
    pub(crate) is_secret: bool,
    /// The job's own limit of time, in which Laravel would run its callbacks, too.
    pub(crate) timeout: Option<Duration>,
    /// Whether the closure may be pushed a second time, as to a server that recognizes no push.
    pub(crate) may_be_doubled: bool,
}

/// Why something cannot be handed to PHP.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandOverError {
    /// Closures must be signed, and the app's key is not known.
    #[error("PHP takes only closures that are signed with the app's key: {0}")]
    NoKey(Box<str>),
    /// The closure cannot be made.
    #[error(transparent)]
    Closure(#[from] ClosureError),
    /// The content cannot be put into the closure.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The payload cannot be made.
    #[error(transparent)]
    Payload(#[from] BuildError),
}

/// A closure that is to be pushed.
struct Closure {
    class: ClassName,
    bytes: Vec<u8>,
}

impl Closure {
    /// Sets public properties; each value is serialized on its own.
    fn set(&mut self, properties: &[(&str, &[u8])]) -> Result<(), EditError> {
        self.bytes = ObjectText::parse(&self.bytes)?.with(properties)?;
        Ok(())
    }
}

/// Waits in seconds between the tries of a closure; the last repeats.
const WAITS: [i64; 11] = [1, 3, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600];
/// Tries of a closure; with these waits they take a day.
const TRIES: i64 = 34;
/// What `queue:work` lets a job run that has no limit of its own.
const USUAL_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest name in characters; names come from payloads.
const LONGEST_NAME: usize = 255;

/// Name of closures whose job has no name, and of all closures that earlier versions pushed.
const NAMELESS: &str = "Closure (artisand:0)";

/// Whether a payload is a closure that artisand has pushed: its name differs from that of an app's closure.
pub(crate) fn is_closure(payload: &crate::payload::Payload) -> bool {
    payload.command_name() == Some("Illuminate\\Queue\\CallQueuedClosure")
        && (!payload.display_name.contains("Closure (") || &*payload.display_name == NAMELESS)
}

/// The name of a job for people; a closure that artisand pushed for a job has a mark, as it has the job's name.
#[cfg(feature = "cli")]
pub(crate) fn shown_name(payload: &crate::payload::Payload) -> std::borrow::Cow<'_, str> {
    let name = payload.shown_name();
    if is_closure(payload) && !name.contains("Closure (") {
        format!("{name} (closure)").into()
    } else {
        name
    }
}

/// How often PHP tries a closure, when, and how long.
fn limits(version: Version, timeout: Option<Duration>) -> Envelope {
    let wait = |seconds: &i64| Scalar::Int(*seconds);
    // None, or a longer one than workers usually have: a closure that is killed may have called half of its callbacks.
    let timeout = timeout.filter(|timeout| timeout.is_zero() || *timeout > USUAL_TIMEOUT);
    let timeout = timeout.and_then(|timeout| i64::try_from(timeout.as_secs()).ok());
    let timeout = timeout.map_or(Scalar::Null, Scalar::Int);
    Envelope {
        max_tries: TRIES.into(),
        // Before Laravel 8 a payload has a single wait.
        backoff: if version.is_at_least(8, 0) {
            Waits::List(WAITS.iter().map(wait).collect())
        } else {
            Waits::One(Scalar::Int(60))
        },
        timeout,
        delete_when_missing_models: true.into(),
        ..Envelope::default()
    }
}

/// A failure that PHP is told of.
pub(crate) struct FailureForPhp<'a> {
    pub(crate) job: &'a JobInfo,
    pub(crate) failure: &'a FailureText,
    /// `failed()` of the job's class is called, if it has one.
    pub(crate) calls_failed: bool,
    /// `JobFailed` is raised.
    pub(crate) raises_event: bool,
}

/// Dispatches the serialized job `$job`.
pub(crate) const DISPATCHES: &str = "function () use ($job) { \\dispatch(\\unserialize($job)); }";

const NOTHING: &str = "function () {}";

/// An event of a batch that no count brings about in PHP.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BatchEvent {
    /// Its first job has ended.
    Started,
    /// A handler has cancelled it.
    Canceled,
}

impl HandOver<'_> {
    /// Says whether artisand can hand anything to PHP at all.
    pub(crate) fn check(&self) -> Result<(), HandOverError> {
        self.closure(NOTHING, Vec::new()).map(drop)
    }

    /// Continues a chain: the closure does nothing, and PHP then takes the next step as after any job.
    ///
    /// `inherited` is what comes from the ended job.
    pub(crate) fn goes_on(
        &self,
        chain: &Chain,
        inherited: &Inherited,
    ) -> Result<Vec<u8>, HandOverError> {
        let mut closure = self.closure(NOTHING, Vec::new())?;
        let properties = chain.properties();
        let properties = properties
            .iter()
            .map(|(name, text)| (*name, text.as_slice()));
        closure.set(&properties.collect::<Vec<_>>())?;
        self.payload(closure, inherited)
    }

    /// Counts the success of a job in its batch, and calls the callbacks that are then due.
    ///
    /// `mark` is the entry that the batch holds until the success is counted; without a mark, a closure that runs
    /// twice counts twice.
    pub(crate) fn counts_success(
        &self,
        batch: &str,
        uuid: &str,
        mark: Option<&str>,
        inherited: Option<&InheritedFields>,
    ) -> Result<Vec<u8>, HandOverError> {
        // The first attempt counts without a check, which might read from a replica that lags behind. A batch with
        // no pending jobs that is not finished was abandoned before any callback. One that may have been pushed twice
        // always checks, in a transaction, which no replica answers.
        const CODE: &str = "function ($job) use ($batch, $uuid, $mark, $doubled) { \
            $find = function () use ($batch) { return \\Illuminate\\Support\\Facades\\Bus::findBatch($batch); }; \
            $found = $doubled ? \\app(\\Illuminate\\Bus\\BatchRepository::class)->transaction($find) : $find(); \
            if ($found === null) { return; } \
            if ($mark === null || (! $doubled && $job->attempts() < 2) || in_array($mark, $found->failedJobIds, true)) { \
                $found->recordSuccessfulJob($mark ?? $uuid); \
            } elseif ($found->pendingJobs === 0 && ! $found->finished()) { \
                (new class($found) extends \\Illuminate\\Bus\\Batch { \
                    public function __construct($found) { \
                        foreach (get_object_vars($found) as $name => $value) { $this->$name = $value; } \
                    } \
                    public function decrementPendingJobs(string $jobId) { \
                        return new \\Illuminate\\Bus\\UpdatedBatchJobCounts($this->pendingJobs, $this->failedJobs); \
                    } \
                })->recordSuccessfulJob($mark); \
            } }";
        let uses = vec![
            ("batch", batch.into()),
            ("uuid", uuid.into()),
            ("mark", mark.map_or(Value::Null, Value::from)),
            ("doubled", Value::Bool(self.may_be_doubled)),
        ];
        self.payload_with(self.closure(CODE, uses)?, fields(inherited))
    }

    /// Counts the failure of a job in its batch, and calls the callbacks that are then due.
    ///
    /// The batch lists the job as failed only once the failure is counted.
    pub(crate) fn counts_failure(
        &self,
        batch: &str,
        uuid: &str,
        message: &str,
        inherited: Option<&InheritedFields>,
    ) -> Result<Vec<u8>, HandOverError> {
        const CODE: &str = "function ($job) use ($batch, $uuid, $message, $doubled) { \
            $find = function () use ($batch) { return \\Illuminate\\Support\\Facades\\Bus::findBatch($batch); }; \
            $found = $doubled ? \\app(\\Illuminate\\Bus\\BatchRepository::class)->transaction($find) : $find(); \
            if ($found !== null && ((! $doubled && $job->attempts() < 2) || ! in_array($uuid, $found->failedJobIds, true))) { \
                $found->recordFailedJob($uuid, new \\RuntimeException($message)); \
            } }";
        let uses = vec![
            ("batch", batch.into()),
            ("uuid", uuid.into()),
            ("message", message.into()),
            ("doubled", Value::Bool(self.may_be_doubled)),
        ];
        self.payload_with(self.closure(CODE, uses)?, fields(inherited))
    }

    /// Raises an event of a batch, if the app's Laravel has it: once at most.
    pub(crate) fn raises_of_batch(
        &self,
        event: BatchEvent,
        batch: &str,
        inherited: Option<&InheritedFields>,
    ) -> Result<Vec<u8>, HandOverError> {
        const CODE: &str = "function ($job) use ($batch, $event) { \
            if ($job->attempts() > 1 || ! class_exists($event)) { return; } \
            $found = \\Illuminate\\Support\\Facades\\Bus::findBatch($batch); \
            if ($found !== null) { \\event(new $event($found)); } }";
        let event = match event {
            BatchEvent::Started => "Illuminate\\Bus\\Events\\BatchStarted",
            BatchEvent::Canceled => "Illuminate\\Bus\\Events\\BatchCanceled",
        };
        let uses = vec![("batch", batch.into()), ("event", event.into())];
        self.payload_with(self.closure(CODE, uses)?, fields(inherited))
    }

    /// Runs a chain's catch callbacks.
    pub(crate) fn catches(
        &self,
        callbacks: &[u8],
        message: &str,
        inherited: &Inherited,
    ) -> Result<Vec<u8>, HandOverError> {
        // Carried as text, so that references in it count from its own start.
        const CODE: &str = "function ($job) use ($callbacks, $message) { \
            $exception = new \\RuntimeException($message); \
            $redis = method_exists($job->job, 'getRedisQueue') ? $job->job->getRedisQueue()->getConnection() : null; \
            $cache = $redis === null ? \\app('cache')->store() : null; \
            $begun = 'artisand:called:'.$job->job->uuid(); \
            $begins = function ($number) use ($redis, $cache, $begun) { \
                if ($redis === null) { return $cache->add($begun.':'.$number, 1, 172800); } \
                if (! $redis->command('hsetnx', [$begun, (string) $number, '1'])) { return false; } \
                $redis->command('expire', [$begun, 172800]); \
                return true; \
            }; \
            $callbacks = \\unserialize($callbacks); \
            $forget = function () use ($redis, $cache, $begun, $callbacks) { \
                if ($redis !== null) { $redis->command('del', [$begun]); return; } \
                foreach (array_keys($callbacks) as $number) { $cache->forget($begun.':'.$number); } \
            }; \
            foreach ($callbacks as $number => $callback) { \
                if (! $begins($number)) { continue; } \
                try { \
                    $callback($exception); \
                } catch (\\Throwable $problem) { \
                    $forget(); \
                    $job->fail($problem); \
                    return; \
                } \
            } \
            $forget(); }";
        let uses = vec![
            ("callbacks", Value::String(callbacks.to_vec())),
            ("message", message.into()),
        ];
        self.payload(self.closure(CODE, uses)?, inherited)
    }

    /// Calls `failed()` of a failed job's class, and raises Laravel's event, each once.
    ///
    /// Both happen in Laravel's order. What either of them throws is reported, as Laravel's worker does. The job that
    /// listeners see has ended: what they ask of it changes nothing, and is logged. It is no `RedisJob`, so that
    /// Horizon's listeners do not write the job's record again.
    pub(crate) fn tells_failure(&self, told: &FailureForPhp<'_>) -> Result<Vec<u8>, HandOverError> {
        const CODE: &str = "function ($job) use ($body, $connection, $queue, $attempts, $class, $message, $calls, $raises) { \
            $redis = method_exists($job->job, 'getRedisQueue') ? $job->job->getRedisQueue()->getConnection() : null; \
            $begun = 'artisand:called:'.$job->job->uuid(); \
            if ($redis === null) { \
                if (! \\app('cache')->store()->add($begun, 1, 172800)) { return; } \
            } else { \
                if (! $redis->command('setnx', [$begun, '1'])) { return; } \
                $redis->command('expire', [$begun, 172800]); \
            } \
            $failed = new class(\\app(), $body, $connection, $queue, $attempts) \
                extends \\Illuminate\\Queue\\Jobs\\Job implements \\Illuminate\\Contracts\\Queue\\Job { \
                private $body; private $attempts; \
                public function __construct($container, $body, $connection, $queue, $attempts) { \
                    $this->container = $container; $this->body = $body; $this->connectionName = $connection; \
                    $this->queue = $queue; $this->attempts = $attempts; \
                    $this->deleted = true; $this->failed = true; \
                } \
                public function getJobId() { return $this->payload()['id'] ?? null; } \
                public function getRawBody() { return $this->body; } \
                public function attempts() { return $this->attempts; } \
                public function release($delay = 0) { $this->ignore('release'); } \
                public function delete() { $this->ignore('delete'); } \
                public function fail($e = null) { $this->ignore('fail'); } \
                private function ignore($asked) { \
                    \\logger()->warning('artisand: a job that has failed cannot be changed any more', \
                        ['job' => $this->resolveName(), 'uuid' => $this->uuid(), 'asked' => $asked]); \
                } \
                public function tell($e) { \
                    $payload = $this->payload(); \
                    if ($payload['job'] !== 'Illuminate\\Queue\\CallQueuedHandler@call') { \
                        $this->failed($e); \
                        return; \
                    } \
                    $command = $payload['data']['command']; \
                    if (substr($command, 0, 2) !== 'O:') { \
                        $command = $this->container[\\Illuminate\\Contracts\\Encryption\\Encrypter::class]->decrypt($command); \
                    } \
                    $command = \\unserialize($command); \
                    if (in_array('Illuminate\\Queue\\InteractsWithQueue', \\class_uses_recursive($command), true)) { \
                        $command->setJob($this); \
                    } \
                    if (method_exists($command, 'failed')) { $command->failed($e); } \
                } \
            }; \
            $own = ['Illuminate\\Queue\\MaxAttemptsExceededException', \
                'Illuminate\\Queue\\TimeoutExceededException', 'Illuminate\\Queue\\ManuallyFailedException']; \
            $exception = in_array($class, $own, true) && class_exists($class) \
                ? new $class($message) : new \\RuntimeException($message); \
            if ($calls) { try { $failed->tell($exception); } catch (\\Throwable $problem) { \\report($problem); } } \
            if ($raises) { try { \
                \\event(new \\Illuminate\\Queue\\Events\\JobFailed($connection, $failed, $exception)); \
            } catch (\\Throwable $problem) { \\report($problem); } } \
            if ($redis !== null) { $redis->command('expire', [$begun, 3600]); } }";
        let (job, failure) = (told.job, told.failure);
        let uses = vec![
            ("body", Value::String(job.reserved.to_vec())),
            ("connection", job.connection.as_str().into()),
            ("queue", job.queue.as_str().into()),
            ("attempts", Value::Int(i64::from(job.attempts))),
            ("class", failure.class.as_str().into()),
            ("message", failure.message.as_str().into()),
            ("calls", Value::Bool(told.calls_failed)),
            ("raises", Value::Bool(told.raises_event)),
        ];
        self.payload(self.closure(CODE, uses)?, &job.inherited())
    }

    /// Dispatches a job, as the app's own code would.
    pub(crate) fn dispatches(
        &self,
        job: Vec<u8>,
        inherited: &Inherited,
    ) -> Result<Vec<u8>, HandOverError> {
        let closure = self.closure(DISPATCHES, vec![("job", Value::String(job))])?;
        self.payload(closure, inherited)
    }

    fn closure(&self, code: &str, uses: Vec<(&str, Value)>) -> Result<Closure, HandOverError> {
        let Some(encrypter) = &self.services.encrypter else {
            let why = self.services.encrypter_missing.as_deref();
            let why = why.unwrap_or("the worker was not given it");
            return Err(HandOverError::NoKey(why.into()));
        };
        let command = QueuedClosure { code, uses }.command(encrypter)?;
        Ok(Closure {
            class: command.class.clone(),
            bytes: Value::Object(command).to_bytes(),
        })
    }

    fn payload(&self, closure: Closure, inherited: &Inherited) -> Result<Vec<u8>, HandOverError> {
        self.payload_with(closure, inherited.fields_of_closure())
    }

    fn payload_with(
        &self,
        closure: Closure,
        extra: Vec<(Box<str>, Box<RawValue>)>,
    ) -> Result<Vec<u8>, HandOverError> {
        let mut command = closure.bytes;
        if let Some(encrypter) = &self.services.encrypter
            && (self.is_secret || std::str::from_utf8(&command).is_err())
        {
            command = encrypter.encrypt_command(&command).into_bytes();
        }
        let name = match self.name {
            "" => NAMELESS.to_owned(),
            name => name.chars().take(LONGEST_NAME).collect(),
        };
        let mut payload = NewPayload {
            uuid: random_uuid(),
            display_name: name.into(),
            envelope: limits(self.services.version, self.timeout),
            data: NewData::Command {
                class: closure.class.as_str().into(),
                command,
                batch_id: None,
            },
            created_at: self.now,
            extra,
            id: None,
            delay: None,
            // The app has not dispatched this closure, so Horizon lists it under silenced jobs.
            horizon: (self.services.has_horizon).then(|| HorizonFields {
                silenced: true,
                ..HorizonFields::plain("job")
            }),
        };
        self.services
            .add_driver_fields(self.connection, &mut payload);
        Ok(payload.to_bytes(self.services.version)?)
    }
}

/// Fields that are inherited, with their JSON.
fn fields(inherited: Option<&InheritedFields>) -> Vec<(Box<str>, Box<RawValue>)> {
    let json = |(name, value): (&String, &serde_json::Value)| {
        Some((name.as_str().into(), to_raw_value(value).ok()?))
    };
    inherited.into_iter().flatten().filter_map(json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Payload;

    #[test]
    fn a_closure_is_tried_for_a_day_and_dropped_without_its_models() {
        for (version, backoff) in [
            ("7.30.0", Waits::One(Scalar::Int(60))),
            ("13.0.0", Waits::List(WAITS.map(Scalar::Int).to_vec())),
        ] {
            let expected = Envelope {
                max_tries: Scalar::Int(TRIES),
                backoff,
                delete_when_missing_models: Scalar::Bool(true),
                ..Envelope::default()
            };
            let found = limits(version.parse().unwrap(), None);
            assert_eq!(found, expected, "{version}");
        }
        let waits: i64 = (0..TRIES - 1)
            .map(|tried| WAITS[usize::try_from(tried).unwrap().min(WAITS.len() - 1)])
            .sum();
        assert!((86_400..2 * 86_400).contains(&waits), "{waits} seconds");
    }

    #[test]
    fn a_closure_may_run_as_long_as_its_job_but_never_shorter_than_usual() {
        let seconds = Duration::from_secs;
        for (of_job, expected) in [
            (None, Scalar::Null),
            (Some(seconds(0)), Scalar::Int(0)),
            (Some(seconds(5)), Scalar::Null),
            (Some(seconds(60)), Scalar::Null),
            (Some(seconds(900)), Scalar::Int(900)),
        ] {
            let found = limits(Version::NEWEST, of_job).timeout;
            assert_eq!(found, expected, "{of_job:?}");
        }
    }

    #[test]
    fn closures_of_artisand_are_told_from_those_of_the_app() {
        let closure = "Illuminate\\Queue\\CallQueuedClosure";
        let rows = [
            (closure, "App\\Jobs\\X", true),
            (closure, NAMELESS, true),
            (closure, "Closure (web.php:12)", false),
            ("App\\Jobs\\X", "App\\Jobs\\X", false),
            ("App\\Jobs\\X", NAMELESS, false),
        ];
        for (class, name, expected) in rows {
            let command = format!("O:{}:\"{class}\":0:{{}}", class.len());
            let payload = serde_json::json!({
                "displayName": name,
                "job": "Illuminate\\Queue\\CallQueuedHandler@call",
                "data": {"commandName": class, "command": command},
            });
            let payload = Payload::parse(payload.to_string().as_bytes()).unwrap();
            assert_eq!(is_closure(&payload), expected, "{class} {name}");
        }
    }
}
