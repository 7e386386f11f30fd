//! A queued mailable.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, SeqAccess};
use serde_json::{Map, Value};

use super::{Bytes, MAILABLE, Subject, or_default, part, read};

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
    /// Who gets the mail, and how.
    pub envelope: Envelope,
    /// What the mail says.
    pub content: Content,
    /// What is attached to it.
    pub attachments: Attachments,
}

/// The addresses of a mail and its marks, as far as they were set before the mailable was queued.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Envelope {
    /// Recipients.
    #[serde(deserialize_with = "or_default")]
    pub to: Vec<Address>,
    /// Copies.
    #[serde(deserialize_with = "or_default")]
    pub cc: Vec<Address>,
    /// Blind copies.
    #[serde(deserialize_with = "or_default")]
    pub bcc: Vec<Address>,
    /// Reply-to addresses.
    #[serde(deserialize_with = "or_default")]
    pub reply_to: Vec<Address>,
    /// Senders; Laravel uses the first.
    #[serde(deserialize_with = "or_default")]
    pub from: Vec<Address>,
    /// Subject; if `None`, Laravel derives it from the class's name.
    pub subject: Option<String>,
    /// Mailer; the default mailer if `None`.
    pub mailer: Option<String>,
    /// Tags, for mail services that support them.
    #[serde(deserialize_with = "or_default")]
    pub tags: Vec<String>,
    /// Metadata, for mail services that support it.
    #[serde(deserialize_with = "or_default")]
    pub metadata: Map<String, Value>,
}

/// The text of a mail, as far as it was set before the mailable was queued.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Content {
    /// Language.
    pub locale: Option<String>,
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
    /// Data for the view, in addition to the mailable's public properties, in the forms of the job document. A value
    /// inside itself, as in a graph of models, is `{"$ref":null}` there.
    #[serde(deserialize_with = "or_default")]
    pub view_data: Map<String, Value>,
}

/// The attachments of a mail, as far as they were set before the mailable was queued.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Attachments {
    /// Files, by their path where the app runs.
    #[serde(rename = "attachments", deserialize_with = "or_default")]
    pub files: Vec<Attachment>,
    /// Attachments whose bytes are in the job.
    #[serde(rename = "rawAttachments", deserialize_with = "or_default")]
    pub raw: Vec<RawAttachment>,
    /// Files on the app's disks.
    #[serde(rename = "diskAttachments", deserialize_with = "or_default")]
    pub on_disks: Vec<DiskAttachment>,
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

/// The mailable's own properties, and those of Laravel's base class.
struct Parts<M>(M, Envelope, Content, Attachments);

impl<'de, M: Deserialize<'de>> Subject<'de> for Parts<M> {
    fn read<A: SeqAccess<'de>>(parts: &mut A) -> Result<Self, A::Error> {
        Ok(Self(part(parts)?, part(parts)?, part(parts)?, part(parts)?))
    }
}

impl<'de, M: DeserializeOwned> Deserialize<'de> for Mailable<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let make = |_: IgnoredAny, Parts(mailable, envelope, content, attachments)| Self {
            mailable,
            envelope,
            content,
            attachments,
        };
        read(deserializer, MAILABLE, make)
    }
}
