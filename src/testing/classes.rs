//! Facts about classes that no manifest describes.

use std::path::Path;

use serde_json::{Value as Json, json};

use crate::app::{Class, Manifest};

/// Properties of `Illuminate\Bus\Queueable`, with their defaults as PHP serializes them.
const QUEUEABLE: [(&str, &str); 9] = [
    ("connection", NULL),
    ("queue", NULL),
    ("delay", NULL),
    ("afterCommit", NULL),
    ("middleware", EMPTY),
    ("chained", EMPTY),
    ("chainConnection", NULL),
    ("chainQueue", NULL),
    ("chainCatchCallbacks", NULL),
];

/// `N;` and `a:0:{}` in base64.
const NULL: &str = "Tjs=";
const EMPTY: &str = "YTowOnt9";

/// A manifest without classes.
pub(super) fn manifest(version: &str) -> Manifest {
    let json = json!({
        "artisand": 1, "laravel": version, "generated_at": 0, "config": {},
        "paths": {"base": "/nowhere", "storage": "/nowhere"},
    });
    let manifest = Manifest::parse(Path::new("artisand.json"), json.to_string().as_bytes());
    manifest.expect("a manifest")
}

/// A queued class with these public properties.
pub(super) fn class(name: &str, fields: &[&str]) -> Class {
    let property = |field: &str, default: Option<&str>| {
        let mut json = json!({"name": field, "visibility": "public", "class": name});
        if let Some(default) = default {
            json["default"] = default.into();
        }
        json
    };
    let own = fields.iter().map(|field| property(field, None));
    let inherited = QUEUEABLE.iter();
    let inherited = inherited.filter(|(name, _)| !fields.contains(name));
    let inherited = inherited.map(|(name, default)| property(name, Some(default)));
    let properties: Vec<Json> = own.chain(inherited).collect();
    let json = json!({
        "kind": "job", "file": "", "properties": properties,
        "flags": {"queued": true, "tags": false},
        "interfaces": ["Illuminate\\Contracts\\Queue\\ShouldQueue"],
        "uses": ["Illuminate\\Bus\\Queueable", "Illuminate\\Queue\\SerializesModels"],
    });
    serde_json::from_value(json).expect("a class")
}
