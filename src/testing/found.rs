//! What waits in the queues of an app in memory.

use std::fmt::Write as _;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::handler::read as read_job;
use crate::payload::{Encrypter, Error, Payload, Target};
use crate::queue::MemoryQueue;
use crate::time::UnixSeconds;

/// A job that waits.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Pushed<T> {
    /// The job.
    pub job: T,
    /// Its queue.
    pub queue: String,
    /// How long it still has to wait; `None` if it is not delayed.
    pub delay: Option<Duration>,
}

/// Jobs of one class, to assert on. Its panics list what waits instead.
#[derive(Debug)]
pub struct Found<T> {
    class: &'static str,
    jobs: Vec<Pushed<T>>,
    /// All jobs that wait, for messages.
    all: String,
}

impl<T: DeserializeOwned> Found<T> {
    #[track_caller]
    pub(super) fn of(queue: &MemoryQueue, now: UnixSeconds, encrypter: Option<&Encrypter>) -> Self {
        let fields = crate::php::Fields::of::<T>();
        let class = fields.map_or("", |fields| fields.class);
        assert!(
            class.contains('\\'),
            "`{}` names no PHP class",
            std::any::type_name::<T>()
        );
        let (mut jobs, mut all) = (Vec::new(), String::new());
        for (queue, due, payload) in queue.all() {
            let read = |payload: &[u8]| -> Result<(Payload, Target), Error> {
                let mut payload = Payload::parse(payload)?;
                if let Some(encrypter) = encrypter {
                    payload.decrypt(encrypter)?;
                }
                let target = Target::of(&payload)?;
                Ok((payload, target))
            };
            let read = read(&payload);
            let (payload, target) = read.unwrap_or_else(|error| panic!("on {queue}: {error}"));
            let name = target.name();
            let delay = due.map(|due| wait(now, due));
            // A string takes everything.
            let _ = writeln!(all, "  {name} on queue {queue}{}", shown(delay));
            if !name.eq_ignore_ascii_case(class.trim_start_matches('\\')) {
                continue;
            }
            let job = read_job(&payload);
            jobs.push(Pushed {
                job: job.unwrap_or_else(|error| panic!("a {class} on {queue}: {error}")),
                queue: queue.to_string(),
                delay,
            });
        }
        Self { class, jobs, all }
    }
}

fn wait(now: UnixSeconds, due: UnixSeconds) -> Duration {
    Duration::from_secs(u64::try_from(due.0.saturating_sub(now.0)).unwrap_or(0))
}

fn shown(delay: Option<Duration>) -> String {
    delay.map_or_else(String::new, |delay| {
        format!(", due in {} s", delay.as_secs())
    })
}

impl<T> Found<T> {
    /// Only those on this queue.
    #[must_use]
    pub fn on_queue(mut self, queue: &str) -> Self {
        self.jobs.retain(|pushed| pushed.queue == queue);
        self
    }

    /// Only those that wait for so long.
    #[must_use]
    pub fn delayed_by(mut self, delay: Duration) -> Self {
        self.jobs.retain(|pushed| pushed.delay == Some(delay));
        self
    }

    /// The jobs.
    pub fn jobs(self) -> Vec<Pushed<T>> {
        self.jobs
    }

    /// The only one.
    ///
    /// # Panics
    ///
    /// There is none, or there are more.
    #[track_caller]
    pub fn once(self) -> T {
        let mut jobs = self.times(1);
        jobs.remove(0)
    }

    /// The jobs, if their number is this.
    ///
    /// # Panics
    ///
    /// There are fewer or more.
    #[track_caller]
    pub fn times(self, count: usize) -> Vec<T> {
        let (class, found) = (self.class, self.jobs.len());
        let all = if self.all.is_empty() {
            "  nothing\n"
        } else {
            &self.all
        };
        assert!(
            found == count,
            "{class} was dispatched {found} times instead of {count}; in the queues:\n{all}"
        );
        self.jobs.into_iter().map(|pushed| pushed.job).collect()
    }

    /// Asserts that there is none.
    ///
    /// # Panics
    ///
    /// There is one.
    #[track_caller]
    pub fn none(self) {
        self.times(0);
    }
}
