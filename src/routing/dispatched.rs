//! Types that a program dispatches.

use crate::app::{Manifest, Unfit};
use crate::php::{ClassName, Fields, short_name};
use serde::Deserialize;

/// A struct that a program dispatches as a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DispatchedType {
    /// The name of the Rust type.
    pub(crate) name: &'static str,
    fields: Option<Fields>,
}

impl DispatchedType {
    pub(crate) fn of<'de, T: Deserialize<'de>>() -> Self {
        Self {
            name: short_name::<T>(),
            fields: Fields::of::<T>().filter(|fields| fields.class.contains('\\')),
        }
    }

    /// Compares it with its class; returns what else the class's constructor does.
    pub(crate) fn check(&self, manifest: &Manifest) -> Result<Vec<String>, Unfit> {
        let fields = self.fields;
        let class = fields.and_then(|fields| {
            let class = ClassName::in_code(fields.class)?;
            Some((class, fields.fields))
        });
        let (class, fields) = class.ok_or_else(|| manifest.no_class(self.name))?;
        manifest.check_fields(&class, fields)?;
        Ok(manifest.constructor_notes(&class, fields))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[derive(serde::Deserialize)]
    #[serde(rename = "App\\Jobs\\Import")]
    #[expect(dead_code, reason = "only names matter")]
    struct Import {
        page: u32,
    }

    #[derive(serde::Deserialize)]
    #[serde(rename = "App\\Jobs\\Import")]
    #[expect(dead_code, reason = "only names matter")]
    struct Misspelt {
        pages: u32,
    }

    #[derive(serde::Deserialize)]
    #[expect(dead_code, reason = "only names matter")]
    struct Nameless {
        page: u32,
    }

    fn manifest(sets: &[&str], default: Option<&str>) -> Manifest {
        let mut digest =
            json!({"name": "digest", "visibility": "private", "class": "App\\Jobs\\Import"});
        if let Some(default) = default {
            digest["default"] = default.into();
        }
        let json = json!({
            "artisand": 1, "laravel": "13.31.0", "generated_at": 0, "config": {},
            "paths": {"base": "/", "storage": "/"},
            "classes": {"App\\Jobs\\Import": {
                "kind": "job", "file": "", "flags": {"queued": true},
                "properties": [{"name": "page", "visibility": "public", "class": "App\\Jobs\\Import"}, digest],
                "constructor": {"sets": sets, "calls": ["onQueue('slow')"]},
            }},
        });
        Manifest::parse(Path::new("artisand.json"), json.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn what_the_constructor_does_is_noted_and_an_error_where_a_value_is_missing() {
        let known = manifest(&["digest", "page"], Some("Tjs="));
        let notes = DispatchedType::of::<Import>().check(&known).unwrap();
        let because = ", because constructors do not run here";
        let expected = [
            format!("App\\Jobs\\Import: its constructor sets `digest`: give it{because}"),
            format!(
                "App\\Jobs\\Import: its constructor calls `onQueue('slow')`: do what that does{because}"
            ),
        ];
        assert_eq!(notes, expected);
        let missing = DispatchedType::of::<Import>().check(&manifest(&["digest"], None));
        assert_eq!(
            missing.unwrap_err().to_string(),
            "App\\Jobs\\Import::$digest has no value and no default: its constructor sets it, which does not run"
        );
    }

    #[test]
    fn names_that_do_not_fit_are_said_with_the_nearest() {
        let manifest = manifest(&[], Some("Tjs="));
        let error = |checked: DispatchedType| checked.check(&manifest).unwrap_err().to_string();
        assert_eq!(
            error(DispatchedType::of::<Misspelt>()),
            "App\\Jobs\\Import has no property `pages`; did you mean `page`?"
        );
        assert_eq!(
            error(DispatchedType::of::<Nameless>()),
            "`Nameless` names no PHP class: #[serde(rename = \"App\\\\Jobs\\\\..\")]"
        );
    }
}
