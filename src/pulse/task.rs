//! The task that writes entries, and the recorder that it gets them from.

use std::fmt;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::options::PulseOptions;
use super::recorder::PulseRecorder;
use super::rows::{Rows, Unwritten, sql_error, write};
use crate::connection::{self, Database, SqlError};
use crate::queue::ConnectionName;
use crate::shown::with_causes;
use crate::task::{BackgroundTask, Losses, too_late};
use crate::time::Micros;

/// How often entries are written: the cards look every five seconds.
const FLUSH: Duration = Duration::from_secs(5);
/// How long the end of the worker waits for the last entries.
const LAST: Duration = Duration::from_secs(3);

/// The task that writes entries, and the recorder that it gets them from.
pub struct Pulse {
    recorder: PulseRecorder,
    writing: BackgroundTask,
}

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulse").finish_non_exhaustive()
    }
}

impl Pulse {
    /// Starts the task on this runtime, for jobs of this connection.
    ///
    /// # Errors
    ///
    /// This build has no driver for the database.
    pub fn start(
        options: PulseOptions,
        connection: ConnectionName,
        losses: Losses,
        runtime: &Handle,
    ) -> Result<Self, connection::Error> {
        let entered = runtime.enter();
        let database = Database::new(&options.database)?;
        drop(entered);
        let recorder = PulseRecorder::new(options, connection);
        let task = Writer {
            database,
            recorder: recorder.clone(),
            losses,
            said: None,
            under_way: 0,
        };
        Ok(Self {
            writing: BackgroundTask::start(runtime, |last| task.run(last)),
            recorder,
        })
    }

    /// The observer of a worker, and the listener of pushes.
    pub fn recorder(&self) -> PulseRecorder {
        self.recorder.clone()
    }

    /// Writes what is left, for a few seconds at most.
    pub async fn finish(self) {
        let abnormal = "Pulse's entries are no longer written";
        self.writing.finish(abnormal).await;
    }
}

struct Writer {
    database: Database,
    recorder: PulseRecorder,
    losses: Losses,
    /// What was already logged.
    said: Option<String>,
    /// Entries that are on their way to the database.
    under_way: u64,
}

impl Writer {
    async fn run(mut self, last: CancellationToken) {
        // A flush can wait for a table that is locked, also one that began before the worker was told to end.
        tokio::select! {
            () = self.write_until(&last) => {}
            () = too_late(&last, LAST) => {
                tracing::warn!("Pulse's last entries were not written: its database does not answer");
            }
        }
        let unwritten = self.recorder.take();
        self.lost(self.under_way + unwritten.len() + unwritten.dropped);
        self.database.close().await;
    }

    /// Writes until `last` is cancelled, and then what is left.
    async fn write_until(&mut self, last: &CancellationToken) {
        let mut ticks = tokio::time::interval(FLUSH);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = last.cancelled() => break,
                _ = ticks.tick() => self.flush().await,
            }
        }
        self.flush().await;
    }

    fn lost(&self, entries: u64) {
        if entries > 0 {
            (self.losses)(entries);
        }
    }

    /// Writes what has come; what could not be written now is written with what comes next.
    async fn flush(&mut self) {
        let mut gathered = self.recorder.take();
        self.lost(std::mem::take(&mut gathered.dropped));
        if gathered.is_empty() {
            return;
        }
        let now = Micros::now().seconds();
        let rows = Rows::of(&gathered, now);
        self.under_way = gathered.len();
        let written = write(&self.database, &rows).await;
        self.under_way = 0;
        let Err(Unwritten { error, is_certain }) = written else {
            self.said = None;
            return;
        };
        let said = with_causes(&error);
        if self.said.as_ref() != Some(&said) {
            tracing::warn!(
                error = said,
                "entries for Pulse were not written. The jobs are not affected"
            );
            self.said = Some(said);
        }
        let may_help = sql_error(&error).is_none_or(|error| error.is_lost() || error.is_deadlock());
        let is_missing = sql_error(&error).is_some_and(SqlError::is_missing_table);
        // Rather too few than counted twice.
        if is_certain && may_help && !is_missing {
            self.recorder.take_back(gathered, now);
        } else {
            self.lost(gathered.len());
        }
    }
}
