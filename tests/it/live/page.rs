//! The page for operators in a real browser, with a real worker and real jobs of Laravel.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _};

use crate::harness::chromium::Chromium;
use crate::harness::fixtures::project;
use crate::harness::process::{INTEROP_MAPPINGS, ManagedChild, eventually};
use crate::harness::scene::{Scene, in_scene};
use crate::harness::stores::{Databases, Kind};

const SOON: Duration = Duration::from_secs(60);
const TOKEN: &str = "a-token-of-this-test";

/// Starts a worker that serves the page.
fn serve(mut worker: Command) -> ManagedChild {
    worker
        .env("ARTISAND_METRICS", "127.0.0.1:0")
        .env("ARTISAND_HTTP_TOKEN", TOKEN);
    ManagedChild::spawn(worker)
}

/// An app, two workers, and a browser that shows the page of one of them.
struct Watched {
    scene: Scene,
    workers: Vec<ManagedChild>,
    browser: Chromium,
}

in_scene!(Watched);

impl Watched {
    fn new(version: u8) -> Self {
        let mut mappings = INTEROP_MAPPINGS.to_owned();
        mappings += "[[map]]\njob = 'App\\Jobs\\Plain'\nhandler = { exec = [\"sh\", \"-c\", \"while [ ! -e go ]; do sleep 0.05; done\"], cwd = \".\" }\n";
        let mut settings = Databases::shared().create(Kind::Sqlite, "page");
        for (name, value) in [
            ("CACHE_STORE", "redis"),
            ("CACHE_DRIVER", "redis"),
            // Where this test looks for the mark of a paused queue.
            ("REDIS_CACHE_DB", "0"),
            ("QUEUE_FAILED_DRIVER", "database-uuids"),
        ] {
            settings.push((name, value.to_owned()));
        }
        let scene = Scene::new(version, &settings, &mappings);
        assert!(scene.failed().is_empty(), "the first look makes the tables");
        let args = ["--queue=default,reports", "--concurrency=4"];
        let with = |more: &[&'static str]| [&args[..], more].concat();
        let serving = scene
            .workplace
            .worker_command(&with(&["--name=web", "-vv"]));
        let serving = serve(serving);
        let address = serving.serves_at();
        let other = scene.worker(&with(&["--name=batch"]));
        let workers = vec![serving, other];
        let mut browser = Chromium::start();
        browser.look_like(1100, "light");
        browser.open(&format!("http://{address}/"));
        browser.until("document.body?.dataset.ready");
        Self {
            scene,
            workers,
            browser,
        }
    }

    /// The row of a table with this text.
    fn row(table: &str, text: &str) -> String {
        format!(
            "[...document.querySelectorAll('#{table} tbody tr')].find(r => r.textContent.includes({text:?}))"
        )
    }

    fn button(table: &str, text: &str) -> String {
        format!("{}?.querySelector('button')", Self::row(table, text))
    }

    /// Whether both workers tell that the queue is paused, which each notices within a second.
    fn is_pause_heard(&self) -> bool {
        let records = self.keys("*artisand:worker:*");
        let is_heard = |key: &&String| {
            let record: Option<Vec<u8>> = self.redis.query(&[b"GET", key.as_bytes()]);
            let record = record.unwrap_or_else(|| b"null".to_vec());
            let record: Value = serde_json::from_slice(&record).unwrap();
            record["paused_queues"] == json!(["default"])
        };
        records.iter().filter(is_heard).count() == self.workers.len()
    }

    fn end(mut self) {
        std::fs::write(self.workplace.path().join("go"), "").unwrap();
        for worker in &mut self.workers {
            worker.signal(Signal::TERM);
            worker.succeeds_within(SOON);
        }
        assert!(
            self.browser.complaints.is_empty(),
            "{:?}",
            self.browser.complaints
        );
    }
}

on_every_laravel!(an_operator_sees_retries_and_pauses);
fn an_operator_sees_retries_and_pauses(version: u8) {
    let mut page = Watched::new(version);
    for id in 0..12 {
        page.push(&format!("fine-{id}"), &["--script=ok"]);
    }
    let bad = page.push("<img src=x onerror=alert(1)>", &["--script=throw,ok"]);
    let also = page.push("also-bad", &["--script=throw,ok"]);
    page.browser.until(&Watched::row("failed", &bad));
    page.browser.until(&Watched::row("failed", &also));
    page.browser
        .until(&Watched::row("classes", "App\\Jobs\\Journal"));
    page.browser
        .until("document.querySelectorAll('#workers tbody tr').length === 2");
    // Text of jobs stays text.
    assert_eq!(
        page.browser
            .value("document.querySelectorAll('img').length"),
        0
    );
    let shown = page
        .browser
        .value(&format!("{}.innerText", Watched::row("failed", &bad)));
    let shown = shown.as_str().unwrap();
    assert!(shown.contains("<img src=x onerror=alert(1)>"), "{shown}");

    // Without the token nothing can be pressed; a wrong one is refused.
    let pause = Watched::button("queues", "default");
    assert_eq!(page.browser.value(&format!("{pause}.disabled")), true);
    page.browser
        .value("document.getElementById('token').focus()");
    page.browser.type_text("a-token-of-no-worker");
    page.browser
        .click("document.querySelector('#token-form button')");
    page.browser
        .until("document.getElementById('message').textContent.includes('not the right one')");
    page.browser
        .value("document.getElementById('token').focus()");
    page.browser.type_text(TOKEN);
    page.browser
        .click("document.querySelector('#token-form button')");
    page.browser.until(&format!("!{pause}.disabled"));

    // A paused queue keeps the job that is retried.
    let paused = |page: &Watched| {
        !page
            .keys("*illuminate:queue:paused:redis:default")
            .is_empty()
    };
    assert!(!paused(&page));
    page.browser.click(&pause);
    page.browser.until(&format!(
        "{}.textContent.includes('paused')",
        Watched::row("queues", "default")
    ));
    assert!(
        paused(&page),
        "{}; {}",
        page.redis.state(),
        page.workers[0].describe()
    );
    eventually("both workers to notice it", SOON, || {
        page.is_pause_heard().then_some(())
    });
    page.browser.click(&Watched::button("failed", &bad));
    page.browser
        .until("document.getElementById('message').textContent.includes('Retried 1 job')");
    let waiting = page.redis.list(&page.queue("default"));
    assert_eq!(waiting.len(), 1, "{}", page.redis.state());
    assert!(String::from_utf8_lossy(&waiting[0]).contains(&bad));
    let left = page.failed();
    assert_eq!(left.len(), 1, "{left:?}");
    page.browser
        .until(&format!("!{}", Watched::row("failed", &bad)));
    page.browser.until(&format!(
        "{}.innerText.includes('Resume')",
        Watched::row("queues", "default")
    ));
    page.browser.click(&Watched::button("queues", "default"));
    eventually("the mark to be gone", SOON, || {
        (!paused(&page)).then_some(())
    });
    // Its script begins anew, as its attempts do: it fails a second time.
    let runs = |page: &Watched, id| {
        let events = page.events(id);
        events.iter().filter(|event| *event == "run:1").count()
    };
    page.browser
        .until("document.getElementById('message').textContent.includes('Resumed default')");
    page.browser.until(&Watched::row("failed", &bad));
    assert_eq!(runs(&page, "<img src=x onerror=alert(1)>"), 2);
    assert_eq!(runs(&page, "also-bad"), 1);

    // All of a class and an exception, after a second press.
    let group = Watched::button("groups", "App\\Jobs\\Journal");
    page.browser.click(&group);
    page.browser
        .until(&format!("{group}.textContent.startsWith('Sure')"));
    page.browser.click(&group);
    page.browser
        .until("document.getElementById('message').textContent.includes('Retried 2 jobs')");
    eventually("both to run again", SOON, || {
        let all = runs(&page, "<img src=x onerror=alert(1)>") + runs(&page, "also-bad");
        (all == 5).then_some(())
    });
    // The browser tells of the token that was refused.
    let complaints = &mut page.browser.complaints;
    complaints.retain(|complaint| !complaint.contains("401 (Unauthorized)"));
    page.end();
}

/// Asks the page to retry what its handlers have failed; returns once the request is sent.
fn press_retry(address: SocketAddr) -> TcpStream {
    let body = r#"{"class":"App\\Jobs\\Journal","exception":"Artisand\\HandlerError"}"#;
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!(
        "POST /api/retry HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Whether the worker works.
fn is_ready(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return false;
    };
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.starts_with("HTTP/1.1 200")
}

on_every_laravel!(a_worker_that_stops_ends_the_retry_under_way_and_begins_no_other);
fn a_worker_that_stops_ends_the_retry_under_way_and_begins_no_other(version: u8) {
    let mut settings = Databases::shared().create(Kind::Sqlite, "page");
    settings.push(("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()));
    let scene = Scene::new(version, &settings, INTEROP_MAPPINGS);
    assert!(scene.failed().is_empty(), "the first look makes the tables");
    for id in 0..3 {
        scene.push(&format!("bad-{id}"), &["--script=throw"]);
    }
    let mut draining = scene.worker(&["--stop-when-empty"]);
    draining.succeeds_within(SOON);
    assert_eq!(scene.failed().len(), 3);
    // It takes none of the jobs that it retries.
    let command = scene.workplace.worker_command(&["--queue=other", "-vv"]);
    let mut worker = serve(command);
    let address = worker.serves_at();
    eventually("the worker to have started", SOON, || {
        assert!(worker.is_running(), "{}", worker.describe());
        is_ready(address).then_some(())
    });

    // The failed job can be read and not removed, so that the retry is under way when the worker ends.
    let manifest = scene.laravel.manifest();
    let file = manifest.pointer("/config/database/connections/sqlite/database");
    let url = format!("sqlite://{}", file.unwrap().as_str().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut connection = runtime.block_on(async {
        let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
        connection.execute("begin immediate").await.unwrap();
        connection
    });
    let asked = press_retry(address);
    let queued = || (scene.queued() == 1).then_some(());
    eventually("the push of the first job", SOON, queued);
    worker.signal(Signal::TERM);
    eventually("the end of the worker's work", SOON, || {
        worker.stdout().contains("STOPPED").then_some(())
    });
    runtime.block_on(async { connection.execute("rollback").await.unwrap() });
    worker.succeeds_within(SOON);
    drop(asked);
    let described = worker.describe();
    assert_eq!(scene.failed().len(), 2, "{described}");
    assert_eq!(scene.queued(), 1, "{described}");
}

/// The directory of the pictures of the docs, if they are to be made anew.
fn pictures() -> Option<PathBuf> {
    let wanted = std::env::var_os("ARTISAND_PICTURES").is_some();
    wanted.then(|| project().join("docs/operations"))
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn the_page_fits_every_width_in_light_and_dark() {
    let mut page = Watched::new(13);
    for id in 0..40 {
        let script = [
            "ok",
            "ok",
            "ok",
            "sleep:0.02",
            "ok",
            "release:0,ok",
            "sleep:0.2",
        ][id % 7];
        let queue = ["--queue=default", "--queue=reports"][id % 2];
        let script = format!("--script={script}");
        page.push(&format!("job-{id}"), &["--tries=3", &script, queue]);
    }
    for id in 0..3 {
        page.push(&format!("invoice-{id}"), &["--script=throw"]);
    }
    page.php()
        .run(&["interop:dispatch", "plain", "--queue=reports"]);
    page.push("later", &["--delay=3600"]);
    page.browser
        .until("document.querySelectorAll('#failed tbody tr').length === 3");
    page.browser
        .until("document.querySelectorAll('#workers tbody tr').length === 2");
    page.browser
        .until(&Watched::row("running", "App\\Jobs\\Plain"));
    let saved = tempfile::tempdir().unwrap();
    let to = pictures().unwrap_or_else(|| saved.path().to_owned());
    let sizes = [
        ("page.png", 1100, "light"),
        ("page-dark.png", 1100, "dark"),
        ("page-phone.png", 390, "light"),
    ];
    for (name, width, scheme) in sizes {
        page.browser.look_like(width, scheme);
        page.browser.until(&format!("innerWidth === {width}"));
        let wide = page.browser.value("document.documentElement.scrollWidth");
        assert_eq!(wide, width, "{name} overflows");
        let high = if width < 600 { 2200 } else { 1500 };
        page.browser.save(&to.join(name), width, high);
        assert!(is_png(&to.join(name)), "{name}");
    }
    let is_dark = "getComputedStyle(document.body).backgroundColor";
    page.browser.look_like(320, "dark");
    page.browser.until("innerWidth === 320");
    assert_eq!(page.browser.value(is_dark), "rgb(19, 22, 27)");
    assert_eq!(
        page.browser.value("document.documentElement.scrollWidth"),
        320
    );
    // What assistive technology gets: a name for each control, picture and table.
    let nameless = "[...document.querySelectorAll('button, input, select, table, svg.chart')].filter(e => !(e.textContent.trim() && e.tagName === 'BUTTON') && !e.getAttribute('aria-label') && !e.labels?.length).map(e => e.outerHTML)";
    assert_eq!(page.browser.value(nameless), json!([]));
    page.end();
}

fn is_png(path: &Path) -> bool {
    std::fs::read(path).unwrap().starts_with(b"\x89PNG")
}
