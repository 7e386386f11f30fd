//! Tests with real Laravel: artisand runs jobs that PHP queues, PHP runs jobs that artisand leaves, and no job is lost.

/// Makes a test per Laravel version of a function that takes the version.
macro_rules! on_every_laravel {
    ($scenario:ident) => {
        mod $scenario {
            #[test]
            #[ignore = "needs php and the Laravel roots (make test)"]
            fn laravel_8() {
                super::$scenario(8);
            }

            #[test]
            #[ignore = "needs php and the Laravel roots (make test)"]
            fn laravel_10() {
                super::$scenario(10);
            }

            #[test]
            #[ignore = "needs php and the Laravel roots (make test)"]
            fn laravel_13() {
                super::$scenario(13);
            }
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
