//! How a TLS connection to a Redis server is secured.

use std::path::PathBuf;

/// How a TLS connection to a Redis server is secured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// What the server's certificate has to prove.
    pub trust: Trust,
    /// Certificates of authorities to trust in place of the machine's own, in PEM.
    pub authorities: Option<PathBuf>,
    /// Certificate that is shown to the server, in PEM.
    pub certificate: Option<PathBuf>,
    /// Its private key, in PEM; by default it is in the file of the certificate.
    pub key: Option<PathBuf>,
    /// Name that the server's certificate has to have, if that is not its host name.
    pub name: Option<String>,
}

/// What a server's certificate has to prove.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Trust {
    /// A trusted authority gave it to a server of this name.
    #[default]
    Name,
    /// A trusted authority signed it; the name in it is not checked.
    AnyName,
    /// Nothing is checked: an attacker between both sides can read and change all data.
    Nothing,
}
