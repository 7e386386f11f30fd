//! URLs of queues.

use super::options::SqsOptions;

/// Ending of the names of queues that keep the order of their groups.
const FIFO: &str = ".fifo";

/// A queue's URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Url(String);

impl Url {
    /// The URL of a queue as Laravel makes it: a name that is a URL stays, others get prefix and suffix.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\SqsQueue::getQueue`, `suffixQueue`.
    pub(super) fn of(name: &str, options: &SqsOptions) -> Self {
        if is_url(name) {
            return Self(name.to_owned());
        }
        let suffix = &*options.suffix;
        let (stem, fifo) = match name.strip_suffix(FIFO) {
            Some(stem) => (stem, FIFO),
            None => (name, ""),
        };
        let stem = stem.strip_suffix(suffix).unwrap_or(stem);
        let prefix = options.prefix.trim_end_matches('/');
        Self(format!("{prefix}/{stem}{suffix}{fifo}"))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the queue keeps the order of its groups.
    pub(super) fn is_fifo(&self) -> bool {
        self.0.ends_with(FIFO)
    }

    /// Scheme, host and port, to which requests about the queue go; `None` if it is no URL.
    pub(super) fn origin(&self) -> Option<&str> {
        let (scheme, rest) = self.0.split_once("://")?;
        let host = rest.split('/').next().filter(|host| !host.is_empty())?;
        matches!(scheme, "http" | "https").then(|| &self.0[..scheme.len() + 3 + host.len()])
    }
}

/// Whether a name is a URL, near enough to `filter_var` for what queues are called.
fn is_url(name: &str) -> bool {
    name.split_once("://")
        .is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_the_urls_that_laravel_makes() {
        let options = |suffix: &str| SqsOptions {
            prefix: "https://sqs.eu-central-1.amazonaws.com/42/".into(),
            suffix: suffix.into(),
            ..SqsOptions::default()
        };
        let rows = [
            ("orders", "", "orders"),
            ("orders", "-prod", "orders-prod"),
            ("orders-prod", "-prod", "orders-prod"),
            ("orders.fifo", "-prod", "orders-prod.fifo"),
            ("orders-prod.fifo", "-prod", "orders-prod.fifo"),
            ("orders.fifo", "", "orders.fifo"),
        ];
        for (name, suffix, expected) in rows {
            let url = Url::of(name, &options(suffix));
            assert_eq!(
                url.as_str(),
                format!("https://sqs.eu-central-1.amazonaws.com/42/{expected}")
            );
            assert_eq!(url.origin(), Some("https://sqs.eu-central-1.amazonaws.com"));
        }
        let url = Url::of("http://127.0.0.1:5000/1/q.fifo", &options("-prod"));
        assert_eq!(url.as_str(), "http://127.0.0.1:5000/1/q.fifo");
        assert_eq!(url.origin(), Some("http://127.0.0.1:5000"));
        assert!(url.is_fifo());
        let url = Url::of("a", &SqsOptions::default());
        assert_eq!((url.as_str(), url.origin()), ("/a", None));
    }
}
