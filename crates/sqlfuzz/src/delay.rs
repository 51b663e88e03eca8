//! Roads to workers on which messages arrive late.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Passes on connections to one worker, each piece of either direction after a delay of its own.
/// Pieces of one direction of one connection keep their order, as TCP has it; connections overtake
/// each other.
#[derive(Debug)]
pub(crate) struct SlowRoad {
    addr: SocketAddr,
    longest_ms: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl SlowRoad {
    /// A road to `worker`, without delays so far.
    pub(crate) async fn to(worker: SocketAddr, seed: u64) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let longest_ms = Arc::new(AtomicU64::new(0));
        let accepting = tokio::spawn(accept(listener, worker, seed, Arc::clone(&longest_ms)));
        Ok(Self {
            addr,
            longest_ms,
            accepting,
        })
    }

    /// Where the road begins, `http://address:port`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// From now on a piece is late by up to so many milliseconds.
    pub(crate) fn set_longest_ms(&self, longest_ms: u64) {
        self.longest_ms.store(longest_ms, Ordering::Relaxed);
    }
}

impl Drop for SlowRoad {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, worker: SocketAddr, seed: u64, longest_ms: Arc<AtomicU64>) {
    let mut connection = seed;
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = TcpStream::connect(worker).await else {
            continue;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let ((from_client, to_client), (from_server, to_server)) =
            (client.into_split(), server.into_split());
        for (from, to) in [(from_client, to_server), (from_server, to_client)] {
            connection += 1;
            tokio::spawn(pass(from, to, connection, Arc::clone(&longest_ms)));
        }
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    seed: u64,
    longest_ms: Arc<AtomicU64>,
) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut piece = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        let longest = longest_ms.load(Ordering::Relaxed);
        if longest > 0 {
            let late = random.random_range(0..=longest);
            tokio::time::sleep(Duration::from_millis(late)).await;
        }
        if to.write_all(&piece[..read]).await.is_err() {
            break;
        }
    }
    // The other direction may still have something to say.
    let _ = to.shutdown().await;
}
