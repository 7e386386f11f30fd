//! One Redis server to which connections are opened.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::AsyncDNSResolver;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisFuture, RedisResult,
};

use super::error::Error;
use super::tls::TlsOptions;

/// Who asks a server, and for which database.
#[derive(Clone, Default)]
pub(super) struct Login {
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
}

impl Login {
    fn settings(&self) -> RedisConnectionInfo {
        let mut settings = RedisConnectionInfo::default().set_db(self.database);
        if let Some(username) = &self.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        settings
    }
}

/// One Redis server to which connections are opened.
#[derive(Clone)]
pub(super) struct Endpoint {
    client: Client,
    /// The host, if the client knows the server by the name in its certificate.
    host: Option<String>,
}

impl Endpoint {
    /// The server behind a unix socket.
    pub(super) fn unix(path: &Path, login: &Login) -> Result<Self, Error> {
        let addr = ConnectionAddr::Unix(path.to_owned());
        let client = Client::open(info(addr, login, &path.display())?);
        Ok(Self {
            client: client.map_err(refused(&path.display()))?,
            host: None,
        })
    }

    /// The server at a host and port, over TLS if that is said.
    pub(super) fn tcp(
        host: &str,
        port: u16,
        tls: Option<&TlsOptions>,
        login: &Login,
    ) -> Result<Self, Error> {
        let Some(tls) = tls else {
            let address = format!("{host}:{port}");
            let info = info(ConnectionAddr::Tcp(host.to_owned(), port), login, &address)?;
            let client = Client::open(info).map_err(refused(&address))?;
            return Ok(Self { client, host: None });
        };
        let name = tls.name.as_deref().unwrap_or(host);
        Ok(Self {
            client: with_tls(name, port, tls, login)?,
            host: (name != host).then(|| host.to_owned()),
        })
    }

    /// Opens a connection. Without a time for replies, those who send commands limit it.
    pub(super) async fn open(
        &self,
        connect_timeout: Duration,
        response_timeout: Option<Duration>,
    ) -> RedisResult<MultiplexedConnection> {
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connect_timeout))
            .set_response_timeout(response_timeout);
        if let Some(host) = &self.host {
            config = config.set_dns_resolver(Fixed(host.clone()));
        }
        let client = &self.client;
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }
}

/// Finds the addresses of this host, whatever name is asked for.
struct Fixed(String);

impl AsyncDNSResolver for Fixed {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _name: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((self.0.as_str(), port)).await?;
            let found: Vec<SocketAddr> = found.collect();
            Ok(Box::new(found.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

fn info(
    addr: ConnectionAddr,
    login: &Login,
    address: &dyn std::fmt::Display,
) -> Result<ConnectionInfo, Error> {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    let info = addr.into_connection_info().map_err(refused(address))?;
    Ok(info
        .set_redis_settings(login.settings())
        .set_tcp_settings(tcp))
}

fn refused(address: &dyn std::fmt::Display) -> impl Fn(redis::RedisError) -> Error {
    let address = address.to_string();
    move |source| Error::Connect {
        address: address.clone(),
        source,
    }
}

#[cfg(not(feature = "tls"))]
fn with_tls(_name: &str, _port: u16, _tls: &TlsOptions, _login: &Login) -> Result<Client, Error> {
    Err(Error::NoTls)
}

#[cfg(feature = "tls")]
use secured::with_tls;

#[cfg(feature = "tls")]
mod secured {
    use std::path::Path;

    use redis::{Client, ClientTlsConfig, ConnectionAddr, TlsCertificates};

    use super::{Login, info, refused};
    use crate::connection::error::Error;
    use crate::connection::tls::{TlsOptions, Trust};

    /// A client that knows the server by this name.
    pub(super) fn with_tls(
        name: &str,
        port: u16,
        tls: &TlsOptions,
        login: &Login,
    ) -> Result<Client, Error> {
        install_crypto();
        let address = format!("tls://{name}:{port}");
        let addr = ConnectionAddr::TcpTls {
            host: name.to_owned(),
            port,
            insecure: tls.trust == Trust::Nothing,
            tls_params: None,
        };
        let info = info(addr, login, &address)?;
        let client = match certificates(tls)? {
            Some(certificates) => Client::build_with_tls(info, certificates),
            None => Client::open(info),
        };
        let client = client.map_err(refused(&address))?;
        if tls.trust != Trust::AnyName {
            return Ok(client);
        }
        let info = client.get_connection_info().clone();
        let mut addr = info.addr().clone();
        addr.set_danger_accept_invalid_hostnames(true);
        Client::open(info.set_addr(addr)).map_err(refused(&address))
    }

    /// The certificates and keys, if any are named.
    fn certificates(tls: &TlsOptions) -> Result<Option<TlsCertificates>, Error> {
        let root_cert = tls.authorities.as_deref().map(read).transpose()?;
        let client_cert = tls.certificate.as_deref().map(read).transpose()?;
        let client_key = tls.key.as_deref().map(read).transpose()?;
        if root_cert.is_none() && client_cert.is_none() {
            return Ok(None);
        }
        let client_tls = client_cert.map(|client_cert| ClientTlsConfig {
            client_key: client_key.unwrap_or_else(|| client_cert.clone()),
            client_cert,
        });
        Ok(Some(TlsCertificates {
            client_tls,
            root_cert,
        }))
    }

    fn read(path: &Path) -> Result<Vec<u8>, Error> {
        std::fs::read(path).map_err(|source| Error::Certificate {
            path: path.to_owned(),
            source,
        })
    }

    pub(in crate::connection) fn install_crypto() {
        // Fails only if the process has already installed a provider, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

#[cfg(feature = "tls")]
pub(super) use secured::install_crypto;
