//! A private database server: free port, temporary directory, stopped and deleted on drop.
//!
//! There are `MariaDB`, `MySQL`, `PostgreSQL`, and a way to look into a file of `SQLite`.
//!
//! All servers have the database `artisand` and the user `artisand` with the password `secret`.

use std::fs::File;
use std::io::Write as _;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getuid, kill_process};
use tempfile::TempDir;

use super::process::poll;

/// User and database of every server.
pub(crate) const NAME: &str = "artisand";
/// Password of that user.
pub(crate) const PASSWORD: &str = "secret";

/// What `PostgreSQL` knows of the password: 16 hashes instead of 4,096, which take a program without optimization a
/// fifth of a second at each connection.
///
/// Made with `hashlib.pbkdf2_hmac('sha256', b'secret', b'artisand-harness', 16)` as RFC 5802 says.
const VERIFIER: &str = "SCRAM-SHA-256$16:YXJ0aXNhbmQtaGFybmVzcw==$g0heIuYIhNB1iFGf4tdINnlbFUX5WegWfl0rVtfGT68=:\
                        M5kmGVZdLqViwGl4tTXxdrEbKYYra/CIuP13GaULMQE=";

/// The results of a query: text, or `None` for NULL.
pub(crate) type Rows = Vec<Vec<Option<String>>>;

pub(crate) type MariaDbServer = SqlServer<MariaDb>;
pub(crate) type PostgresServer = SqlServer<Postgres>;

/// How long a server may take to answer, or to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// The differences between the servers.
pub(crate) trait Engine {
    /// Scheme of a URL.
    const SCHEME: &'static str;
    /// `DB_CONNECTION` of the app in `php-interop/`.
    const CONNECTION: &'static str;
    /// Signal for a stop that does not wait for clients.
    const STOP: Signal;
    /// Signal for a stop that ends its children and saves nothing.
    const ABANDON: Signal;
    /// Query for the directory of the server that answers.
    const DIRECTORY: &'static str;

    /// The server's program.
    fn program() -> PathBuf;
    /// Prints the server's version.
    fn version() -> Command {
        let mut command = Command::new(Self::program());
        command.arg("--version");
        command
    }

    /// The user that runs it, if not the test's own.
    fn owner() -> Option<(u32, u32)>;
    /// Creates `home/data` with the database and the user.
    fn initialize(home: &Path);
    /// The server, in the foreground.
    fn server(home: &Path, port: u16) -> Command;
    /// The client, running one query.
    fn client(port: u16, sql: &str) -> Command;
    /// Reads the client's output.
    fn rows(output: &str) -> Rows;
    /// The template for all servers of this kind.
    fn template() -> &'static OnceLock<PathBuf>;
}

/// A running server. No test ever talks to a server that another program started.
pub(crate) struct SqlServer<E: Engine> {
    child: Option<Child>,
    port: u16,
    home: TempDir,
    engine: PhantomData<E>,
}

impl<E: Engine> SqlServer<E> {
    /// Starts a server with an empty database.
    pub(crate) fn start() -> Self {
        let mut server = Self {
            child: None,
            port: 0,
            home: home::<E>(),
            engine: PhantomData,
        };
        let template = E::template().get_or_init(template::<E>).join("data");
        copy(&template, &server.data());
        // Another program may take the port between this check and the server's start.
        for _ in 0..5 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            server.port = listener.local_addr().unwrap().port();
            drop(listener);
            if server.launch() {
                return server;
            }
        }
        panic!("no {} came up: {}", E::SCHEME, server.log());
    }

    /// Starts the process; true once it answers, false if it ended or another server has the port.
    fn launch(&mut self) -> bool {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.home.path().join("log"))
            .unwrap();
        let mut command = E::server(self.home.path(), self.port);
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        self.child = Some(child);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                self.child = None;
                return false;
            }
            if let Some(directory) = self.answering_directory() {
                if Path::new(&directory).canonicalize().ok() == self.data().canonicalize().ok() {
                    return true;
                }
                self.end(E::ABANDON);
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("no answer in {PATIENCE:?}: {}", self.log());
    }

    /// Directory of the server that answers on this port; only one server can run in a directory.
    fn answering_directory(&self) -> Option<String> {
        // This is cheaper than a client that cannot connect.
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
        let rows = self.try_query(E::DIRECTORY).ok()?;
        rows[0][0].clone()
    }

    /// Runs statements; returns the rows of all.
    pub(crate) fn query(&self, sql: &str) -> Rows {
        self.try_query(sql)
            .unwrap_or_else(|e| panic!("{}: {sql}: {e}", E::SCHEME))
    }

    /// Like [`query`](Self::query), but returns the server's error.
    pub(crate) fn try_query(&self, sql: &str) -> Result<Rows, String> {
        let mut client = E::client(self.port, sql);
        let output = client
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|e| panic!("{client:?}: {e}"));
        if output.status.success() {
            Ok(E::rows(&String::from_utf8_lossy(&output.stdout)))
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    /// Stops the server as an administrator would.
    pub(crate) fn stop(&mut self) {
        self.end(E::STOP);
    }

    /// Kills the server, which cannot save anything.
    pub(crate) fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    /// Starts the server again, now with TLS and a certificate for this name (`IP:..` or `DNS:..`).
    ///
    /// Returns a directory with the authority's `ca.pem`, and with `other.pem`, an authority that signed nothing.
    pub(crate) fn speak_tls(&mut self, name: &str) -> PathBuf {
        let tls = self.home.path().join("tls");
        std::fs::create_dir_all(&tls).unwrap();
        std::fs::write(tls.join("name"), format!("subjectAltName={name}\n")).unwrap();
        let script = "set -e
for name in ca other; do
    openssl req -x509 -newkey rsa:2048 -nodes -days 9 -subj /CN=$name -keyout $name.key -out $name.pem
done
openssl req -newkey rsa:2048 -nodes -subj /CN=artisand -keyout server.key -out server.csr
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 9 -extfile name -out server.pem
chmod 600 server.key";
        run(Command::new("sh").args(["-c", script]).current_dir(&tls));
        if let Some((user, group)) = E::owner() {
            std::os::unix::fs::chown(tls.join("server.key"), Some(user), Some(group)).unwrap();
        }
        self.restart();
        tls
    }

    /// Starts the server again on the same port, with its data.
    pub(crate) fn restart(&mut self) {
        self.stop();
        // The children of a killed PostgreSQL may outlive it for a moment.
        poll(PATIENCE, || self.launch().then_some(()))
            .unwrap_or_else(|| panic!("did not come back: {}", self.log()));
    }

    fn end(&mut self, signal: Signal) {
        if let Some(mut child) = self.child.take() {
            // Check this first: the id of a process that was waited for may belong to another process.
            if child.try_wait().unwrap().is_none() {
                kill_process(Pid::from_child(&child), signal).unwrap();
            }
            if poll(PATIENCE, || child.try_wait().unwrap()).is_none() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    fn log(&self) -> String {
        let text = std::fs::read(self.home.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Environment with which the app in `php-interop/` uses this server.
    pub(crate) fn env(&self) -> [(&'static str, String); 6] {
        [
            ("DB_CONNECTION", E::CONNECTION.to_owned()),
            ("DB_HOST", Ipv4Addr::LOCALHOST.to_string()),
            ("DB_PORT", self.port.to_string()),
            ("DB_DATABASE", NAME.to_owned()),
            ("DB_USERNAME", NAME.to_owned()),
            ("DB_PASSWORD", PASSWORD.to_owned()),
        ]
    }
}

impl<E: Engine> Drop for SqlServer<E> {
    fn drop(&mut self) {
        self.end(E::ABANDON);
    }
}

/// A directory that the server may write to.
fn home<E: Engine>() -> TempDir {
    let directory = tempfile::Builder::new()
        .prefix(&format!("artisand-{}-", E::SCHEME))
        .tempdir()
        .unwrap();
    if let Some((user, group)) = E::owner() {
        std::os::unix::fs::chown(directory.path(), Some(user), Some(group)).unwrap();
    }
    directory
}

/// Creates or finds the directory that every new server starts from a copy of.
///
/// It stays for other test processes, below `target/`, named after everything that it depends on.
fn template<E: Engine>() -> PathBuf {
    let version = run(&mut E::version());
    let version: String = version
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let name = format!(
        "{}-2-{}-{}",
        E::SCHEME,
        version.trim_matches('-'),
        getuid().as_raw()
    );
    let templates = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let template = templates.join(name);
    if !is_of_the_server::<E>(&template.join("data")) {
        // Servers refuse a directory of another user, and a copy of `target/` may belong to one.
        let _ = std::fs::remove_dir_all(&template);
        let home = home::<E>();
        E::initialize(home.path());
        let partial = tempfile::Builder::new()
            .prefix("partial-")
            .tempdir_in(templates)
            .unwrap();
        copy(&home.path().join("data"), &partial.path().join("data"));
        // It does not replace a file that another process has just finished.
        if std::fs::rename(partial.path(), &template).is_err() {
            assert!(template.is_dir(), "no {}", template.display());
        }
    }
    template
}

/// Whether there is such a directory, and it belongs to who runs the server.
fn is_of_the_server<E: Engine>(data: &Path) -> bool {
    let owner = E::owner().map_or(getuid().as_raw(), |(user, _)| user);
    std::fs::metadata(data).is_ok_and(|data| data.uid() == owner)
}

fn copy(from: &Path, to: &Path) {
    run(Command::new("cp")
        .args(["-a", "--reflink=auto"])
        .args([from, to]));
}

/// Runs a command to its end and returns its output.
fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Finds a program, also in directories for administrators.
fn find(name: &str, more: &[PathBuf]) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    more.iter()
        .cloned()
        .chain(std::env::split_paths(&path))
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("no `{name}` on this machine: run php-interop/setup.sh"))
}

pub(crate) struct MariaDb;

impl Engine for MariaDb {
    const SCHEME: &'static str = "mysql";
    const CONNECTION: &'static str = "mariadb";
    const STOP: Signal = Signal::TERM;
    const ABANDON: Signal = Signal::KILL;
    const DIRECTORY: &'static str = "select trim(trailing '/' from @@datadir)";

    fn program() -> PathBuf {
        find("mariadbd", &[])
    }

    fn owner() -> Option<(u32, u32)> {
        None
    }

    fn initialize(home: &Path) {
        run(Command::new(find("mariadb-install-db", &[]))
            .args([
                "--no-defaults",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
                "--innodb-log-file-size=8M",
                "--innodb-fast-shutdown=0",
            ])
            .args(user_option())
            .arg(format!("--datadir={}", home.join("data").display())));
        create_account(home, Self::options(home));
    }

    fn server(home: &Path, port: u16) -> Command {
        listening(home, Self::options(home), port)
    }

    fn client(port: u16, sql: &str) -> Command {
        let mut command = Command::new(find("mariadb", &[]));
        command
            .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1"])
            // XML output distinguishes NULL from text.
            .args(["--batch", "--xml", "--default-character-set=utf8mb4"])
            .arg(format!("--port={port}"))
            .arg(format!("--user={NAME}"))
            .arg(format!("--password={PASSWORD}"))
            .arg(format!("--database={NAME}"))
            .arg(format!("--execute={sql}"));
        command
    }

    fn rows(output: &str) -> Rows {
        let mut rows = Rows::new();
        let mut rest = output;
        while let Some(at) = rest.find('<') {
            let (tag, after) = rest[at + 1..].split_once('>').unwrap();
            rest = after;
            if tag == "row" {
                rows.push(Vec::new());
            } else if tag.starts_with("field ") {
                let row = rows.last_mut().unwrap();
                if tag.ends_with('/') {
                    row.push(None);
                } else {
                    let (text, after) = rest.split_once("</field>").unwrap();
                    rest = after;
                    // The ampersand last, or text would become an escape.
                    row.push(Some(
                        text.replace("&lt;", "<")
                            .replace("&gt;", ">")
                            .replace("&quot;", "\"")
                            .replace("&amp;", "&"),
                    ));
                }
            }
        }
        rows
    }

    fn template() -> &'static OnceLock<PathBuf> {
        static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
        &TEMPLATE
    }
}

/// Creates the database and the user; accounts can be created only in a running server.
fn create_account(home: &Path, mut server: Command) {
    let sql = home.join("init.sql");
    let statements = [
        format!("create database {NAME} character set utf8mb4 collate utf8mb4_unicode_ci;"),
        format!("create user {NAME}@'%' identified by '{PASSWORD}';"),
        format!("grant all privileges on *.* to {NAME}@'%';"),
        "shutdown;".to_owned(),
    ];
    std::fs::write(&sql, statements.join("\n") + "\n").unwrap();
    run(server
        .arg("--skip-networking")
        .arg(format!("--init-file={}", sql.display())));
}

/// Lets a server of `MariaDB` or `MySQL` take connections, with the test's certificate if there is one.
fn listening(home: &Path, mut command: Command, port: u16) -> Command {
    command
        .arg("--bind-address=127.0.0.1")
        .arg(format!("--port={port}"));
    let tls = home.join("tls");
    if tls.is_dir() {
        for (option, file) in [
            ("cert", "server.pem"),
            ("key", "server.key"),
            ("ca", "ca.pem"),
        ] {
            let path = tls.join(file);
            command.arg(format!("--ssl-{option}={}", path.display()));
        }
    }
    command
}

impl MariaDb {
    fn options(home: &Path) -> Command {
        let mut command = Command::new(Self::program());
        command
            .args(["--no-defaults", "--skip-name-resolve", "--skip-log-bin"])
            .args(["--innodb-buffer-pool-size=16M", "--key-buffer-size=1M"])
            .args(["--innodb-log-file-size=8M", "--innodb-flush-method=nosync"])
            .arg("--max-connections=300")
            .args([
                // Committed data survives a killed server, if not a killed machine.
                "--innodb-flush-log-at-trx-commit=2",
                "--innodb-fast-shutdown=1",
            ])
            .args([
                "--performance-schema=off",
                "--aria-pagecache-buffer-size=8M",
            ])
            .args(user_option())
            .arg(format!("--datadir={}", home.join("data").display()))
            .arg(format!("--socket={}", home.join("socket").display()))
            .arg(format!("--pid-file={}", home.join("pid").display()));
        command
    }
}

/// The option that `MariaDB` needs if it is started as root.
fn user_option() -> Option<&'static str> {
    getuid().is_root().then_some("--user=root")
}

/// `MySQL` of Debian sid, in a root that `php-interop/setup.sh` makes; it is run with the loader of that root.
pub(crate) struct MySql;

impl Engine for MySql {
    const SCHEME: &'static str = "mysql";
    const CONNECTION: &'static str = "mysql";
    const STOP: Signal = Signal::TERM;
    const ABANDON: Signal = Signal::KILL;
    const DIRECTORY: &'static str = MariaDb::DIRECTORY;

    fn program() -> PathBuf {
        let root = std::env::var_os("ARTISAND_ROOTS")
            .map_or_else(|| PathBuf::from("/var/lib/artisand/roots"), PathBuf::from)
            .join("mysql");
        let complete = root.join(".artisand-complete");
        assert!(complete.is_file(), "no MySQL: run php-interop/setup.sh");
        root
    }

    fn version() -> Command {
        let mut command = Self::command();
        command.args(["--no-defaults", "--version"]);
        command
    }

    fn owner() -> Option<(u32, u32)> {
        None
    }

    fn initialize(home: &Path) {
        run(Self::options(home).arg("--initialize-insecure"));
        create_account(home, Self::options(home));
    }

    fn server(home: &Path, port: u16) -> Command {
        listening(home, Self::options(home), port)
    }

    fn client(port: u16, sql: &str) -> Command {
        MariaDb::client(port, sql)
    }

    fn rows(output: &str) -> Rows {
        MariaDb::rows(output)
    }

    fn template() -> &'static OnceLock<PathBuf> {
        static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
        &TEMPLATE
    }
}

impl MySql {
    fn command() -> Command {
        let root = Self::program();
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let own = root.join("usr/lib/mysql/private");
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command
            .arg("--library-path")
            .arg(format!("{}:{}", libraries.display(), own.display()))
            .arg(root.join("usr/sbin/mysqld"));
        command
    }

    fn options(home: &Path) -> Command {
        let root = Self::program();
        let mut command = Self::command();
        command
            .args(["--no-defaults", "--skip-name-resolve", "--skip-log-bin"])
            .arg(format!("--basedir={}", root.join("usr").display()))
            .arg(format!(
                "--lc-messages-dir={}",
                root.join("usr/share/mysql").display()
            ))
            .args(["--innodb-buffer-pool-size=16M", "--key-buffer-size=1M"])
            .args([
                "--innodb-redo-log-capacity=8M",
                "--innodb-flush-method=nosync",
            ])
            .arg("--max-connections=300")
            .args([
                // Committed data survives a killed server, if not a killed machine.
                "--innodb-flush-log-at-trx-commit=2",
                "--innodb-fast-shutdown=1",
                "--performance-schema=off",
                "--mysqlx=OFF",
                "--secure-file-priv=NULL",
            ])
            .args(user_option())
            .arg(format!("--datadir={}", home.join("data").display()))
            .arg(format!("--socket={}", home.join("socket").display()))
            .arg(format!("--pid-file={}", home.join("pid").display()));
        command
    }
}

pub(crate) struct Postgres;

impl Engine for Postgres {
    const SCHEME: &'static str = "postgres";
    const CONNECTION: &'static str = "pgsql";
    const STOP: Signal = Signal::INT;
    const ABANDON: Signal = Signal::QUIT;
    const DIRECTORY: &'static str = "show data_directory";

    fn program() -> PathBuf {
        Self::find("postgres")
    }

    /// `PostgreSQL` refuses to run as root; its package creates a user.
    fn owner() -> Option<(u32, u32)> {
        if !getuid().is_root() {
            return None;
        }
        let users = std::fs::read_to_string("/etc/passwd").unwrap();
        let found = users.lines().find_map(|line| {
            let mut fields = line.strip_prefix("postgres:")?.split(':').skip(1);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        });
        Some(found.expect("a user `postgres` (php-interop/setup.sh)"))
    }

    fn initialize(home: &Path) {
        let password = home.join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        let data = home.join("data");
        run(Self::command("initdb", home)
            .args(["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"])
            .args(["--no-sync", "--no-instructions"])
            .arg(format!("--username={NAME}"))
            .arg(format!("--pwfile={}", password.display()))
            .arg(format!("--pgdata={}", data.display())));
        let mut single = Self::command("postgres", home);
        let mut child = single
            .args(["--single", "-c", "fsync=off", "-D"])
            .arg(&data)
            .arg("template1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("{single:?}: {e}"));
        let mut stdin = child.stdin.take().unwrap();
        for statement in [
            &*format!("create database {NAME}"),
            &*format!("alter role {NAME} password '{VERIFIER}'"),
            // Nothing uses these, and each server starts from a copy of everything.
            "drop database postgres",
            "update pg_database set datistemplate = false where datname = 'template0'",
            "drop database template0",
        ] {
            writeln!(stdin, "{statement};").unwrap();
        }
        drop(stdin);
        let status = child.wait().unwrap();
        assert!(status.success(), "{single:?}: {status}");
    }

    fn server(home: &Path, port: u16) -> Command {
        let mut command = Self::command("postgres", home);
        command.arg("-D").arg(home.join("data"));
        for setting in [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            // With this, committed data survives a killed server.
            "synchronous_commit=on",
            "full_page_writes=off",
            "shared_buffers=16MB",
            "max_connections=300",
            "logging_collector=off",
            &*format!("port={port}"),
        ] {
            command.args(["-c", setting]);
        }
        let tls = home.join("tls");
        if tls.is_dir() {
            command.args(["-c", "ssl=on"]);
            for (option, file) in [("cert", "server.pem"), ("key", "server.key")] {
                let path = tls.join(file);
                let setting = format!("ssl_{option}_file={}", path.display());
                command.args(["-c", &setting]);
            }
        }
        command
    }

    fn client(port: u16, sql: &str) -> Command {
        let mut command = Command::new(Self::find("psql"));
        command
            // These marks keep texts apart from one another and from NULL.
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
            .args(["--field-separator=\x1f", "--record-separator-zero"])
            .args(["--pset=null=\x1d", "--set=ON_ERROR_STOP=1"])
            .args(["--no-password", "--host=127.0.0.1"])
            .arg(format!("--port={port}"))
            .arg(format!("--username={NAME}"))
            .arg(format!("--dbname={NAME}"))
            .arg(format!("--command={sql}"))
            .env("PGPASSWORD", PASSWORD)
            .env("PGCLIENTENCODING", "UTF8");
        command
    }

    fn rows(output: &str) -> Rows {
        let field = |text: &str| (text != "\x1d").then(|| text.to_owned());
        output
            .split_terminator('\0')
            .map(|row| row.split('\x1f').map(field).collect())
            .collect()
    }

    fn template() -> &'static OnceLock<PathBuf> {
        static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
        &TEMPLATE
    }
}

impl Postgres {
    /// Debian keeps the programs of each version in a separate directory.
    fn find(name: &str) -> PathBuf {
        let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                let version = path.file_name()?.to_str()?.parse().ok()?;
                Some((version, path.join("bin")))
            })
            .collect();
        versions.sort_by(|a, b| b.cmp(a));
        let directories: Vec<_> = versions.into_iter().map(|(_, path)| path).collect();
        find(name, &directories)
    }

    fn command(name: &str, home: &Path) -> Command {
        let mut command = Command::new(Self::find(name));
        command.current_dir(home);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("PG")) {
                command.env_remove(name);
            }
        }
        if let Some((user, group)) = Self::owner() {
            command.uid(user).gid(group);
        }
        command
    }
}
