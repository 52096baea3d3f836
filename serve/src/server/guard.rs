//! A connection whose client has to keep to times: its stream, and its requests.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{header, HeaderValue, Request, Response, Version};
use axum_server::accept::Accept;
use axum_server::ConnectionShutdown;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep};
use tower::Service;

use super::activity::{Activity, Times, Verdict};

/// Accepts connections as another acceptor does, and guards them.
#[derive(Clone)]
pub(super) struct Guarding<A> {
    pub acceptor: A,
    pub times: Times,
}

impl<A, I, S> Accept<I, S> for Guarding<A>
where
    A: Accept<I, S>,
    A::Future: Send + 'static,
    A::Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Guarded<A::Stream>;
    type Service = Watched<A::Service>;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Self::Stream, Self::Service)>> + Send>>;

    fn accept(&self, stream: I, service: S) -> Self::Future {
        let (accepting, times) = (self.acceptor.accept(stream, service), self.times);
        Box::pin(async move {
            let (stream, service) = accepting.await?;
            let activity = Activity::new(times);
            let service = Watched { service, activity: activity.clone() };
            Ok((Guarded { stream: Some(stream), activity, timer: None, writing: None, is_late: false }, service))
        })
    }
}

/// Tells the connection of its requests.
#[derive(Clone)]
pub(super) struct Watched<S> {
    service: S,
    activity: Activity,
}

impl<S, B, C> Service<Request<B>> for Watched<S>
where
    S: Service<Request<B>, Response = Response<C>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let shutdown = request.extensions().get::<ConnectionShutdown>().cloned();
        let version = request.version();
        request.extensions_mut().insert(self.activity.begin(shutdown));
        let seconds = self.activity.times().keep_alive.as_secs();
        let answering = self.service.call(request);
        Box::pin(async move {
            let mut response = answering.await?;
            // So that a client need not find out.
            if let (Version::HTTP_11, Ok(value)) = (version, HeaderValue::try_from(format!("timeout={seconds}"))) {
                response.headers_mut().insert(header::HeaderName::from_static("keep-alive"), value);
            }
            Ok(response)
        })
    }
}

/// A stream that ends where its client takes too long.
pub(super) struct Guarded<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> {
    /// None when it is dropped.
    stream: Option<S>,
    activity: Activity,
    timer: Option<Pin<Box<Sleep>>>,
    /// Runs while the client takes nothing.
    writing: Option<Pin<Box<Sleep>>>,
    is_late: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Guarded<S> {
    fn stream(&mut self) -> io::Result<Pin<&mut S>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn late<T>(&mut self) -> Poll<io::Result<T>> {
        self.is_late = true;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Nothing is to be read: looks at the time.
    fn poll_time(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.activity.check(Instant::now(), cx.waker()) {
                Verdict::End => return self.late(),
                Verdict::Until(None) => return Poll::Pending,
                Verdict::Until(Some(due)) => {
                    let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
                    if timer.deadline() != due {
                        timer.as_mut().reset(due);
                    }
                    std::task::ready!(timer.as_mut().poll(cx));
                }
            }
        }
    }

    /// Bounds how long the client may take nothing.
    fn written<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.writing = None;
            return polled;
        }
        let time = self.activity.times().read;
        let writing = self.writing.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        std::task::ready!(writing.as_mut().poll(cx));
        self.late()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> AsyncRead for Guarded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match self.stream()?.poll_read(cx, buffer) {
            Poll::Ready(Ok(())) => {
                self.activity.read(&buffer.filled()[before..]);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(error) => Poll::Ready(error),
            Poll::Pending => self.poll_time(cx),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = self.stream()?.poll_write(cx, bytes);
        self.written(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = self.stream()?.poll_write_vectored(cx, bytes);
        self.written(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.stream()?.poll_flush(cx);
        if matches!(polled, Poll::Ready(Ok(()))) {
            self.activity.flushed();
        }
        self.written(polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.stream()?.poll_shutdown(cx);
        self.written(polled, cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Drop for Guarded<S> {
    /// What the client sent meanwhile is read, for a moment: a socket that is closed over unread bytes resets the connection, and
    /// the client loses what it has not read yet.
    fn drop(&mut self) {
        /// At most.
        const TIME: Duration = Duration::from_secs(1);
        let (Some(mut stream), Ok(runtime)) = (self.stream.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        if self.is_late {
            return;
        }
        runtime.spawn(tokio::time::timeout(TIME, async move {
            let mut unread = [0; 4096];
            if stream.shutdown().await.is_ok() {
                while stream.read(&mut unread).await.is_ok_and(|bytes| bytes > 0) {}
            }
        }));
    }
}
