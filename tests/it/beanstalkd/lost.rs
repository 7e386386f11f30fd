//! Connections that are lost, and servers that are none.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use artisand::queue::{
    Held, Place, PopRequest, Queue as _, QueueRefusal, Settled, Settlement, Sizes,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::{
    PATIENCE, now, push, queue_at, queue_of, refusal, reserved, take, take_one, take_soon,
};
use crate::contract::{name, payload, settle, sizes};
use crate::harness::beanstalkd::Beanstalkd;
use crate::harness::process::until;
use crate::harness::proxy::{Mode, Proxy};

/// Cuts all connections.
fn cut(proxy: &Proxy) {
    proxy.set(Mode::Cut);
    proxy.set(Mode::Pass);
}

#[tokio::test]
async fn with_its_connection_all_jobs_of_a_worker_are_gone_and_ready_for_others() {
    let server = Beanstalkd::start();
    let proxy = Proxy::start(server.port());
    let queue = queue_at(proxy.port, 90);
    let other = queue_of(&server, 90);
    push(&queue, "q", &[1, 2, 3, 4]).await;
    let jobs: Vec<_> = take(&queue, "q", 3)
        .await
        .into_iter()
        .map(Arc::new)
        .collect();
    assert_eq!(
        settle(&queue, &jobs[0], Settlement::Delete).await,
        Settled::Done
    );
    cut(&proxy);
    // Long before their reservations end.
    until("the server has put both back", PATIENCE, async || {
        sizes(&other, "q").await.reserved == 0
    })
    .await;
    let again = take_one(&other, "q").await;
    assert_eq!((again.payload.to_vec(), again.attempts), (payload(2), 2));
    let held = queue.renew(&jobs, now()).await.unwrap();
    assert_eq!(held, [Held::Lost; 3]);
    let rows: Vec<_> = jobs
        .iter()
        .map(|job| (Arc::clone(job), Settlement::Delete))
        .collect();
    assert_eq!(queue.settle(&rows).await.unwrap(), [Settled::Gone; 3]);
    // The next pop has a new connection, and the same job is another reservation.
    let mut rest = take(&queue, "q", 9).await;
    rest.sort_by(|one, two| one.payload.cmp(&two.payload));
    let seen: Vec<_> = rest
        .iter()
        .map(|job| (job.payload.to_vec(), job.attempts))
        .collect();
    assert_eq!(seen, [(payload(3), 2), (payload(4), 1)]);
    assert_eq!(queue.settle(&rows).await.unwrap(), [Settled::Gone; 3]);
    assert_eq!(
        settle(&queue, &rest[0], Settlement::Delete).await,
        Settled::Done
    );
    assert_eq!(sizes(&queue, "q").await, reserved(2));
}

/// Two workers settle jobs in every way while their connections break.
#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_lost_or_ended_twice_while_connections_break() {
    const JOBS: u32 = 300;
    let server = Beanstalkd::start();
    let proxy = Proxy::start(server.port());
    let queues = [(); 2].map(|()| queue_at(proxy.port, 90));
    let direct = queue_of(&server, 90);
    push(&direct, "q", &(0..JOBS).collect::<Vec<_>>()).await;
    let random = &mut fastrand::Rng::with_seed(7);
    let mut ended = vec![0; JOBS as usize];
    let deadline = Instant::now() + PATIENCE;
    while sizes(&direct, "q").await != Sizes::default() {
        assert!(Instant::now() < deadline, "{ended:?}");
        let queue = &queues[random.usize(0..2)];
        let names = [name("q")];
        let request = PopRequest {
            queues: &names,
            max: NonZeroUsize::new(random.usize(1..20)).unwrap(),
            now: now(),
            woken: &[],
            selection: None,
            thorough: false,
        };
        if random.u32(0..8) == 0 {
            cut(&proxy);
        }
        // The connection may just be lost.
        let Ok(popped) = queue.pop(request).await else {
            continue;
        };
        if random.u32(0..8) == 0 {
            cut(&proxy);
        }
        let way = |job| {
            let settlement = match random.u32(0..4) {
                0 => Settlement::PutBack,
                1 => Settlement::Release(now()),
                _ => Settlement::Delete,
            };
            (Arc::new(job), settlement)
        };
        let rows: Vec<_> = popped.jobs.into_iter().map(way).collect();
        let settled = queue.settle(&rows).await.unwrap();
        for ((job, settlement), settled) in rows.iter().zip(settled) {
            if (settlement, settled) == (&Settlement::Delete, Settled::Done) {
                let job: serde_json::Value = serde_json::from_slice(&job.payload).unwrap();
                let number: usize = job["id"].as_str().unwrap()[1..].parse().unwrap();
                ended[number] += 1;
            }
        }
    }
    // The answer to a deletion may be lost together with its connection.
    assert!(ended.iter().all(|count| *count <= 1), "{ended:?}");
    let known = ended.iter().sum::<usize>();
    assert!(known > JOBS as usize / 2, "{known}");
}

/// As a process that was suspended: it could not renew what it has.
///
/// Now and then beanstalkd forgets to end the reservations of a connection that stays silent (beanstalkd#380): false.
async fn ended_unseen() -> bool {
    let server = Beanstalkd::start();
    let proxy = Proxy::start(server.port());
    let queue = queue_at(proxy.port, 4);
    push(&queue, "q", &[1, 2]).await;
    let jobs: Vec<_> = (take(&queue, "q", 2).await.into_iter())
        .map(Arc::new)
        .collect();
    proxy.set(Mode::Stall);
    let other = queue_of(&server, 90);
    let soon = tokio::time::timeout(Duration::from_secs(20), take_soon(&other, "q"));
    let Ok(again) = soon.await else {
        assert_eq!(sizes(&other, "q").await, reserved(2));
        return false;
    };
    assert_eq!((again.payload.to_vec(), again.attempts), (payload(1), 2));
    let second = take_soon(&other, "q").await;
    proxy.set(Mode::Pass);
    let held = queue.renew(&jobs, now()).await.unwrap();
    assert_eq!(held, [Held::Lost; 2]);
    for job in &jobs {
        let settled = settle(&queue, job, Settlement::Delete).await;
        assert_eq!(settled, Settled::Gone);
    }
    for job in [again, second] {
        let settled = settle(&other, &job, Settlement::Delete).await;
        assert_eq!(settled, Settled::Done);
    }
    assert_eq!(sizes(&queue, "q").await, Sizes::default());
    true
}

#[tokio::test]
async fn jobs_whose_reservations_ended_unseen_are_lost() {
    for _ in 0..5 {
        if ended_unseen().await {
            return;
        }
    }
    panic!("beanstalkd ended no reservation in five runs");
}

#[tokio::test]
async fn a_server_that_is_away_is_an_error_and_found_again() {
    let mut server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    push(&queue, "q", &[1]).await;
    let job = take_one(&queue, "q").await;
    server.kill();
    // Each connection notices by itself.
    let error = loop {
        if let Err(error) = queue.push(&name("q"), &[payload(2)]).await {
            break error;
        }
    };
    assert!(error.is_lost_connection(), "{error:?}");
    let error = queue.push(&name("q"), &[payload(2)]).await.unwrap_err();
    assert!(
        error.is_lost_connection() && !error.is_of_unknown_outcome(),
        "{error:?}"
    );
    assert!(queue.ping().await.unwrap_err().is_lost_connection());
    assert_eq!(
        settle(&queue, &job, Settlement::Delete).await,
        Settled::Gone
    );
    let idle = queue_of(&server, 90);
    let queues = [name("q")];
    let wait = idle.wait_for_push(&queues, Duration::from_secs(1));
    assert!(wait.await.unwrap_err().is_lost_connection());
    server.restart();
    push(&queue, "q", &[3]).await;
    assert_eq!(take_one(&queue, "q").await.attempts, 1);
}

/// A release without delay is not in the server's log, nor is a reservation.
#[tokio::test]
async fn a_server_that_comes_back_with_its_log_has_all_jobs_and_has_forgotten_attempts() {
    let log = tempfile::tempdir().unwrap();
    let directory = log.path().to_str().unwrap();
    let mut server = Beanstalkd::start_with(&["-b", directory, "-f", "0"]);
    let queue = queue_of(&server, 90);
    push(&queue, "released", &[1]).await;
    let job = take_one(&queue, "released").await;
    settle(&queue, &job, Settlement::PutBack).await;
    assert_eq!(take_one(&queue, "released").await.attempts, 2);
    push(&queue, "buried", &[2]).await;
    let job = take_one(&queue, "buried").await;
    settle(&queue, &job, Settlement::Quarantine).await;
    push(&queue, "ended", &[3]).await;
    let job = take_one(&queue, "ended").await;
    settle(&queue, &job, Settlement::Delete).await;

    server.restart();
    let queue = queue_of(&server, 90);
    let job = take_one(&queue, "released").await;
    assert_eq!((&*job.payload, job.attempts), (&payload(1)[..], 1));
    assert_eq!(sizes(&queue, "buried").await.quarantined, 1);
    assert_eq!(sizes(&queue, "ended").await, Sizes::default());
}

/// Answers every connection with these bytes, once it was asked something.
async fn answering(bytes: &'static [u8]) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut asked = [0; 1024];
                while let Ok(1..) = client.read(&mut asked).await {
                    if client.write_all(bytes).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn a_server_that_talks_nonsense_is_an_error() {
    let endless: &[u8] = &[b'x'; 300];
    let answers: [&[u8]; 10] = [
        b"+OK\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\xff\xfe\xfd\r\n",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"RESERVED 1 99999999999999999999\r\n",
        b"OK 2000000000\r\n",
        b"RESERVED 1 2\r\nhello\r\n",
        // Replies to something else, or to more than was asked.
        b"TOUCHED\r\n",
        endless,
    ];
    for bytes in answers {
        let queue = queue_at(answering(bytes).await, 90);
        let queues = [name("q")];
        let request = PopRequest {
            queues: &queues,
            max: NonZeroUsize::new(3).unwrap(),
            now: now(),
            woken: &[],
            selection: None,
            thorough: false,
        };
        let error = queue.pop(request).await.unwrap_err();
        assert!(
            error.is_lost_connection() && error.is_of_unknown_outcome(),
            "{error:?}"
        );
        let error = queue.push(&queues[0], &[payload(1)]).await.unwrap_err();
        assert!(error.is_of_unknown_outcome(), "{error:?}");
        assert!(queue.sizes(&queues[0]).await.is_err());
        assert!(queue.look(&queues[0], Place::Pending, 0, 1).await.is_err());
        assert!(queue.quarantines().await.is_err());
        let wait = queue.wait_for_push(&queues, Duration::from_secs(1)).await;
        assert!(wait.is_err());
    }
    // In step, but without memory.
    let queue = queue_at(answering(b"OUT_OF_MEMORY\r\nOUT_OF_MEMORY\r\n").await, 90);
    let error = queue.push(&name("q"), &[payload(1)]).await.unwrap_err();
    assert!(matches!(
        refusal(&error),
        QueueRefusal::OutOfMemory { .. } | QueueRefusal::Said(_)
    ));
}

#[tokio::test]
async fn a_server_that_says_nothing_is_an_error_after_a_while() {
    let queue = queue_at(answering(b"").await, 90);
    let pinged = tokio::time::timeout(PATIENCE, queue.ping()).await;
    assert!(pinged.unwrap().unwrap_err().is_lost_connection());
}
