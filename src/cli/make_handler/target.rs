//! What the target of a handler is called, and which of its properties are Laravel's own.

use crate::payload::{Kind, Target, is_bookkeeping};

/// The method of a target.
pub(super) fn method(target: &Target) -> Option<&str> {
    match target {
        Target::Listener { method, .. } | Target::String { method, .. } => {
            Some(&**method).filter(|method| !method.is_empty())
        }
        _ => None,
    }
}

/// A target with its method, in the notation of mappings.
pub(super) fn whole_name(target: &Target) -> String {
    let method = method(target).map(|method| format!("@{method}"));
    format!("{}{}", target.name(), method.unwrap_or_default())
}

/// Whether a handler's type needs no field for a property: the job document leaves it out, it says how
/// a job is run and not what it does, or the handler's view contains it.
pub(super) fn is_laravels(kind: Kind, name: &str) -> bool {
    const LIMITS: &str = "backoff debounceFor deleteWhenMissingModels failOnTimeout maxExceptions \
        retryUntil shouldBeEncrypted timeout tries uniqueFor";
    const MAILABLE: &str = "assertionableRenderStrings attachments bcc callbacks cc diskAttachments \
        from html locale mailer markdown metadata rawAttachments replyTo subject tags textView theme \
        to view viewData";
    let of_kind = match kind {
        Kind::Job => "",
        Kind::Listener | Kind::Broadcast => "socket",
        Kind::Notification => "id locale",
        Kind::Mailable => MAILABLE,
        Kind::Command | Kind::Closure | Kind::Batch | Kind::String => return false,
    };
    let mut names = LIMITS.split(' ').chain(of_kind.split(' '));
    is_bookkeeping(name) || names.any(|known| known == name)
}
