//! A queued mailable.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny};
use serde_json::{Map, Value};

use super::{Bytes, MAILABLE, Twice, or_default, read};

/// A queued mailable (`SendQueuedMailable`) with what was set on it before it was queued.
///
/// `M` reads the mailable's own properties. What `build()`, `envelope()`,
/// `content()`, `attachments()` and `headers()` set is made when PHP sends the
/// mail, and is not in the job: subject and view are mostly `None` here.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Mailable<M> {
    /// The mailable.
    pub mailable: M,
    /// Recipients.
    pub to: Vec<Address>,
    /// Copies.
    pub cc: Vec<Address>,
    /// Blind copies.
    pub bcc: Vec<Address>,
    /// Reply-to addresses.
    pub reply_to: Vec<Address>,
    /// Senders; Laravel uses the first.
    pub from: Vec<Address>,
    /// Subject; if `None`, Laravel derives it from the class's name.
    pub subject: Option<String>,
    /// Language.
    pub locale: Option<String>,
    /// Mailer; the default mailer if `None`.
    pub mailer: Option<String>,
    /// Name of the view.
    pub view: Option<String>,
    /// Name of the view for plain text.
    pub text_view: Option<String>,
    /// Name of the markdown view.
    pub markdown: Option<String>,
    /// Complete HTML body.
    pub html: Option<String>,
    /// Markdown theme.
    pub theme: Option<String>,
    /// Data for the view, in addition to the mailable's public properties.
    pub view_data: Map<String, Value>,
    /// Files to attach, by their path where the app runs.
    pub attachments: Vec<Attachment>,
    /// Attachments whose bytes are in the job.
    pub raw_attachments: Vec<RawAttachment>,
    /// Attachments from the app's disks.
    pub disk_attachments: Vec<DiskAttachment>,
    /// Tags, for mail services that support them.
    pub tags: Vec<String>,
    /// Metadata, for mail services that support it.
    pub metadata: Map<String, Value>,
}

/// A mail address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Address {
    /// Name of the addressee.
    #[serde(default)]
    pub name: Option<String>,
    /// The address.
    pub address: String,
}

/// A file to attach.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Attachment {
    /// Path of the file where the app runs.
    pub file: String,
    /// `as`: name in the mail; `mime`: its type.
    #[serde(default, deserialize_with = "or_default")]
    pub options: Map<String, Value>,
}

/// An attachment whose bytes are in the job.
#[derive(Clone, Default, PartialEq)]
pub struct RawAttachment {
    /// The bytes.
    pub data: Vec<u8>,
    /// Name in the mail.
    pub name: String,
    /// `mime`: its type.
    pub options: Map<String, Value>,
}

impl std::fmt::Debug for RawAttachment {
    /// Shows the size instead of the data, which may be long.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawAttachment")
            .field("data", &format_args!("{} bytes", self.data.len()))
            .field("name", &self.name)
            .field("options", &self.options)
            .finish()
    }
}

impl<'de> Deserialize<'de> for RawAttachment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            data: Bytes,
            name: String,
            #[serde(default, deserialize_with = "or_default")]
            options: Map<String, Value>,
        }

        let raw = Raw::deserialize(deserializer)?;
        Ok(Self {
            data: raw.data.0,
            name: raw.name,
            options: raw.options,
        })
    }
}

/// A file on one of the app's disks to attach.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct DiskAttachment {
    /// The disk; the default disk if `None`.
    #[serde(default)]
    pub disk: Option<String>,
    /// Path on the disk.
    pub path: String,
    /// Name in the mail; the name of the file if `None`.
    #[serde(default)]
    pub name: Option<String>,
    /// `mime`: its type.
    #[serde(default, deserialize_with = "or_default")]
    pub options: Map<String, Value>,
}

/// Properties of Laravel's base class of mailables; missing ones have their default.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Base {
    #[serde(deserialize_with = "or_default")]
    to: Vec<Address>,
    #[serde(deserialize_with = "or_default")]
    cc: Vec<Address>,
    #[serde(deserialize_with = "or_default")]
    bcc: Vec<Address>,
    #[serde(deserialize_with = "or_default")]
    reply_to: Vec<Address>,
    #[serde(deserialize_with = "or_default")]
    from: Vec<Address>,
    subject: Option<String>,
    locale: Option<String>,
    mailer: Option<String>,
    view: Option<String>,
    text_view: Option<String>,
    markdown: Option<String>,
    html: Option<String>,
    theme: Option<String>,
    #[serde(deserialize_with = "or_default")]
    view_data: Map<String, Value>,
    #[serde(deserialize_with = "or_default")]
    attachments: Vec<Attachment>,
    #[serde(deserialize_with = "or_default")]
    raw_attachments: Vec<RawAttachment>,
    #[serde(deserialize_with = "or_default")]
    disk_attachments: Vec<DiskAttachment>,
    #[serde(deserialize_with = "or_default")]
    tags: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    metadata: Map<String, Value>,
}

impl<'de, M: DeserializeOwned> Deserialize<'de> for Mailable<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let make = |_: IgnoredAny, Twice(mailable, base): Twice<M, Base>| Self {
            mailable,
            to: base.to,
            cc: base.cc,
            bcc: base.bcc,
            reply_to: base.reply_to,
            from: base.from,
            subject: base.subject,
            locale: base.locale,
            mailer: base.mailer,
            view: base.view,
            text_view: base.text_view,
            markdown: base.markdown,
            html: base.html,
            theme: base.theme,
            view_data: base.view_data,
            attachments: base.attachments,
            raw_attachments: base.raw_attachments,
            disk_attachments: base.disk_attachments,
            tags: base.tags,
            metadata: base.metadata,
        };
        read(deserializer, MAILABLE, make)
    }
}
