//! What the jobs that wait on a connection have in common.

use std::collections::BTreeMap;

use crate::payload::{Command, Kind, Payload, Target};
use crate::queue::QueueName;

/// What the waiting jobs of a connection are.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Kinds of jobs by lower-case class name, and a queue that holds such a job.
    pub(super) kinds: BTreeMap<String, (Kind, QueueName)>,
    /// Whether some are in batches.
    pub(super) has_batches: bool,
}

impl Waiting {
    /// Notes a job of a queue.
    pub(super) fn note(&mut self, payload: &Payload, queue: &QueueName) {
        if let Ok(target) = Target::of(payload)
            && !target.name().is_empty()
        {
            let class = target.name().trim_start_matches('\\').to_lowercase();
            self.kinds.insert(class, (target.kind(), queue.clone()));
        }
        let command = Command::of(payload).ok().flatten();
        self.has_batches |=
            command.is_some_and(|command| matches!(command.batch_id(), Ok(Some(_))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_known_by_class_and_kind() {
        let payload =
            br#"{"displayName":"X","job":"App\\Jobs\\Old@handle","data":{},"attempts":0}"#;
        let mut waiting = Waiting::default();
        waiting.note(&Payload::parse(payload).unwrap(), &"high".into());
        let (class, (kind, queue)) = waiting.kinds.pop_first().unwrap();
        assert_eq!((&*class, queue.as_str()), ("app\\jobs\\old", "high"));
        assert_eq!(kind, Kind::String);
        assert!(!waiting.has_batches);
    }
}
