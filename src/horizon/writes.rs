//! Writes to Horizon's keys.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use redis::{Cmd, Pipeline};

use super::batch::{Entry, id_of, is_monitored};
use super::note::{End, Pushed};
use super::options::{HorizonOptions, Trim};
use crate::connection::{self, Redis};
use crate::handler::JobInfo;
use crate::outbox::hand_over::is_closure;
use crate::payload::Payload;
use crate::time::Micros;

/// Writes to Horizon's keys that are sent at once.
pub(super) struct Writes<'a> {
    pipeline: Pipeline,
    /// How many fields of a record each attempt writes. The reply to each is how many of them are new.
    fields: Vec<usize>,
    /// Records to remove, with the ends of their jobs, and how many of them should be there.
    removals: (Vec<(String, String)>, usize),
    /// Changes of lists by jobs that have succeeded: a command for many jobs.
    lists: BTreeMap<&'static str, Cmd>,
    prefix: &'a str,
    trim: &'a Trim,
    timeout: u64,
    /// Tags that an operator monitors.
    monitored: &'a HashSet<String>,
}

/// What the server said about the records of a batch.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// What was there, for each attempt with a record.
    pub(super) found: Vec<Before>,
    /// Whether there were fewer records to remove than there should be.
    pub(super) is_short: bool,
}

/// What was there when an attempt was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// No record.
    Nothing,
    /// A record in which fields were missing: that of the push, or of an attempt that goes on.
    Fitting,
    /// A record with all fields: the attempt was written before, or the job had an earlier life.
    Whole,
}

impl Written {
    /// If the server refused something.
    pub(super) fn unknown(records: usize) -> Self {
        Self {
            found: vec![Before::Nothing; records],
            is_short: true,
        }
    }

    /// As if no record had been there.
    pub(super) fn on_nothing(mut self) -> Self {
        self.found.fill(Before::Nothing);
        self.is_short = true;
        self
    }
}

impl Before {
    fn of(sent: usize, new: usize) -> Self {
        match new {
            0 => Self::Whole,
            new if new < sent => Self::Fitting,
            _ => Self::Nothing,
        }
    }
}

/// Fields of a record.
type Fields<'a> = Vec<(&'a str, &'a [u8])>;

/// Successes of one queue or class.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Metric {
    pub(super) jobs: u64,
    pub(super) milliseconds: f64,
}

/// Metrics by queue, and by name of the jobs.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Metrics<'a> {
    queues: BTreeMap<&'a str, Metric>,
    jobs: BTreeMap<Cow<'a, str>, Metric>,
}

/// What Horizon's own script does for one job, for several: count and mean in one step.
const METRIC: &str = r"
local jobs = tonumber(redis.call('hget', KEYS[1], 'throughput') or 0) or 0
local mean = tonumber(redis.call('hget', KEYS[1], 'runtime') or 0) or 0
local more = tonumber(ARGV[1])
redis.call('sadd', KEYS[2], KEYS[1])
redis.call('hset', KEYS[1], 'throughput', jobs + more, 'runtime', (jobs * mean + tonumber(ARGV[2])) / (jobs + more))
";

/// Writes the record of a job that was pushed, unless a worker has begun with it: then the record has the same moment
/// of the push, and gets what a worker in PHP does not write.
const PUSHED: &str = r"
redis.call('zadd', KEYS[2], ARGV[1], ARGV[2])
local known = redis.call('hget', KEYS[1], 'payload')
if known and ARGV[9] ~= '' and string.find(known, ARGV[9], 1, true) then
    redis.call('hset', KEYS[1], 'created_at', ARGV[7])
    for at, name in ipairs({'id', 'connection', 'queue', 'name'}) do
        redis.call('hsetnx', KEYS[1], name, ARGV[at + 1])
    end
    if redis.call('ttl', KEYS[1]) == -1 then
        redis.call('expireat', KEYS[1], ARGV[8])
    end
    local status = redis.call('hget', KEYS[1], 'status')
    if status == 'reserved' or status == 'pending' then
        redis.call('zadd', KEYS[3], ARGV[1], ARGV[2])
    end
    return
end
redis.call('zadd', KEYS[3], ARGV[1], ARGV[2])
redis.call('hset', KEYS[1], 'id', ARGV[2], 'connection', ARGV[3], 'queue', ARGV[4], 'name', ARGV[5],
    'status', 'pending', 'payload', ARGV[6], 'created_at', ARGV[7], 'updated_at', ARGV[7])
redis.call('expireat', KEYS[1], ARGV[8])
";

/// Notes that a job with a tag was pushed, unless the tag is no longer monitored: then its list is gone for good.
const TAGGED: &str = r"
if redis.call('sismember', KEYS[1], ARGV[1]) == 1 then
    redis.call('zadd', KEYS[2], ARGV[2], ARGV[3])
end
";

/// Lets a record expire, unless another worker has said when meanwhile.
const EXPIRES: &str =
    "if redis.call('ttl', KEYS[1]) == -1 then redis.call('expireat', KEYS[1], ARGV[1]) end";

/// Writes that a job went back to a queue, unless another worker has taken it since: then the record has other bytes,
/// and that worker's attempt goes on, has gone back too, or has ended later. Bytes without tags may be there as they
/// are, from PHP, or as [`recorded`]. Returns how many fields are new.
const WENT_BACK: &str = r"
local status, payload, ended = unpack(redis.call('hmget', KEYS[1], 'status', 'payload', 'completed_at'))
local is_over = status == 'completed' or status == 'failed'
local function has(bytes)
    return payload == bytes or ARGV[4] ~= '' and payload == string.sub(bytes, 1, -2) .. ARGV[4]
end
-- Some seconds for the way of this note, and for clocks that differ. An attempt that gave its job back untouched has the
-- same bytes as the next one.
if is_over and (tonumber(ended) or 0) >= tonumber(ARGV[1]) - 5 then
    return 0
end
if not is_over and payload and not has(ARGV[2]) and not has(ARGV[3]) then
    return 0
end
return redis.call('hset', KEYS[1], unpack(ARGV, 5))
";

/// Writes that a job is back in its queue, unless a worker has taken it again: then the record has other bytes, as in
/// [`WENT_BACK`].
const MIGRATED: &str = r"
local status, payload = unpack(redis.call('hmget', KEYS[1], 'status', 'payload'))
local is_same = payload == ARGV[1] or ARGV[3] ~= '' and payload == string.sub(ARGV[1], 1, -2) .. ARGV[3]
if status == 'reserved' and is_same then
    redis.call('hset', KEYS[1], 'status', 'pending', 'updated_at', ARGV[2], 'delay', '0')
end
";

/// Removes the records of jobs that have succeeded, but for those that had failed before: the list of failed jobs has
/// them still, for as long as other records of completed jobs stay. Returns how many records there were.
const REMOVED: &str = r"
local there = 0
for at, key in ipairs(KEYS) do
    if redis.call('hexists', key, 'failed_at') == 1 then
        redis.call('hset', key, 'status', 'completed', 'completed_at', ARGV[at])
        redis.call('expireat', key, math.floor(tonumber(ARGV[at]) or 0) + ARGV[#KEYS + 1])
        there = there + 1
    else
        there = there + redis.call('del', key)
    end
end
return there
";

impl<'a> Writes<'a> {
    pub(super) fn new(options: &'a HorizonOptions, monitored: &'a HashSet<String>) -> Self {
        Self {
            pipeline: Pipeline::new(),
            fields: Vec::new(),
            removals: (Vec::new(), 0),
            lists: BTreeMap::new(),
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

    /// The command that changes a list for many jobs.
    fn list(&mut self, command: &str, list: &'static str) -> &mut Cmd {
        let key = || format!("{}{list}", self.prefix);
        self.lists.entry(list).or_insert_with(|| {
            let mut command = redis::cmd(command);
            command.arg(key());
            command
        })
    }

    /// Changes the lists as far as this was put off.
    fn change_lists(&mut self) {
        for command in std::mem::take(&mut self.lists).into_values() {
            self.pipeline.add_command(command).ignore();
        }
    }

    /// Sends them.
    pub(super) async fn send(mut self, redis: &Redis) -> Result<Written, connection::Error> {
        self.change_lists();
        let (records, removals) = &self.removals;
        if !records.is_empty() {
            let (keys, ends): (Vec<_>, Vec<_>) =
                records.iter().map(|(key, end)| (key, end)).unzip();
            (self.pipeline.cmd("EVAL").arg(REMOVED).arg(keys.len()))
                .arg(keys)
                .arg(ends)
                .arg(self.trim.completed.saturating_mul(60));
        }
        if self.pipeline.is_empty() {
            return Ok(Written::default());
        }
        let replies: Vec<usize> = redis.pipeline(&self.pipeline).await?;
        let removed = replies.get(self.fields.len()).copied();
        let fields = self.fields.iter().zip(replies);
        Ok(Written {
            found: fields.map(|(sent, new)| Before::of(*sent, new)).collect(),
            is_short: removed.unwrap_or(0) < *removals,
        })
    }

    fn expire(&mut self, id: &str, now: Micros, minutes: u64) {
        let key = self.key(id);
        let at = now.seconds().saturating_add(minutes.saturating_mul(60));
        self.pipeline.cmd("EXPIREAT").arg(key).arg(at).ignore();
    }

    /// Gives a record that was missing a time to live, or what else it needs.
    pub(super) fn complement(&mut self, entry: &Entry) {
        match entry.end {
            Some((_, End::Completed)) if is_known(entry) => self.entry_by_rust(entry),
            Some((_, End::Completed | End::Failed { .. })) => {}
            _ => {
                let minutes = self.trim.pending.max(self.timeout.div_ceil(60));
                let at = (Micros::now().seconds()).saturating_add(minutes.saturating_mul(60));
                let key = self.key(&entry.id);
                (self.pipeline.cmd("EVAL").arg(EXPIRES).arg(1).arg(key))
                    .arg(at)
                    .ignore();
            }
        }
    }

    /// Writes fields of a record.
    fn set(&mut self, id: &str, fields: &[(&str, &[u8])]) {
        let bytes: usize = fields
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        let mut command = Cmd::with_capacity(
            2 + 2 * fields.len(),
            self.prefix.len() + id.len() + bytes + 8,
        );
        command.arg("HSET").arg(self.key(id));
        for (name, value) in fields {
            command.arg(*name).arg(*value);
        }
        self.pipeline.add_command(command);
        self.fields.push(fields.len());
    }

    /// Writes fields of the record of a job that went back to a queue at this moment, where another worker may have
    /// taken it by now.
    fn set_unless_taken(&mut self, entry: &Entry, at: &str, fields: &[(&str, &[u8])]) {
        let key = self.key(&entry.id);
        let command = self.pipeline.cmd("EVAL");
        (command.arg(WENT_BACK).arg(1).arg(key))
            .arg(at)
            .arg(&*entry.job.reserved)
            .arg(&*entry.job.body)
            .arg(tags_for(&entry.job.payload));
        for (name, value) in fields {
            command.arg(*name).arg(*value);
        }
        self.fields.push(fields.len());
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
            .arg(&*recorded(&pushed.payload, &payload))
            .arg(&moment)
            .arg(expires)
            .arg(mark)
            .ignore();
        for tag in payload
            .tags
            .iter()
            .filter(|tag| self.monitored.contains(&***tag))
        {
            let keys = ["monitoring", &**tag].map(|name| self.key(name));
            (self.pipeline.cmd("EVAL").arg(TAGGED).arg(2))
                .arg(&keys)
                .arg(&**tag)
                .arg(&moment)
                .arg(id)
                .ignore();
        }
    }

    /// Writes that a job whose reservation ran out is back in its queue. Comes after the attempts of the same batch,
    /// one of which may be the job's next.
    pub(super) fn migrated(&mut self, at: Micros, reserved: &[u8]) {
        let Ok(payload) = Payload::parse(reserved) else {
            return;
        };
        let Some(id) = id_of(&payload) else { return };
        let key = self.key(id);
        (self.pipeline.cmd("EVAL").arg(MIGRATED).arg(1).arg(key))
            .arg(reserved)
            .arg(at.to_string())
            .arg(tags_for(&payload))
            .ignore();
    }

    /// Removes the record of a job that has succeeded.
    fn forget(&mut self, entry: &Entry) {
        let id = &*entry.id;
        self.list("ZREM", "pending_jobs").arg(id);
        let (key, end) = (self.key(id), entry.end.as_ref());
        let end = end.map_or(String::new(), |(at, _)| at.to_string());
        let (records, count) = &mut self.removals;
        records.push((key, end));
        *count += usize::from(is_known(entry));
    }

    /// Writes one attempt.
    pub(super) fn entry(&mut self, entry: &Entry) {
        if !entry.is_kept {
            return self.forget(entry);
        }
        let (job, id) = (&*entry.job, &*entry.id);
        let [payload, body] = [&job.reserved, &job.body].map(|bytes| recorded(bytes, &job.payload));
        let reserved = entry.reserved.map(|at| at.to_string());
        let mut fields = Fields::new();
        if !is_known(entry) {
            fields.extend(identity(job, id));
        }
        if let Some(at) = &reserved {
            fields.push(("reserved_at", at.as_bytes()));
            // Those that go back to a queue have a later one.
            if !matches!(entry.end, Some((_, End::Released(_) | End::Moved(_)))) {
                fields.push(("updated_at", at.as_bytes()));
                // What the release before has written is over.
                if job.attempts > 1 {
                    fields.push(("delay", b"0"));
                }
            }
        }
        match &entry.end {
            None => {
                fields.push(("status", b"reserved"));
                fields.push(("payload", &payload));
                match &reserved {
                    Some(at) if is_old(entry) => self.set_unless_taken(entry, at, &fields),
                    _ => self.set(id, &fields),
                }
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
                fields.push(("payload", &payload));
                fields.push(("updated_at", updated.as_bytes()));
                fields.push(("delay", delay.as_bytes()));
                self.set_unless_taken(entry, &updated, &fields);
            }
            Some((at, End::Moved(queue))) => {
                let updated = at.to_string();
                fields.retain(|(name, _)| *name != "queue");
                fields.push(("queue", queue.as_bytes()));
                fields.push(("status", b"pending"));
                fields.push(("payload", &body));
                fields.push(("updated_at", updated.as_bytes()));
                self.set_unless_taken(entry, &updated, &fields);
            }
        }
        if !entry.is_last {
            // The job's next attempt may change the same lists.
            self.change_lists();
        }
    }

    fn complete<'b>(&mut self, entry: &'b Entry, fields: Fields<'b>, at: Micros) {
        let (job, id) = (&*entry.job, &*entry.id);
        let completed = at.to_string();
        let payload = recorded(&job.reserved, &job.payload);
        let mut fields: Fields<'_> = fields;
        fields.push(("status", b"completed"));
        // The program that pushed the job may have written its record since the reservation was.
        fields.push(("payload", &payload));
        fields.push(("completed_at", completed.as_bytes()));
        self.set(id, &fields);
        let list = if job.payload.silenced {
            "silenced_jobs"
        } else {
            "completed_jobs"
        };
        let score = at.newest_first();
        self.list("ZADD", list).arg(&score).arg(id);
        self.list("ZREM", "pending_jobs").arg(id);
        let is_monitored = is_monitored(&job.payload, self.monitored);
        if is_monitored {
            self.list("ZADD", "monitored_jobs").arg(&score).arg(id);
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
        let payload = recorded(&job.reserved, &job.payload);
        let mut fields: Fields<'_> = fields;
        fields.push(("status", b"failed"));
        fields.push(("payload", &payload));
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
        if !entry.is_kept {
            return self.forget(entry);
        }
        match &entry.end {
            Some((at, End::Failed { exception, .. })) => {
                let fields = identity(&entry.job, &entry.id);
                self.fail(entry, fields, *at, exception);
            }
            Some((at, End::Completed)) => {
                let fields = identity(&entry.job, &entry.id);
                self.complete(entry, fields, *at);
            }
            _ => self.entry(entry),
        }
    }

    /// Makes a record a failed one again that has the exception still.
    pub(super) fn fail_again(&mut self, entry: &Entry) {
        let id = &*entry.id;
        let payload = recorded(&entry.job.reserved, &entry.job.payload);
        let fields: [(&str, &[u8]); 2] = [("status", b"failed"), ("payload", &payload)];
        self.set(id, &fields);
        self.remove_from(&["pending_jobs"], id);
        self.expire(id, Micros::now(), self.trim.failed);
    }

    /// Adds successes to the metrics.
    pub(super) fn metrics(&mut self, metrics: &Metrics<'_>) {
        // Horizon's order: queues first.
        let queues = metrics
            .queues
            .iter()
            .map(|(name, metric)| ("queue", *name, metric));
        let jobs = metrics
            .jobs
            .iter()
            .map(|(name, metric)| ("job", &**name, metric));
        for (kind, name, metric) in queues.chain(jobs) {
            let all = self.key(&format!("measured_{kind}s"));
            let key = self.key(&format!("{kind}:{name}"));
            (self.pipeline.cmd("EVAL").arg(METRIC).arg(2))
                .arg(key)
                .arg(&all)
                .arg(metric.jobs)
                .arg(metric.milliseconds)
                .ignore();
        }
    }
}

/// Whether a note has waited while Horizon's Redis was away: another worker may have taken and ended the job since.
fn is_old(entry: &Entry) -> bool {
    /// More than notes are gathered and a slow server takes.
    const WAITED: f64 = 2000.0;
    let now = Micros::now();
    (entry.reserved).is_some_and(|at| now.milliseconds_since(at) > WAITED)
}

/// Whether the record of a job that has succeeded is surely there, but for one that has expired: the program that
/// pushed the job knows Horizon. If it is late, the record is looked at again.
pub(super) fn is_known(entry: &Entry) -> bool {
    let is_completed = matches!(entry.end, Some((_, End::Completed)));
    is_completed && entry.job.payload.pushed_at.is_some()
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

/// The name under which a job is measured: what PHP does for a job, in a closure of artisand's, is no run of that job.
fn measured_name(payload: &Payload) -> Cow<'_, str> {
    let name = name_of(payload);
    if is_closure(payload) {
        format!("{name} (closure)").into()
    } else {
        name.into()
    }
}

/// The payload of a job as its record has it: a page of Horizon fails at one without tags, as of a job that was pushed
/// by a program that does not know Horizon.
pub(super) fn recorded<'a>(bytes: &'a [u8], payload: &Payload) -> Cow<'a, [u8]> {
    match (tags_for(payload), bytes.strip_suffix(b"}")) {
        ("", _) | (_, None) => bytes.into(),
        (tags, Some(begin)) => [begin, tags.as_bytes()].concat().into(),
    }
}

/// What stands for the last byte of a payload in its record; empty if there are tags in it.
fn tags_for(payload: &Payload) -> &'static str {
    if payload.has_tags {
        ""
    } else {
        r#","tags":[]}"#
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
pub(super) fn metrics(entries: &[Entry]) -> Metrics<'_> {
    let mut metrics = Metrics::default();
    for entry in entries {
        if !matches!(entry.end, Some((_, End::Completed))) {
            continue;
        }
        let queue = metrics.queues.entry(entry.job.queue.as_str()).or_default();
        let job = metrics
            .jobs
            .entry(measured_name(&entry.job.payload))
            .or_default();
        for metric in [queue, job] {
            metric.jobs += 1;
            metric.milliseconds += entry.runtime;
        }
    }
    metrics
}
