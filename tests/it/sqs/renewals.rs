//! Renewals beside a handler that blocks its thread, and beside settlements of the same jobs.

use super::*;

const HIDE: &str = "ChangeMessageVisibilityBatch";

/// Two jobs with reservations of 18 seconds, of which so much has passed that a renewal asks the server.
async fn due(server: &Sqs) -> (Arc<SqsQueue>, Vec<Arc<ReservedJob>>) {
    let queue = Arc::new(queue_of(server, Some(18)));
    push(&queue, "q", [1, 2]).await;
    let jobs = take(&*queue, "q", 2).await;
    // Time itself is the subject: a third of the reservation passes.
    sleep(Duration::from_millis(6100)).await;
    (queue, jobs)
}

/// A renewal whose request the server has, and does not carry out yet.
async fn held(
    server: &Sqs,
    queue: &Arc<SqsQueue>,
    jobs: &[Arc<ReservedJob>],
) -> tokio::task::JoinHandle<Vec<Held>> {
    server.hold(HIDE);
    let (queue, jobs) = (Arc::clone(queue), jobs.to_vec());
    let renewing = tokio::spawn(async move { queue.renew(&jobs, now()).await.unwrap() });
    server.is_held(HIDE).await;
    renewing
}

#[tokio::test]
async fn a_handler_that_blocks_its_thread_delays_no_renewal() {
    let server = Sqs::start();
    let (queue, jobs) = due(&server).await;
    let mut overseer = tokio::runtime::Builder::new_multi_thread();
    let overseer = overseer.worker_threads(1).enable_all().build().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    overseer.spawn({
        let (queue, jobs) = (Arc::clone(&queue), jobs.clone());
        async move { tell.send(queue.renew(&jobs, now()).await).unwrap() }
    });
    // This thread runs no task meanwhile, so it does not serve the connection on which the jobs came.
    let held = told.recv_timeout(PATIENCE).unwrap().unwrap();
    overseer.shutdown_background();
    assert!(
        held.iter().all(|held| matches!(held, Held::Until(_))),
        "{held:?}"
    );
    assert_eq!(server.requests(HIDE), 1);
}

#[tokio::test]
async fn a_renewal_under_way_undoes_no_release() {
    let server = Sqs::start();
    let (queue, jobs) = due(&server).await;
    let release = Settlement::Release(in_seconds(60));
    // Whether this one is released is not known to the worker, so the release is not sent again.
    server.lose_replies(HIDE, 1);
    let first = [(Arc::clone(&jobs[0]), release.clone())];
    let unsettled = queue.settle(&first).await.unwrap_err();
    assert!(unsettled.source.is_of_unknown_outcome());
    let renewing = held(&server, &queue, &jobs).await;
    let mut settling = tokio::spawn({
        let (queue, second) = (Arc::clone(&queue), [Arc::clone(&jobs[1])]);
        async move { settle_all(&*queue, &second, &release).await }
    });
    // Time itself is the subject: the request of a release that does not wait is carried out meanwhile.
    let early = tokio::time::timeout(Duration::from_millis(300), &mut settling).await;
    assert!(early.is_err(), "{early:?}");
    server.let_go(HIDE);
    let held = renewing.await.unwrap();
    assert!(
        held.iter().all(|held| matches!(held, Held::Until(_))),
        "{held:?}"
    );
    assert_eq!(settling.await.unwrap(), [Settled::Done]);
    let hidden = server.hidden("q");
    let is_released = |left: &Duration| *left > Duration::from_secs(40);
    assert!(hidden.iter().all(is_released), "{hidden:?}");
    // The two releases, and the renewal between them.
    assert_eq!(server.requests(HIDE), 3);
}

#[tokio::test]
async fn a_renewal_that_hangs_holds_up_no_settlement_for_long() {
    let server = Sqs::start();
    let (queue, jobs) = due(&server).await;
    let renewing = held(&server, &queue, &jobs).await;
    let rows = [
        (Arc::clone(&jobs[0]), Settlement::PutBack),
        (Arc::clone(&jobs[1]), Settlement::Delete),
    ];
    let began = Instant::now();
    queue.settle(&rows).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(15));
    assert!(!renewing.is_finished());
    server.let_go(HIDE);
}
