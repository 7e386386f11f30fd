//! The protocol between this process and a PHP process of the pool; `php-interop/pool.php` describes its lines.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::message::{Inbox, PoolMessage};

/// The PHP script that each member runs.
const SCRIPT: &str = include_str!("../../../php-interop/pool.php");

/// What a helper runs besides: it is put in front of that script.
const HELPER: &str = include_str!("../../../php-interop/helper.php");

/// The file descriptor of the socket. Standard input is not used: jobs, and programs they start, may read it.
pub(super) const SOCKET: i32 = 3;

/// PHP code that reads the script from the socket and runs it.
pub(super) const STUB: &str = r#"($artisand=@fopen("php://fd/3","rb"))||exit("PHP finds no file descriptor 3: what binary names under [php] has to leave it open\n");eval(stream_get_contents($artisand,(int)fgets($artisand)));"#;

/// The line in front of a job's bytes.
#[derive(Serialize)]
struct Order<'a> {
    r#do: &'static str,
    queue: &'a str,
    body: usize,
    reserved: usize,
    until: u64,
    lease: Option<u64>,
    /// Whether the next job may come before the process is ready for it.
    soon: bool,
}

/// This process's end of the socket.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
    /// What the process has sent.
    inbox: Inbox,
    is_closed: bool,
    /// A copy of the process's end, kept while the process lives: bytes that it leaves unread can be counted
    /// there.
    theirs: Option<OwnedFd>,
    /// How many bytes of the last job were written.
    written: usize,
    /// Jobs that were sent so far; the last one may be incomplete.
    orders: u64,
    /// Number of the job that the process runs, or ran last: the last job that was sent, or the one before it.
    running: u64,
    /// The process's clock, and this process's time when that was received.
    clock: (u64, Instant),
}

impl Channel {
    /// A channel and the process's end of it.
    pub(super) fn pair() -> std::io::Result<(Self, OwnedFd)> {
        let (stream, theirs) = UnixStream::pair()?;
        let theirs = theirs.into_std()?;
        // PHP reads and writes the socket as a blocking file.
        theirs.set_nonblocking(false)?;
        let theirs = OwnedFd::from(theirs);
        let channel = Self {
            stream,
            inbox: Inbox::new(random_key()),
            is_closed: false,
            theirs: Some(theirs.try_clone()?),
            written: 0,
            orders: 0,
            running: 0,
            clock: (0, Instant::now()),
        };
        Ok((channel, theirs))
    }

    /// Records the process's clock, which it sent some time before now.
    pub(super) fn note_clock(&mut self, clock: u64) {
        let now = Instant::now();
        // Keep the sample with the smallest delay.
        if clock > self.on_its_clock(now) {
            self.clock = (clock, now);
        }
    }

    /// Converts a moment to the process's clock, rather too early than too late.
    fn on_its_clock(&self, moment: Instant) -> u64 {
        let (then, heard) = self.clock;
        let since = moment.saturating_duration_since(heard).as_nanos();
        then.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Records that the process has ended; returns whether it had read nothing of the last job.
    ///
    /// Messages that it sent before can still be read, followed by the end of the stream.
    pub(super) fn mark_exited(&mut self) -> bool {
        let is_untouched = self.is_untouched();
        self.theirs = None;
        is_untouched
    }

    /// Whether the process has read nothing of the last job so far.
    pub(super) fn is_untouched(&self) -> bool {
        let theirs = self.theirs.as_ref();
        let unread = theirs.and_then(|theirs| rustix::io::ioctl_fionread(theirs).ok());
        unread.is_some_and(|unread| usize::try_from(unread) == Ok(self.written))
    }

    /// Whether the process had read all jobs that were sent, by the last line that it sent.
    pub(super) fn has_read_all(&self) -> bool {
        self.inbox.orders_read() >= self.orders
    }

    /// Whether the process had read the running job by then.
    pub(super) fn has_read_running(&self) -> bool {
        self.inbox.orders_read() >= self.running
    }

    /// Whether another job was sent since the running one.
    pub(super) fn is_ahead(&self) -> bool {
        self.orders > self.running
    }

    /// Whether the process had by then read a job that was sent ahead, so that the one before is over.
    pub(super) fn has_moved_on(&self) -> bool {
        self.inbox.orders_read() > self.running
    }

    /// Records that the process runs the last job that was sent.
    pub(super) fn moves_on(&mut self) {
        self.running = self.orders;
    }

    /// Whether no more messages will come.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Sends the script and its settings.
    pub(super) async fn begin(&mut self, mut settings: serde_json::Value) -> std::io::Result<()> {
        settings["key"] = self.inbox.key().into();
        let helper = if settings["serves"].is_null() {
            ""
        } else {
            HELPER
        };
        let code = |script: &'static str| script.strip_prefix("<?php").unwrap_or(script);
        let (helper, script) = (code(helper), code(SCRIPT));
        let length = helper.len() + script.len();
        let text = format!("{length}\n{helper}{script}{settings}\n");
        self.stream.write_all(text.as_bytes()).await
    }

    /// Sends a job. The process does not begin it if it reads it only after `deadline`.
    ///
    /// No other worker can have the job before `lease`; `None` if the reservation does not expire. With `soon`, the
    /// next job may be sent before the process is ready. This one counts as sent ahead until
    /// [`moves_on`](Self::moves_on).
    ///
    /// From this call on, [`mark_exited`](Self::mark_exited) and [`is_untouched`](Self::is_untouched) refer to this
    /// job, even if the future is never polled.
    ///
    /// # Errors
    ///
    /// The process has closed its end, or has read nothing by the deadline.
    ///
    /// # Cancel safety
    ///
    /// [`mark_exited`](Self::mark_exited) knows how many bytes were written; the process cannot be used any more.
    pub(super) fn run(
        &mut self,
        queue: &str,
        body: &[u8],
        reserved: &[u8],
        deadline: Instant,
        lease: Option<Instant>,
        soon: bool,
    ) -> impl Future<Output = std::io::Result<()>> {
        let until = self.on_its_clock(deadline);
        let lease = lease.map(|lease| self.on_its_clock(lease));
        let order = Order {
            r#do: "run",
            queue,
            body: body.len(),
            reserved: reserved.len(),
            until,
            lease,
            soon,
        };
        let mut bytes = Vec::with_capacity(256 + body.len() + reserved.len());
        let encoded = serde_json::to_writer(&mut bytes, &order);
        bytes.push(b'\n');
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(reserved);
        self.written = 0;
        self.orders += 1;
        async move {
            encoded?;
            self.write_order(bytes, deadline).await
        }
    }

    async fn write_order(&mut self, bytes: Vec<u8>, deadline: Instant) -> std::io::Result<()> {
        let mut is_late = false;
        while self.written < bytes.len() {
            let written = tokio::select! {
                biased;
                written = self.stream.write(&bytes[self.written..]) => written?,
                () = tokio::time::sleep_until(deadline), if !is_late => {
                    if self.is_untouched() {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    // It has begun to read the job: wait until it has read all.
                    is_late = true;
                    continue;
                }
            };
            if written == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            self.written += written;
        }
        Ok(())
    }

    /// Answers a process that waits until the end of its job is settled.
    pub(super) async fn answer(&mut self, is_settled: bool) -> std::io::Result<()> {
        // It has read its job, or it could not have reported an end.
        self.written = usize::MAX;
        let line = format!("{{\"do\":\"settled\",\"settled\":{is_settled}}}\n");
        self.stream.write_all(line.as_bytes()).await
    }

    /// Sends a line to a helper.
    pub(super) async fn ask(&mut self, line: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(line).await
    }

    /// Asks the process to end.
    pub(super) async fn stop(&mut self) -> std::io::Result<()> {
        self.stream.write_all(b"{\"do\":\"stop\"}\n").await
    }

    /// Reads the next message; `None` when the other end is closed.
    ///
    /// # Errors
    ///
    /// The line is not part of the protocol.
    ///
    /// # Cancel safety
    ///
    /// Bytes that were read are kept.
    pub(super) async fn next(&mut self) -> std::io::Result<Option<PoolMessage>> {
        loop {
            match self.inbox.next(self.running) {
                Ok(None) => {}
                said => {
                    self.is_closed |= said.is_err();
                    return said;
                }
            }
            match self.stream.read_buf(self.inbox.room()).await {
                Ok(1..) => {}
                Ok(0) => {
                    self.is_closed = true;
                    return Ok(None);
                }
                Err(error) => {
                    self.is_closed = true;
                    // The process ended before it had read everything.
                    let is_end = error.kind() == ErrorKind::ConnectionReset;
                    return if is_end { Ok(None) } else { Err(error) };
                }
            }
        }
    }
}

fn random_key() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    format!("{:032x}", u128::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_of_a_process_is_the_one_that_came_soonest() {
        let (mut channel, _theirs) = pair();
        let second = Duration::from_secs(1);
        // The message took ten seconds.
        channel.note_clock(1_000_000_000_000);
        let now = Instant::now();
        assert_eq!(channel.on_its_clock(now + second), 1_001_000_000_000);
        tokio::time::advance(second).await;
        // The next took one second, which is better; the last took two, which is not.
        channel.note_clock(1_010_000_000_000);
        channel.note_clock(1_009_000_000_000);
        assert_eq!(channel.on_its_clock(now + second * 2), 1_011_000_000_000);
    }

    const SOON: Duration = Duration::from_secs(60);

    fn pair() -> (Channel, UnixStream) {
        let (channel, theirs) = Channel::pair().unwrap();
        let theirs = std::os::unix::net::UnixStream::from(theirs);
        theirs.set_nonblocking(true).unwrap();
        (channel, UnixStream::from_std(theirs).unwrap())
    }

    #[tokio::test]
    async fn a_process_that_ended_before_it_had_read_its_job_is_told_from_one_that_had() {
        let (mut channel, mut theirs) = pair();
        channel
            .run("default", b"{}", b"{}", Instant::now() + SOON, None, false)
            .await
            .unwrap();
        let mut read = [0; 1024];
        assert!(theirs.read(&mut read).await.unwrap() > 0);
        drop(theirs);
        assert!(!channel.mark_exited());
        assert_eq!(channel.next().await.unwrap(), None);
        let (mut channel, theirs) = pair();
        channel
            .run("default", b"{}", b"{}", Instant::now() + SOON, None, false)
            .await
            .unwrap();
        drop(theirs);
        assert!(channel.mark_exited());
        assert_eq!(channel.next().await.unwrap(), None);
        // Dropped before a byte of the next job was sent; the process had read the one before.
        let (mut channel, mut theirs) = pair();
        let deadline = Instant::now() + SOON;
        channel
            .run("default", b"{}", b"{}", deadline, None, false)
            .await
            .unwrap();
        assert!(theirs.read(&mut read).await.unwrap() > 0);
        assert!(!channel.is_untouched());
        drop(channel.run("default", b"{}", b"{}", deadline, None, false));
        assert!(channel.is_untouched());
        drop(theirs);
        assert!(channel.mark_exited());
        // More than the socket holds: the same for a job that was not written whole.
        let large = vec![b'x'; 4 << 20];
        for has_read in [false, true] {
            let (mut channel, mut theirs) = pair();
            let writing = channel.run("default", &large, b"{}", Instant::now() + SOON, None, false);
            let written = tokio::time::timeout(Duration::from_millis(50), writing).await;
            assert!(written.is_err());
            if has_read {
                assert!(theirs.read(&mut read).await.unwrap() > 0);
            }
            drop(theirs);
            assert_eq!(channel.mark_exited(), !has_read);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_job_that_is_not_taken_in_time_is_not_sent_whole() {
        let (mut channel, _theirs) = pair();
        let large = vec![b'x'; 4 << 20];
        let error = channel.run("default", &large, b"{}", Instant::now() + SOON, None, false);
        let error = error.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(channel.is_untouched());
        // If the process has begun to read, writing waits for it, however long it takes.
        let (mut channel, mut theirs) = pair();
        let writing = channel.run("default", &large, b"{}", Instant::now() + SOON, None, false);
        let reading = async {
            let mut read = vec![0; 1 << 20];
            let mut sum = theirs.read(&mut read).await.unwrap();
            tokio::time::sleep(SOON * 2).await;
            while sum < large.len() {
                sum += theirs.read(&mut read).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(writing, reading);
        written.unwrap();
    }

    #[tokio::test]
    async fn lines_may_come_in_pieces_and_several_at_once() {
        let (mut channel, mut theirs) = pair();
        let key = channel.inbox.key().to_owned();
        let start = format!("{key} 0 {{\"is\":\"del");
        theirs.write_all(start.as_bytes()).await.unwrap();
        let pending = tokio::time::timeout(Duration::from_millis(20), channel.next()).await;
        assert!(pending.is_err());
        let more = format!("eted\"}}\n{key} 0 {{\"is\":\"done\"}}\n{key} 0 {{\"is\"");
        theirs.write_all(more.as_bytes()).await.unwrap();
        assert_eq!(
            channel.next().await.unwrap(),
            Some(PoolMessage::Deleted { last: false })
        );
        assert_eq!(channel.next().await.unwrap(), Some(PoolMessage::Done));
        theirs.write_all(b":\"what\"}\n").await.unwrap();
        assert!(channel.next().await.is_err());
        drop(theirs);
        channel.mark_exited();
        assert_eq!(channel.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_others_write_and_what_is_said_of_an_earlier_job_is_passed_over() {
        let (mut channel, mut theirs) = pair();
        let key = channel.inbox.key().to_owned();
        let deadline = Instant::now() + SOON;
        for _ in 0..2 {
            (channel
                .run("default", b"{}", b"{}", deadline, None, false)
                .await)
                .unwrap();
            channel.moves_on();
        }
        let other = "0".repeat(key.len());
        let lines = format!(
            "{{\"is\":\"deleted\"}}\nnoise\n\n{other} 2 {{\"is\":\"deleted\"}}\n{key}2 {{}}\nnoise\
             {key} 1 {{\"is\":\"deleted\"}}\n{key} 1 {{\"is\":\"ready\",\"clock\":2}}\n\
             {other} 2 {{\"is\":{key} 2 {{\"is\":\"done\"}}\n{key} 3 {{\"is\":\"deleted\"}}\n"
        );
        theirs.write_all(lines.as_bytes()).await.unwrap();
        let ready = PoolMessage::Ready { clock: 2 };
        assert_eq!(channel.next().await.unwrap(), Some(ready));
        assert!(!channel.has_read_running());
        // The third job is sent before the second has ended: messages about the second come first.
        (channel
            .run("default", b"{}", b"{}", deadline, None, false)
            .await)
            .unwrap();
        assert_eq!(channel.next().await.unwrap(), Some(PoolMessage::Done));
        assert!(channel.has_read_running() && !channel.has_read_all() && !channel.has_moved_on());
        assert!(channel.is_ahead());
        let deleted = PoolMessage::Deleted { last: false };
        assert_eq!(channel.next().await.unwrap(), Some(deleted));
        assert!(channel.has_read_all() && channel.has_moved_on());
        channel.moves_on();
        assert!(!channel.has_moved_on() && !channel.is_ahead());
    }
}
