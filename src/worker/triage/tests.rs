use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::cache::Cache;
use crate::handler::{self, BoxError, BoxFuture, Services};
use crate::payload::{Encrypter, Pattern, TargetPattern};
use crate::routing::{Canary, HandlerChoice, Mapping};
use crate::worker::test_support::{
    KEY, app, job, mapping, nothing, object, payload, payload_of, router, services, stores,
};

fn triage(mappings: Vec<Mapping>, services: Services) -> Triage {
    with_policy(mappings, UnmappedPolicy::Leave, services)
}

fn with_policy(mappings: Vec<Mapping>, policy: UnmappedPolicy, services: Services) -> Triage {
    Triage::new(app(router(mappings, policy, nothing()), services))
}

/// Where the job of a payload goes.
fn way(triage: &Triage, payload: &[u8]) -> String {
    match triage.triage(payload, &"default".into()) {
        Err(error) => format!("unreadable: {error}"),
        Ok(Candidate { triaged, .. }) => match triaged {
            Triaged::Run(routed) => format!("run {}", routed.mapping),
            Triaged::Forward(to) => format!("forward {to}"),
            Triaged::Unmapped(None) => "unmapped".to_owned(),
            Triaged::Unmapped(Some(refusal)) => format!("refused: {refusal}"),
            Triaged::Bypass(bypass) => match bypass.reason {
                BypassReason::Mismatch(why) => format!("mismatch: {why}"),
                reason => format!("{reason:?}"),
            },
        },
    }
}

#[test]
fn a_job_goes_where_the_class_inside_it_belongs() {
    let forward = HandlerChoice::Forward("slow".into());
    let mappings = vec![
        mapping("App\\Jobs\\A"),
        Mapping::new(Pattern::parse("App\\Jobs\\F").unwrap(), forward),
    ];
    let triage = triage(mappings, services("13.31.0"));
    let (a, b) = (object("App\\Jobs\\A", 0, ""), object("App\\Jobs\\B", 0, ""));
    let none = json!({});
    #[rustfmt::skip]
    let rows = [
        (payload("A", 1, &none), "run 0"),
        (payload("F", 1, &none), "forward slow"),
        (payload("B", 1, &none), "unmapped"),
        // PHP runs the class of the object, whatever the payload says.
        (payload_of("App\\Jobs\\A", &b, 1, &none), "unmapped"),
        (payload_of("App\\Jobs\\B", &a, 1, &none), "run 0"),
        (payload_of("App\\Jobs\\A", "O:10:\"App", 1, &none), "unmapped"),
        (br#"{"job":"Mailer@send","data":[1],"attempts":0}"#.to_vec(), "unmapped"),
        (br#"{"uuid":"u","attempts":0}"#.to_vec(), "unreadable: the payload has no `job`"),
    ];
    for (payload, expected) in rows {
        let text = String::from_utf8_lossy(&payload);
        assert_eq!(way(&triage, &payload), expected, "{text}");
    }
    assert!(way(&triage, b"{\"job\":").starts_with("unreadable: "));
}

/// A job of `App\Jobs\CLASS` that is encrypted with this key.
fn encrypted(class: &str, key: &str) -> Vec<u8> {
    let encrypter = Encrypter::new("13.31.0".parse().unwrap(), key, "AES-256-CBC").unwrap();
    let class = format!("App\\Jobs\\{class}");
    let command = encrypter.encrypt_command(object(&class, 0, "").as_bytes());
    payload_of(&class, &command, 1, &json!({}))
}

#[test]
fn an_encrypted_job_that_cannot_be_read_is_refused_with_what_helps() {
    let other = "another key another key another!";
    let keyless = || Services {
        encrypter: None,
        ..services("13.31.0")
    };
    let untold = || Services {
        encrypter_missing: Some("APP_KEY is empty".into()),
        ..keyless()
    };
    #[rustfmt::skip]
    let rows = [
        (services("13.31.0"), "A", KEY,   "run 0"),
        (services("13.31.0"), "A", other, "APP_PREVIOUS_KEYS"),
        (services("10.48.0"), "A", other, "Laravel 10.48.0 reads the current key only"),
        (keyless(),           "A", KEY,   "refused: the worker was not given the app's key"),
        (untold(),            "A", KEY,   "refused: APP_KEY is empty"),
        // What no handler runs is not decrypted.
        (services("13.31.0"), "B", other, "unmapped"),
        (keyless(),           "B", other, "unmapped"),
    ];
    for (services, class, key, expected) in rows {
        let version = services.version;
        // Before 11.39 only a manifest says that the class is not unique.
        let mapping = Mapping {
            is_never_unique: true,
            ..mapping("App\\Jobs\\A")
        };
        let found = way(&triage(vec![mapping], services), &encrypted(class, key));
        assert!(found.contains(expected), "{version} {class}: {found}");
    }
}

/// The class of a wrapper does not say what it holds.
#[test]
fn an_encrypted_wrapper_is_read_if_its_kind_is_mapped() {
    let listener = || Mapping {
        target: TargetPattern::listener("App\\Listeners\\A", None).unwrap(),
        ..mapping("App\\Jobs\\A")
    };
    let sealed = payload_of(
        "Illuminate\\Events\\CallQueuedListener",
        "what no key opens",
        1,
        &json!({}),
    );
    for (mapping, expected) in [
        (listener(), "refused: "),
        (mapping("App\\Jobs\\A"), "unmapped"),
    ] {
        let found = way(&triage(vec![mapping], services("13.31.0")), &sealed);
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn a_decrypted_command_replaces_the_encrypted_one_for_all_that_follows() {
    let triage = triage(vec![mapping("App\\Jobs\\A")], services("13.31.0"));
    let candidate = triage.triage(&encrypted("A", KEY), &"default".into());
    let payload = candidate.unwrap().payload;
    assert!(payload.was_encrypted());
    let command = Command::of(&payload).unwrap().unwrap();
    assert_eq!(command.as_bytes(), b"O:10:\"App\\Jobs\\A\":0:{}");
}

/// The payload of `App\Jobs\A` as Laravel writes it: the command stands behind its name.
const OF_LARAVEL: &[u8] =
    br#"{"data":{"commandName":"App\\Jobs\\A","command":"O:10:\"App\\Jobs\\B\":0:{}"}}"#;

#[test]
fn a_class_whose_payloads_lied_is_looked_into_from_then_on() {
    let mappings = vec![mapping("App\\Jobs\\A"), mapping("App\\Jobs\\C")];
    let triage = triage(mappings, services("13.31.0"));
    let holds = |needle: &Vec<u8>| memchr::memmem::find(OF_LARAVEL, needle).is_some();
    let needles = triage.needles();
    assert_eq!(needles.len(), 2);
    assert_eq!(needles.iter().filter(|needle| holds(needle)).count(), 1);
    triage.inspect_from_now_on(OF_LARAVEL);
    let needles = triage.needles();
    assert_eq!(needles.len(), 1);
    assert!(!needles.iter().any(holds));
}

#[test]
fn classes_that_have_to_be_counted_or_chosen_are_always_looked_into() {
    let limited = Mapping {
        concurrency: std::num::NonZeroUsize::new(2),
        ..mapping("App\\Jobs\\A")
    };
    let canary = Mapping {
        canary: Canary::new(50.0),
        ..mapping("App\\Jobs\\B")
    };
    let triage = triage(vec![limited, canary], services("13.31.0"));
    assert!(triage.needles().is_empty());
    assert!(triage.has_limited_mappings());
    assert_eq!([triage.is_limited(0), triage.is_limited(1)], [true, false]);
    let unlimited = self::triage(vec![mapping("App\\Jobs\\A")], services("13.31.0"));
    assert!(!unlimited.has_limited_mappings());
}

#[test]
fn a_job_that_does_not_fit_its_handler_is_left_to_php_only_if_its_mapping_says_so() {
    #[derive(Deserialize)]
    struct Wants {
        #[expect(dead_code, reason = "only its error is of interest")]
        text: String,
    }
    let way = |on_mismatch| {
        let handler = handler::function(|_: Wants, _: JobContext| async { Ok::<(), BoxError>(()) });
        let mapping = Mapping {
            on_mismatch,
            ..mapping("App\\Jobs\\A")
        };
        let router = router(vec![mapping], UnmappedPolicy::Leave, handler);
        way(&Triage::new(app(router, services("13.31.0"))), &job(1))
    };
    assert_eq!(way(OnMismatch::Exception), "run 0");
    let found = way(OnMismatch::Php);
    assert!(
        found.starts_with("mismatch: the job does not fit"),
        "{found}"
    );
}

#[test]
fn a_panic_while_an_input_is_read_is_a_reason_and_ends_nothing() {
    struct Panics;
    impl Handler for Panics {
        fn handle(&self, _: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn check(&self, _: &JobContext) -> Result<(), BoxError> {
            panic!("a bug")
        }
    }
    let context = JobContext::of_payload(&job(1)).unwrap();
    let checked = check_input(&Panics, &context).unwrap_err();
    assert!(
        checked.starts_with("reading it panicked: a bug"),
        "{checked}"
    );
}

#[test]
fn a_canary_runs_its_share_until_it_stops_itself() {
    let share = |percent| Mapping {
        canary: Canary::new(percent).and_then(|canary| canary.stop_at(10.0)),
        ..mapping("App\\Jobs\\A")
    };
    let none = triage(vec![share(0.0)], services("13.31.0"));
    assert_eq!(way(&none, &job(1)), "Canary");
    let all = triage(vec![share(100.0)], services("13.31.0"));
    assert_eq!(way(&all, &job(1)), "run 0");
    let stops = (0..20).filter(|_| all.stats.ended(0, true).is_some());
    assert_eq!(stops.count(), 1);
    assert_eq!(way(&all, &job(1)), "Canary");
    all.stats.resume();
    assert_eq!(way(&all, &job(1)), "run 0");
}

#[test]
fn a_shadow_runs_no_job() {
    let shadow = Mapping {
        mode: Mode::Shadow,
        ..mapping("App\\Jobs\\A")
    };
    let policy = UnmappedPolicy::Forward("php".into());
    let triage = with_policy(vec![shadow], policy, services("13.31.0"));
    assert_eq!(way(&triage, &job(1)), "Shadow");
}

#[test]
fn a_job_that_limits_its_exceptions_needs_the_store_that_counts_them() {
    let directory = tempfile::tempdir().unwrap();
    let broken = || {
        crate::cache::Stores::new("memcached", |_: &str| {
            Err::<Cache, _>("its driver is not supported")
        })
    };
    let array = crate::cache::Stores::new("array", |_: &str| Ok::<_, &str>(Cache::unshared()));
    let with = |stores| Services {
        stores,
        ..services("13.31.0")
    };
    let limited = payload("A", 1, &json!({"maxExceptions": 3}));
    #[rustfmt::skip]
    let rows = [
        (Some(stores(directory.path())), &limited, "run 0"),
        // A worker that knows no cache says so at its start.
        (None,                           &limited, "run 0"),
        (Some(broken()),                 &job(1),  "run 0"),
        (Some(broken()),                 &limited, "refused: it has `maxExceptions`"),
        (Some(array),                    &limited, "refused: it has `maxExceptions`, which are counted in the default cache store: no other process sees it"),
    ];
    for (stores, payload, expected) in rows {
        let found = way(
            &triage(vec![mapping("App\\Jobs\\A")], with(stores)),
            payload,
        );
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn a_reason_is_logged_once_and_names_from_payloads_fill_no_memory() {
    let triage = triage(Vec::new(), services("13.31.0"));
    assert!(triage.report_once("A: no key") && !triage.report_once("A: no key"));
    let new = (0..2000).filter(|n| triage.report_once(&format!("class {n}")));
    assert_eq!(new.count(), 999);
}
