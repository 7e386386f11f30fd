//! TLS of clients for HTTP.

use reqwest::ClientBuilder;

/// Configures TLS as for Redis: ring, and the certificates that the machine trusts. Says whether it has any.
#[cfg(feature = "tls")]
pub(crate) fn with_tls(client: ClientBuilder) -> (ClientBuilder, bool) {
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions of TLS")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (client.tls_backend_preconfigured(config), added > 0)
}

/// Without TLS, the client speaks plain HTTP only.
#[cfg(not(feature = "tls"))]
pub(crate) fn with_tls(client: ClientBuilder) -> (ClientBuilder, bool) {
    (client, false)
}
