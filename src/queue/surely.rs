//! Pushes that are repeated while the connection is lost.

use std::time::Duration;

use super::{Error, Once, Push, PushedOnce, Queue};

/// How often a push is repeated, for about a second and a half.
const TRIES: u32 = 4;

/// Pushes jobs once; if the connection is lost, again, unless the server would not recognize them.
///
/// # Errors
///
/// That of the last try: [`Error::Doubtful`] if it says that nothing was done, and an earlier try may have been carried
/// out.
pub(crate) async fn push_surely(
    queues: &dyn Queue,
    pushes: &[Push],
    once: Once<'_>,
) -> Result<PushedOnce, Error> {
    let mut is_doubtful = false;
    for tries in 1.. {
        let error = match queues.push_once(pushes, once).await {
            Ok(answer) => {
                // An earlier try may have pushed them, and its reply, with which the driver tells of them, was lost.
                let is_own = |note: &str| is_doubtful && !note.is_empty() && note == once.note;
                if matches!(&answer, PushedOnce::Before { note } if is_own(note)) {
                    queues.tell_late(pushes);
                }
                return Ok(answer);
            }
            Err(error) => error,
        };
        is_doubtful |= error.is_of_unknown_outcome();
        let is_repeated = error.is_lost_connection()
            && error.allows_another_push(queues.abilities())
            && tries <= TRIES;
        if !is_repeated {
            return Err(error.doubtful_if(is_doubtful));
        }
        tokio::time::sleep(Duration::from_millis(50 << tries)).await;
    }
    unreachable!("it returns after some tries")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::faulty::{Fault, Server, push_of};

    /// Pushes one job to a server on which the tries go like this.
    async fn push(faults: impl IntoIterator<Item = Fault>) -> (Result<PushedOnce, Error>, usize) {
        let server = Server::new();
        server.next("push_once", faults.into_iter().map(Some));
        let once = Once {
            id: "a",
            remembered: Duration::from_secs(60),
            note: "",
        };
        let pushed = push_surely(&*server, &[push_of("default")], once).await;
        (pushed, server.calls("push_once").len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_reply_is_asked_for_again() {
        let (pushed, calls) = push([Fault::ReplyLost, Fault::Away]).await;
        assert!(
            matches!(pushed, Ok(PushedOnce::Before { .. })),
            "{pushed:?}"
        );
        assert_eq!(calls, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn pushes_whose_reply_was_lost_are_told_late() {
        let push = push_of("default");
        for (faults, told) in [
            (&[Fault::ReplyLost, Fault::Away][..], 1),
            (&[Fault::Away], 0),
            (&[], 0),
        ] {
            let server = Server::new();
            server.next("push_once", faults.iter().copied().map(Some));
            let once = Once {
                id: "a",
                remembered: Duration::from_secs(60),
                note: "uuid",
            };
            for told in [told, 0] {
                let before = server.calls("tell_late").len();
                let pushed = push_surely(&*server, std::slice::from_ref(&push), once).await;
                pushed.unwrap();
                assert_eq!(server.calls("tell_late").len() - before, told, "{faults:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_after_a_lost_reply_does_not_say_that_nothing_was_done() {
        let refusals = [Fault::Away; TRIES as usize + 1];
        let (pushed, _) = push(refusals).await;
        assert!(!pushed.unwrap_err().is_of_unknown_outcome());
        let lost_first = [&[Fault::ReplyLost][..], &refusals[1..]].concat();
        let (pushed, calls) = push(lost_first).await;
        assert!(pushed.unwrap_err().is_of_unknown_outcome());
        assert_eq!(calls, TRIES as usize + 1);
        // One that will never be done is not repeated.
        let (pushed, calls) = push([Fault::ReplyLost, Fault::Impossible]).await;
        assert!(pushed.unwrap_err().is_of_unknown_outcome());
        assert_eq!(calls, 2);
    }
}
