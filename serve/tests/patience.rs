//! Clients that are slow with a head, a body, the next message, or with taking an answer: each ends in its time, in every protocol,
//! and gives its place back.

mod common;

use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use axum::http::{Request, Response};
use bytes::Bytes;
use common::served::{blocking, request, said, start, Server, BODY};
use h2::client::{Builder, SendRequest};
use h2::{RecvStream, SendStream};
use opara_serve::server::Settings;
use prost::Message;

const READ: Duration = Duration::from_millis(1_000);
const KEEP_ALIVE: Duration = Duration::from_millis(1_500);

/// One place, and little patience. Batches run at once.
async fn impatient() -> Result<(Server, SocketAddr)> {
    let mut server = start(Settings {
        max_requests: Some(1),
        read_seconds: Some(READ.as_secs_f64()),
        keep_alive_seconds: Some(KEEP_ALIVE.as_secs_f64()),
        ..Settings::default()
    })
    .await?;
    // Without orders every batch runs.
    server.orders = std::sync::mpsc::channel().0;
    let address = server.running.addresses()[0];
    Ok((server, address))
}

/// Whether there is a place.
fn has_place(address: SocketAddr) -> Result<bool> {
    let reply = said(address, "GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    ensure!(reply.starts_with("HTTP/1.1 200 ") || reply.starts_with("HTTP/1.1 429 "), "{reply}");
    Ok(reply.starts_with("HTTP/1.1 200 "))
}

/// Returns when there is a place, or not.
#[track_caller]
fn until_place(address: SocketAddr, wanted: bool) -> impl Future<Output = Result<()>> {
    let line = std::panic::Location::caller().line();
    async move {
        let end = Instant::now() + Duration::from_secs(60);
        let waiting = blocking(move || {
            while has_place(address)? != wanted {
                ensure!(Instant::now() < end, "line {line}: whether there is a place stays {}", !wanted);
                std::thread::yield_now();
            }
            Ok(())
        });
        waiting.await
    }
}

/// What is said from now on; an error where the connection is reset.
fn rest(mut stream: TcpStream) -> Result<String> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// One request on a connection that is kept; returns its answer.
fn ask(stream: &mut TcpStream) -> Result<String> {
    stream.write_all(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let (mut reply, mut byte) = (Vec::new(), [0]);
    while !reply.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        reply.push(byte[0]);
    }
    let head = String::from_utf8(reply)?;
    let length = head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.context("a length")?];
    stream.read_exact(&mut body)?;
    Ok(head + &String::from_utf8(body)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_of_http_1_end_in_time() -> Result<()> {
    let (_server, address) = impatient().await?;
    // A head, at the beginning of a connection and behind an answer.
    let start = Instant::now();
    assert_eq!(blocking(move || said(address, "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n")).await?, "");
    assert!(start.elapsed() >= READ);
    let second = blocking(move || {
        let mut stream = TcpStream::connect(address)?;
        assert!(ask(&mut stream)?.starts_with("HTTP/1.1 200 "));
        stream.write_all(b"GET /v2 HTTP/1.1\r\n")?;
        Ok(rest(stream).unwrap_or_default())
    });
    assert_eq!(second.await?, "");
    // A body.
    let slow = blocking(move || said(address, &request("{", BODY.len()))).await?;
    assert!(slow.starts_with("HTTP/1.1 408 "), "{slow}");
    until_place(address, true).await?;
    // The next request: the connection is kept for that long, and then closed without a reset.
    let idle = blocking(move || {
        let mut stream = TcpStream::connect(address)?;
        let answer = ask(&mut stream)?;
        assert!(answer.to_lowercase().contains("keep-alive: timeout="), "{answer}");
        let start = Instant::now();
        Ok((rest(stream)?, start.elapsed()))
    });
    let (after, time) = idle.await?;
    assert_eq!(after, "");
    assert!(time >= KEEP_ALIVE - Duration::from_millis(50), "{time:?}");
    // An answer: many of them, which nobody reads.
    let input: Vec<[u32; 1]> = vec![[1]; 2_000];
    let body = serde_json::json!({"model": "m", "input": input}).to_string();
    let head = format!("POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    let unread = blocking(move || {
        let mut stream = TcpStream::connect(address)?;
        let all = [head.as_bytes(), body.as_bytes()].concat().repeat(100);
        stream.set_nonblocking(true)?;
        let mut left = all.as_slice();
        let end = Instant::now() + Duration::from_secs(120);
        while Instant::now() < end {
            // One byte more is refused where the server has closed the connection.
            match stream.write(if left.is_empty() { b"x" } else { left }) {
                Ok(written) => left = left.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(_) => return Ok(true),
            }
        }
        Ok(false)
    });
    assert!(unread.await?, "the connection of a client that reads nothing is kept");
    until_place(address, true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_around_the_end_of_a_connection_are_answered_or_may_be_sent_again() -> Result<()> {
    let keep_alive = Duration::from_millis(100);
    let server = start(Settings { keep_alive_seconds: Some(keep_alive.as_secs_f64()), ..Settings::default() }).await?;
    let address = server.running.addresses()[0];
    let mut answered = 0;
    let rounds: Vec<_> = (0..60u32)
        .map(|round| {
            tokio::spawn(blocking(move || {
                let mut stream = TcpStream::connect(address)?;
                ask(&mut stream)?;
                let at = Instant::now() + keep_alive - Duration::from_millis(10) + Duration::from_micros(300) * round;
                while Instant::now() < at {
                    std::thread::yield_now();
                }
                match stream.write_all(b"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") {
                    Ok(()) => rest(stream),
                    Err(error) => anyhow::bail!("round {round}: {error}"),
                }
            }))
        })
        .collect();
    for round in rounds {
        // Not a reset: the request was not begun.
        let reply = round.await??;
        ensure!(reply.is_empty() || reply.starts_with("HTTP/1.1 200 "), "{reply}");
        answered += usize::from(!reply.is_empty());
    }
    println!("{answered} of 60 were answered");
    Ok(())
}

/// A connection of HTTP/2 whose client lets the server send so many bytes of each answer.
async fn connected(
    address: SocketAddr,
    window: u32,
) -> Result<(SendRequest<Bytes>, tokio::task::JoinHandle<Result<(), h2::Error>>)> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    let (client, connection) = Builder::new().initial_window_size(window).handshake(stream).await?;
    Ok((client, tokio::spawn(connection)))
}

type Answering = h2::client::ResponseFuture;

async fn send(client: &SendRequest<Bytes>, path: &str, is_grpc: bool) -> Result<(Answering, SendStream<Bytes>)> {
    let request = Request::post(format!("http://x{path}"));
    let content_type = if is_grpc { "application/grpc" } else { "application/json" };
    let mut client = client.clone().ready().await?;
    Ok(client.send_request(request.header("content-type", content_type).body(())?, false)?)
}

async fn patiently<T>(of: impl std::future::Future<Output = T>) -> Result<T> {
    tokio::time::timeout(Duration::from_secs(60), of).await.context("it does not end")
}

/// The status of gRPC, in the head or behind the body.
async fn grpc_status(response: Response<RecvStream>) -> Result<String> {
    let (parts, mut body) = response.into_parts();
    while let Some(data) = patiently(body.data()).await? {
        let _ = body.flow_control().release_capacity(data?.len());
    }
    let trailers = match parts.headers.contains_key("grpc-status") {
        true => parts.headers,
        false => patiently(body.trailers()).await??.context("trailers")?,
    };
    Ok(trailers["grpc-status"].to_str()?.to_owned())
}

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
const DEADLINE_EXCEEDED: &str = "4";

/// A message of gRPC with its head.
fn framed() -> Bytes {
    use opara_serve::pb::{model_infer_request::InferInputTensor, InferTensorContents, ModelInferRequest};
    let contents = InferTensorContents { int64_contents: vec![1, 2], ..Default::default() };
    let input = InferInputTensor {
        name: "input_ids".into(),
        datatype: "INT64".into(),
        shape: vec![1, 2],
        contents: Some(contents),
        ..Default::default()
    };
    let message =
        ModelInferRequest { model_name: "m".into(), inputs: vec![input], ..Default::default() }.encode_to_vec();
    [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat().into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_of_http_2_end_in_time() -> Result<()> {
    let (_server, address) = impatient().await?;
    // A head that is cut: the frame announces more than comes.
    let head = blocking(move || {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x40\x01\x04\0\0\0\x01\x82")?;
        Ok(rest(stream).unwrap_or_default())
    });
    patiently(head).await??;
    // A body.
    let (client, connection) = connected(address, 65_535).await?;
    let (answering, _body) = send(&client, "/v1/embeddings", false).await?;
    assert_eq!(patiently(answering).await??.status(), 408);
    until_place(address, true).await?;
    // The next request: the connection ends in order.
    drop(client);
    patiently(connection).await???;
    let (client, connection) = connected(address, 65_535).await?;
    let (answering, mut body) = send(&client, "/v1/embeddings", false).await?;
    body.send_data(BODY.into(), true)?;
    assert_eq!(patiently(answering).await??.status(), 200);
    // The client stays, and is told to go.
    patiently(connection).await???;
    assert!(client.ready().await.is_err());
    // An answer, of which nothing may be sent.
    let (client, _connection) = connected(address, 0).await?;
    let (answering, mut body) = send(&client, "/v1/embeddings", false).await?;
    body.send_data(BODY.into(), true)?;
    let answer = patiently(answering).await??;
    assert_eq!(answer.status(), 200);
    assert!(!blocking(move || has_place(address)).await?, "an answer that is not sent keeps its place");
    until_place(address, true).await?;
    drop(answer);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_of_grpc_end_in_time() -> Result<()> {
    let (_server, address) = impatient().await?;
    let (client, _connection) = connected(address, 65_535).await?;
    // A message that never comes, and one that stops.
    for sent in [Bytes::new(), framed().slice(..9)] {
        let (answering, mut body) = send(&client, INFER, true).await?;
        body.send_data(sent, false)?;
        assert_eq!(grpc_status(patiently(answering).await??).await?, DEADLINE_EXCEEDED);
        until_place(address, true).await?;
    }
    // A stream without a message holds no place, before its first message and behind an answer.
    let (answering, mut body) = send(&client, STREAM, true).await?;
    let answer = patiently(answering).await??;
    assert!(blocking(move || has_place(address)).await?);
    body.send_data(framed(), false)?;
    let (parts, mut told) = answer.into_parts();
    let data = patiently(told.data()).await?.context("an answer")??;
    assert!(data.len() > 5);
    told.flow_control().release_capacity(data.len())?;
    until_place(address, true).await?;
    assert_eq!(grpc_status(Response::from_parts(parts, told)).await?, DEADLINE_EXCEEDED);
    // A message that stops.
    let (answering, mut body) = send(&client, STREAM, true).await?;
    body.send_data(framed().slice(..9), false)?;
    assert_eq!(grpc_status(patiently(answering).await??).await?, DEADLINE_EXCEEDED);
    until_place(address, true).await?;
    // An answer, of which one byte may be sent: of one message, and of a stream.
    let (client, _connection) = connected(address, 1).await?;
    for path in [INFER, STREAM] {
        let (answering, mut body) = send(&client, path, true).await?;
        body.send_data(framed(), path == INFER)?;
        let _answer = patiently(answering).await??;
        until_place(address, false).await?;
        until_place(address, true).await?;
    }
    Ok(())
}
