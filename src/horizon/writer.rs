//! The task that writes what the worker has noted.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Pipeline;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::batch::{Batch, Entry, Reserved};
use super::note::{Backlog, End, MOST, Note, Recorder};
use super::options::HorizonOptions;
use super::register::{Alive, Register, trim, trim_silenced};
use super::writes::{Before, Metrics, Writes, Written, is_known, metrics, recorded};
use crate::connection::{self, Reconnect, Redis};
use crate::payload::Payload;
use crate::shown::with_causes;
use crate::task::{Losses, too_late};
use crate::time::sleep_until;

/// How long notes are gathered before they are written.
const GATHER: Duration = Duration::from_millis(50);
/// How often the records of the worker are renewed, and monitored tags read.
const BEAT: Duration = Duration::from_secs(1);
/// How often old entries are removed that no master in PHP removes.
const TRIM: Duration = Duration::from_secs(60);
/// How many of these pass between removals from the lists that are kept for a week: as in Horizon, a twelfth of
/// their time is fine.
const SLOW_TRIM: u32 = 60;
/// How long after its end a record is looked at again if its job was pushed a moment before it was taken.
const LATE: Duration = Duration::from_millis(1500);
/// How long a record that was missing may come from the program that pushed the job.
const FRESH: Duration = Duration::from_secs(5);
/// Most records that are looked at again, and most bytes of their payloads.
const MOST_LATE: usize = 10_000;
const MOST_LATE_BYTES: usize = 32 << 20;
/// How long the writer tries to write the last notes when the worker has stopped.
const LAST: Duration = Duration::from_secs(3);

/// Writes Horizon's keys until it is told to finish.
pub(super) struct Writer {
    options: HorizonOptions,
    redis: Redis,
    notes: mpsc::Receiver<Note>,
    backlog: Arc<Backlog>,
    losses: Losses,
    monitored: HashSet<String>,
    running: Reserved,
    /// Jobs that had no record when they were taken: the program that pushed them may write it any moment. With the
    /// time until which that is likely.
    fresh: HashMap<Arc<str>, Instant>,
    late: VecDeque<(Instant, Entry)>,
    late_bytes: usize,
    /// What was already logged.
    refusal: Option<String>,
}

impl Writer {
    /// The observer and the task.
    ///
    /// # Errors
    ///
    /// The server's address cannot be used.
    pub(super) fn new(
        options: HorizonOptions,
        losses: Losses,
    ) -> Result<(Recorder, Self), connection::Error> {
        let redis = Redis::new(&options.redis)?;
        let (sender, notes) = mpsc::channel(MOST);
        let backlog = Arc::<Backlog>::default();
        let recorder = Recorder {
            notes: sender,
            backlog: Arc::clone(&backlog),
            connections: options.connections.clone().into(),
        };
        let writer = Self {
            options,
            redis,
            notes,
            backlog,
            losses,
            monitored: HashSet::new(),
            running: Reserved::new(),
            fresh: HashMap::new(),
            late: VecDeque::new(),
            late_bytes: 0,
            refusal: None,
        };
        Ok((recorder, writer))
    }

    /// Writes until `last` is cancelled; then writes what is left and removes the worker's records.
    pub(super) async fn run(self, last: CancellationToken) {
        tokio::select! {
            () = self.write_until(&last) => {}
            () = too_late(&last, LAST) => {
                tracing::warn!("Horizon's last records were not written: its Redis does not answer");
            }
        }
    }

    async fn write_until(mut self, last: &CancellationToken) {
        let options = self.options.clone();
        let register = options
            .worker
            .as_ref()
            .map(|worker| Register::new(&options.redis.prefix, worker));
        self.beat(register.as_ref()).await;
        let mut beats = tokio::time::interval(BEAT);
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut next_trim = Instant::now();
        let mut trims = 0_u32;
        let mut flush_at: Option<Instant> = None;
        let mut batch = Batch::default();
        loop {
            // In this order: many notes must not keep heartbeats waiting.
            tokio::select! {
                biased;
                () = last.cancelled() => break,
                _ = beats.tick() => {
                    self.beat(register.as_ref()).await;
                    if register.is_some() && Instant::now() >= next_trim {
                        next_trim = Instant::now() + TRIM;
                        self.trim(trims.is_multiple_of(SLOW_TRIM)).await;
                        trims = trims.wrapping_add(1);
                    }
                }
                () = sleep_until(flush_at) => {
                    self.gather(&mut batch);
                    flush_at = batch.is_full().then(Instant::now);
                    self.flush(std::mem::take(&mut batch)).await;
                }
                // Until the batch is written, notes wait in the channel: to wake this task for each would cost the
                // worker more than the note.
                note = self.notes.recv(), if flush_at.is_none() => {
                    let Some(note) = note else { break };
                    batch.add(note);
                    flush_at = Some(Instant::now() + GATHER);
                }
            }
        }
        self.write_rest(batch, register.as_ref()).await;
    }

    /// Writes what has been noted so far, and removes the worker's records.
    async fn write_rest(&mut self, mut batch: Batch, register: Option<&Register<'_>>) {
        loop {
            self.gather(&mut batch);
            if batch.is_empty() {
                break;
            }
            self.flush(std::mem::take(&mut batch)).await;
        }
        let mut pipeline = Pipeline::new();
        if let Some(register) = register {
            register.leave(&mut pipeline);
        }
        if !pipeline.is_empty() {
            let _ = self.redis.pipeline::<()>(&pipeline).await;
        }
        while let Some((at, _)) = self.late.front() {
            tokio::time::sleep_until(*at).await;
            self.mend_late().await;
        }
    }

    /// Takes the notes that wait, up to the size of a batch.
    fn gather(&mut self, batch: &mut Batch) {
        while !batch.is_full()
            && let Ok(note) = self.notes.try_recv()
        {
            batch.add(note);
        }
    }

    /// Writes a batch; if the server is away, tries again until it is back.
    async fn flush(&mut self, mut batch: Batch) {
        let size = batch.size;
        if batch.is_empty() {
            self.backlog.bytes.fetch_sub(size, Ordering::Relaxed);
            return;
        }
        batch.measure(&mut self.running);
        batch.sample(self.options.completed, &self.monitored, fastrand::f64);
        let mut reconnect = Reconnect::default();
        let written = loop {
            // After a lost reply, metrics may have been counted.
            let measured = if batch.is_repeated {
                Metrics::default()
            } else {
                metrics(&batch.entries)
            };
            match self.write(&batch, &measured).await {
                Ok(written) => {
                    self.refusal = None;
                    // After a lost reply, what is there may be a part of this batch.
                    let is_known = !batch.is_repeated;
                    break if is_known {
                        written
                    } else {
                        written.on_nothing()
                    };
                }
                Err(error) if connection::is_away(&error) => {
                    batch.is_repeated |= matches!(
                        error,
                        connection::Error::Command { .. } | connection::Error::Unserved { .. }
                    );
                    reconnect.wait().await;
                }
                Err(error) => {
                    // The server has carried out the other commands.
                    self.refused(&error);
                    (self.losses)(1);
                    break Written::unknown(batch.entries.len());
                }
            }
        };
        // Only now: while Horizon's Redis is away, the batch that waits for it counts.
        self.backlog.bytes.fetch_sub(size, Ordering::Relaxed);
        let dropped = self.backlog.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            (self.losses)(dropped);
            tracing::warn!(
                records = dropped,
                "records for Horizon were dropped: its Redis was too slow or away. The jobs are not affected"
            );
        }
        self.update_parents(&batch.entries).await;
        self.remember_late(batch.entries, &written).await;
    }

    async fn write(
        &self,
        batch: &Batch,
        measured: &Metrics<'_>,
    ) -> Result<Written, connection::Error> {
        let mut writes = Writes::new(&self.options, &self.monitored);
        for (at, pushed) in &batch.pushed {
            writes.pushed(*at, pushed);
        }
        for entry in &batch.entries {
            writes.entry(entry);
        }
        for (at, reserved) in &batch.migrated {
            writes.migrated(*at, reserved);
        }
        writes.metrics(measured);
        writes.send(&self.redis).await
    }

    fn refused(&mut self, error: &connection::Error) {
        let error = with_causes(error);
        if self.refusal.as_ref() != Some(&error) {
            tracing::error!(
                error,
                "Horizon's records cannot be written. The jobs are not affected"
            );
            self.refusal = Some(error);
        }
    }

    /// Keeps the attempts that have to be looked at again: those without a record, which the program that pushed the
    /// job may write any moment, those after a release, and failures that PHP is about to write.
    async fn remember_late(&mut self, entries: Vec<Entry>, written: &Written) {
        let mut writes = Writes::new(&self.options, &self.monitored);
        let now = Instant::now();
        self.fresh.retain(|_, until| *until > now);
        let mut records = written.found.iter();
        for entry in entries {
            let is_over = matches!(entry.end, Some((_, End::Completed | End::Failed { .. })));
            let found = if entry.is_kept { records.next() } else { None };
            if found == Some(&Before::Nothing) && entry.is_last {
                writes.complement(&entry);
            }
            // Pushed again, by `queue:retry`: of that push the record may come any moment, too.
            let is_pushed_again = found == Some(&Before::Whole)
                && entry.reserved.is_some()
                && entry.job.attempts == 1;
            // Without the moment of its push, the job was pushed by a program that writes no record.
            if (found == Some(&Before::Nothing) || is_pushed_again)
                && entry.job.payload.pushed_at.is_some()
                && self.fresh.len() < MOST_LATE
            {
                self.fresh.insert(Arc::clone(&entry.id), now + FRESH);
            }
            let is_by_php = matches!(
                entry.end,
                Some((
                    _,
                    End::Failed {
                        is_raised_by_php: true,
                        ..
                    }
                ))
            );
            let is_missed = !entry.is_kept && written.is_short && is_known(&entry);
            // The failed job may learn of its retry only after that has ended.
            let is_retry = entry.job.payload.retry_of.is_some();
            // A worker in PHP may write the release of the attempt before this one after this one has ended.
            let was_released = entry.job.attempts > 1;
            let is_looked_at = is_by_php
                || is_missed
                || is_retry
                || was_released
                || self.fresh.contains_key(&*entry.id);
            let has_room = self.late.len() < MOST_LATE && self.late_bytes < MOST_LATE_BYTES;
            if is_over && is_looked_at && has_room {
                self.late_bytes += entry.job.body.len();
                self.late.push_back((now + LATE, entry));
            }
        }
        let _ = writes.send(&self.redis).await;
    }

    /// Looks again at records that another program may have written late, and fixes them.
    ///
    /// Before Horizon wrote its record ahead of the push, the record of a job could arrive after its end: then it
    /// says `pending` for an hour, and a failed job cannot be retried.
    async fn mend_late(&mut self) {
        let now = Instant::now();
        let mut due = Vec::new();
        while let Some((at, entry)) = self.late.pop_front() {
            if at > now {
                self.late.push_front((at, entry));
                break;
            }
            self.late_bytes -= entry.job.body.len();
            due.push(entry);
        }
        if due.is_empty() {
            return;
        }
        let mut looks = Pipeline::new();
        for entry in &due {
            let key = format!("{}{}", self.options.redis.prefix, entry.id);
            (looks.cmd("HMGET").arg(key)).arg(&["status", "payload", "failed_at"]);
        }
        let Ok(found) = self.redis.pipeline::<Vec<Record>>(&looks).await else {
            return;
        };
        let mut writes = Writes::new(&self.options, &self.monitored);
        for (entry, record) in due.iter().zip(found) {
            if !is_overtaken(entry, &record) {
                continue;
            }
            let has_failed = matches!(entry.end, Some((_, End::Failed { .. })));
            if has_failed && record.2.is_some() {
                writes.fail_again(entry);
            } else {
                writes.entry_by_rust(entry);
            }
        }
        let _ = writes.send(&self.redis).await;
        self.update_parents(&due).await;
    }

    /// Renews the worker's records, and reads which tags are monitored.
    async fn beat(&mut self, register: Option<&Register<'_>>) {
        self.mend_late().await;
        let mut pipeline = Pipeline::new();
        let monitoring = format!("{}monitoring", self.options.redis.prefix);
        pipeline.cmd("SMEMBERS").arg(monitoring);
        let has_begun = self.backlog.has_begun.load(Ordering::Relaxed);
        if let Some(register) = register.filter(|_| has_begun) {
            register.beat(
                &mut pipeline,
                self.backlog.is_paused.load(Ordering::Relaxed),
            );
        }
        match self.redis.pipeline::<(HashSet<String>,)>(&pipeline).await {
            Ok((monitored,)) => self.monitored = monitored,
            Err(error) if connection::is_away(&error) => {}
            Err(error) => self.refused(&error),
        }
    }

    /// Removes old entries as far as no master in PHP does.
    async fn trim(&mut self, slow: bool) {
        let mut pipeline = Pipeline::new();
        trim_silenced(&self.options, &mut pipeline);
        let alive = Alive::ask(&self.redis, &self.options.redis.prefix).await;
        if alive.is_ok_and(|alive| !alive.has_master_in_php()) {
            trim(&self.options, &mut pipeline, slow);
        }
        let _ = self.redis.pipeline::<()>(&pipeline).await;
    }

    /// Writes into the records of failed jobs what became of their retries.
    async fn update_parents(&self, entries: &[Entry]) {
        for entry in entries {
            let status = match &entry.end {
                Some((_, End::Completed)) => "completed",
                Some((_, End::Failed { .. })) => "failed",
                _ => continue,
            };
            let Some(parent) = &entry.job.payload.retry_of else {
                continue;
            };
            let key = format!("{}{parent}", self.options.redis.prefix);
            if let Err(error) = self.update_parent(&key, &entry.id, status).await {
                tracing::debug!(error = with_causes(&error), "a retry was not noted");
            }
        }
    }

    /// Notes the status of one retry. The record of the failed job is never created: it may have expired.
    async fn update_parent(
        &self,
        key: &str,
        id: &str,
        status: &str,
    ) -> Result<(), connection::Error> {
        /// Sets the field if it still has the value that was read.
        const REPLACE: &str = "if redis.call('hget', KEYS[1], 'retried_by') == ARGV[1] then redis.call('hset', KEYS[1], 'retried_by', ARGV[2]) return 1 end return 0";
        for _ in 0..5 {
            let mut read = redis::cmd("HGET");
            read.arg(key).arg("retried_by");
            let Some(before) = self.redis.command::<Option<String>>(&read).await? else {
                return Ok(());
            };
            let Some(after) = with_status(&before, id, status) else {
                return Ok(());
            };
            let mut replace = redis::cmd("EVAL");
            replace.arg(REPLACE).arg(1).arg(key).arg(&before).arg(after);
            if self.redis.command::<bool>(&replace).await? {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Status, payload and moment of failure in a record.
type Record = (Option<String>, Option<Vec<u8>>, Option<String>);

/// Whether a record was written by the program that pushed the job after the job had ended here, or not at all.
fn is_overtaken(entry: &Entry, record: &Record) -> bool {
    let (status, payload, failed_at) = record;
    let is_ended = matches!(entry.end, Some((_, End::Completed | End::Failed { .. })));
    let is_missing = failed_at.is_none() && !matches!(status.as_deref(), Some("completed"));
    match status.as_deref() {
        // Written by the one that pushed it, unless the same job was pushed again since.
        Some("pending") => {
            let pushed_at = |bytes: &[u8]| Payload::parse(bytes).ok()?.pushed_at;
            let of_record = payload.as_deref().and_then(pushed_at);
            is_ended && of_record == entry.job.payload.pushed_at
        }
        // PHP was about to write a failure, and did not.
        Some("reserved") | None => {
            let is_failed = matches!(entry.end, Some((_, End::Failed { .. })));
            let job = &*entry.job;
            let is_same = payload.as_deref().is_none_or(|bytes| {
                bytes == &*job.reserved || bytes == &*recorded(&job.reserved, &job.payload)
            });
            is_failed && is_same && (is_missing || status.is_some())
        }
        _ => false,
    }
}

/// A list of retries in which that of this id has this status; `None` if it is not in the list.
fn with_status(retries: &str, id: &str, status: &str) -> Option<String> {
    let mut retries: Vec<serde_json::Value> = serde_json::from_str(retries).ok()?;
    let retry = retries.iter_mut().find(|retry| retry["id"] == id)?;
    retry["status"] = status.into();
    serde_json::to_string(&retries).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_retry_is_changed_in_place() {
        let before = r#"[{"id":"a","retried_at":1,"status":"pending"},{"id":"b","retried_at":2,"status":"pending"}]"#;
        let after = with_status(before, "b", "completed").unwrap();
        assert_eq!(
            after,
            before.replacen(r#"2,"status":"pending"#, r#"2,"status":"completed"#, 1)
        );
        assert_eq!(with_status(before, "c", "completed"), None);
        assert_eq!(with_status("{", "a", "completed"), None);
    }
}
