//! A custom worker: all of `artisand`, with three typed handlers in it.
//!
//! ```sh
//! cargo build --example worker
//! cd examples/worker
//! ../../target/debug/examples/worker queue:work
//! ```
//!
//! `artisand.toml`, in the same directory, maps classes to handlers.
//! `artisand make:handler` printed the structs; properties that these
//! handlers do not need are removed. See `docs/handlers.md`.

#![expect(clippy::print_stdout, reason = "its handlers do nothing else")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use artisand::Registry;
use artisand::cli::Application;
use artisand::handler::view::{Listener, Notification};
use artisand::handler::{
    self, BoxError, BoxFuture, FailureText, JobContext, Middleware, ModelIdentifier, Next,
};
use artisand::php::Date;
use serde::Deserialize;

fn main() -> ExitCode {
    let registry = Registry::new()
        .with(
            "greet",
            handler::function(greet)
                .with_middleware(Timed)
                .on_failed(greeting_failed),
        )
        .with("shipped", handler::function(shipped))
        .with("invoice_paid", handler::function(invoice_paid));
    Application::new(registry).run()
}

/// A job class with a model.
#[derive(Debug, Deserialize)]
struct WithModel {
    /// Class and key of the row. With a manifest (`artisand manifest`) the handler can read it:
    /// `let user: User = context.model(&job.user).await?;`
    user: ModelIdentifier,
}

async fn greet(job: WithModel, context: JobContext) -> Result<(), BoxError> {
    let class = job.user.class.as_deref().unwrap_or("nobody");
    println!(
        "greet {class} {:?}, attempt {}",
        job.user.id,
        context.attempts()
    );
    Ok(())
}

/// Called when a job has failed for good, like `failed()` in PHP.
async fn greeting_failed(context: JobContext, failure: Arc<FailureText>) {
    tracing::warn!(uuid = ?context.uuid(), "nobody was greeted: {failure}");
}

/// The event of a listener.
#[derive(Debug, Deserialize)]
struct OrderShipped {
    /// The job does not contain it if it equals the class's default.
    #[serde(default = "post")]
    carrier: String,
    at: Date,
}

fn post() -> String {
    "post".to_owned()
}

/// Gets the listener with its event.
async fn shipped(job: Listener<OrderShipped>, _: JobContext) -> Result<(), BoxError> {
    let event = job.event;
    let at = event.at.to_iso_8601().ok_or("no date")?;
    println!("shipped by {} at {at}", event.carrier);
    Ok(())
}

/// A notification.
#[derive(Debug, Deserialize)]
struct InvoicePaid {
    invoice: i64,
    amount: f64,
}

/// Gets the notification with its channel and its recipients.
async fn invoice_paid(job: Notification<InvoicePaid>, _: JobContext) -> Result<(), BoxError> {
    let channel = job.channel().unwrap_or("no channel");
    let InvoicePaid { invoice, amount } = job.notification;
    println!("invoice {invoice} over {amount:.2} by {channel}");
    Ok(())
}

/// Custom middleware: prints how long the handler took.
struct Timed;

impl Middleware for Timed {
    fn handle<'a>(
        &'a self,
        context: &'a JobContext,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            let started = Instant::now();
            let result = next.run().await;
            tracing::info!(uuid = ?context.uuid(), took = ?started.elapsed(), "a greeting");
            result
        })
    }
}
