//! A server on loopback whose batches wait for orders.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use anyhow::{Context, Result};
use opara_serve::batch::{self, Batcher, Buckets, Registry};
use opara_serve::embed::{Size, TextModel};
use opara_serve::model::{EmbeddingModel, Loader, Model, Models};
use opara_serve::protocol::Service;
use opara_serve::server::{router, Listening, Running, Settings};
use parking_lot::Mutex;

use super::{Fake, Order, Started};

pub struct Server {
    pub running: Running,
    pub service: Service,
    pub orders: std::sync::mpsc::Sender<Order>,
    pub started: Started,
}

pub async fn start(settings: Settings) -> Result<Server> {
    let (fake, orders, started) = Fake::new();
    let fake = Mutex::new(Some(fake));
    let loader: Loader = Arc::new(move || {
        let engine = fake.lock().take().context("it is loaded once")?;
        let batcher = Batcher::start([engine], Buckets::new([1], [8], 8)?, batch::Settings::default());
        let tokenizer = TextModel::random(Size::Tiny, 0).tokenizer().clone();
        Ok(Arc::new(EmbeddingModel::new(batcher, tokenizer, 100, 2, Default::default())) as Arc<dyn Model>)
    });
    let models = Arc::new(Models::new([("m".to_owned(), loader)]));
    models.load("m").map_err(|failure| anyhow::anyhow!(failure.message))?;
    let registry = Arc::new(Registry::default());
    let service = Service { models, registry, limits: settings.limits(), may_control: false };
    let settings = Settings { port: Some(0), ..settings };
    let running = Listening::bind(&settings).await?.serve(router(&service, &settings)?)?;
    Ok(Server { running, service, orders, started })
}

pub const BODY: &str = r#"{"model": "m", "input": [1, 2]}"#;

pub fn request(body: &str, length: usize) -> String {
    format!("POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// What the server says to these bytes until it closes the connection.
pub fn said(address: SocketAddr, bytes: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(bytes.as_bytes())?;
    let mut reply = Vec::new();
    // The server may also reset the connection.
    let _ = stream.read_to_end(&mut reply);
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

pub async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(f).await?
}
