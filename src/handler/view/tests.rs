//! Views of commands as Laravel writes them (docs/protocol/commands.md 6 to 12).

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::handler::{JobContext, ModelIdentifier, ModelKey, Template, input};
use crate::shown::with_causes;

fn context(body: &Value) -> JobContext {
    JobContext::of_payload(body.to_string().as_bytes()).unwrap()
}

fn object_job(command: &str) -> JobContext {
    let class = command.split('"').nth(1).unwrap();
    context(&json!({
        "job": "Illuminate\\Queue\\CallQueuedHandler@call", "attempts": 0,
        "data": {"commandName": class, "command": command},
    }))
}

fn string_job(job: &str, data: &Value) -> JobContext {
    context(&json!({"job": job, "attempts": 0, "data": data}))
}

#[derive(Debug, Deserialize)]
struct OrderShipped {
    order: ModelIdentifier,
    #[serde(default)]
    note: Option<String>,
}

#[derive(Deserialize)]
struct Event {
    at: At,
}

#[derive(Deserialize)]
struct At {
    t: u8,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Chat {
    order: String,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Send {
    user: u8,
    #[serde(rename = "--queue")]
    queue: String,
}

#[derive(Deserialize)]
struct Nothing {}

const ORDER: &str = r#"O:45:"Illuminate\Contracts\Database\ModelIdentifier":5:{s:5:"class";s:9:"App\Order";s:2:"id";i:42;s:9:"relations";a:0:{}s:10:"connection";s:5:"mysql";s:15:"collectionClass";N;}"#;

fn listener(data: &str) -> JobContext {
    object_job(&format!(
        r#"O:36:"Illuminate\Events\CallQueuedListener":5:{{s:5:"class";s:20:"App\Listeners\Simple";s:6:"method";s:6:"handle";s:4:"data";{data}s:5:"tries";N;s:3:"job";N;}}"#
    ))
}

#[test]
fn a_listener_shows_its_event_and_what_else_it_is_called_with() {
    let event = format!(r#"O:23:"App\Events\OrderShipped":1:{{s:5:"order";{ORDER}}}"#);
    let by_list = listener(&format!("a:1:{{i:0;{event}}}"));
    let list = format!("a:1:{{i:0;{event}}}");
    let by_text = listener(&format!("s:{}:\"{list}\";", list.len()));
    for context in [by_list, by_text] {
        let view: Listener<OrderShipped> = input(&context).unwrap();
        assert_eq!(
            (view.class.as_str(), view.method.as_str()),
            ("App\\Listeners\\Simple", "handle")
        );
        assert_eq!(view.event.order.class.as_deref(), Some("App\\Order"));
        assert_eq!((view.event.note, view.arguments), (None, Vec::new()));
        let plain: OrderShipped = input(&context).unwrap();
        assert_eq!(plain.order.class.as_deref(), Some("App\\Order"));
        let template: Template = "order:{order.id}".parse().unwrap();
        assert_eq!(context.render(&template).unwrap(), "order:42");
        let target = context.target().unwrap();
        assert_eq!(target.name(), "App\\Listeners\\Simple");
        let document: Value = serde_json::from_str(&context.document().unwrap()).unwrap();
        assert_eq!(document["data"]["order"]["id"], 42);
        assert_eq!(document["target"]["event"], "App\\Events\\OrderShipped");
    }
}

#[test]
fn events_that_are_only_a_name_give_their_values() {
    let context = listener(r#"a:2:{i:0;s:10:"order.paid";i:1;a:1:{i:0;i:7;}}"#);
    let view: Listener<String> = input(&context).unwrap();
    assert_eq!(view.event, "order.paid");
    assert_eq!(view.arguments, [json!([7])]);
    let empty = listener("a:0:{}");
    assert_eq!(
        input::<Listener<()>>(&empty).unwrap().arguments,
        [] as [Value; 0]
    );
    assert_eq!(input::<Listener<Option<u8>>>(&empty).unwrap().event, None);
    assert_eq!(input::<Value>(&empty).unwrap(), Value::Null);
    assert!(input::<OrderShipped>(&empty).is_err());
}

#[test]
fn an_event_may_refer_to_what_stands_outside_of_it() {
    // The date in the event is a reference to the queue's own `delay` property.
    let command = r#"O:36:"Illuminate\Events\CallQueuedListener":4:{s:5:"class";s:1:"L";s:5:"delay";O:1:"D":1:{s:1:"t";i:7;}s:6:"method";s:1:"m";s:4:"data";a:1:{i:0;O:1:"E":1:{s:2:"at";r:3;}}}"#;
    let context = object_job(command);
    assert_eq!(input::<Listener<Event>>(&context).unwrap().event.at.t, 7);
    assert_eq!(input::<Event>(&context).unwrap().at.t, 7);
    let template: Template = "{at.t}".parse().unwrap();
    assert_eq!(context.render(&template).unwrap(), "7");
}

#[derive(Debug, Deserialize)]
struct InvoicePaid {
    invoice: ModelIdentifier,
    #[serde(rename = "priv")]
    private: String,
}

#[test]
fn a_notification_shows_to_whom_it_goes() {
    let to = |notifiables: &str| {
        object_job(&format!(
            "O:48:\"Illuminate\\Notifications\\SendQueuedNotifications\":5:{{s:11:\"notifiables\";{notifiables}s:12:\"notification\";O:29:\"App\\Notifications\\InvoicePaid\":5:{{s:7:\"invoice\";{ORDER}s:35:\"\0App\\Notifications\\InvoicePaid\0priv\";s:7:\"changed\";s:2:\"id\";s:3:\"b54\";s:6:\"locale\";s:2:\"fr\";s:5:\"queue\";s:5:\"notif\";}}s:8:\"channels\";a:1:{{i:0;s:4:\"mail\";}}s:5:\"tries\";i:4;s:5:\"queue\";s:5:\"notif\";}}"
        ))
    };
    let collection = ORDER.replace("i:42;", "a:2:{i:0;i:1;i:3;s:1:\"x\";}");
    let models: Notification<InvoicePaid> = input(&to(&collection)).unwrap();
    assert_eq!(models.notification.private, "changed");
    assert!(models.notification.invoice.class.is_some());
    assert_eq!(
        (
            models.id.as_deref(),
            models.locale.as_deref(),
            models.channel()
        ),
        (Some("b54"), Some("fr"), Some("mail"))
    );
    let keys = [ModelKey::Int(1), ModelKey::Text("x".into())];
    assert_eq!(models.notifiables.model_keys(), keys);
    let single: Notification<InvoicePaid> = input(&to(ORDER)).unwrap();
    assert_eq!(single.notifiables.model_keys(), [ModelKey::Int(42)]);

    let anonymous = r##"O:44:"Illuminate\Notifications\AnonymousNotifiable":1:{s:6:"routes";a:2:{s:4:"mail";a:1:{s:13:"x@example.com";s:1:"X";}s:5:"slack";s:2:"#c";}}"##;
    let wrapped = format!(
        "O:29:\"Illuminate\\Support\\Collection\":2:{{s:8:\"\0*\0items\";a:1:{{i:0;{anonymous}}}s:28:\"\0*\0escapeWhenCastingToString\";b:0;}}"
    );
    for notifiables in [anonymous, &wrapped] {
        let view: Notification<Value> = input(&to(notifiables)).unwrap();
        assert_eq!(view.route("slack"), Some(&json!("#c")));
        assert_eq!(view.route("mail"), Some(&json!({"x@example.com": "X"})));
        assert_eq!(view.route("sms"), None);
        assert_eq!(view.notifiables.model_keys(), []);
    }
    let other: Notification<Value> =
        input(&to(r#"O:9:"App\Admin":1:{s:4:"name";s:1:"A";}"#)).unwrap();
    let admin = json!({"$class": "App\\Admin", "name": "A"});
    assert_eq!(
        other.notifiables,
        Notifiables::Objects(vec![Notifiable::Other(admin)])
    );
}

#[test]
fn a_mailable_shows_its_mail_and_its_own_properties() {
    #[derive(Deserialize)]
    struct Shipped {
        order: ModelIdentifier,
        pv: u8,
    }
    let context = object_job(&format!(
        "O:34:\"Illuminate\\Mail\\SendQueuedMailable\":2:{{s:8:\"mailable\";O:16:\"App\\Mail\\Shipped\":14:{{s:5:\"order\";{ORDER}s:20:\"\0App\\Mail\\Shipped\0pv\";i:2;s:6:\"locale\";s:2:\"de\";s:2:\"to\";a:1:{{i:0;a:2:{{s:4:\"name\";s:1:\"A\";s:7:\"address\";s:7:\"a@x.com\";}}}}s:2:\"cc\";a:1:{{i:0;a:2:{{s:4:\"name\";N;s:7:\"address\";s:7:\"c@x.com\";}}}}s:3:\"bcc\";N;s:8:\"viewData\";a:1:{{s:1:\"k\";s:1:\"v\";}}s:11:\"\0*\0markdown\";s:1:\"m\";s:11:\"attachments\";a:1:{{i:0;a:2:{{s:4:\"file\";s:10:\"/srv/f.pdf\";s:7:\"options\";a:2:{{s:2:\"as\";s:5:\"f.pdf\";s:4:\"mime\";s:15:\"application/pdf\";}}}}}}s:14:\"rawAttachments\";a:1:{{i:0;a:3:{{s:4:\"data\";s:3:\"RAW\";s:4:\"name\";s:5:\"r.txt\";s:7:\"options\";a:0:{{}}}}}}s:15:\"diskAttachments\";a:1:{{i:0;a:4:{{s:4:\"disk\";s:2:\"s3\";s:4:\"path\";s:7:\"p/q.txt\";s:4:\"name\";s:5:\"q.txt\";s:7:\"options\";a:0:{{}}}}}}s:7:\"\0*\0tags\";a:1:{{i:0;s:2:\"t1\";}}s:11:\"\0*\0metadata\";a:1:{{s:1:\"m\";s:1:\"1\";}}s:5:\"queue\";s:4:\"mail\";}}s:5:\"tries\";i:2;}}"
    ));
    let view: Mailable<Shipped> = input(&context).unwrap();
    assert_eq!(
        (view.mailable.pv, view.content.locale.as_deref()),
        (2, Some("de"))
    );
    assert!(view.mailable.order.class.is_some());
    let address = |name: Option<&str>, address: &str| Address {
        name: name.map(str::to_owned),
        address: address.to_owned(),
    };
    assert_eq!(view.envelope.to, [address(Some("A"), "a@x.com")]);
    assert_eq!(view.envelope.cc, [address(None, "c@x.com")]);
    assert_eq!(
        (view.envelope.bcc, view.envelope.subject),
        (Vec::new(), None)
    );
    assert_eq!(view.content.markdown.as_deref(), Some("m"));
    assert_eq!(view.content.view_data["k"], "v");
    assert_eq!(view.attachments.files[0].options["as"], "f.pdf");
    assert_eq!(view.attachments.raw[0].data, b"RAW");
    assert_eq!(view.attachments.on_disks[0].path, "p/q.txt");
    assert_eq!(view.envelope.tags, ["t1"]);
    assert_eq!(view.envelope.metadata["m"], "1");
    assert!(!format!("{:?}", view.attachments.raw).contains("RAW"));
}

#[test]
fn a_broadcast_shows_its_event() {
    let context = object_job(
        r#"O:44:"Illuminate\Broadcasting\UniqueBroadcastEvent":3:{s:5:"event";O:15:"App\Events\Chat":2:{s:5:"order";s:3:"txt";s:6:"socket";s:7:"123.456";}s:8:"uniqueId";s:2:"u7";s:9:"uniqueFor";i:60;}"#,
    );
    let view: Broadcast<Chat> = input(&context).unwrap();
    assert_eq!(view.event.order, "txt");
    assert_eq!(
        (view.socket.as_deref(), view.unique_id.as_deref()),
        (Some("123.456"), Some("u7"))
    );
    assert_eq!(input::<Chat>(&context).unwrap(), view.event);
}

#[test]
fn properties_of_the_app_with_names_of_laravel_hinder_no_view() {
    let rows = [
        ("N;", None),
        ("s:3:\"1.2\";", Some("1.2")),
        ("i:7;", Some("7")),
        ("a:1:{i:0;s:1:\"x\";}", None),
        (ORDER, None),
    ];
    for (value, expected) in rows {
        let event =
            format!(r#"O:15:"App\Events\Chat":2:{{s:6:"socket";{value}s:5:"order";s:3:"txt";}}"#);
        let context = object_job(&format!(
            r#"O:38:"Illuminate\Broadcasting\BroadcastEvent":1:{{s:5:"event";{event}}}"#
        ));
        let view: Broadcast<Chat> = input(&context).unwrap();
        let found = (&*view.event.order, view.socket.as_deref());
        assert_eq!(found, ("txt", expected), "{value}");
        let context = object_job(&format!(
            r#"O:48:"Illuminate\Notifications\SendQueuedNotifications":3:{{s:11:"notifiables";{ORDER}s:12:"notification";O:1:"N":3:{{s:2:"id";{value}s:6:"locale";{value}s:5:"order";s:3:"txt";}}s:8:"channels";a:0:{{}}}}"#
        ));
        let view: Notification<Chat> = input(&context).unwrap();
        let found = (
            &*view.notification.order,
            view.id.as_deref(),
            view.locale.as_deref(),
        );
        assert_eq!(found, ("txt", expected, expected), "{value}");
    }
}

#[test]
fn graphs_in_what_a_handler_may_not_need_hinder_no_view() {
    let within_itself = |class: &str| json!({"$class": class, "me": {"$ref": null}});
    let context = object_job(
        r#"O:34:"Illuminate\Mail\SendQueuedMailable":1:{s:8:"mailable";O:1:"M":2:{s:5:"order";s:1:"o";s:8:"viewData";a:1:{s:4:"post";O:4:"Post":1:{s:2:"me";r:5;}}}}"#,
    );
    let view: Mailable<Chat> = input(&context).unwrap();
    assert_eq!(view.mailable.order, "o");
    assert_eq!(view.content.view_data["post"], within_itself("Post"));

    let context = listener(r#"a:2:{i:0;s:10:"order.paid";i:1;O:4:"Post":1:{s:2:"me";r:6;}}"#);
    let view: Listener<String> = input(&context).unwrap();
    assert_eq!(
        (&*view.event, view.arguments),
        ("order.paid", vec![within_itself("Post")])
    );

    let context = object_job(
        r#"O:48:"Illuminate\Notifications\SendQueuedNotifications":3:{s:11:"notifiables";O:5:"Admin":1:{s:2:"me";r:2;}s:12:"notification";O:1:"N":1:{s:5:"order";s:1:"o";}s:8:"channels";a:0:{}}"#,
    );
    let view: Notification<Chat> = input(&context).unwrap();
    assert_eq!(view.notification.order, "o");
    let admin = Notifiable::Other(within_itself("Admin"));
    assert_eq!(view.notifiables, Notifiables::Objects(vec![admin]));
}

#[test]
fn a_command_shows_its_parameters() {
    let command = |data: &str| {
        object_job(&format!(
            "O:43:\"Illuminate\\Foundation\\Console\\QueuedCommand\":1:{{s:7:\"\0*\0data\";{data}}}"
        ))
    };
    let with = command(
        r#"a:2:{i:0;s:9:"mail:send";i:1;a:3:{s:4:"user";i:1;s:7:"--queue";s:7:"default";i:5;b:1;}}"#,
    );
    let view: ArtisanCommand = input(&with).unwrap();
    assert_eq!(
        (view.name.as_str(), view.line.as_deref()),
        ("mail:send", None)
    );
    let names: Vec<&str> = view
        .parameters
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names, ["user", "--queue", "5"]);
    assert_eq!(view.parameter("--queue"), Some(&json!("default")));
    let send = Send {
        user: 1,
        queue: "default".into(),
    };
    assert_eq!(view.parameters::<Send>().unwrap(), send);
    assert_eq!(input::<Send>(&with).unwrap(), send);

    let without = command(r#"a:1:{i:0;s:12:"interop:note";}"#);
    let view: ArtisanCommand = input(&without).unwrap();
    assert_eq!(
        (view.name.as_str(), view.parameters.len()),
        ("interop:note", 0)
    );
    input::<Nothing>(&without).unwrap();

    let line = command(r#"a:1:{i:0;s:24:"mail:send 1 --queue=high";}"#);
    let view: ArtisanCommand = input(&line).unwrap();
    assert_eq!(
        (view.name.as_str(), view.line.as_deref()),
        ("mail:send", Some("1 --queue=high"))
    );
    assert!(view.parameters::<Value>().is_err());
    assert_eq!(line.target().unwrap().name(), "mail:send");
    let document: Value = serde_json::from_str(&line.document().unwrap()).unwrap();
    assert_eq!(document["data"], "1 --queue=high");
}

#[test]
fn a_string_job_shows_its_data() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Data {
        a: u8,
    }
    let with = string_job("App\\Jobs\\Legacy@run", &json!({"a": 1}));
    let view: StringJob<Data> = input(&with).unwrap();
    assert_eq!(
        (view.class.as_str(), view.method.as_str(), view.data.a),
        ("App\\Jobs\\Legacy", "run", 1)
    );
    assert_eq!(input::<Data>(&with).unwrap(), Data { a: 1 });
    let template: Template = "{a}".parse().unwrap();
    assert_eq!(with.render(&template).unwrap(), "1");
    let without = string_job("App\\Jobs\\Legacy", &json!(""));
    let view: StringJob<String> = input(&without).unwrap();
    assert_eq!((view.method.as_str(), view.data.as_str()), ("fire", ""));
    let wrong = input::<StringJob<Data>>(&without).unwrap_err().to_string();
    assert!(wrong.contains("line 1"), "{wrong}");
}

#[test]
fn a_view_of_another_kind_of_job_is_refused_by_name() {
    let context = string_job("A", &json!({}));
    let error = input::<Listener<Value>>(&context).unwrap_err().to_string();
    assert!(
        error.contains("a `Listener`, which views a listener, and the job is a string"),
        "{error}"
    );
    let job = object_job(r#"O:1:"J":0:{}"#);
    assert!(input::<Box<Mailable<Value>>>(&job).is_err());
    assert!(input::<Value>(&job).is_ok());
    // Only handlers' inputs are views.
    assert!(crate::php::from_slice::<StringJob<Value>>(br#"O:1:"J":0:{}"#).is_err());
    assert!(serde_json::from_str::<StringJob<Value>>("[{}, 1]").is_err());
}

#[test]
fn errors_inside_a_view_name_the_property() {
    let context = listener(r#"a:1:{i:0;O:1:"E":1:{s:5:"order";i:1;}}"#);
    let error = input::<Listener<OrderShipped>>(&context).unwrap_err();
    let error = with_causes(&error);
    assert!(error.contains("order"), "{error}");
}
