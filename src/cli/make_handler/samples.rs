//! Samples: existing jobs of the class, and their contents.
//!
//! Nothing here changes a job. The number of jobs that are read is limited in every place.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use super::names::{quoted, toml_pattern};
use super::render::FileHeader;
use super::shape::Type;
use super::target::{method, whole_name};
use super::types::Inference;
use crate::cli::{failed, open, output};
use crate::config::{self, Config};
use crate::payload::{Encrypter, Kind, Payload, Target, subject_of};
use crate::php::ClassName;
use crate::queue::{Place, QueueName};
use crate::shown::with_causes;

/// Most jobs that are read in one list of a queue, and in a file.
const MOST_LOOKED_AT: usize = 10_000;
/// Jobs read in one call.
const AT_ONCE: usize = 200;
/// Most queues that are read.
const MOST_QUEUES: usize = 200;
/// Most failed jobs that are read, one by one.
const MOST_FAILED: usize = 500;
/// Most other targets that are listed if the wanted one was not found, and most channels of a notification.
const MOST_OTHERS: usize = 12;

/// The findings so far.
pub(super) struct Samples<'a> {
    wanted: &'a str,
    limit: usize,
    config: &'a Config,
    encrypter: Result<Encrypter, String>,
    /// The first target that was found.
    target: Option<Target>,
    channels: BTreeSet<String>,
    inference: Inference,
    /// Samples by their source.
    found: BTreeMap<&'static str, usize>,
    looked_at: BTreeMap<String, usize>,
    others: BTreeMap<String, usize>,
    /// Number of jobs of the class that could not be read, and the last error.
    unreadable: (usize, String),
    not_looked: Vec<String>,
}

impl<'a> Samples<'a> {
    pub(super) fn new(wanted: &'a str, limit: usize, config: &'a Config) -> Self {
        let encrypter = config::encrypter(config);
        Self {
            wanted,
            limit,
            config,
            encrypter: encrypter.map_err(|error| with_causes(&error)),
            target: None,
            channels: BTreeSet::new(),
            inference: Inference::default(),
            found: BTreeMap::new(),
            looked_at: BTreeMap::new(),
            others: BTreeMap::new(),
            unreadable: (0, String::new()),
            not_looked: Vec::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.found.values().sum::<usize>() >= self.limit
    }

    /// Handles a missing source: an error if the user named it, otherwise only a note.
    pub(super) fn told(
        &mut self,
        looked: anyhow::Result<()>,
        was_asked_for: bool,
        source: &str,
    ) -> anyhow::Result<()> {
        match looked {
            Err(error) if !was_asked_for => {
                let error = output::with_causes(&error);
                self.not_looked.push(format!("{source}: {error}"));
                Ok(())
            }
            looked => looked,
        }
    }

    /// Reads the payloads of a file: a payload per line, or an object with one in `element` or `payload`.
    pub(super) fn read_fixture(&mut self, path: &Path) -> std::io::Result<()> {
        let place = path.display().to_string();
        self.looked_at.entry(place.clone()).or_default();
        let lines = BufReader::new(std::fs::File::open(path)?).split(b'\n');
        for line in lines.take(MOST_LOOKED_AT) {
            let line = line?;
            if !line.trim_ascii().is_empty() {
                let inner = inner_payload(&line);
                let payload = inner.as_deref().unwrap_or(line.trim_ascii());
                self.look(payload, &place, "of fixtures");
            }
        }
        Ok(())
    }

    /// Reads the jobs that wait or run in these queues, or in all queues of the connection.
    pub(super) async fn look_into_queues(
        &mut self,
        connection: &str,
        names: &[String],
    ) -> anyhow::Result<()> {
        let (queue, settings) = open(self.config, connection).await?;
        let queue_name = |name: &String| QueueName::from(name.as_str());
        let mut names: Vec<QueueName> = names.iter().map(queue_name).collect();
        if names.is_empty() {
            names = queue.queues().await?;
            // The worked queue comes first.
            names.sort_by_key(|name| *name != settings.default_queue);
            if names.is_empty() {
                let place = format!("connection `{connection}`, which has no queue now");
                self.looked_at.insert(place, 0);
            }
        }
        for name in names.iter().take(MOST_QUEUES) {
            let shown = output::printable(name.as_str());
            let place = format!("queue `{shown}` of connection `{connection}`");
            self.looked_at.entry(place.clone()).or_default();
            for waiting in [Place::Pending, Place::Delayed, Place::Reserved] {
                for from in (0..MOST_LOOKED_AT).step_by(AT_ONCE) {
                    let elements = queue.look(name, waiting, from, AT_ONCE).await?;
                    for element in &elements {
                        self.look(element, &place, "waiting");
                    }
                    if elements.len() < AT_ONCE || self.is_full() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the jobs in the app's store of failed jobs, the newest first.
    pub(super) async fn look_at_failed_jobs(&mut self) -> anyhow::Result<()> {
        let store = failed::store(self.config)?;
        let place = "failed jobs";
        self.looked_at.entry(place.to_owned()).or_default();
        for id in store.ids(None).await?.iter().take(MOST_FAILED) {
            if self.is_full() {
                break;
            }
            if let Some(job) = store.find(id).await? {
                self.look(&job.payload, place, "failed");
            }
        }
        Ok(())
    }

    fn look(&mut self, element: &[u8], place: &str, source: &'static str) {
        if self.is_full() {
            return;
        }
        *self.looked_at.entry(place.to_owned()).or_default() += 1;
        let Ok(mut payload) = Payload::parse(element) else {
            return self.other("(cannot be decoded)".to_owned());
        };
        let decrypted = match &self.encrypter {
            _ if !payload.is_encrypted() => Ok(()),
            Ok(encrypter) => payload
                .decrypt(encrypter)
                .map_err(|error| with_causes(&error)),
            Err(why) => Err(why.clone()),
        };
        let target = Target::of(&payload);
        let (name, is_wanted) = if let Ok(target) = &target {
            (shown(target), self.is_wanted(target))
        } else {
            let name = payload.shown_name().into_owned();
            let is_wanted = name.eq_ignore_ascii_case(self.wanted_class());
            (name, is_wanted)
        };
        if !is_wanted {
            return self.other(name);
        }
        let learned = decrypted
            .map_err(|why| format!("encrypted, {why}"))
            .and_then(|()| {
                let target = target.map_err(|error| with_causes(&error))?;
                self.learn(target, &payload)
            });
        match learned {
            Ok(()) => *self.found.entry(source).or_default() += 1,
            Err(why) => self.unreadable = (self.unreadable.0 + 1, why),
        }
    }

    fn other(&mut self, name: String) {
        if self.others.len() < MOST_OTHERS || self.others.contains_key(&name) {
            *self.others.entry(name).or_default() += 1;
        }
    }

    fn wanted_class(&self) -> &'a str {
        self.wanted.split('@').next().unwrap_or(self.wanted)
    }

    /// Whether a target is the wanted one; if several kinds or methods match, the first one found.
    fn is_wanted(&self, target: &Target) -> bool {
        let is_like =
            |found: &Target| found.kind() == target.kind() && method(found) == method(target);
        let is = |name: &str| match target {
            Target::Command { .. } => name == self.wanted,
            _ => name.eq_ignore_ascii_case(self.wanted),
        };
        self.target.as_ref().is_none_or(is_like) && (is(target.name()) || is(&whole_name(target)))
    }

    /// Adds a job of the class to the findings.
    fn learn(&mut self, target: Target, payload: &Payload) -> Result<(), String> {
        if let Target::Command { line: Some(_), .. } = target {
            return Err("it was queued as one line of text".to_owned());
        }
        if let Target::Notification {
            channel: Some(channel),
            ..
        } = &target
            && self.channels.len() < MOST_OTHERS
        {
            self.channels.insert(channel.to_string());
        }
        let value = subject_of(payload).map_err(|error| with_causes(&error))?;
        self.inference.kind = Some(target.kind());
        self.inference.add(&value);
        self.target.get_or_insert(target);
        Ok(())
    }

    /// The contents of the file; from the manifest alone if there are no samples.
    pub(super) fn finish(mut self) -> anyhow::Result<(FileHeader, Inference)> {
        let class = self.wanted_class();
        let manifest = self.config.manifest().map(|(_, manifest)| manifest);
        let mut classes = manifest.iter().flat_map(|manifest| &manifest.classes);
        let known = classes.find(|(name, _)| name.eq_ignore_ascii_case(class));
        let mut about = if let Some(target) = self.target.take() {
            let found = self.found.iter();
            let found: Vec<String> = found.map(|(source, n)| format!("{n} {source}")).collect();
            let mut sources = format!("the jobs found ({})", found.join(", "));
            if known.is_some() {
                sources += " and of the manifest";
            } else if target.kind() == Kind::Job {
                sources += ".\nSince Laravel 9.4 a property that is equal to its default is left out of the bytes;\n\
                    `artisand manifest` lets this command know the defaults";
            }
            FileHeader {
                target,
                sources,
                mapping: self.channels(),
                notes: String::new(),
            }
        } else {
            let about = known.zip(manifest).and_then(|((name, class), manifest)| {
                FileHeader::of_class(name, class, self.wanted, manifest)
            });
            let is_event = known.is_some_and(|(_, class)| class.kind == "event");
            let about = about.ok_or_else(|| self.nothing(is_event))?;
            self.inference.kind = Some(about.target.kind());
            self.inference.root_class = match &about.target {
                Target::Listener { event, .. } => event.clone(),
                target => ClassName::new(target.name()),
            };
            let class = self.inference.root_class.clone();
            let index = class.and_then(|class| self.inference.class(&class));
            self.inference.root.ty = index.map_or(Type::Any, Type::Object);
            about
        };
        if let Some((_, class)) = known {
            about.tell_around(class);
        }
        Ok((about, self.inference))
    }

    /// Lines of the mapping for the channels in the samples.
    fn channels(&self) -> String {
        let quoted: Vec<String> = self.channels.iter().map(|name| quoted(name)).collect();
        match (self.channels.first(), quoted.len()) {
            (None, _) => String::new(),
            (Some(channel), 1) => format!("channel = {}\n", toml_pattern(channel)),
            _ => {
                let seen = quoted.join(", ");
                format!("# Channels seen: {seen}; `channel = ..` chooses one.\n")
            }
        }
    }

    /// The error if there is no sample: the places that were read, and what to do.
    fn nothing(&self, is_event: bool) -> anyhow::Error {
        let mut text = format!("no job of `{}` was found", output::printable(self.wanted));
        if let (count @ 1.., why) = &self.unreadable {
            let _ = write!(text, " that can be read ({count} cannot: {why})");
        }
        let looked = self.looked_at.iter().map(|(place, count)| match count {
            0 => format!("{place} (empty)"),
            1 => format!("{place} (1 job)"),
            count => format!("{place} ({count} jobs)"),
        });
        let others = self.others.iter();
        let others = others.map(|(name, count)| format!("{count} of {name}"));
        let lists = [
            ("Looked at: ", looked.collect::<Vec<_>>().join("; ")),
            ("Could not look at ", self.not_looked.join("; ")),
            ("Found there: ", others.collect::<Vec<_>>().join(", ")),
        ];
        for (what, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
            let _ = write!(text, ". {what}{list}");
        }
        let _ = match self.config.manifest() {
            _ if is_event => write!(text, ". It is an event: name a listener of it"),
            Some((path, _)) => {
                let path = path.display();
                write!(text, ". The manifest {path} does not have the class either")
            }
            None => write!(text, ". There is no manifest"),
        };
        anyhow::anyhow!(
            "{text}. Queue such a job once and run this again, name a file of payloads with --fixture, or write a manifest with `artisand manifest`",
        )
    }
}

/// A target in words.
fn shown(target: &Target) -> String {
    let name = output::printable(target.name());
    match target.kind() {
        Kind::Job => name.into_owned(),
        kind @ (Kind::Closure | Kind::Batch) => format!("({kind})"),
        kind => format!("{name} ({kind})"),
    }
}

/// The payload in a line that is not itself a payload.
fn inner_payload(line: &[u8]) -> Option<Vec<u8>> {
    #[derive(serde::Deserialize)]
    struct Line {
        #[serde(alias = "payload")]
        element: Option<String>,
    }
    let line: Line = serde_json::from_slice(line).ok()?;
    line.element.map(String::into_bytes)
}
