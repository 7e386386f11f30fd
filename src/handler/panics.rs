//! The message of a panic, and where in the source it happened.
//!
//! A caught panic carries only its message. The place is known only to the
//! process's panic hook, which runs on the panicking thread and stores it for the
//! code that catches the panic there.

use std::any::Any;
use std::cell::Cell;
use std::sync::Once;

thread_local! {
    /// Message and place of the last panic on this thread.
    static LAST: Cell<Option<(String, String)>> = const { Cell::new(None) };
}

/// Installs a panic hook that records where panics happen and then calls the previous hook.
pub(crate) fn remember_places() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info
                .location()
                .map(|place| format!("{}:{}", place.file(), place.line()));
            // A thread that is ending has no thread-local storage any more, and catches nothing.
            let _ = LAST.try_with(|last| {
                last.set(place.map(|place| (message_of(info.payload()), place)));
            });
            before(info);
        }));
    });
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "(no message)".to_owned())
}

/// The message of a panic caught on this thread, with file and line if they are known.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let message = message_of(panic);
    match LAST.take() {
        // A panic rethrown from another thread has a different message than the last one recorded here.
        Some((last, place)) if last == message => format!("{message} at {place}"),
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, resume_unwind};

    use super::*;

    #[test]
    fn a_panic_names_its_file_and_line_once() {
        remember_places();
        remember_places();
        let line = line!() + 1;
        let panic = catch_unwind(|| panic!("a bug")).unwrap_err();
        let text = panic_text(&*panic);
        assert_eq!(text, format!("a bug at {}:{line}", file!()));
        // Rethrown from another thread, with the place already in its message.
        let panic = catch_unwind(|| resume_unwind(Box::new(text.clone()))).unwrap_err();
        assert_eq!(panic_text(&*panic), text);
    }
}
