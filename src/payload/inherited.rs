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
    /// The tenant for which it was pushed, as packages note it ([`Payload::tenant`](super::Payload::tenant)).
    pub tenant: Vec<(Box<str>, Box<RawValue>)>,
}

/// Inherited fields as a JSON object, for a job that is pushed later.
pub(crate) type InheritedFields = serde_json::Map<String, serde_json::Value>;

impl Inherited {
    /// The fields of a payload that are inherited.
    pub(crate) fn fields(&self) -> Vec<(Box<str>, Box<RawValue>)> {
        self.fields_and(Vec::new())
    }

    /// The fields of a closure that does what is left of the job: it is for the same tenant.
    ///
    /// Other jobs may be for none, which only payload hooks know.
    pub(crate) fn fields_of_closure(&self) -> Vec<(Box<str>, Box<RawValue>)> {
        let mut fields = self.fields();
        fields.extend(self.tenant.iter().cloned());
        fields
    }

    /// The same as [`fields`](Self::fields), and those that payload hooks have added, unless both have a field.
    ///
    /// A hook that notes the trace knows only the PHP process in which it was asked. There is no tenant there either:
    /// one that finds none gets that of the job.
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
                let of_job = self.tenant.iter().find(|(tenant, _)| *tenant == name);
                let of_job = of_job.filter(|_| json.get() == "null");
                fields.push(of_job.cloned().unwrap_or((name, json)));
            }
        }
        fields
    }

    /// The fields of a closure that is pushed later, as a JSON object; `None` if there are none.
    pub(crate) fn to_map(&self) -> Option<InheritedFields> {
        let value = |(name, json): (Box<str>, Box<RawValue>)| {
            Some((name.into_string(), serde_json::from_str(json.get()).ok()?))
        };
        let fields = self.fields_of_closure().into_iter().filter_map(value);
        let fields: InheritedFields = fields.collect();
        (!fields.is_empty()).then_some(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{Payload, SpanIds, TraceContext};

    #[test]
    fn a_job_that_is_pushed_later_inherits_the_same() {
        let context = r#"{"data":{"b":"i:1;","a":"s:4:\"Zo\u00eb\";"},"hidden":[]}"#;
        let job = format!(r#"{{"job":"A@b","illuminate:log:context":{context}}}"#);
        let inherited = Inherited {
            context: Payload::parse(job.as_bytes()).unwrap().context,
            trace: Some(Arc::new(Trace {
                ids: SpanIds::new(1, 2, true).unwrap(),
                origin: TraceContext::default(),
            })),
            tenant: Vec::new(),
        };
        let field = |(name, json): (Box<str>, Box<RawValue>)| {
            let json: serde_json::Value = serde_json::from_str(json.get()).unwrap();
            (name.into_string(), json)
        };
        let now: InheritedFields = inherited.fields().into_iter().map(field).collect();
        let later = inherited.to_map().unwrap();
        assert_eq!(later, now);
        assert_eq!(later["illuminate:log:context"]["data"]["b"], "i:1;");
        assert!(later.contains_key("traceparent"));
        assert_eq!(Inherited::default().to_map(), None);
    }

    #[test]
    fn the_tenant_of_a_job_is_that_of_its_closures_and_of_jobs_whose_hooks_found_none() {
        let job = r#"{"job":"A@b","tenantId":7,"tenant_id":null,"other":1}"#;
        let inherited = Inherited {
            tenant: Payload::parse(job.as_bytes()).unwrap().tenant,
            ..Inherited::default()
        };
        let shown = |fields: Vec<(Box<str>, Box<RawValue>)>| {
            let fields = fields.iter().map(|(name, json)| format!("{name}={json}"));
            fields.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(inherited.fields_of_closure()), "tenantId=7");
        assert_eq!(inherited.to_map().unwrap()["tenantId"], 7);
        assert_eq!(shown(inherited.fields()), "");
        #[rustfmt::skip]
        let rows = [
            ("tenantId", "null", "tenantId=7"),
            ("tenantId", "8",    "tenantId=8"),
            ("tenant_id", "null", "tenant_id=null"),
            // It is of the job alone.
            ("other", "null",    "other=null"),
        ];
        for (name, answer, expected) in rows {
            let answer = RawValue::from_string(answer.to_owned()).unwrap();
            let fields = inherited.fields_and(vec![(name.into(), answer)]);
            assert_eq!(shown(fields), expected);
        }
        // The next job is for no tenant.
        assert_eq!(shown(inherited.fields_and(Vec::new())), "");
    }

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
