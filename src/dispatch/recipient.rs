//! Who gets notifications and mails.

use super::error::DispatchError;
use crate::app::Wrapping;
use crate::handler::{ModelId, ModelIdentifier};
use crate::payload::{Version, random_uuid};
use crate::php::{self, Array, ClassName, Key, Object, Value, Visibility};

/// Who gets a notification or a mail: a model of the app, or an address.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recipient {
    /// A model, such as a user.
    Model(ModelIdentifier),
    /// Somewhere that is no model: an address for mails, or what else the channel takes.
    Address {
        /// The name of the recipient of a mail.
        name: Option<String>,
        /// The address.
        address: String,
    },
}

impl From<ModelIdentifier> for Recipient {
    fn from(model: ModelIdentifier) -> Self {
        Self::Model(model)
    }
}

impl From<&str> for Recipient {
    fn from(address: &str) -> Self {
        let address = address.to_owned();
        Self::Address {
            name: None,
            address,
        }
    }
}

/// Name and address.
impl From<(&str, &str)> for Recipient {
    fn from((name, address): (&str, &str)) -> Self {
        Self::Address {
            name: Some(name.to_owned()),
            address: address.to_owned(),
        }
    }
}

/// The notification of one recipient on one channel.
pub(super) fn notification(
    notification: Object,
    recipients: Vec<Recipient>,
    channel: Option<String>,
    version: Version,
) -> Result<Wrapping, DispatchError> {
    let unfit = |what: &str| DispatchError::unfit(format!("{}: {what}", notification.class));
    let mut recipients = recipients.into_iter();
    let (Some(recipient), None) = (recipients.next(), recipients.next()) else {
        return Err(unfit("a notification has one recipient: give it with `to`"));
    };
    let channel = channel.ok_or_else(|| {
        unfit("which channels it has is PHP code: give one with `via`, for example \"mail\"")
    })?;
    let to = match recipient {
        Recipient::Model(mut model) => {
            // PHP makes a collection of it.
            if let ModelId::Single(key) = model.id {
                model.id = ModelId::Collection(vec![key]);
            }
            let bytes = php::to_vec(&model).map_err(DispatchError::unfit)?;
            Value::from_bytes(&bytes).map_err(DispatchError::unfit)?
        }
        Recipient::Address { address, .. } => {
            let routes = Array {
                pairs: vec![(Key::from(&*channel), Value::from(&*address))],
            };
            let notifiable = object("Illuminate\\Notifications\\AnonymousNotifiable");
            let notifiable = Value::Object(notifiable.public("routes", routes));
            let items: Array = [notifiable].into_iter().collect();
            let all = object("Illuminate\\Support\\Collection");
            let mut all = all.with(Visibility::Protected, "items", items);
            if version.is_at_least(8, 68) {
                all = all.with(Visibility::Protected, "escapeWhenCastingToString", false);
            }
            Value::Object(all)
        }
    };
    Ok(Wrapping::Notification {
        notification,
        id: random_uuid().as_str().into(),
        to,
        channel: channel.into(),
    })
}

/// A mailable with recipients.
pub(super) fn mailable(
    mut mailable: Object,
    recipients: Vec<Recipient>,
) -> Result<Wrapping, DispatchError> {
    let mut all = match mailable.get("to") {
        Some(Value::Array(all)) => all.clone(),
        _ => Array::default(),
    };
    for recipient in recipients {
        let Recipient::Address { name, address } = recipient else {
            let class = &mailable.class;
            let what =
                format!("{class}: only PHP can look up a model's address: give it with `to`");
            return Err(DispatchError::unfit(what));
        };
        let name = name.map_or(Value::Null, Value::from);
        let one = vec![
            (Key::from("name"), name),
            (Key::from("address"), Value::from(address)),
        ];
        let next = i64::try_from(all.pairs.len()).unwrap_or(i64::MAX);
        all.pairs
            .push((Key::Int(next), Array { pairs: one }.into()));
    }
    if !all.pairs.is_empty() {
        mailable.set("to", all);
    }
    Ok(Wrapping::Mailable(mailable))
}

fn object(class: &str) -> Object {
    Object::new(ClassName::new(class).expect("a class name"))
}
