//! `top`

use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::orders::carry_out;
use super::stops::stops_and_hangups;
use super::{GlobalArgs, UsageError, named, open, output};
use crate::config::{self, Config};
use crate::telemetry::{Order, OrderResult, Overview, Sources};

mod screen;
mod state;
mod tables;
mod terminal;
#[cfg(test)]
mod tests;

use screen::Look;
use state::State;
use terminal::{Keys, TakenTerminal, TerminalEvent};

/// How often everything is looked at.
const EVERY: Duration = Duration::from_secs(2);

/// Arguments of `top`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct TopArgs {
    /// Queue connection of the workers [default: the app's default connection]
    #[arg(value_name = "CONNECTION")]
    connection: Option<String>,
}

pub(super) async fn run(args: TopArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    if !output::is_terminal() {
        let text = "`top` needs a terminal. For scripts there are `artisand tail --json` (what happens), `artisand queue:monitor --json` (what waits) and `artisand doctor` (what is wrong)";
        return Err(UsageError(text.to_owned()).into());
    }
    let config = global.load_config()?;
    let name = named(&config, args.connection.as_deref());
    let (queue, connection) = open(&config, &name).await?;
    if !queue.keeps_heartbeats() {
        let text = format!(
            "`top` shows workers by their heartbeats, which are kept on Redis; the connection [{name}] has the driver `{}`. `artisand queue:monitor` shows its queues",
            connection.driver()
        );
        return Err(UsageError(text).into());
    }
    let mut sources = Sources::new(queue, connection.name.clone(), Vec::new());
    // Without a store that can be read, there is no list of them.
    sources.failed_jobs = config::failed_jobs(&config).ok().flatten();
    let look = Look {
        is_coloured: global.is_coloured(),
    };
    let signals = stops_and_hangups()?;
    let keys = Keys::start().context("could not start a thread")?;
    let taken = TakenTerminal::take().context("could not take over the terminal")?;
    let top = Top {
        config: &config,
        env: global.env.as_deref(),
        sources: &sources,
        state: State::new(),
        look,
    };
    top.run(taken, keys, signals).await?;
    Ok(ExitCode::SUCCESS)
}

type Running<'a, T> = Option<Pin<Box<dyn Future<Output = T> + 'a>>>;

/// The end of what runs; never, if nothing does. Cancel safe: it goes on with the next call.
async fn end<T>(running: &mut Running<'_, T>) -> T {
    let value = match running {
        Some(future) => future.await,
        None => std::future::pending().await,
    };
    *running = None;
    value
}

/// What happens.
enum Event {
    Terminal(TerminalEvent),
    Tick,
    Seen(Box<Overview>),
    /// An order is carried out: what it came to.
    Done(String),
    /// A signal, or the terminal has gone.
    Stop,
}

/// The command at work.
struct Top<'a> {
    config: &'a Config,
    /// `--env`, for PHP.
    env: Option<&'a str>,
    sources: &'a Sources,
    state: State,
    look: Look,
}

impl<'a> Top<'a> {
    async fn run(
        mut self,
        mut taken: TakenTerminal,
        mut keys: Keys,
        mut stops: mpsc::Receiver<()>,
    ) -> anyhow::Result<()> {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looking: Running<'_, Overview> = None;
        let mut ordering: Running<'_, String> = None;
        loop {
            self.state.is_busy = ordering.is_some();
            // An order that is cut off may leave a job among the failed ones that is on its queue again.
            if self.state.is_over && ordering.is_none() {
                return Ok(());
            }
            let (state, look) = (&self.state, self.look);
            let drawn = taken.draw(|frame| screen::draw(frame, state, look));
            // A terminal that has gone stops nothing that is being done.
            self.state.is_over |= drawn.is_err();
            let event = tokio::select! {
                told = keys.next(), if !self.state.is_over => told.map_or(Event::Stop, Event::Terminal),
                _ = ticks.tick(), if looking.is_none() => Event::Tick,
                seen = end(&mut looking) => Event::Seen(Box::new(seen)),
                said = end(&mut ordering) => Event::Done(said),
                _ = stops.recv() => Event::Stop,
            };
            match event {
                Event::Terminal(TerminalEvent::Resized) => {}
                Event::Terminal(TerminalEvent::Key(key)) => {
                    if let Some(order) = self.state.on_key(key) {
                        ordering = Some(Box::pin(self.order(order)));
                    }
                }
                Event::Tick => looking = Some(Box::pin(Overview::look(self.sources, true))),
                Event::Seen(overview) => self.state.show(*overview),
                Event::Done(said) => {
                    self.state.said = Some(said);
                    looking = Some(Box::pin(Overview::look(self.sources, true)));
                }
                Event::Stop => self.state.is_over = true,
            }
        }
    }

    /// Carries out an order, and says what it came to.
    fn order(&self, order: Order) -> impl Future<Output = String> + use<'a> {
        let (config, env, sources) = (self.config, self.env, self.sources);
        async move {
            let done = carry_out(config, env, &order, &CancellationToken::new()).await;
            sources.read_failed_anew().await;
            match done {
                Ok(done) => said(&order, &done),
                Err(error) => format!("not done: {}", output::with_causes(&error)),
            }
        }
    }
}

/// What an order came to, in a line.
fn said(order: &Order, done: &OrderResult) -> String {
    match order {
        Order::Pause { queue, pauses, .. } => {
            let is = if *pauses { "paused" } else { "resumed" };
            format!("{queue} is {is}: its workers hear of it within seconds")
        }
        Order::Retry(_) => {
            let jobs = if done.retried == 1 { "job" } else { "jobs" };
            let problem = done.problems.first();
            let problem = problem.map_or(String::new(), |problem| format!("; {problem}"));
            format!("{} {jobs} pushed again{problem}", done.retried)
        }
    }
}
