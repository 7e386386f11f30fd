//! Jobs that PHP runs: pools of artisand beside the same number of real `queue:work` processes of the same Laravel.

use std::collections::HashSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::payload;
use crate::report::Round;
use crate::server::{PREFIX, Server};

/// Versions of Laravel, and numbers of processes. All but Laravel 8 need `make setup`.
pub(crate) const VERSIONS: [&str; 3] = ["8", "10", "13"];
pub(crate) const PROCESSES: [usize; 3] = [1, 2, 4];

pub(crate) const LARAVEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/php-interop/laravel");
/// Every job appends one line to this list.
const DONE: &str = "interop:done";

/// Names of a pool, and of the same number of `queue:work` processes.
pub(crate) fn names(version: &str, processes: usize) -> [String; 2] {
    [
        format!("Laravel {version}, pool of {processes}"),
        format!("Laravel {version}, queue:work, {processes}"),
    ]
}

/// Real `php artisan queue:work`.
pub(crate) async fn queue_work(version: &str, jobs: usize, processes: usize) -> Option<Round> {
    let command = || {
        let mut command = Command::new(LARAVEL);
        command.arg(version);
        command.args("artisan queue:work redis --stop-when-empty --sleep=0".split(' '));
        command
    };
    let commands = (0..processes).map(|_| command()).collect();
    let [_, name] = names(version, processes);
    drain(name, jobs, &Server::start(), commands).await
}

/// artisand without a mapping, and this number of PHP processes.
pub(crate) async fn pool(version: &str, jobs: usize, processes: usize) -> Option<Round> {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let toml = format!(
        "[connections.redis]\nhost = \"127.0.0.1\"\nport = {}\nprefix = \"{PREFIX}\"\n\
         [unmapped]\npolicy = \"php\"\n\
         [php]\nbinary = [\"{LARAVEL}\", \"{version}\"]\napp = \".\"\nprocesses = {processes}\n",
        server.port
    );
    std::fs::write(directory.path().join("artisand.toml"), toml).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_artisand"));
    command
        .args("queue:work redis --stop-when-empty".split(' '))
        .current_dir(&directory);
    let [name, _] = names(version, processes);
    drain(name, jobs, &server, vec![command]).await
}

/// Measures from the end of the first job to that of the last, so without boot and end.
///
/// `None` if not every job ran once: there is no such Laravel here, then.
async fn drain(
    name: String,
    jobs: usize,
    server: &Server,
    commands: Vec<Command>,
) -> Option<Round> {
    server.fill(&payload::for_php(jobs)).await;
    let start = |mut command: Command| {
        command
            .env("REDIS_PORT", server.port.to_string())
            .env("REDIS_PREFIX", PREFIX)
            .env("INTEROP_KEY", "bench")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().ok()
    };
    let mut children: Vec<Child> = commands.into_iter().map(start).collect::<Option<_>>()?;
    let mut connection = server.connection();
    let mut done = |least: usize| -> bool {
        while children
            .iter_mut()
            .any(|child| child.try_wait().unwrap().is_none())
        {
            let length: usize = redis::cmd("LLEN").arg(DONE).query(&mut connection).unwrap();
            if length >= least {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    };
    done(1);
    let (began, before) = (Instant::now(), server.commands());
    done(jobs);
    let (seconds, commands) = (began.elapsed().as_secs_f64(), server.commands() - before);
    let ended_well = |mut child: Child| child.wait().is_ok_and(|status| status.success());
    let failed = children
        .into_iter()
        .map(ended_well)
        .filter(|well| !well)
        .count();
    let mut range = redis::cmd("LRANGE");
    range.arg(DONE).arg(0).arg(-1);
    let done: Vec<String> = range.query(&mut server.connection()).unwrap();
    let different: HashSet<&String> = done.iter().collect();
    if failed > 0 || done.len() != jobs || different.len() != jobs {
        println!("{name} ran {} of {jobs} jobs: not measured", done.len());
        return None;
    }
    Some(Round {
        name,
        jobs,
        seconds,
        commands_per_job: crate::float(usize::try_from(commands).unwrap()) / crate::float(jobs),
        micros: None,
        longest_script: None,
        memory: None,
    })
}
