//! Whether the servers that jobs are posted to accept connections.

use super::mappings::at_mapping;
use crate::cli::report::Report;
use crate::config::Config;
use crate::routing::{HandlerChoice, Router};

/// Reports whether the servers that jobs are posted to accept connections; behind a proxy this cannot be checked.
pub(super) async fn check(config: &Config, router: &Router) -> Report {
    let mut report = Report::default();
    let proxies = ["http_proxy", "https_proxy", "all_proxy"];
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if proxies
        .iter()
        .any(|name| is_set(name) || is_set(&name.to_uppercase()))
    {
        return report;
    }
    for (position, mapping) in router.mappings().enumerate() {
        if let HandlerChoice::Http(options) = &mapping.handler
            && let Err(error) = options.try_connect().await
        {
            let problem = format!("`{}` does not answer: {error}", options.shown_url());
            report.error(
                "mappings",
                at_mapping(config, position, &problem),
                "start the server, or correct `http`: each of its jobs is an exception until then",
            );
        }
    }
    report
}
