//! What Laravel Horizon would add to the payload of a job.

use serde_json::Value as Json;

use super::manifest::{Class, Manifest};
use super::subject::{Answers, Result, missing};
use crate::payload::{HorizonFields, Kind};
use crate::php::json::Graph;
use crate::php::{Object, Value};

/// The interface of classes whose successes Horizon lists apart.
const SILENCED: &str = "Laravel\\Horizon\\Contracts\\Silenced";

/// What stands for a model in a serialized job.
pub(super) const MODEL_IDENTIFIER: &str = "Illuminate\\Contracts\\Database\\ModelIdentifier";

impl Manifest {
    /// The fields that Horizon adds to the payload of a job with this command, pushed now.
    ///
    /// # Errors
    ///
    /// Only PHP can know: the class has a method `tags`, contains a whole model, or is a wrapper; or the manifest
    /// was written before artisand knew of Horizon.
    ///
    /// # Source
    ///
    /// `Laravel\Horizon\JobPayload`, `Laravel\Horizon\Tags`.
    pub fn horizon(&self, command: &Value, answers: &Answers) -> Result<HorizonFields> {
        let Value::Object(object) = command else {
            let what = "the command is no object, and only PHP can know of it";
            return Err(missing("a job", what));
        };
        let no = |what: &str| missing(object.class.as_str(), what);
        if Kind::of_class(&object.class) != Kind::Job {
            return Err(no("only PHP knows which tags it gets in Horizon"));
        }
        let class = self.known_class(&object.class)?;
        let settings = self.config.get("horizon");
        let (Some(settings), Some(has_tags)) = (settings, class.has_tags()) else {
            return Err(no(
                "the manifest says nothing of Horizon; write it anew with `artisand manifest`",
            ));
        };
        let tags = match answers.get("tags").and_then(Value::as_array) {
            Some(tags) => {
                let tags = tags.values().filter_map(Value::as_str);
                tags.map(Into::into).collect()
            }
            None if has_tags => return Err(no("its method `tags` is PHP code")),
            None => self.tags_of_models(object, command)?,
        };
        let names = |key: &str| {
            let names = settings.get(key).and_then(Json::as_array);
            names.into_iter().flatten().filter_map(Json::as_str)
        };
        let is_class = |name: &str| {
            let name = name.trim_start_matches('\\');
            name.eq_ignore_ascii_case(object.class.as_str())
        };
        let is_tag = |silenced: &str| tags.iter().any(|tag| **tag == *silenced);
        let silenced = class.implements(SILENCED)
            || names("silenced").any(is_class)
            || names("silenced_tags").any(is_tag);
        Ok(HorizonFields {
            tags,
            silenced,
            ..HorizonFields::plain("job")
        })
    }

    /// A tag for each model in the properties of a job.
    fn tags_of_models(&self, object: &Object, command: &Value) -> Result<Vec<Box<str>>> {
        let graph = Graph::new(command);
        let mut tags: Vec<Box<str>> = Vec::new();
        for (_, value) in &object.properties {
            let Value::Object(found) = graph.resolve(value) else {
                continue;
            };
            if self.models.contains_key(found.class.as_str()) {
                return Err(missing(
                    object.class.as_str(),
                    "it contains a whole model, and only PHP can read its key",
                ));
            }
            if !found.class.as_str().eq_ignore_ascii_case(MODEL_IDENTIFIER) {
                continue;
            }
            let class = graph.property(found, "class").and_then(Value::as_str);
            let Some(class) = class else { continue };
            let ids: Vec<&Value> = match graph.property(found, "id") {
                Some(Value::Array(ids)) => ids.values().map(|id| graph.resolve(id)).collect(),
                Some(id) => vec![id],
                None => Vec::new(),
            };
            for id in ids {
                let tag: Box<str> = match id {
                    Value::Int(id) => format!("{class}:{id}").into(),
                    id => format!("{class}:{}", id.as_str().unwrap_or_default()).into(),
                };
                if !tags.contains(&tag) {
                    tags.push(tag);
                }
            }
        }
        Ok(tags)
    }
}

impl Class {
    /// Whether the class has a method `tags`; `None` in a manifest of an older version.
    fn has_tags(&self) -> Option<bool> {
        self.flags.get("tags").and_then(Json::as_bool)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::subject::NO_ANSWERS;
    use super::*;

    fn manifest(class: &Json, horizon: &Json) -> Manifest {
        let mut entry = json!({"kind": "job", "file": "A.php", "flags": {"tags": false}});
        let fields = class.as_object().unwrap().clone();
        entry.as_object_mut().unwrap().extend(fields);
        let json = json!({
            "artisand": 1, "laravel": "13.31.0", "generated_at": 0, "paths": {"base": "/", "storage": "/"},
            "config": {"horizon": horizon}, "classes": {"App\\A": entry},
            "models": {"App\\Order": {"table": "orders", "key": "id"}},
        });
        Manifest::parse(Path::new("artisand.json"), json.to_string().as_bytes()).unwrap()
    }

    fn command(properties: &str) -> Value {
        let count = properties.matches("\"model").count();
        Value::from_bytes(format!("O:5:\"App\\A\":{count}:{{{properties}}}").as_bytes()).unwrap()
    }

    fn model(id: &str) -> String {
        let class = "Illuminate\\Contracts\\Database\\ModelIdentifier";
        format!("O:45:\"{class}\":2:{{s:5:\"class\";s:9:\"App\\Order\";s:2:\"id\";{id}}}")
    }

    #[test]
    fn models_become_tags() {
        let manifest = manifest(&json!({}), &json!({}));
        let one = format!("s:6:\"model1\";{}", model("i:7;"));
        let two = format!("s:6:\"model2\";{}", model("a:2:{i:0;i:8;i:1;s:1:\"k\";}"));
        let fields = manifest
            .horizon(&command(&format!("{one}{two}")), &NO_ANSWERS)
            .unwrap();
        let tags = ["App\\Order:7", "App\\Order:8", "App\\Order:k"];
        assert_eq!(fields.tags, tags.map(Box::from));
        assert_eq!((fields.kind, fields.silenced), ("job", false));
    }

    #[test]
    fn a_class_is_silenced_by_its_name_its_interface_or_a_tag() {
        let tagged = format!("s:6:\"model1\";{}", model("i:7;"));
        #[rustfmt::skip]
        let rows = [
            (json!({}), json!({"silenced": ["App\\B", "\\App\\a"]}), "", true),
            (json!({"interfaces": ["Laravel\\Horizon\\Contracts\\Silenced"]}), json!({}), "", true),
            (json!({}), json!({"silenced_tags": ["App\\Order:7"]}), &*tagged, true),
            (json!({}), json!({"silenced": ["App\\B"], "silenced_tags": ["App\\Order:8"]}), &*tagged, false),
        ];
        for (class, horizon, properties, expected) in rows {
            let fields = manifest(&class, &horizon).horizon(&command(properties), &NO_ANSWERS);
            assert_eq!(fields.unwrap().silenced, expected, "{class} {horizon}");
        }
    }

    #[test]
    fn what_only_php_knows_is_said_so() {
        let whole = "s:6:\"model1\";O:9:\"App\\Order\":0:{}";
        #[rustfmt::skip]
        let rows = [
            (json!({"flags": {"tags": true}}), "", "its method `tags` is PHP code"),
            (json!({"flags": {}}), "", "the manifest says nothing of Horizon"),
            (json!({}), whole, "it contains a whole model"),
        ];
        for (class, properties, expected) in rows {
            let error = manifest(&class, &json!({}))
                .horizon(&command(properties), &NO_ANSWERS)
                .unwrap_err();
            assert!(error.what.starts_with(expected), "{error}");
        }
    }
}
