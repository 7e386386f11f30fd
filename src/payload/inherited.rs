//! What new jobs inherit from the job that pushes them.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{LogContext, Trace};

/// What new jobs inherit from the job that pushes them.
#[derive(Debug, Clone, Default)]
pub struct Inherited {
    /// Its log context.
    pub context: Option<Arc<LogContext>>,
    /// The span that pushes them, if jobs are traced.
    pub trace: Option<Arc<Trace>>,
}

impl Inherited {
    /// The fields of a payload that are inherited.
    pub(crate) fn fields(&self) -> Vec<(Box<str>, Box<RawValue>)> {
        self.fields_and(Vec::new())
    }

    /// The same, and those that payload hooks have added, unless both have a field.
    ///
    /// A hook that notes the trace knows only the PHP process in which it was asked.
    pub(crate) fn fields_and(
        &self,
        hooks: Vec<(Box<str>, Box<RawValue>)>,
    ) -> Vec<(Box<str>, Box<RawValue>)> {
        let context = self.context.as_deref().and_then(LogContext::to_field);
        let mut fields: Vec<_> = context.into_iter().collect();
        if let Some(trace) = &self.trace {
            fields.extend(trace.fields(&hooks));
        }
        let own = fields.len();
        for (name, json) in hooks {
            if fields[..own].iter().all(|(known, _)| *known != name) {
                fields.push((name, json));
            }
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{SpanIds, TraceContext};

    #[test]
    fn what_a_job_inherits_wins_over_what_hooks_say_of_the_same() {
        let field = |name: &str, json: &str| {
            let json = RawValue::from_string(json.to_owned()).unwrap();
            (Box::from(name), json)
        };
        let hooks = vec![field("traceparent", "\"of PHP\""), field("tenant", "7")];
        let mut inherited = Inherited::default();
        let shown = |fields: Vec<(Box<str>, Box<RawValue>)>| {
            let fields = fields.iter().map(|(name, json)| format!("{name}={json}"));
            fields.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            shown(inherited.fields_and(hooks.clone())),
            r#"traceparent="of PHP" tenant=7"#
        );
        inherited.trace = Some(Arc::new(Trace {
            ids: SpanIds::new(1, 2, true).unwrap(),
            origin: TraceContext::default(),
        }));
        assert_eq!(
            shown(inherited.fields_and(hooks)),
            r#"traceparent="00-00000000000000000000000000000001-0000000000000002-01" tenant=7"#
        );
    }
}
