//! The exchange of a real worker, spoken to by hand.

use std::time::Duration;

use datafusion_runtime_filter::{RunningWorker, WorkerServer};
use runtime_filter_exchange::wire::proto::runtime_filter_exchange_client::RuntimeFilterExchangeClient;
use runtime_filter_exchange::wire::{self, proto};
use runtime_filter_exchange::{ExecutionId, ExecutionSettings};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

const SETTINGS: ExecutionSettings = ExecutionSettings {
    seed: 1,
    max_filter_bytes: 1 << 20,
};

async fn worker() -> RunningWorker {
    WorkerServer::bind(([127, 0, 0, 1], 0).into())
        .await
        .unwrap()
}

async fn open(
    worker: &RunningWorker,
) -> (
    UnboundedSender<proto::ToWorker>,
    Streaming<proto::ToCoordinator>,
) {
    let channel = tonic::transport::Endpoint::from_shared(worker.url())
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut client = RuntimeFilterExchangeClient::new(channel);
    let (sender, receiver) = unbounded_channel();
    let stream = client
        .exchange(UnboundedReceiverStream::new(receiver))
        .await
        .unwrap()
        .into_inner();
    (sender, stream)
}

async fn next(
    stream: &mut Streaming<proto::ToCoordinator>,
) -> Result<Option<proto::ToCoordinator>, Status> {
    tokio::time::timeout(Duration::from_secs(20), stream.message())
        .await
        .expect("the worker stays silent")
}

async fn until_empty(worker: &RunningWorker) {
    for _ in 0..1000 {
        if worker.registry().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} executions left", worker.registry().len());
}

fn id(sequence: u64) -> ExecutionId {
    ExecutionId {
        coordinator: 9,
        sequence,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_vanishes_leaves_nothing() {
    let worker = worker().await;
    let (sender, mut stream) = open(&worker).await;
    sender.send(wire::hello(9)).unwrap();
    assert_eq!(next(&mut stream).await.unwrap(), Some(wire::welcome()));
    for sequence in 0..3 {
        sender.send(wire::begin(id(sequence), &SETTINGS)).unwrap();
        assert_eq!(
            next(&mut stream).await.unwrap(),
            Some(wire::began(sequence))
        );
    }
    assert_eq!(worker.registry().len(), 3);
    sender.send(wire::end(1)).unwrap();
    while worker.registry().len() != 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // A second stream of the same coordinator ends without taking the first along.
    let (other, mut other_stream) = open(&worker).await;
    other.send(wire::hello(9)).unwrap();
    assert_eq!(
        next(&mut other_stream).await.unwrap(),
        Some(wire::welcome())
    );
    drop((other, other_stream));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(worker.registry().len(), 2);
    drop((sender, stream));
    until_empty(&worker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_breaks_the_protocol_is_refused_with_a_reason() {
    let worker = worker().await;
    let hello = |protocol_version, hash_scheme| proto::ToWorker {
        message: Some(proto::to_worker::Message::Hello(proto::Hello {
            protocol_version,
            hash_scheme,
            coordinator: 9,
        })),
    };
    let huge = ExecutionSettings {
        seed: 1,
        max_filter_bytes: usize::MAX,
    };
    let cases = [
        (vec![hello(2, 1)], "protocol 2"),
        (vec![hello(1, 7)], "scheme 7"),
        (vec![wire::begin(id(1), &SETTINGS)], "expected Hello"),
        (vec![wire::hello(9), wire::hello(9)], "second Hello"),
        (
            vec![wire::hello(9), proto::ToWorker { message: None }],
            "empty",
        ),
        (
            vec![wire::hello(9), wire::begin(id(1), &huge)],
            "largest allowed",
        ),
    ];
    for (messages, reason) in cases {
        let (sender, mut stream) = open(&worker).await;
        for message in messages {
            sender.send(message).unwrap();
        }
        let error = loop {
            match next(&mut stream).await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("no reason, expected '{reason}'"),
                Err(status) => break status.message().to_owned(),
            }
        };
        assert!(error.contains(reason), "'{error}' does not say '{reason}'");
        until_empty(&worker).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_stops_with_streams_open() {
    let worker = worker().await;
    let (sender, mut stream) = open(&worker).await;
    sender.send(wire::hello(9)).unwrap();
    next(&mut stream).await.unwrap();
    let stopped = tokio::time::timeout(Duration::from_secs(20), worker.shutdown()).await;
    stopped.expect("hangs").unwrap();
    assert!(!matches!(next(&mut stream).await, Ok(Some(_))));
}
