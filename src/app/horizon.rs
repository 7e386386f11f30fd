//! What Laravel Horizon would add to the payload of a job.

use serde_json::Value as Json;

use super::manifest::{Class, Manifest};
use super::subject::{Answers, Result, missing};
use crate::payload::{HorizonFields, Kind};
use crate::php::json::Graph;
use crate::php::{ClassName, MODEL_IDENTIFIER, Object, Value};

/// The interface of classes whose successes Horizon lists apart.
const SILENCED: &str = "Laravel\\Horizon\\Contracts\\Silenced";

const OLD: &str = "the manifest says nothing of Horizon; write it again with `artisand manifest`";

impl Manifest {
    /// The fields that Horizon adds to the payload of a job with this command, pushed now.
    ///
    /// # Errors
    ///
    /// Only PHP can know: the class has a method `tags`, contains a whole model, or is a broadcast; or the manifest
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
        let settings = self.config.get("horizon").ok_or_else(|| no(OLD))?;
        let graph = Graph::new(command);
        let inner = |name: &str| {
            let inner = graph.property(object, name).and_then(Value::as_object);
            inner.ok_or_else(|| no("it does not say what it is about"))
        };
        // What may have tags, and the class that may be silenced.
        let (kind, target, examined) = match Kind::of_class(&object.class) {
            Kind::Job => ("job", Some(object), Some(&object.class)),
            Kind::Command => ("job", None, None),
            Kind::Notification => {
                let inner = inner("notification")?;
                ("notification", Some(inner), Some(&inner.class))
            }
            Kind::Mailable => {
                let inner = inner("mailable")?;
                ("mail", Some(inner), Some(&inner.class))
            }
            Kind::Listener => {
                let data = graph.property(object, "data").and_then(Value::as_array);
                let event = data.and_then(|data| data.values().next());
                let event = event.and_then(|event| graph.resolve(event).as_object());
                ("event", event, None)
            }
            _ => return Err(no("only PHP knows which tags it gets in Horizon")),
        };
        let listener = match kind {
            "event" => graph.property(object, "class").and_then(Value::as_str),
            _ => None,
        };
        let listener = listener.and_then(ClassName::in_code);
        let examined = examined.or(listener.as_ref());
        let has_method = |class| self.known_class(class)?.has_tags().ok_or_else(|| no(OLD));
        let own = target.map(|target| has_method(&target.class)).transpose()?;
        let own = own.unwrap_or(false);
        let of_listener = listener.as_ref().map(has_method).transpose()?;
        let has_tags = own || of_listener.unwrap_or(false);
        let said = answers.get("tags").and_then(Value::as_array);
        if said.is_none() && has_tags {
            return Err(no("its method `tags` is PHP code"));
        }
        let mut tags: Vec<Box<str>> = Vec::new();
        for tag in said
            .iter()
            .flat_map(|tags| tags.values())
            .filter_map(Value::as_str)
        {
            add(&mut tags, tag.into());
        }
        // Those of a listener come beside those of its event; if that has a method, the answer stands for it, too.
        if let Some(target) = target
            && (tags.is_empty() || kind == "event" && !own)
        {
            for tag in self.tags_of_models(target, &graph)? {
                add(&mut tags, tag);
            }
        }
        let is_tag = |silenced: &str| tags.iter().any(|tag| **tag == *silenced);
        let silenced = examined.is_some_and(|class| self.silences(class.as_str()))
            || names(settings, "silenced_tags").any(is_tag);
        Ok(HorizonFields {
            tags,
            silenced,
            ..HorizonFields::plain(kind)
        })
    }

    /// Whether Horizon lists the successes of jobs of this class, or of this string job, apart.
    pub(crate) fn silences(&self, examined: &str) -> bool {
        let settings = self.config.get("horizon").unwrap_or(&Json::Null);
        let is_it = |name: &str| name.trim_start_matches('\\').eq_ignore_ascii_case(examined);
        let class = ClassName::new(examined);
        let class = class.and_then(|class| self.class(&class));
        class.is_some_and(|class| class.implements(SILENCED))
            || names(settings, "silenced").any(is_it)
    }

    /// A tag for each model in the properties of a job.
    fn tags_of_models(&self, object: &Object, graph: &Graph<'_>) -> Result<Vec<Box<str>>> {
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
                add(&mut tags, tag);
            }
        }
        Ok(tags)
    }
}

/// Adds a tag, once.
fn add(tags: &mut Vec<Box<str>>, tag: Box<str>) {
    if !tags.contains(&tag) {
        tags.push(tag);
    }
}

/// The names in a list of Horizon's settings.
fn names<'a>(settings: &'a Json, key: &str) -> impl Iterator<Item = &'a str> {
    let names = settings.get(key).and_then(Json::as_array);
    names.into_iter().flatten().filter_map(Json::as_str)
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
    use crate::php::Array;

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
    fn tags_that_are_said_replace_those_of_models_unless_there_are_none() {
        let manifest = manifest(&json!({}), &json!({}));
        let job = command(&format!("s:6:\"model1\";{}", model("i:7;")));
        let listener = ClassName::new("Illuminate\\Events\\CallQueuedListener").unwrap();
        let events: Array = [job.clone()].into_iter().collect();
        let listener = Object::new(listener).public("class", "App\\A");
        let listener = Value::Object(listener.public("data", events));
        #[rustfmt::skip]
        let rows = [
            (&job, &["a", "b", "a"][..], &["a", "b"][..]),
            (&job, &[], &["App\\Order:7"]),
            (&listener, &["a"], &["a", "App\\Order:7"]),
        ];
        for (command, said, expected) in rows {
            let said: Array = said.iter().map(|tag| Value::from(*tag)).collect();
            let answers = Answers::from([("tags", said.into())]);
            let tags = manifest.horizon(command, &answers).unwrap().tags;
            let tags: Vec<&str> = tags.iter().map(|tag| &**tag).collect();
            assert_eq!(tags, expected);
        }
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
    fn a_wrapper_has_the_tags_of_what_is_in_it() {
        let manifest = manifest(&json!({}), &json!({"silenced": ["App\\A"]}));
        let inner = command(&format!("s:6:\"model1\";{}", model("i:7;")));
        let wrapper = |class| Object::new(ClassName::new(class).unwrap());
        let listener = wrapper("Illuminate\\Events\\CallQueuedListener").public("class", "App\\A");
        let events: Array = [inner.clone()].into_iter().collect();
        let notification = wrapper("Illuminate\\Notifications\\SendQueuedNotifications");
        let mailable = wrapper("Illuminate\\Mail\\SendQueuedMailable");
        let console = wrapper("Illuminate\\Foundation\\Console\\QueuedCommand");
        #[rustfmt::skip]
        let rows = [
            (listener.public("data", events), "event", &["App\\Order:7"][..], true),
            (notification.public("notification", inner.clone()), "notification", &["App\\Order:7"], true),
            (mailable.public("mailable", inner), "mail", &["App\\Order:7"], true),
            (console, "job", &[], false),
        ];
        for (wrapper, kind, tags, silenced) in rows {
            let fields = manifest
                .horizon(&Value::Object(wrapper), &NO_ANSWERS)
                .unwrap();
            let found: Vec<&str> = fields.tags.iter().map(|tag| &**tag).collect();
            assert_eq!(
                (fields.kind, &found[..], fields.silenced),
                (kind, tags, silenced)
            );
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
