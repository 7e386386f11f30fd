//! Tests without a server: what is sent, and when.

use tokio::sync::oneshot;

use super::*;

fn link() -> Link {
    Link::new(1, Arc::default(), Caught::default())
}

fn ask(link: &mut Link, ask: Ask) -> oneshot::Receiver<Result<Vec<CommandResult>, Lost>> {
    let (answer, outcomes) = oneshot::channel();
    link.begin(ask, answer);
    outcomes
}

fn sent(link: &mut Link) -> String {
    String::from_utf8(std::mem::take(&mut link.out)).unwrap()
}

fn receive(link: &mut Link, replies: &str) {
    let mut inbox = replies.as_bytes().to_vec();
    link.receive(&mut inbox).unwrap();
    assert!(inbox.is_empty());
}

fn reserve(link: &mut Link, most: usize) -> oneshot::Receiver<Result<Vec<CommandResult>, Lost>> {
    let tube = Tube::new("q").unwrap();
    ask(link, Ask::Reserve { tube, most })
}

fn taken(outcomes: &mut oneshot::Receiver<Result<Vec<CommandResult>, Lost>>) -> Vec<HeldJob> {
    let outcomes = outcomes.try_recv().unwrap().unwrap();
    let taken = outcomes.into_iter().filter_map(|outcome| match outcome {
        CommandResult::Taken(taken) => Some(taken),
        _ => None,
    });
    taken.collect()
}

#[test]
fn a_pop_of_any_number_of_jobs_takes_two_round_trips() {
    let mut link = link();
    let mut outcomes = reserve(&mut link, 1000);
    let reserves = "reserve-with-timeout 0\r\n".repeat(1000);
    assert_eq!(
        sent(&mut link),
        format!("watch q\r\nignore default\r\n{reserves}")
    );
    let replies: Vec<String> = (0..1000)
        .map(|id| format!("RESERVED {id} 2\r\nhi\r\n"))
        .collect();
    receive(&mut link, "WATCHING 2\r\nWATCHING 1\r\n");
    receive(&mut link, &replies.concat());
    let jobs = taken(&mut outcomes);
    let about = |taken: &HeldJob| {
        let ticket = Ticket::read(&taken.ticket).unwrap();
        [(ticket, Act::Touch), (ticket, Act::Stats)]
    };
    let acts: Vec<_> = jobs.iter().flat_map(about).collect();
    let _outcomes = ask(&mut link, Ask::Held(acts));
    let expected: Vec<String> = (0..1000)
        .map(|id| format!("touch {id}\r\nstats-job {id}\r\n"))
        .collect();
    assert_eq!(sent(&mut link), expected.concat());
    // The tube is watched now.
    drop(reserve(&mut link, 1));
    assert_eq!(sent(&mut link), "reserve-with-timeout 0\r\n");
}

#[test]
fn jobs_in_use_are_touched_in_time_and_others_released_at_their_end() {
    let mut link = link();
    let mut outcomes = reserve(&mut link, 3);
    receive(&mut link, "WATCHING 2\r\nWATCHING 1\r\n");
    receive(
        &mut link,
        "RESERVED 1 1\r\na\r\nRESERVED 2 1\r\nb\r\nRESERVED 3 1\r\nc\r\n",
    );
    let mut jobs = taken(&mut outcomes);
    let about = |taken: &HeldJob| (Ticket::read(&taken.ticket).unwrap(), Act::Stats);
    let _outcomes = ask(&mut link, Ask::Held(jobs.iter().map(about).collect()));
    for left in ["-3", "60", "0"] {
        let told = format!("---\nttr: 60\ntime-left: {left}\n");
        receive(&mut link, &format!("OK {}\r\n{told}\r\n", told.len()));
    }
    sent(&mut link);
    // The last one is dropped.
    jobs.truncate(2);
    link.tick().unwrap();
    let mut commands = sent(&mut link);
    let mut lines: Vec<_> = commands.split_terminator("\r\n").collect();
    lines.sort_unstable();
    assert_eq!(lines, ["release 3 1024 0", "touch 1"]);
    // Once is enough, as long as there is no answer.
    link.tick().unwrap();
    assert_eq!(sent(&mut link), "");
    let in_order = if commands.starts_with("touch") {
        "TOUCHED\r\nRELEASED\r\n"
    } else {
        "RELEASED\r\nTOUCHED\r\n"
    };
    receive(&mut link, in_order);
    link.tick().unwrap();
    commands = sent(&mut link);
    assert_eq!(commands, "");
    assert_eq!(link.load.held.load(Ordering::Acquire), 2);
}

#[test]
fn a_job_that_a_wait_has_caught_is_kept_until_a_pop_takes_it() {
    let mut link = link();
    let wait = Ask::Wait {
        tubes: vec![Tube::new("q").unwrap()],
        seconds: 10,
        turn: Turn::take(&link.load).unwrap(),
        cancel: CancellationToken::new(),
    };
    let _outcomes = ask(&mut link, wait);
    receive(&mut link, "WATCHING 2\r\nWATCHING 1\r\n");
    sent(&mut link);
    receive(&mut link, "RESERVED 7 1\r\na\r\n");
    assert_eq!(sent(&mut link), "touch 7\r\nstats-job 7\r\n");
    let told = "---\nttr: 60\ntime-left: 9\n";
    let replies = format!("TOUCHED\r\nOK {}\r\n{told}\r\n", told.len());
    receive(&mut link, &replies);
    link.tick().unwrap();
    assert_eq!(sent(&mut link), "touch 7\r\n");
}

#[test]
fn a_reply_that_does_not_fit_ends_the_connection() {
    #[rustfmt::skip]
    let rows = [
        ("WATCHING 2\r\nWATCHING 1\r\nDELETED\r\n", "a reply to something else"),
        // It would not be known which tubes are watched.
        ("OUT_OF_MEMORY\r\n", "a reply to something else"),
        ("WATCHING 2\r\nNOT_IGNORED\r\n", "a line that is no reply"),
        ("WATCHING 2\r\nWATCHING 1\r\nTIMED_OUT\r\nTIMED_OUT\r\n", "a reply without a request"),
    ];
    for (replies, expected) in rows {
        let mut link = link();
        let mut outcomes = reserve(&mut link, 1);
        let problem = link.receive(&mut replies.as_bytes().to_vec());
        assert_eq!(problem, Err(expected), "{replies:?}");
        link.lose(&std::io::ErrorKind::InvalidData.into());
        // Each request has an answer in any case; the last one had it before.
        let is_lost = outcomes.try_recv().unwrap().is_err();
        assert_eq!(is_lost, !replies.contains("TIMED_OUT"));
    }
}
