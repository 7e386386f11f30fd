//! Which jobs a `[[map]]` table is for: exactly one of its keys says it.

use toml::Spanned;

use super::MapTable;
use crate::payload::{TargetPattern, TargetPatternError};

/// What is wrong with the target of a mapping, and where it stands in the file.
#[derive(Debug)]
pub(super) struct TargetProblem {
    pub(super) offset: usize,
    pub(super) problem: Problem,
}

#[derive(Debug)]
pub(super) enum Problem {
    /// A name that cannot be read.
    Name(TargetPatternError),
    /// Keys that are missing, or do not go together.
    Keys(String),
}

impl TargetProblem {
    fn of_keys(offset: usize, problem: String) -> Self {
        let problem = Problem::Keys(problem);
        Self { offset, problem }
    }
}

const KINDS: &str = "job, listener, notification, mailable, broadcast, command, string";

impl MapTable {
    /// The keys that say what is mapped, as far as they are there.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (&'static str, &Spanned<String>)> {
        let all = [
            ("job", &self.job),
            ("listener", &self.listener),
            ("notification", &self.notification),
            ("mailable", &self.mailable),
            ("broadcast", &self.broadcast),
            ("command", &self.command),
            ("string", &self.string),
        ];
        all.into_iter()
            .filter_map(|(key, text)| Some((key, text.as_ref()?)))
    }

    /// Which jobs the mapping is for.
    pub(super) fn target(&self) -> Result<TargetPattern, TargetProblem> {
        self.check_php_only()?;
        let mut kinds = self.kinds();
        let Some((kind, text)) = kinds.next() else {
            let problem =
                format!("the mapping does not say which jobs it is for: it needs one of {KINDS}");
            return Err(TargetProblem::of_keys(self.handler.span().start, problem));
        };
        if let Some((other, text)) = kinds.next() {
            let problem = format!(
                "a mapping is for one kind of job, and this one has `{kind}` and `{other}`: write a [[map]] for each"
            );
            return Err(TargetProblem::of_keys(text.span().start, problem));
        }
        self.check_details(kind)?;
        let plain =
            |text: &Option<Spanned<String>>| text.as_ref().map(|text| text.get_ref().clone());
        let (event, channel) = (plain(&self.event), plain(&self.channel));
        let name = text.get_ref();
        let target = match kind {
            "listener" => TargetPattern::listener(name, event.as_deref()),
            "notification" => TargetPattern::notification(name, channel.as_deref()),
            "mailable" => TargetPattern::mailable(name),
            "broadcast" => TargetPattern::broadcast(name),
            "command" => TargetPattern::command(name),
            "string" => TargetPattern::string(name),
            _ => TargetPattern::job(name),
        };
        target.map_err(|error| TargetProblem {
            offset: text.span().start,
            problem: Problem::Name(error),
        })
    }

    /// Refuses jobs that only PHP can run.
    fn check_php_only(&self) -> Result<(), TargetProblem> {
        let closures = "closures are PHP source text";
        let batches = "the steps of a chain that start a batch are PHP";
        for (key, value, what) in [
            ("closure", &self.closure, closures),
            ("batch", &self.batch, batches),
        ] {
            if let Some(value) = value {
                let problem = format!(
                    "`{key}` cannot be mapped: {what}, which only PHP can run; `policy` under [unmapped] says what becomes of such jobs"
                );
                return Err(TargetProblem::of_keys(value.span().start, problem));
            }
        }
        Ok(())
    }

    /// Checks the keys that narrow down a listener or a notification.
    fn check_details(&self, kind: &str) -> Result<(), TargetProblem> {
        for (key, value, goes_with) in [
            ("event", &self.event, "listener"),
            ("channel", &self.channel, "notification"),
        ] {
            if let Some(value) = value
                && kind != goes_with
            {
                let problem =
                    format!("`{key}` goes with `{goes_with}`, and this mapping has `{kind}`");
                return Err(TargetProblem::of_keys(value.span().start, problem));
            }
        }
        match &self.channel {
            Some(channel) if channel.get_ref().is_empty() => {
                let problem = "`channel` is empty, expected the name of a channel such as `mail`, or its class";
                Err(TargetProblem::of_keys(
                    channel.span().start,
                    problem.to_owned(),
                ))
            }
            _ => Ok(()),
        }
    }
}
