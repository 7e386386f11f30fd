//! Who may read the page, and who may press its buttons.
//!
//! A browser on the machine of an operator reaches 127.0.0.1 for every page that it shows. A foreign page cannot read
//! answers of another origin, unless its name leads to this address (DNS rebinding): then `Host` is that name. It can
//! send requests without seeing the answer, but no header of its own without asking first, which nothing here allows.

use std::net::IpAddr;

use super::endpoint::Endpoint;
use super::token::Token;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, ORIGIN};

/// The settings of the page.
#[derive(Debug, Clone)]
pub struct PageOptions {
    /// Whether there is a page.
    pub is_served: bool,
    /// Without it nothing can be changed.
    pub token: Option<Token>,
    /// Names by which the page is reached, besides addresses and `localhost`; `None` for any.
    hosts: Option<Vec<String>>,
    /// Whether only processes of this machine, among them its browsers, reach it.
    is_local: bool,
}

impl PageOptions {
    /// A page at an endpoint, which is reached by its name there or by one of these.
    pub fn new(endpoint: &Endpoint, token: Option<Token>, mut hosts: Vec<String>) -> Self {
        let hosts = match endpoint {
            Endpoint::Tcp(address) => {
                hosts.push(without_port(address).to_owned());
                Some(hosts)
            }
            // No browser reaches it but through a server that knows its own names.
            Endpoint::Unix(_) => None,
        };
        Self {
            is_served: true,
            token,
            hosts,
            is_local: endpoint.is_local(),
        }
    }

    fn has_host(&self, host: &str) -> bool {
        let Some(hosts) = &self.hosts else {
            return true;
        };
        let name = without_port(host);
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let is_local = name.eq_ignore_ascii_case("localhost");
        is_address || is_local || hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
    }

    /// Why a request may not read the page.
    pub(super) fn refuses_reader(&self, headers: &HeaderMap) -> Option<Rejection> {
        let host = text(headers, &HOST).unwrap_or_default();
        if self.has_host(host) {
            None
        } else {
            Some(Rejection::Host)
        }
    }

    /// Why a request may not read the status. Elsewhere than on this machine, Kubernetes and others choose the name.
    pub(super) fn refuses_status(&self, headers: &HeaderMap) -> Option<Rejection> {
        (self.is_local.then(|| self.refuses_reader(headers))).flatten()
    }

    /// Why a request may not change anything.
    pub(super) fn refuses_writer(&self, headers: &HeaderMap) -> Option<Rejection> {
        if let Some(rejection) = self.refuses_reader(headers) {
            return Some(rejection);
        }
        let host = text(headers, &HOST).unwrap_or_default();
        let is_own = |origin: &str| {
            let origin = origin
                .strip_prefix("https://")
                .or(origin.strip_prefix("http://"));
            origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
        };
        if headers.contains_key(ORIGIN) && !text(headers, &ORIGIN).is_some_and(is_own) {
            return Some(Rejection::Origin);
        }
        let site = HeaderName::from_static("sec-fetch-site");
        if headers.contains_key(&site) && text(headers, &site) != Some("same-origin") {
            return Some(Rejection::Origin);
        }
        let kind = text(headers, &CONTENT_TYPE).unwrap_or_default();
        if kind
            .split(';')
            .next()
            .is_none_or(|kind| kind.trim() != "application/json")
        {
            return Some(Rejection::Kind);
        }
        let Some(token) = &self.token else {
            return Some(Rejection::ReadOnly);
        };
        let said = headers
            .get(AUTHORIZATION)
            .map_or(&b""[..], |said| said.as_bytes());
        let is_token = said
            .strip_prefix(b"Bearer ")
            .is_some_and(|said| token.is(said));
        (!is_token).then_some(Rejection::Token)
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rejection {
    /// Its `Host` is no name of this page.
    Host,
    /// Another page sends it.
    Origin,
    /// Its body is no JSON.
    Kind,
    /// There is no token, so that nothing can be changed.
    ReadOnly,
    /// It does not have the token.
    Token,
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A host without its port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The colons within an IPv6 address separate no port.
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn headers(rows: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in rows {
            headers.insert(HeaderName::from_static(name), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_page_is_read_under_its_own_names_only() {
        let tcp = Endpoint::Tcp("jobs.internal:9464".into());
        let options = PageOptions::new(&tcp, None, vec!["queue.example.com".into()]);
        for (host, is_read) in [
            ("127.0.0.1:9464", true),
            ("10.1.2.3", true),
            ("[::1]:9464", true),
            ("[::1]", true),
            ("localhost:9464", true),
            ("LOCALHOST", true),
            ("jobs.internal:9464", true),
            ("Queue.Example.com", true),
            ("attacker.example:9464", false),
            ("127.0.0.1.attacker.example", false),
            ("localhost.attacker.example", false),
            ("", false),
        ] {
            let refused = options.refuses_reader(&headers(&[("host", host)]));
            assert_eq!(refused.is_none(), is_read, "{host}");
        }
        assert_eq!(
            options.refuses_reader(&HeaderMap::new()),
            Some(Rejection::Host)
        );
        let socket = PageOptions::new(&Endpoint::Unix("/run/a".into()), None, Vec::new());
        assert_eq!(socket.refuses_reader(&headers(&[("host", "any")])), None);
    }

    #[test]
    fn the_status_is_read_under_any_name_only_from_elsewhere() {
        let foreign = headers(&[("host", "attacker.example:9464")]);
        for (endpoint, is_read) in [
            ("127.0.0.1:9464", false),
            ("localhost:9464", false),
            ("0.0.0.0:9464", true),
            ("unix:/run/a", true),
        ] {
            let options = PageOptions::new(&endpoint.parse().unwrap(), None, Vec::new());
            let refused = options.refuses_status(&foreign);
            assert_eq!(refused.is_none(), is_read, "{endpoint}");
        }
    }

    #[test]
    fn only_the_page_itself_changes_something_and_only_with_the_token() {
        let tcp = Endpoint::Tcp("127.0.0.1:9464".into());
        let token = TOKEN.parse().unwrap();
        let options = PageOptions::new(&tcp, Some(token), Vec::new());
        let good = [
            ("host", "127.0.0.1:9464"),
            ("origin", "http://127.0.0.1:9464"),
            ("sec-fetch-site", "same-origin"),
            ("content-type", "application/json"),
            ("authorization", "Bearer 0123456789abcdef"),
        ];
        assert_eq!(options.refuses_writer(&headers(&good)), None);
        for (name, value, expected) in [
            ("host", "attacker.example", Rejection::Host),
            ("origin", "http://attacker.example", Rejection::Origin),
            ("origin", "http://127.0.0.1:80", Rejection::Origin),
            ("origin", "null", Rejection::Origin),
            ("sec-fetch-site", "cross-site", Rejection::Origin),
            ("sec-fetch-site", "same-site", Rejection::Origin),
            ("content-type", "text/plain", Rejection::Kind),
            ("authorization", "Bearer 0123456789abcdeF", Rejection::Token),
            ("authorization", "0123456789abcdef", Rejection::Token),
            ("authorization", "Bearer ", Rejection::Token),
        ] {
            let bad = good.map(|(key, old)| (key, if key == name { value } else { old }));
            assert_eq!(
                options.refuses_writer(&headers(&bad)),
                Some(expected),
                "{name}: {value}"
            );
        }
        // Programs send neither origin nor site.
        let script = [good[0], good[3], good[4]];
        assert_eq!(options.refuses_writer(&headers(&script)), None);
        let without = PageOptions::new(&tcp, None, Vec::new());
        assert_eq!(
            without.refuses_writer(&headers(&good)),
            Some(Rejection::ReadOnly)
        );
    }
}
