//! Where metrics are served.

use std::path::PathBuf;
use std::str::FromStr;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum Endpoint {
    /// Host and port.
    Tcp(String),
    /// Path of a unix socket.
    Unix(PathBuf),
}

/// The text does not say where to listen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no address to listen on: expected host and port such as 127.0.0.1:9464, or unix:/path"
)]
pub struct EndpointError(String);

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let bad = || EndpointError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') {
                Ok(Self::Unix(path.into()))
            } else {
                Err(bad())
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let is_port = port.parse::<u16>().is_ok();
        let is_open_ipv6 = host.contains(':') && !host.starts_with('[');
        if host.is_empty() || !is_port || is_open_ipv6 || host.contains('/') {
            return Err(bad());
        }
        Ok(Self::Tcp(text.to_owned()))
    }
}

impl Endpoint {
    /// Whether only processes of this machine reach it.
    pub fn is_local(&self) -> bool {
        let Self::Tcp(address) = self else {
            return true;
        };
        let host = address.rsplit_once(':').map_or("", |(host, _)| host);
        let ip = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl TryFrom<String> for Endpoint {
    type Error = EndpointError;

    fn try_from(text: String) -> Result<Self, EndpointError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_sockets_are_local() {
        for (text, is_local) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("unix:/a", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
            ("jobs.internal:1", false),
        ] {
            assert_eq!(
                text.parse::<Endpoint>().unwrap().is_local(),
                is_local,
                "{text}"
            );
        }
    }

    #[test]
    fn an_endpoint_is_host_and_port_or_a_socket() {
        for text in ["127.0.0.1:9464", "[::1]:9464", "localhost:0", "0.0.0.0:80"] {
            assert_eq!(
                text.parse::<Endpoint>().unwrap(),
                Endpoint::Tcp(text.into())
            );
        }
        let socket = "unix:/run/a.sock".parse::<Endpoint>().unwrap();
        assert_eq!(socket, Endpoint::Unix("/run/a.sock".into()));
        assert_eq!(socket.to_string(), "unix:/run/a.sock");
        for text in [
            "9464",
            ":9464",
            "localhost",
            "::1:9464",
            "http://localhost:9464",
            "a:70000",
            "unix:a.sock",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`{text}` is no address")),
                "{error}"
            );
        }
    }
}
