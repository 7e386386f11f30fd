//! What Laravel Horizon would add to the payload of a job.

use serde_json::Value as Json;

use super::manifest::{Class, Manifest};
use super::subject::{Result, missing};
use crate::payload::{HorizonFields, Kind};
use crate::php::json::Graph;
use crate::php::{Object, Value};

/// The interface of classes whose successes Horizon lists apart.
const SILENCED: &str = "Laravel\\Horizon\\Contracts\\Silenced";

/// What stands for a model in a serialized job.
const MODEL_IDENTIFIER: &str = "Illuminate\\Contracts\\Database\\ModelIdentifier";

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
    pub fn horizon(&self, command: &Value) -> Result<HorizonFields> {
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
        if has_tags {
            return Err(no("its method `tags` is PHP code"));
        }
        let tags = self.tags_of_models(object, command)?;
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
