//! Tests with real Laravel: artisand runs jobs that PHP queues, PHP runs jobs that artisand leaves, and no job is lost.

/// Makes a test per Laravel version of a function that takes the version.
macro_rules! on_every_laravel {
    ($scenario:ident) => {
        on_laravel! { $scenario: laravel_8(8) laravel_10(10) laravel_13(13) }
    };
}

/// Makes tests of a function: each has a name, and the arguments of its call.
macro_rules! on_laravel {
    ($scenario:ident: $($name:ident($($argument:expr),*))*) => {
        mod $scenario {
            use super::*;

            $(#[test]
            #[ignore = "needs php and the Laravel roots (make test)"]
            fn $name() {
                $scenario($($argument),*);
            })*
        }
    };
}

mod all_kinds;
mod batches;
mod blocked;
mod cache;
mod canary;
mod castings;
mod chains;
mod closure_tries;
mod closures;
mod clusters;
mod crowd;
mod dispatch;
mod documents;
mod drain;
mod elsewhere;
mod encryption;
mod ends_killed;
mod events;
mod exceptions;
mod exported;
mod failed;
mod failed_killed;
mod file_batches;
mod going_back;
mod handlers;
mod killed;
mod kinds;
mod listeners;
mod listens;
mod locks_elsewhere;
mod long_waits;
mod malformed;
mod middleware;
mod models;
mod nowhere;
mod packages;
mod page;
mod payload_hooks;
mod policies;
mod pool;
mod pulses;
mod retries;
mod settings;
mod signals;
#[cfg(feature = "sqs")]
mod soak;
mod sqs;
mod text;
mod told;
mod torture;
#[cfg(feature = "otlp")]
mod traces;
mod tubes;
mod under_fire;
mod unique_rush;
mod unknown_classes;
mod untouched;
mod waits;
