//! Jobs to learn from: where they are, and what is in them.
//!
//! Nothing is touched. How many jobs are looked at is bounded in every place.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use super::render::About;
use super::types::{Inference, Slot, Type};
use super::{
    is_laravels, is_laravels_of_event, is_laravels_of_mailable, is_laravels_of_notification,
};
use crate::cli::{doctor, failed, open, output};
use crate::config::Config;
use crate::payload::{Data, Document, Encrypter, Kind, Payload, Target, subject_of};
use crate::php::ClassName;
use crate::php::json::Graph;
use crate::queue::{QueueName, Waiting};
use crate::shown::with_causes;

/// Jobs that are looked at in one place of a queue, in the failed-job store and in a file.
const MOST_LOOKED_AT: usize = 10_000;
/// Jobs read at once.
const AT_ONCE: usize = 200;
/// Queues that are looked into.
const MOST_QUEUES: usize = 200;
/// Failed jobs that are read one by one where there are more than can be read at once.
const MOST_FAILED: usize = 500;
/// Longest line of a fixture.
const LONGEST_LINE: u64 = 64 << 20;
/// Other targets that are named where the wanted one was not found.
const MOST_OTHERS: usize = 12;

/// What was found so far.
pub(super) struct Samples<'a> {
    wanted: &'a str,
    limit: usize,
    config: &'a Config,
    encrypter: Result<Encrypter, String>,
    kind: Option<Kind>,
    name: String,
    method: Option<String>,
    channels: std::collections::BTreeSet<String>,
    inference: Inference,
    /// Samples by where they came from.
    found: BTreeMap<&'static str, usize>,
    looked_at: BTreeMap<String, usize>,
    others: BTreeMap<String, usize>,
    /// Jobs of the class that could not be read, with the last reason.
    unreadable: Option<(usize, String)>,
    not_looked: Vec<String>,
}

impl<'a> Samples<'a> {
    pub(super) fn new(wanted: &'a str, limit: usize, config: &'a Config) -> Self {
        let encrypter = config.encrypter();
        Self {
            wanted,
            limit,
            config,
            encrypter: encrypter.map_err(|error| with_causes(&error)),
            kind: None,
            name: String::new(),
            method: None,
            channels: std::collections::BTreeSet::new(),
            inference: Inference::default(),
            found: BTreeMap::new(),
            looked_at: BTreeMap::new(),
            others: BTreeMap::new(),
            unreadable: None,
            not_looked: Vec::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.found.values().sum::<usize>() >= self.limit
    }

    pub(super) fn could_not_look(&mut self, source: &str, error: &anyhow::Error) {
        let error = output::with_causes(error);
        self.not_looked.push(format!("{source}: {error}"));
    }

    /// Looks at the payloads of a file: a payload per line, or an object with one in `element` or `payload`.
    pub(super) fn read_fixture(&mut self, path: &Path) -> std::io::Result<()> {
        let mut reader = BufReader::new(std::fs::File::open(path)?);
        let place = path.display().to_string();
        self.looked_at.entry(place.clone()).or_default();
        let mut line = Vec::new();
        for _ in 0..MOST_LOOKED_AT {
            if self.is_full() {
                break;
            }
            line.clear();
            let read = (&mut reader)
                .take(LONGEST_LINE)
                .read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let inner = inner_payload(&line);
            let payload = inner.as_deref().unwrap_or(line.trim_ascii());
            *self.looked_at.entry(place.clone()).or_default() += 1;
            self.look(payload, "of fixtures");
        }
        Ok(())
    }

    /// Looks at the jobs that wait or run in these queues, or in all of the connection.
    pub(super) async fn look_into_queues(
        &mut self,
        connection: &str,
        names: &[String],
    ) -> anyhow::Result<()> {
        let (queue, settings) = open(self.config, connection).await?;
        let mut names: Vec<QueueName> = names
            .iter()
            .map(|name| QueueName::from(name.as_str()))
            .collect();
        if names.is_empty() {
            let found = doctor::queues_by_prefix(queue.redis()).await?;
            let found = found.get(&settings.redis.prefix).into_iter().flatten();
            names = found.map(|name| QueueName::from(name.as_str())).collect();
            // The one that is worked is looked into first.
            names.sort_by_key(|name| *name != settings.default_queue);
            if names.is_empty() {
                let place = format!("connection `{connection}`, which has no queue now");
                self.looked_at.insert(place, 0);
            }
        }
        for name in names.iter().take(MOST_QUEUES) {
            let shown = output::printable(name.as_str()).into_owned();
            let place = format!("queue `{shown}` of connection `{connection}`");
            self.looked_at.entry(place.clone()).or_default();
            for waiting in [Waiting::Pending, Waiting::Delayed, Waiting::Reserved] {
                let mut from = 0;
                while from < MOST_LOOKED_AT && !self.is_full() {
                    let elements = queue.look(name, waiting, from, AT_ONCE).await?;
                    for element in &elements {
                        *self.looked_at.entry(place.clone()).or_default() += 1;
                        if !self.is_full() {
                            self.look(element, "waiting");
                        }
                    }
                    from += AT_ONCE;
                    if elements.len() < AT_ONCE {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks at the jobs in the app's store of failed jobs, the newest first.
    pub(super) async fn look_at_failed_jobs(&mut self) -> anyhow::Result<()> {
        let store = failed::store(self.config)?;
        let ids = store.ids(None).await?;
        self.looked_at.entry("failed jobs".to_owned()).or_default();
        for id in ids.iter().take(MOST_FAILED) {
            if self.is_full() {
                break;
            }
            if let Some(job) = store.find(id).await? {
                *self.looked_at.entry("failed jobs".to_owned()).or_default() += 1;
                self.look(&job.payload, "failed");
            }
        }
        Ok(())
    }

    fn look(&mut self, element: &[u8], source: &'static str) {
        let Ok(mut payload) = Payload::parse(element) else {
            return self.other("(cannot be decoded)".to_owned());
        };
        let mut locked = None;
        if payload.is_encrypted() {
            locked = match &self.encrypter {
                Ok(encrypter) => payload
                    .decrypt(encrypter)
                    .err()
                    .map(|error| with_causes(&error)),
                Err(why) => Some(why.clone()),
            };
        }
        let target = match Target::of(&payload) {
            Ok(target) => target,
            Err(error) => {
                let name = payload.shown_name().into_owned();
                if self.is_wanted_name(&name) {
                    self.cannot_read(locked.unwrap_or_else(|| with_causes(&error)));
                }
                return self.other(name);
            }
        };
        if !self.is_wanted(&target) {
            return self.other(shown(&target));
        }
        if let Some(why) = locked {
            return self.cannot_read(format!("encrypted, {why}"));
        }
        match self.learn(&target, &payload) {
            Ok(()) => *self.found.entry(source).or_default() += 1,
            Err(why) => self.cannot_read(why),
        }
    }

    fn other(&mut self, name: String) {
        if self.others.len() < MOST_OTHERS || self.others.contains_key(&name) {
            *self.others.entry(name).or_default() += 1;
        }
    }

    fn cannot_read(&mut self, why: String) {
        let count = self.unreadable.as_ref().map_or(0, |(count, _)| *count);
        self.unreadable = Some((count + 1, why));
    }

    fn is_wanted_name(&self, name: &str) -> bool {
        let class = self.wanted.split('@').next().unwrap_or(self.wanted);
        name.eq_ignore_ascii_case(class)
    }

    fn is_wanted(&self, target: &Target) -> bool {
        if self.kind.is_some_and(|kind| kind != target.kind()) {
            return false;
        }
        let method = match target {
            Target::Closure | Target::Batch => return false,
            Target::Command { name, .. } => return **name == *self.wanted,
            Target::Listener { method, .. } | Target::String { method, .. } => Some(method),
            _ => None,
        };
        // Where no method is named, the one that is found first.
        let is_other = |known: &String| method.is_some_and(|method| **method != **known);
        if self.method.as_ref().is_some_and(is_other) {
            return false;
        }
        match (self.wanted.split_once('@'), method) {
            (None, _) => target.name().eq_ignore_ascii_case(self.wanted),
            (Some(_), None) => false,
            (Some((class, wanted)), Some(method)) => {
                target.name().eq_ignore_ascii_case(class) && method.eq_ignore_ascii_case(wanted)
            }
        }
    }

    /// Adds a job of the class to what is known.
    fn learn(&mut self, target: &Target, payload: &Payload) -> Result<(), String> {
        let kind = target.kind();
        if self.kind.is_none() {
            self.take_up(kind, target.name());
        }
        match target {
            Target::Command { line: Some(_), .. } => {
                return Err("it was queued as one line of text".to_owned());
            }
            Target::Listener { method, .. } | Target::String { method, .. } => {
                self.method.get_or_insert_with(|| method.to_string());
            }
            Target::Notification {
                channel: Some(channel),
                ..
            } if self.channels.len() < MOST_OTHERS => {
                self.channels.insert(channel.to_string());
            }
            _ => {}
        }
        if let Data::Json(data) = &payload.data {
            let json: serde_json::Value =
                serde_json::from_str(data.get()).map_err(|error| error.to_string())?;
            self.inference.add_json(&json);
            return Ok(());
        }
        // Its view has the parameters as JSON.
        if kind == Kind::Command {
            let document = Document {
                connection: "",
                queue: "",
                attempts: 0,
                payload,
            };
            let json = document.to_json().map_err(|error| with_causes(&error))?;
            let mut json: serde_json::Value =
                serde_json::from_str(&json).map_err(|error| error.to_string())?;
            self.inference.add_json(&json["data"].take());
            return Ok(());
        }
        let value = subject_of(payload).map_err(|error| with_causes(&error))?;
        self.inference.add(&value, &Graph::new(&value));
        Ok(())
    }

    fn take_up(&mut self, kind: Kind, name: &str) {
        self.kind = Some(kind);
        name.clone_into(&mut self.name);
        self.inference.left_out = match kind {
            Kind::Listener | Kind::Broadcast => Some(is_laravels_of_event),
            Kind::Notification => Some(is_laravels_of_notification),
            Kind::Mailable => Some(is_laravels_of_mailable),
            Kind::Job => Some(is_laravels),
            Kind::Command | Kind::Closure | Kind::Batch | Kind::String => None,
        };
    }

    /// What the file is about; from the manifest alone if there are no samples.
    pub(super) fn finish(mut self) -> anyhow::Result<(About, Inference)> {
        let count: usize = self.found.values().sum();
        let mut notes = Vec::new();
        let class = ClassName::new(self.wanted.split('@').next().unwrap_or_default());
        let manifest = self.config.manifest().map(|(_, manifest)| manifest);
        let known = class
            .as_ref()
            .zip(manifest)
            .and_then(|(class, manifest)| manifest.class(class));
        let mut sources = if count > 0 {
            let found: Vec<String> = self
                .found
                .iter()
                .map(|(source, count)| format!("{count} {source}"))
                .collect();
            let jobs = if count == 1 { "job" } else { "jobs" };
            format!("the {jobs} that were found ({})", found.join(", "))
        } else {
            let kind = known.and_then(|known| kind_of(&known.kind));
            let (Some(kind), Some(class)) = (kind, class) else {
                return Err(self.nothing());
            };
            // As it is declared, not as it was typed.
            let mut names = manifest.iter().flat_map(|manifest| manifest.classes.keys());
            let declared = names.find(|name| class == ***name);
            let class = declared
                .and_then(|name| ClassName::new(name.as_str()))
                .unwrap_or(class);
            self.take_up(kind, class.as_str());
            self.inference.root = if kind == Kind::Listener {
                notes.push("Of a listener's event only a job can tell the class.".to_owned());
                Slot::of(Type::Any)
            } else {
                self.inference.root_class = Some(class.clone());
                let index = self.inference.class(&class);
                Slot::of(index.map_or(Type::Any, Type::Object))
            };
            "the manifest alone: no job of the class was found".to_owned()
        };
        if count > 0 && known.is_some() {
            sources.push_str(" and of the manifest");
        }
        if count > 0 && known.is_none() && self.kind == Some(Kind::Job) {
            notes.push(
                "Since Laravel 9.4 a property that is equal to its default is left out of the bytes;"
                    .to_owned(),
            );
            notes.push("`artisand manifest` lets this command know the defaults.".to_owned());
        }
        let about = About {
            kind: self.kind.unwrap_or(Kind::Job),
            name: self.name,
            method: self.method,
            channels: self.channels,
            sources,
            notes,
        };
        Ok((about, self.inference))
    }

    /// Says where was looked in vain, and what to do.
    fn nothing(&self) -> anyhow::Error {
        let mut text = format!("no job of `{}` was found", output::printable(self.wanted));
        if let Some((count, why)) = &self.unreadable {
            let _ = write!(text, " that can be read ({count} cannot: {why})");
        }
        let looked: Vec<String> = self
            .looked_at
            .iter()
            .map(|(place, count)| match count {
                0 => format!("{place} (empty)"),
                1 => format!("{place} (1 job)"),
                count => format!("{place} ({count} jobs)"),
            })
            .collect();
        if !looked.is_empty() {
            let _ = write!(text, ". Looked at: {}", looked.join("; "));
        }
        if !self.not_looked.is_empty() {
            let _ = write!(text, ". Could not look at {}", self.not_looked.join("; "));
        }
        if !self.others.is_empty() {
            let others: Vec<String> = self
                .others
                .iter()
                .map(|(name, count)| format!("{count} of {name}"))
                .collect();
            let _ = write!(text, ". Found there: {}", others.join(", "));
        }
        match self.config.manifest() {
            Some((path, _)) => {
                let _ = write!(
                    text,
                    ". The manifest {} does not have the class either",
                    path.display()
                );
            }
            None => text.push_str(". There is no manifest"),
        }
        text.push_str(
            ". Queue such a job once and run this again, name a file of payloads with --fixture, or write a manifest with `artisand manifest`",
        );
        anyhow::anyhow!(text)
    }
}

/// A target for people.
fn shown(target: &Target) -> String {
    let name = output::printable(target.name());
    match target.kind() {
        Kind::Job => name.into_owned(),
        kind @ (Kind::Closure | Kind::Batch) => format!("({kind})"),
        kind => format!("{name} ({kind})"),
    }
}

/// What the manifest calls a class.
fn kind_of(text: &str) -> Option<Kind> {
    Some(match text {
        "job" => Kind::Job,
        "listener" => Kind::Listener,
        "notification" => Kind::Notification,
        "mailable" => Kind::Mailable,
        "broadcast" => Kind::Broadcast,
        _ => return None,
    })
}

/// The payload in a line of another form.
fn inner_payload(line: &[u8]) -> Option<Vec<u8>> {
    #[derive(serde::Deserialize)]
    struct Line {
        #[serde(alias = "payload")]
        element: Option<String>,
    }
    let line: Line = serde_json::from_slice(line).ok()?;
    line.element.map(String::into_bytes)
}
