//! Host and port of a node.

use std::fmt;

/// Host and port of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Address {
    /// A node at this host and port.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// An address in a reply of this node. An empty host means the host of this node itself; a host `?` means that the
    /// node does not know the host, and gives `None`.
    pub(super) fn beside(&self, host: &str, port: u16) -> Option<Self> {
        match host {
            "?" => None,
            "" => Some(Self::new(&*self.host, port)),
            host => Some(Self::new(host, port)),
        }
    }

    /// The address in a redirection by this node.
    pub(super) fn redirected(&self, to: &str) -> Option<Self> {
        let (host, port) = to.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        self.beside(host, port.parse().ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_may_leave_out_the_host_or_not_know_it() {
        let node = Address::new("10.0.0.1", 7000);
        let rows = [
            ("10.0.0.2:7001", Some(Address::new("10.0.0.2", 7001))),
            (":7001", Some(Address::new("10.0.0.1", 7001))),
            ("::1:7001", Some(Address::new("::1", 7001))),
            (
                "node.example:7001",
                Some(Address::new("node.example", 7001)),
            ),
            ("?:7001", None),
            ("node.example", None),
        ];
        for (to, expected) in rows {
            assert_eq!(node.redirected(to), expected, "{to}");
        }
    }
}
