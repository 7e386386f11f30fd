//! Notes of a short time, as writes to Horizon's keys.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use redis::Pipeline;

use super::note::{End, Note, Pushed, What};
use super::options::{HorizonOptions, Trim};
use crate::handler::JobInfo;
use crate::payload::{JobId, JobUuid, Payload};
use crate::time::Micros;

/// The name under which Horizon keeps the record of a job; `None` if it has none.
fn id_of(payload: &Payload) -> Option<&str> {
    let uuid = payload.uuid.as_ref().map(JobUuid::as_str);
    let id = || payload.id.as_ref().map(JobId::as_str);
    uuid.or_else(id).filter(|id| !id.is_empty())
}

/// What happened to one attempt, as far as it is not written yet.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) job: Arc<JobInfo>,
    pub(super) id: Box<str>,
    /// When it was reserved, if that is not written yet.
    pub(super) reserved: Option<Micros>,
    pub(super) end: Option<(Micros, End)>,
    /// From reservation to end in milliseconds; 0 if the reservation is not known.
    pub(super) runtime: f64,
}

/// Attempts whose reservation is written and whose end is not, with the moment of the reservation.
pub(super) type Reserved = HashMap<Box<str>, Micros>;

/// Attempts in the order in which they began, or in which they ended if that began earlier.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
    /// Jobs that this process has pushed, with the moment.
    pub(super) pushed: Vec<(Micros, Pushed)>,
    /// Jobs whose reservation ran out and that are back in their queue, as they were reserved, with the moment.
    pub(super) migrated: Vec<(Micros, Box<[u8]>)>,
    /// Of the last attempt of each job.
    positions: HashMap<Box<str>, usize>,
}

impl Batch {
    /// How many notes there are, roughly.
    pub(super) fn len(&self) -> usize {
        self.entries.len() + self.pushed.len() + self.migrated.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn add(&mut self, note: Note) {
        let Note { at, what } = note;
        let (job, what) = match what {
            What::Pushed(pushed) => return self.pushed.push((at, pushed)),
            What::Migrated(reserved) => return self.migrated.push((at, reserved)),
            What::Reserved(job) => (job, None),
            What::Ended(job, end) => (job, Some(end)),
        };
        let Some(id) = id_of(&job.payload).map(Box::<str>::from) else {
            return;
        };
        let begun = self.positions.get(&id).copied();
        let begun = begun.and_then(|position| self.entries.get_mut(position));
        let (reserved, end) = match what {
            None => (Some(at), None),
            Some(end) => match begun {
                Some(entry) if entry.end.is_none() => {
                    entry.end = Some((at, end));
                    return;
                }
                _ => (None, Some((at, end))),
            },
        };
        self.positions.insert(id.clone(), self.entries.len());
        self.entries.push(Entry {
            job,
            id,
            reserved,
            end,
            runtime: 0.0,
        });
    }

    /// Finds out how long the attempts that have ended ran, and remembers the others.
    pub(super) fn measure(&mut self, running: &mut Reserved) {
        /// More than run at once: ends of the others were never noted.
        const MOST: usize = 100_000;
        if running.len() > MOST {
            running.clear();
        }
        for entry in &mut self.entries {
            let earlier = running.remove(&entry.id);
            match (&entry.end, entry.reserved) {
                (None, Some(reserved)) => {
                    running.insert(entry.id.clone(), reserved);
                }
                (Some((at, _)), reserved) => {
                    let reserved = reserved.or(earlier);
                    entry.runtime =
                        reserved.map_or(0.0, |reserved| at.milliseconds_since(reserved));
                }
                (None, None) => {}
            }
        }
    }
}

/// Writes Horizon's keys into a pipeline.
pub(super) struct Writes<'a> {
    pub(super) pipeline: Pipeline,
    prefix: &'a str,
    trim: &'a Trim,
    timeout: u64,
    /// Tags that an operator monitors.
    monitored: &'a HashSet<String>,
}

/// Fields of a record.
type Fields<'a> = Vec<(&'a str, &'a [u8])>;

/// Successes of one queue or class.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Metric {
    pub(super) jobs: u64,
    pub(super) milliseconds: f64,
}

/// Metrics by the key's name without prefix.
pub(super) type Metrics = BTreeMap<String, Metric>;

/// What Horizon's own script does for one job, for several: count and mean in one step.
const METRIC: &str = r"
local jobs = tonumber(redis.call('hget', KEYS[1], 'throughput') or 0) or 0
local mean = tonumber(redis.call('hget', KEYS[1], 'runtime') or 0) or 0
local more = tonumber(ARGV[1])
redis.call('sadd', KEYS[2], KEYS[1])
redis.call('hset', KEYS[1], 'throughput', jobs + more, 'runtime', (jobs * mean + tonumber(ARGV[2])) / (jobs + more))
";

/// Writes the record of a job that was pushed, unless a worker has begun with it: then the record has the same moment
/// of the push.
const PUSHED: &str = r"
redis.call('zadd', KEYS[2], ARGV[1], ARGV[2])
local known = redis.call('hget', KEYS[1], 'payload')
if known and ARGV[9] ~= '' and string.find(known, ARGV[9], 1, true) then
    redis.call('hset', KEYS[1], 'created_at', ARGV[7])
    return
end
redis.call('zadd', KEYS[3], ARGV[1], ARGV[2])
redis.call('hset', KEYS[1], 'id', ARGV[2], 'connection', ARGV[3], 'queue', ARGV[4], 'name', ARGV[5],
    'status', 'pending', 'payload', ARGV[6], 'created_at', ARGV[7], 'updated_at', ARGV[7])
redis.call('expireat', KEYS[1], ARGV[8])
";

/// Writes that a job is back in its queue, unless a worker has taken it again: then the record has other bytes.
const MIGRATED: &str = r"
local status, payload = unpack(redis.call('hmget', KEYS[1], 'status', 'payload'))
if status == 'reserved' and payload == ARGV[1] then
    redis.call('hset', KEYS[1], 'status', 'pending', 'updated_at', ARGV[2], 'delay', '0')
end
";

impl<'a> Writes<'a> {
    pub(super) fn new(options: &'a HorizonOptions, monitored: &'a HashSet<String>) -> Self {
        Self {
            pipeline: Pipeline::new(),
            prefix: &options.redis.prefix,
            trim: &options.trim,
            timeout: (options.worker.as_ref()).map_or(0, |worker| worker.timeout.as_secs()),
            monitored,
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn add_to_list(&mut self, list: &str, at: Micros, id: &str) {
        let key = self.key(list);
        self.pipeline
            .cmd("ZADD")
            .arg(key)
            .arg(at.newest_first())
            .arg(id)
            .ignore();
    }

    fn remove_from(&mut self, lists: &[&str], id: &str) {
        for list in lists {
            let key = self.key(list);
            self.pipeline.cmd("ZREM").arg(key).arg(id).ignore();
        }
    }

    fn expire(&mut self, id: &str, now: Micros, minutes: u64) {
        let key = self.key(id);
        let at = now.seconds().saturating_add(minutes.saturating_mul(60));
        self.pipeline.cmd("EXPIREAT").arg(key).arg(at).ignore();
    }

    /// Gives a record that was missing a time to live.
    pub(super) fn expire_new(&mut self, id: &str) {
        let minutes = self.trim.pending.max(self.timeout.div_ceil(60));
        self.expire(id, Micros::now(), minutes);
    }

    /// Writes fields of a record; the reply is how many of them are new.
    fn set(&mut self, id: &str, fields: &[(&str, &[u8])]) {
        let key = self.key(id);
        let command = self.pipeline.cmd("HSET").arg(key);
        for (name, value) in fields {
            command.arg(*name).arg(*value);
        }
    }

    /// Writes that a job was pushed. If a worker has taken it meanwhile, only what that worker could not know.
    pub(super) fn pushed(&mut self, at: Micros, pushed: &Pushed) {
        let Ok(payload) = Payload::parse(&pushed.payload) else {
            return;
        };
        let Some(id) = id_of(&payload) else { return };
        // Says which of several pushes of a job a record is about.
        let mark = payload_mark(&pushed.payload);
        let keys = [id, "recent_jobs", "pending_jobs"].map(|name| self.key(name));
        let expires = at
            .seconds()
            .saturating_add(self.trim.pending.saturating_mul(60));
        let moment = at.to_string();
        (self.pipeline.cmd("EVAL").arg(PUSHED).arg(3))
            .arg(&keys)
            .arg(at.newest_first())
            .arg(id)
            .arg(pushed.connection.as_str())
            .arg(pushed.queue.as_str())
            .arg(name_of(&payload))
            .arg(&*pushed.payload)
            .arg(&moment)
            .arg(expires)
            .arg(mark)
            .ignore();
        for tag in payload
            .tags
            .iter()
            .filter(|tag| self.monitored.contains(&***tag))
        {
            let key = self.key(tag);
            self.pipeline
                .cmd("ZADD")
                .arg(key)
                .arg(&moment)
                .arg(id)
                .ignore();
        }
    }

    /// Writes that a job whose reservation ran out is back in its queue. Comes after the attempts of the same batch, one of
    /// which may be the job's next.
    pub(super) fn migrated(&mut self, at: Micros, reserved: &[u8]) {
        let Ok(payload) = Payload::parse(reserved) else {
            return;
        };
        let Some(id) = id_of(&payload) else { return };
        let key = self.key(id);
        (self.pipeline.cmd("EVAL").arg(MIGRATED).arg(1).arg(key))
            .arg(reserved)
            .arg(at.to_string())
            .ignore();
    }

    /// Writes one attempt. The first `HSET` replies how many fields are new.
    pub(super) fn entry(&mut self, entry: &Entry) {
        let (job, id) = (&*entry.job, &*entry.id);
        let reserved = entry.reserved.map(|at| at.to_string());
        let mut fields = identity(job, id);
        if let Some(at) = &reserved {
            fields.push(("reserved_at", at.as_bytes()));
            fields.push(("updated_at", at.as_bytes()));
        }
        match &entry.end {
            None => {
                fields.push(("status", b"reserved"));
                fields.push(("payload", &job.reserved));
                self.set(id, &fields);
            }
            Some((at, End::Completed)) => self.complete(entry, fields, *at),
            Some((
                at,
                End::Failed {
                    exception,
                    is_raised_by_php,
                },
            )) => {
                if *is_raised_by_php {
                    // Horizon's listener writes the rest, before or after this.
                    let completed = at.to_string();
                    fields.push(("completed_at", completed.as_bytes()));
                    self.set(id, &fields);
                } else {
                    self.fail(entry, fields, *at, exception);
                }
            }
            Some((at, End::Released(delay))) => {
                let (updated, delay) = (at.to_string(), delay.to_string());
                fields.push(("status", b"pending"));
                fields.push(("payload", &job.reserved));
                fields.push(("updated_at", updated.as_bytes()));
                fields.push(("delay", delay.as_bytes()));
                self.set(id, &fields);
            }
            Some((at, End::Moved(queue))) => {
                let updated = at.to_string();
                fields.retain(|(name, _)| *name != "queue");
                fields.push(("queue", queue.as_bytes()));
                fields.push(("status", b"pending"));
                fields.push(("payload", &job.body));
                fields.push(("updated_at", updated.as_bytes()));
                self.set(id, &fields);
            }
        }
    }

    fn complete<'b>(&mut self, entry: &'b Entry, fields: Fields<'b>, at: Micros) {
        let (job, id) = (&*entry.job, &*entry.id);
        let completed = at.to_string();
        let mut fields: Fields<'_> = fields;
        fields.push(("status", b"completed"));
        // The program that pushed the job may have written its record since the reservation was.
        fields.push(("payload", &job.reserved));
        fields.push(("completed_at", completed.as_bytes()));
        self.set(id, &fields);
        let list = if job.payload.silenced {
            "silenced_jobs"
        } else {
            "completed_jobs"
        };
        self.add_to_list(list, at, id);
        self.remove_from(&["pending_jobs"], id);
        let is_monitored = (job.payload.tags.iter()).any(|tag| self.monitored.contains(&**tag));
        if is_monitored {
            self.add_to_list("monitored_jobs", at, id);
        }
        let minutes = if is_monitored {
            self.trim.monitored
        } else {
            self.trim.completed
        };
        self.expire(id, at, minutes);
    }

    fn fail<'b>(&mut self, entry: &'b Entry, fields: Fields<'b>, at: Micros, exception: &str) {
        let (job, id) = (&*entry.job, &*entry.id);
        let failed = at.to_string();
        let mut fields: Fields<'_> = fields;
        fields.push(("status", b"failed"));
        fields.push(("payload", &job.reserved));
        fields.push(("exception", exception.as_bytes()));
        fields.push(("context", b""));
        fields.push(("completed_at", failed.as_bytes()));
        fields.push(("failed_at", failed.as_bytes()));
        self.set(id, &fields);
        self.add_to_list("failed_jobs", at, id);
        self.add_to_list("recent_failed_jobs", at, id);
        self.remove_from(&["pending_jobs", "completed_jobs", "silenced_jobs"], id);
        self.expire(id, at, self.trim.failed);
        for tag in &job.payload.tags {
            let key = self.key(&format!("failed:{tag}"));
            let seconds = self.trim.failed.saturating_mul(60);
            self.pipeline
                .cmd("ZADD")
                .arg(&key)
                .arg(&failed)
                .arg(id)
                .ignore();
            self.pipeline.cmd("EXPIRE").arg(&key).arg(seconds).ignore();
        }
    }

    /// Writes the end of an attempt once more, also one that PHP was expected to write.
    pub(super) fn entry_by_rust(&mut self, entry: &Entry) {
        match &entry.end {
            Some((at, End::Failed { exception, .. })) => {
                let fields = identity(&entry.job, &entry.id);
                self.fail(entry, fields, *at, exception);
            }
            _ => self.entry(entry),
        }
    }

    /// Makes a record a failed one again that has the exception still.
    pub(super) fn fail_again(&mut self, entry: &Entry) {
        let id = &*entry.id;
        let fields: [(&str, &[u8]); 2] = [("status", b"failed"), ("payload", &entry.job.reserved)];
        self.set(id, &fields);
        self.remove_from(&["pending_jobs"], id);
        self.expire(id, Micros::now(), self.trim.failed);
    }

    /// Adds successes to the metrics.
    pub(super) fn metrics(&mut self, metrics: &Metrics) {
        // Horizon's order: queues first.
        for (name, metric) in metrics.iter().rev() {
            let all = if name.starts_with("queue:") {
                "measured_queues"
            } else {
                "measured_jobs"
            };
            let (key, all) = (self.key(name), self.key(all));
            self.pipeline
                .cmd("EVAL")
                .arg(METRIC)
                .arg(2)
                .arg(key)
                .arg(all)
                .arg(metric.jobs)
                .arg(metric.milliseconds)
                .ignore();
        }
    }
}

/// The fields that say which job a record is about. Horizon drops records without them from its lists, and they are
/// missing if the job was pushed by a program that does not know Horizon, or waited longer than records are kept.
fn identity<'a>(job: &'a JobInfo, id: &'a str) -> Fields<'a> {
    vec![
        ("id", id.as_bytes()),
        ("connection", job.connection.as_str().as_bytes()),
        ("queue", job.queue.as_str().as_bytes()),
        ("name", name_of(&job.payload).as_bytes()),
    ]
}

/// The name of a job in lists and metrics; Horizon's pages need one.
fn name_of(payload: &Payload) -> &str {
    match &*payload.display_name {
        "" => &payload.job,
        name => name,
    }
}

/// The text of `pushedAt` in a payload as it was pushed, and as it stays; empty without one.
fn payload_mark(payload: &[u8]) -> &[u8] {
    let name = br#""pushedAt":""#;
    let Some(begin) = memchr::memmem::rfind(payload, name) else {
        return b"";
    };
    let rest = &payload[begin + name.len()..];
    let length = rest.iter().position(|byte| *byte == b'"').unwrap_or(0);
    &payload[begin..begin + name.len() + length]
}

/// The metrics of the successes in a batch.
pub(super) fn metrics(entries: &[Entry]) -> Metrics {
    let mut metrics = Metrics::new();
    for entry in entries {
        if !matches!(entry.end, Some((_, End::Completed))) {
            continue;
        }
        let queue = format!("queue:{}", entry.job.queue);
        for key in [queue, format!("job:{}", name_of(&entry.job.payload))] {
            let metric = metrics.entry(key).or_default();
            metric.jobs += 1;
            metric.milliseconds += entry.runtime;
        }
    }
    metrics
}
