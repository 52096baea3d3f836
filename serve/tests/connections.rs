//! The server on loopback: slow and vanishing clients, TLS, two ports, draining.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use common::served::{blocking, request, said, start, Server, BODY};
use common::Order;
use opara_serve::server::Settings;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_and_truncated_requests_end_and_others_go_on() -> Result<()> {
    let Server { running, orders, .. } = start(Settings { read_seconds: Some(0.3), ..Settings::default() }).await?;
    drop(orders);
    let address = running.addresses()[0];
    // A head that never ends is cut off without an answer, as HTTP has none for it.
    blocking(move || said(address, "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n")).await?;
    // Nothing at all.
    blocking(move || said(address, "")).await?;
    let slow = blocking(move || said(address, &request("{", BODY.len()))).await?;
    assert!(slow.starts_with("HTTP/1.1 408 "), "{slow}");
    assert!(slow.contains("\"error\""), "{slow}");
    let large = blocking(move || said(address, &request("", 1 << 40))).await?;
    assert!(large.starts_with("HTTP/1.1 413 "), "{large}");
    let chunked =
        "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
    let chunked = blocking(move || said(address, chunked)).await?;
    assert!(chunked.starts_with("HTTP/1.1 400 "), "{chunked}");
    let nonsense = blocking(move || said(address, "\x16\x03\x01 nonsense\r\n\r\n")).await?;
    assert!(nonsense.is_empty() || nonsense.starts_with("HTTP/1.1 400 "), "{nonsense}");
    let good = blocking(move || said(address, &request(BODY, BODY.len()))).await?;
    assert!(good.starts_with("HTTP/1.1 200 ") && good.contains("[3.0,2.0]"), "{good}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_disturbs_nobody() -> Result<()> {
    let Server { running, orders, started, .. } = start(Settings::default()).await?;
    let address = running.addresses()[0];
    let first = tokio::spawn(blocking(move || said(address, &request(BODY, BODY.len()))));
    let started = blocking(move || started.recv().map(|_| started).context("a batch")).await?;
    let of = |body: &str| request(body, body.len());
    let (leaving, staying) = (of(r#"{"model": "m", "input": [7, 7, 7]}"#), of(r#"{"model": "m", "input": [9, 9]}"#));
    blocking(move || {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(leaving.as_bytes())?;
        // Closed with its request unanswered.
        Ok(())
    })
    .await?;
    let second = tokio::spawn(blocking(move || said(address, &staying)));
    orders.send(Order::Run)?;
    orders.send(Order::Run)?;
    orders.send(Order::Run)?;
    // The server may see the second request before it sees that the client left.
    let rows = blocking(move || {
        let mut rows = started.recv()?.1;
        if rows == [[7, 7, 7]] {
            rows = started.recv()?.1;
        }
        Ok(rows)
    })
    .await?;
    assert_eq!(rows, [[9, 9]]);
    assert!(first.await??.contains("[3.0,2.0]"));
    assert!(second.await??.contains("[18.0,2.0]"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_answers_what_was_taken_and_closes_the_port() -> Result<()> {
    let Server { running, service, orders, started } = start(Settings::default()).await?;
    let address = running.addresses()[0];
    let taken = tokio::spawn(blocking(move || said(address, &request(BODY, BODY.len()))));
    blocking(move || started.recv().map(|_| started).context("a batch")).await?;
    let models = service.models.clone();
    let drained = tokio::spawn(async move { running.drain(&models, Duration::ZERO, Duration::from_secs(60)).await });
    // Until the port is closed.
    blocking(move || {
        while TcpStream::connect(address).is_ok() {
            std::thread::yield_now();
        }
        Ok(())
    })
    .await?;
    assert!(!service.models.is_ready() && !drained.is_finished());
    orders.send(Order::Run)?;
    assert!(taken.await??.starts_with("HTTP/1.1 200 "));
    drained.await?
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_ports_with_tls() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    let settings = Settings { tls_cert: Some(cert), tls_key: Some(key), grpc_port: Some(0), ..Settings::default() };
    let Server { running, orders, .. } = start(settings).await?;
    drop(orders);
    assert_eq!(running.addresses().len(), 2);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone())?;
    let config = Arc::new(rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth());
    for address in running.addresses().to_vec() {
        let config = config.clone();
        let text = blocking(move || {
            let connection = rustls::ClientConnection::new(config, "localhost".try_into()?)?;
            let mut stream = rustls::StreamOwned::new(connection, TcpStream::connect(address)?);
            stream.write_all(request(BODY, BODY.len()).as_bytes())?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        });
        let text = text.await?;
        assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("[3.0,2.0]"), "{text}");
        assert!(!blocking(move || said(address, &request(BODY, BODY.len()))).await?.starts_with("HTTP/1.1 200 "));
    }
    Ok(())
}
