//! The PHP processes of a worker that run no jobs.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::plan::Plan;
use crate::config::{self, Config};
use crate::handler::{Hooks, Services};
use crate::horizon::{HorizonOptions, WaitMonitor};
use crate::listeners::{ListenerFigures, Listeners};
use crate::process::pool::HookHelper;
use crate::queue::Queue;
use crate::worker::{Control, Observer};

/// The PHP processes that run no jobs.
pub(super) struct Helpers {
    /// For the app's listeners.
    listeners: Option<Listeners>,
    /// For its payload hooks.
    hooks: Option<Arc<HookHelper>>,
    /// For Horizon's look at long waits.
    waits: Option<WaitMonitor>,
}

impl Helpers {
    /// Starts those that the worker needs, and lets `services` ask them.
    pub(super) fn start(
        config: &Config,
        plan: &Plan,
        services: &mut Services,
        (horizon, figures): (Option<HorizonOptions>, Option<ListenerFigures>),
        queue: Arc<dyn Queue>,
        runtime: &Handle,
    ) -> anyhow::Result<Self> {
        // No handler may keep them waiting.
        let _entered = runtime.enter();
        let options = || config::pool_options(config, &plan.options, None);
        let listeners = plan
            .router
            .raises_all()
            .then(|| Listeners::start(options(), figures.unwrap_or_default(), runtime));
        let hooks = has_hooks(plan, services).then(|| Arc::new(HookHelper::start(options())));
        if let Some(hooks) = &hooks {
            services.hooks = Hooks::Ask(Arc::<HookHelper>::clone(hooks));
        }
        // Only where the pool runs, as PHP is sure to be here then. A worker for one job has ended before a look is
        // due.
        let waits = horizon
            .filter(|_| plan.is_for_php() && !plan.options.stop.once)
            .map(|horizon| WaitMonitor::start(&horizon, options(), queue, runtime));
        Ok(Self {
            listeners,
            hooks,
            waits: waits.transpose()?.flatten(),
        })
    }

    /// Waits until jobs can have the answers they need, or never will.
    pub(super) async fn wait_until_ready(&self, control: &Control) {
        if let Some(hooks) = &self.hooks {
            tokio::select! {
                () = hooks.booted() => {}
                () = control.told_to_quit() => {}
            }
        }
    }

    /// What has to hear of the worker's events.
    pub(super) fn observer(&self) -> Option<impl Observer + use<>> {
        self.listeners.as_ref().map(Listeners::observer)
    }

    /// Lets the processes finish and end.
    pub(super) async fn finish(self) {
        if let Some(waits) = self.waits {
            waits.stop().await;
        }
        if let Some(listeners) = self.listeners {
            listeners.finish().await;
        }
        if let Some(hooks) = self.hooks {
            hooks.stop().await;
        }
    }
}

/// Whether there are payload hooks to ask for: only where the pool runs, as PHP is sure to be here then.
fn has_hooks(plan: &Plan, services: &Services) -> bool {
    let mut manifests = services.manifest.iter();
    matches!(services.hooks, Hooks::OnlyPhp)
        && plan.is_for_php()
        && plan.runs_here()
        && manifests.any(|manifest| !manifest.payload_hooks.is_empty())
}
