//! gRPC over the simulated network.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use futures::{Stream, stream};
use hyper_util::rt::TokioIo;
use runtime_filter_transport::Dial;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint, Uri};
use turmoil::net::{TcpListener, TcpStream};

use crate::report::Shared;

/// Where every server listens.
pub(crate) const PORT: u16 = 50_051;

/// A connection that ends after so many bytes from the other side.
struct Cut {
    stream: TcpStream,
    left: Option<usize>,
    shared: Option<Arc<Shared>>,
}

impl AsyncRead for Cut {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(left) = self.left else {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        };
        if left == 0 {
            if let Some(shared) = self.shared.take() {
                shared.count("connection cut");
            }
            return Poll::Ready(Ok(()));
        }
        let mut some = buffer.take(left);
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut some);
        let read = some.filled().len();
        // What `some` has been filled with is at the place where `buffer` goes on, and so has been
        // initialised there.
        let bytes = some.filled().to_vec();
        buffer.put_slice(&bytes);
        self.left = Some(left - read);
        polled
    }
}

impl AsyncWrite for Cut {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Connects to the host that a URL names.
#[derive(Default)]
pub(crate) struct Simulated {
    /// By host, what happens to its first connections, and how many there were.
    pub(crate) cuts: Vec<(String, Vec<Option<usize>>, AtomicUsize)>,
    /// Where those that are cut are counted.
    pub(crate) shared: Option<Arc<Shared>>,
}

impl Simulated {
    fn cut(&self, host: &str) -> Option<usize> {
        let (_, cuts, connections) = self.cuts.iter().find(|(name, ..)| name == host)?;
        let number = connections.fetch_add(1, Ordering::Relaxed);
        cuts.get(number).copied().flatten()
    }
}

impl Dial for Simulated {
    fn connect(
        &self,
        endpoint: Endpoint,
    ) -> BoxFuture<'static, Result<Channel, tonic::transport::Error>> {
        let left = self.cut(endpoint.uri().host().unwrap_or_default());
        let shared = self.shared.clone();
        let connector = tower::service_fn(move |uri: Uri| {
            let shared = shared.clone();
            async move {
                let host = uri.host().unwrap_or_default().to_owned();
                let stream = TcpStream::connect((host, PORT)).await?;
                let cut = Cut {
                    stream,
                    left,
                    shared,
                };
                Ok::<_, io::Error>(TokioIo::new(cut))
            }
        });
        Box::pin(async move { endpoint.connect_with_connector(connector).await })
    }
}

/// A connection that was accepted.
pub(crate) struct Accepted(TcpStream);

impl Connected for Accepted {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The connections to this host.
pub(crate) async fn incoming() -> io::Result<impl Stream<Item = io::Result<Accepted>> + Send> {
    let listener = Arc::new(TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, PORT)).await?);
    Ok(stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await;
        Some((accepted.map(|(stream, _)| Accepted(stream)), listener))
    }))
}
