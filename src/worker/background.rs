//! Background tasks of a worker: settling, renewing, watching handlers, emptying the outbox.

use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::event::{Event, Observers};
use super::next_release::NextRelease;
use super::options::WorkerOptions;
use super::outbox_tasks::{Following, Recording};
use super::renew::Renewals;
use super::running::Running;
use super::settle_counts::SettleCounts;
use super::settler::{PendingSettlement, Settler, keep_settling};
use super::stop::Control;
use super::watchdog::{Turns, Watchdog};
use crate::failed::FailedJobs;
use crate::handler::Services;
use crate::outbox::OnRefusal;
use crate::outbox::left::{Left, LeftDone};
use crate::process::pool::Pool;
use crate::queue::{Ability, Ledger, Queue};

/// The background tasks of a worker, and what they tell the loop.
pub(super) struct Background {
    /// Tasks that run as long as the loop.
    pub(super) helpers: JoinSet<()>,
    /// Settles jobs until no more come; returns how many could not be settled.
    pub(super) settling: JoinHandle<usize>,
    /// When released jobs come back.
    pub(super) returns: Arc<NextRelease>,
    /// Cancelled when the tasks are to stop waiting for a server that stays away.
    pub(super) give_up: CancellationToken,
    pub(super) recording: Option<Recording>,
    pub(super) following: Following,
    /// Follow-ups that ended jobs have left to do.
    pub(super) left: Arc<Left>,
    /// Changes when follow-ups are done.
    pub(super) followed_up: watch::Receiver<Vec<LeftDone>>,
}

/// What the tasks need.
pub(super) struct Premises<'a> {
    pub(super) queue: &'a Arc<dyn Queue>,
    pub(super) ledger: &'a Arc<dyn Ledger>,
    pub(super) options: &'a WorkerOptions,
    pub(super) control: &'a Control,
    pub(super) observers: &'a Observers,
    pub(super) services: &'a Arc<Services>,
    pub(super) running: &'a Arc<Running>,
    pub(super) renewals: &'a Arc<Renewals>,
    pub(super) turns: &'a Arc<Turns>,
    pub(super) settle_counts: &'a Arc<SettleCounts>,
    pub(super) failed_jobs: Option<Arc<FailedJobs>>,
    pub(super) runtimes: &'a ExtraRuntimes,
}

/// The runtimes beside the worker's own.
#[derive(Debug, Default)]
pub(super) struct ExtraRuntimes {
    /// The runtime that no handler can block.
    pub(super) overseer: Option<Handle>,
    /// The runtime of handlers that keep a thread busy.
    pub(super) threads: Option<Handle>,
}

impl Background {
    /// Starts the tasks; the returned sender takes ended jobs to be settled.
    pub(super) fn start(premises: Premises<'_>) -> (Self, mpsc::Sender<PendingSettlement>) {
        let Premises {
            queue,
            ledger,
            options,
            observers,
            services,
            running,
            settle_counts,
            ..
        } = premises;
        let (give_up, spooled) = (CancellationToken::new(), Arc::new(Notify::new()));
        let (left, returns) = (Arc::<Left>::default(), Arc::<NextRelease>::default());
        let (settlements, received) = mpsc::channel(options.concurrency.get().max(64));
        let settler = Settler {
            queue: Arc::clone(queue),
            running: Arc::clone(running),
            observers: observers.clone(),
            spooled: Arc::clone(&spooled),
            left: Arc::clone(&left),
            returns: Arc::clone(&returns),
            settle_counts: Arc::clone(settle_counts),
            give_up: give_up.clone(),
            gave_up: OnceLock::new(),
        };
        let settling = tokio::spawn(keep_settling(settler, received));
        let on_refusal = OnRefusal::new({
            let observers = observers.clone();
            move |what| observers.emit(&Event::StoreFailed(what))
        });
        let following = Following::start(
            (queue, ledger, &options.queues),
            Arc::clone(services),
            options.connection.clone(),
            Arc::clone(&left),
            options.clock,
            on_refusal.clone(),
        );
        let helpers = start_watching(&premises);
        let recording = premises.failed_jobs.map(|store| {
            Recording::start(
                (ledger, &options.queues),
                store,
                spooled,
                options.clock,
                on_refusal,
            )
        });
        let background = Self {
            helpers,
            settling,
            returns,
            give_up,
            recording,
            following,
            followed_up: left.changes(),
            left,
        };
        (background, settlements)
    }

    /// Passes signals on to the processes of a pool; they are not replaced then, unless a job that cannot be put back
    /// as it was may need another one.
    pub(super) fn pass_signals(
        &mut self,
        pool: Option<&Pool>,
        queue: &dyn Queue,
        control: &Control,
    ) {
        let Some(pool) = pool.cloned() else { return };
        let puts_back = queue.abilities().has(Ability::PutsBack);
        let mut signals = control.signals();
        self.helpers.spawn(async move {
            while signals.changed().await.is_ok() {
                if let Some(signal) = *signals.borrow_and_update() {
                    // First, so that none that ends by the signal is replaced.
                    if puts_back {
                        pool.close();
                    }
                    pool.signal(signal);
                }
            }
        });
    }
}

/// Starts the tasks that renew reservations and watch handlers, on the overseer's runtime if there is one; the locks of
/// jobs are kept there, too.
fn start_watching(premises: &Premises<'_>) -> JoinSet<()> {
    let Premises {
        options,
        control,
        services,
        running,
        renewals,
        turns,
        runtimes: ExtraRuntimes { overseer, threads },
        ..
    } = premises;
    let mut helpers = JoinSet::new();
    let renewing = Arc::clone(renewals).keep_renewing();
    let Some(overseer) = overseer else {
        helpers.spawn(renewing);
        return helpers;
    };
    services.oversee(overseer);
    helpers.spawn_on(renewing, overseer);
    let mut runtimes = vec![Handle::current()];
    runtimes.extend(threads.clone());
    for (position, runtime) in runtimes.iter().enumerate() {
        helpers.spawn_on(Arc::clone(turns).keep_alive(position), runtime);
    }
    let watchdog = Watchdog {
        turns: Arc::clone(turns),
        running: Arc::clone(running),
        control: (*control).clone(),
        runtimes,
        orders: control.subscribe(),
        grace: options.grace,
    };
    helpers.spawn_on(watchdog.keep_watching(), overseer);
    helpers
}
