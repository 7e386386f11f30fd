//! Who else can change what this process obeys, or read its secrets.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::Config;
#[cfg(feature = "http")]
use super::handler::HandlerTable;
use crate::app::is_same_directory;
#[cfg(feature = "http")]
use crate::handler::{HttpOptions, SecretSource};

/// Something that other users of the machine can do, and what helps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposure {
    /// What they can do.
    pub found: String,
    /// What to do about it.
    pub remedy: String,
}

/// Owner, group and mode of a file, or those of this process.
#[derive(Debug, Clone, Copy)]
struct Access {
    user: u32,
    group: u32,
    mode: u32,
}

impl Access {
    fn of(metadata: &Metadata) -> Self {
        Self {
            user: metadata.uid(),
            group: metadata.gid(),
            mode: metadata.mode() & 0o777,
        }
    }

    /// Whether users other than its owner can write it; the group of this process is trusted.
    fn is_writable(self, group: u32) -> bool {
        self.mode & 0o002 != 0 || (self.mode & 0o020 != 0 && ![group, 0].contains(&self.group))
    }

    fn is_readable(self) -> bool {
        self.mode & 0o004 != 0
    }
}

/// A user by name, as far as this machine's own file knows it.
fn named(user: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_in(&users, user).unwrap_or_else(|| format!("user {user}"))
}

/// The name of a user in the text of `/etc/passwd`, with the number.
fn name_in(users: &str, user: u32) -> Option<String> {
    let mut names = users.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(user)).then_some(name)
    });
    names.next().map(|name| format!("{name} (user {user})"))
}

/// What of a directory of logs cannot be written: the directory, or Laravel's own file in it.
fn unwritable_log(logs: &Path, is_writable: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let paths = [logs.to_owned(), logs.join("laravel.log")];
    let mut there = paths.into_iter().filter(|path| path.exists());
    there.find(|path| !is_writable(path))
}

/// Whether a file is in the current directory.
fn is_here(path: &Path) -> bool {
    let directory = path.parent().unwrap_or(path);
    directory.as_os_str().is_empty() || is_same_directory(directory, Path::new("."))
}

fn access(path: &Path) -> Option<Access> {
    std::fs::metadata(path).ok().as_ref().map(Access::of)
}

impl Config {
    /// How other users can change what this process does.
    pub fn exposures(&self) -> Vec<Exposure> {
        let (user, group) = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        let mut exposures = Vec::new();
        let mut add = |found: String, remedy: String| exposures.push(Exposure { found, remedy });
        if let Some(base) = self.laravel().map(|laravel| &laravel.base)
            && let Some(app) = access(base).filter(|app| user == 0 && app.user != 0)
        {
            let base = base.display();
            add(
                format!(
                    "artisand runs as root, and the app in {base} belongs to {}, who can have root run anything",
                    named(app.user)
                ),
                format!("run artisand as {}", named(app.user)),
            );
        }
        // A file that was named is one that was meant.
        let of_manifest = |(path, _)| (path, self.named_manifest().is_none() && is_here(path));
        let obeyed = [
            self.path()
                .map(|path| (path, path.parent() == Some(Path::new("")))),
            self.manifest().map(of_manifest),
        ];
        for (path, was_found) in obeyed.into_iter().flatten() {
            let Some(file) = access(path) else { continue };
            let shown = path.display();
            if file.is_writable(group) {
                add(
                    format!(
                        "{shown} says what artisand does, and users other than its owner can write it (mode {:04o})",
                        file.mode
                    ),
                    format!("chmod go-w {shown}"),
                );
            }
            if was_found && ![user, 0].contains(&file.user) {
                add(
                    format!(
                        "{shown} was found in the current directory and belongs to {}, who says with it what artisand does",
                        named(file.user)
                    ),
                    "name it (--config, ARTISAND_MANIFEST) if it is meant, or give it to root or to the user of artisand".to_owned(),
                );
            }
        }
        exposures
    }

    /// Laravel's log, where this user cannot write it: then a job in PHP that logs something ends its process.
    pub fn unwritable_log(&self) -> Option<Exposure> {
        // Another PHP is another user's, maybe.
        let laravel = self.laravel().filter(|_| self.file.php.app.is_none())?;
        let is_writable =
            |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
        let path = unwritable_log(&laravel.storage.join("logs"), is_writable)?;
        let user = named(rustix::process::getuid().as_raw());
        Some(Exposure {
            found: format!(
                "{} cannot be written by {user}: a job in PHP that logs something ends its PHP process",
                path.display()
            ),
            remedy: format!("let {user} write it, or run artisand as its owner"),
        })
    }

    /// Whether there is a manifest that was written with passwords and keys.
    pub fn manifest_has_secrets(&self) -> bool {
        let key = self
            .manifest()
            .and_then(|(_, manifest)| manifest.config.pointer("/app/key"));
        key.is_some_and(serde_json::Value::is_string)
    }

    /// Whether `artisand.toml` holds a password or a token.
    fn file_has_secrets(&self) -> bool {
        let of_connection = self.file.connections.values().any(|connection| {
            let url = connection.url.as_deref();
            connection.password.is_some() || url.is_some_and(|url| url.contains('@'))
        });
        let redis = self.file.redis.as_ref();
        let of_sentinels = redis.is_some_and(|redis| redis.get_ref().sentinel_password.is_some());
        of_connection || of_sentinels || self.file.http.token.is_some()
    }

    /// Files with passwords and keys that every user of this machine can read.
    pub fn readable_secrets(&self) -> Vec<Exposure> {
        let mut exposures = Vec::new();
        let base = self.laravel().map(|laravel| &laravel.base);
        let of_environment = self.process.get("APP_ENV");
        let of_environment = of_environment.zip(base);
        let secret = [
            self.manifest()
                .filter(|_| self.manifest_has_secrets())
                .map(|(path, _)| path.to_owned()),
            base.map(|base| base.join(".env")),
            of_environment.map(|(name, base)| base.join(format!(".env.{name}"))),
            self.path()
                .filter(|_| self.file_has_secrets())
                .map(Path::to_owned),
        ];
        let secret = secret.into_iter().flatten();
        #[cfg(feature = "http")]
        let secret =
            secret.chain(self.file.map.iter().filter_map(
                |mapping| match mapping.handler.get_ref() {
                    HandlerTable::Http(HttpOptions {
                        secret: Some(SecretSource::File(path)),
                        ..
                    }) => Some(path.clone()),
                    _ => None,
                },
            ));
        for path in secret {
            if let Some(file) = access(&path).filter(|file| file.is_readable()) {
                let shown = path.display();
                exposures.push(Exposure {
                    found: format!(
                        "{shown} holds passwords and keys, and every user of this machine can read it (mode {:04o})",
                        file.mode
                    ),
                    remedy: format!("chmod o-r {shown}"),
                });
            }
        }
        exposures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names() {
        let users =
            "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33::/var/www:/bin/false\nbroken\n";
        assert_eq!(name_in(users, 33).as_deref(), Some("www-data (user 33)"));
        assert_eq!(name_in(users, 34), None);
        assert_eq!(named(u32::MAX - 1), format!("user {}", u32::MAX - 1));
    }

    #[test]
    fn a_log_that_cannot_be_written_is_found() {
        let storage = tempfile::tempdir().unwrap();
        let (logs, file) = (
            storage.path().join("logs"),
            storage.path().join("logs/laravel.log"),
        );
        let found = |unwritable: &Path| unwritable_log(&logs, |path| path != unwritable);
        assert_eq!(found(&logs), None);
        std::fs::create_dir(&logs).unwrap();
        assert_eq!(found(&logs), Some(logs.clone()));
        assert_eq!(found(&file), None);
        std::fs::write(&file, "").unwrap();
        assert_eq!(found(&file), Some(file.clone()));
        assert_eq!(found(storage.path()), None);
    }

    #[test]
    fn a_file_in_the_current_directory_is_known_by_its_whole_path_too() {
        let here = std::env::current_dir().unwrap();
        assert!(is_here(Path::new("artisand.json")));
        assert!(is_here(&here.join("artisand.json")));
        assert!(!is_here(&here.join("src/artisand.json")));
    }

    #[test]
    fn files_with_secrets_that_everyone_can_read_are_listed() {
        use std::os::unix::fs::PermissionsExt as _;
        let app = tempfile::tempdir().unwrap();
        let place = |name: &str| app.path().join(name);
        let listed = |toml: &str| {
            for (name, text) in [
                (".env", ""),
                (".env.local", ""),
                ("key", ""),
                ("artisand.toml", toml),
            ] {
                std::fs::write(place(name), text).unwrap();
                let mode = std::fs::Permissions::from_mode(0o644);
                std::fs::set_permissions(place(name), mode).unwrap();
            }
            let env = [("APP_ENV", "local"), ("ARTISAND_SETTINGS", "env")];
            let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let config = Config::load(Some(&place("artisand.toml")), Some(app.path()), env);
            let found = config.unwrap().readable_secrets();
            let names = ["/.env ", "/.env.local ", "/artisand.toml ", "/key "];
            names.map(|name| found.iter().any(|exposure| exposure.found.contains(name)))
        };
        assert_eq!(listed(""), [true, true, false, false]);
        for toml in [
            "[connections.redis]\npassword = 'x'",
            "[connections.redis]\nurl = 'redis://:x@h'",
            "[redis]\nsentinels = ['h']\nservice = 'm'\nsentinel_password = 'x'",
            "[http]\ntoken = 'sixteen-characters'",
        ] {
            assert_eq!(listed(toml), [true, true, true, false], "{toml}");
        }
        #[cfg(feature = "http")]
        {
            let toml = "[[map]]\njob = 'A'\nhandler = { http = 'http://h', secret_file = 'key' }";
            assert_eq!(listed(toml), [true, true, false, true]);
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_told_from_one_of_a_trusted_group() {
        #[rustfmt::skip]
        let rows = [
            // mode, its group, ours => writable
            (0o644, 5, 9, false), (0o600, 5, 9, false),
            (0o664, 5, 9, true), (0o664, 9, 9, false), (0o664, 0, 9, false),
            (0o666, 9, 9, true), (0o602, 9, 9, true),
        ];
        for (mode, group, ours, expected) in rows {
            let file = Access {
                user: 1,
                group,
                mode,
            };
            assert_eq!(file.is_writable(ours), expected, "{mode:o} {group} {ours}");
        }
    }
}
