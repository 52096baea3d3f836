//! Ports, TLS, slow clients, and the way out.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use axum_server::{Control, Handle};
use tokio::signal::unix::SignalKind;
use tokio::task::JoinHandle;

use crate::model::Models;

use super::activity::Times;
use super::guard::Guarding;
use super::settings::Settings;

/// Ports that are bound, and how connections are made.
pub struct Listening {
    listeners: Vec<TcpListener>,
    tls: Option<RustlsConfig>,
    times: Times,
}

/// A server that answers.
pub struct Running {
    addresses: Vec<SocketAddr>,
    servers: Vec<JoinHandle<std::io::Result<()>>>,
    control: Control,
}

impl Listening {
    /// Binds the ports, and reads certificate and key.
    ///
    /// # Errors
    /// A port that is taken; files that are not sound.
    pub async fn bind(settings: &Settings) -> Result<Self> {
        let host = settings.host.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let ports = [settings.port.unwrap_or(8_000)].into_iter().chain(settings.grpc_port);
        let bind = |port| {
            let listener =
                TcpListener::bind((host, port)).with_context(|| format!("cannot listen on {host}:{port}"))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listeners = ports.map(bind).collect::<Result<_>>()?;
        let tls = match (&settings.tls_cert, &settings.tls_key) {
            (Some(cert), Some(key)) => {
                let config = RustlsConfig::from_pem_file(cert, key).await;
                Some(config.with_context(|| format!("cannot use {} with {}", cert.display(), key.display()))?)
            }
            _ => None,
        };
        let times = Times { read: settings.read_time(), keep_alive: settings.keep_alive_time() };
        Ok(Self { listeners, tls, times })
    }

    /// Answers with this router.
    ///
    /// # Errors
    /// Those of the sockets.
    pub fn serve(self, router: Router) -> Result<Running> {
        let control = Control::new();
        let (mut addresses, mut servers) = (Vec::new(), Vec::new());
        let times = self.times;
        for listener in self.listeners {
            let address = listener.local_addr()?;
            let mut server = axum_server::from_tcp(listener)?.handle(Handle::with_control(control.clone()));
            // It would count from the answer before.
            server.http_builder().http1().header_read_timeout(None);
            // A client that is gone without a word is noticed by a ping.
            server.http_builder().http2().keep_alive_interval(Duration::from_secs(20)).adaptive_window(true);
            let service = router.clone().into_make_service_with_connect_info::<SocketAddr>();
            // Pieces of a stream are small: one is not to wait for a client's acknowledgement of the last.
            servers.push(match &self.tls {
                Some(tls) => {
                    let acceptor = RustlsAcceptor::new(tls.clone()).handshake_timeout(times.read);
                    let acceptor = acceptor.acceptor(NoDelayAcceptor::new());
                    tokio::spawn(server.acceptor(Guarding { acceptor, times }).serve(service))
                }
                None => {
                    let acceptor = NoDelayAcceptor::new();
                    tokio::spawn(server.acceptor(Guarding { acceptor, times }).serve(service))
                }
            });
            tracing::info!(%address, tls = self.tls.is_some(), "listening");
            addresses.push(address);
        }
        Ok(Running { addresses, servers, control })
    }
}

impl Running {
    /// Where it answers: the port, and the second one if there is one.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Not ready from now on; accepts no more connections after `delay`; then waits at most `time` until every request that
    /// was taken is answered.
    ///
    /// # Errors
    /// Those of the sockets.
    pub async fn drain(self, models: &Arc<Models>, delay: Duration, time: Duration) -> Result<()> {
        models.announce_drain();
        tracing::info!(connections = self.control.connection_count(), "draining");
        tokio::time::sleep(delay).await;
        self.control.graceful_shutdown(Some(time));
        for server in self.servers {
            server.await??;
        }
        let models = models.clone();
        tokio::task::spawn_blocking(move || models.drain()).await?;
        tracing::info!("drained");
        Ok(())
    }
}

/// Returns when the process is asked to stop.
///
/// # Errors
/// A handler that cannot be installed.
pub(super) async fn signal() -> Result<()> {
    let mut terminate = tokio::signal::unix::signal(SignalKind::terminate())?;
    let mut interrupt = tokio::signal::unix::signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
