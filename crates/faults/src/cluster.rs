//! What a coordinator and a worker do.

use std::future::pending;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use runtime_filter_core::{HASH_SCHEME, PartialBuilder, SizingPolicy};
use runtime_filter_exchange::wire::{PROTOCOL_VERSION, proto};
use runtime_filter_exchange::{
    BuildTask, ExecutionId, ExecutionRequest, FilterPolicy, InProcessExchange, PassAllReason,
    Registry, SizeRule, Verdict,
};
use runtime_filter_transport::{ExchangeService, Links, keep_alive};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};
use url::Url;

use proto::runtime_filter_exchange_server::{RuntimeFilterExchange, RuntimeFilterExchangeServer};

use crate::network::{PORT, Simulated, incoming};
use crate::plan::{BEGIN_TIMEOUT, Ending, Kind, Plan, QueryPlan};
use crate::proxy::Proxy;
use crate::report::{FILTER, Shared};

pub(crate) type Software = Result<(), Box<dyn std::error::Error>>;

pub(crate) fn worker_name(worker: usize) -> String {
    format!("worker-{worker}")
}

pub(crate) fn proxy_name(worker: usize) -> String {
    format!("proxy-{worker}")
}

/// A task of a query, placed on a worker as by an engine whose own network never fails.
enum Order {
    Build {
        execution: ExecutionId,
        query: usize,
        filter: usize,
        task: usize,
    },
    Probe {
        execution: ExecutionId,
        query: usize,
        filter: usize,
        probe: usize,
        /// Let go when the probe has ended, or its process.
        done: oneshot::Sender<()>,
    },
}

/// What the simulation sees of a worker.
#[derive(Default)]
pub(crate) struct WorkerSlot {
    pub(crate) registry: Mutex<Option<Arc<Registry>>>,
    orders: Mutex<Option<mpsc::UnboundedSender<Order>>>,
    starts: AtomicUsize,
}

/// What the simulation and its hosts share.
pub(crate) struct Cluster {
    pub(crate) plan: Plan,
    pub(crate) shared: Arc<Shared>,
    pub(crate) workers: Vec<WorkerSlot>,
    /// Queries in progress or to come.
    pub(crate) finished: AtomicBool,
    /// The streams of the coordinator.
    pub(crate) links: Mutex<Option<Arc<Links>>>,
}

pub(crate) fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs at the host of worker `number`.
pub(crate) async fn worker(cluster: Arc<Cluster>, number: usize) -> Software {
    let slot = &cluster.workers[number];
    let start = slot.starts.fetch_add(1, Ordering::Relaxed);
    let kinds = &cluster.plan.workers[number].kinds;
    let kind = kinds.get(start).or(kinds.last()).copied();
    let incoming = incoming().await?;
    if let Some(kind @ (Kind::OtherProtocol | Kind::OtherHash | Kind::Silent)) = kind {
        cluster.shared.count(match kind {
            Kind::OtherProtocol => "worker of another protocol",
            Kind::OtherHash => "worker of another hash scheme",
            _ => "silent worker",
        });
        let registry = Arc::new(Registry::new());
        place_orders(&cluster, number, registry);
        let service = RuntimeFilterExchangeServer::new(Foreign(kind));
        keep_alive(Server::builder())
            .add_service(service)
            .serve_with_incoming(incoming)
            .await?;
        return Ok(());
    }
    let registry = Arc::new(Registry::new());
    place_orders(&cluster, number, Arc::clone(&registry));
    keep_alive(Server::builder())
        .add_service(ExchangeService::new(registry).into_server())
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}

/// Lets the worker carry out what it is ordered from now on.
fn place_orders(cluster: &Arc<Cluster>, number: usize, registry: Arc<Registry>) {
    let slot = &cluster.workers[number];
    *relock(&slot.registry) = Some(Arc::clone(&registry));
    let (orders, mut ordered) = mpsc::unbounded_channel();
    *relock(&slot.orders) = Some(orders);
    let cluster = Arc::clone(cluster);
    tokio::spawn(async move {
        while let Some(order) = ordered.recv().await {
            match order {
                Order::Build {
                    execution,
                    query,
                    filter,
                    task,
                } => {
                    let builds = &cluster.plan.queries[query].filters[filter].builds;
                    for partition in 0..builds[task].partitions.len() {
                        tokio::spawn(build(
                            Arc::clone(&cluster),
                            Arc::clone(&registry),
                            execution,
                            (query, filter, task, partition),
                        ));
                    }
                }
                Order::Probe {
                    execution,
                    query,
                    filter,
                    probe: number,
                    done,
                } => {
                    let (cluster, registry) = (Arc::clone(&cluster), Arc::clone(&registry));
                    tokio::spawn(async move {
                        probe(&cluster, &registry, execution, (query, filter, number)).await;
                        let _ = done.send(());
                    });
                }
            }
        }
    });
}

/// One partition of a build task.
async fn build(
    cluster: Arc<Cluster>,
    registry: Arc<Registry>,
    id: ExecutionId,
    (query, filter, task, partition): (usize, usize, usize, usize),
) {
    let builds = &cluster.plan.queries[query].filters[filter].builds;
    let plan = &builds[task].partitions[partition];
    // A node looks its execution up when it begins.
    let execution = registry.execution(&id);
    tokio::time::sleep(plan.after).await;
    let Some(execution) = execution else {
        return;
    };
    let build = BuildTask {
        filter: filter as u32,
        index: task as u32,
        count: builds.len() as u32,
        partitions: builds[task].partitions.len() as u32,
    };
    match plan.ending {
        Ending::Never => {}
        Ending::Abandoned => execution.abandon(build, PassAllReason::BuildCancelled),
        Ending::Sealed => {
            let settings = execution.settings();
            let mut keys = PartialBuilder::new(settings.cap_blocks(), settings.seed);
            match keys.insert(&plan.keys, None) {
                Ok(()) => execution.seal(build, partition as u32, keys.finish()),
                Err(_) => execution.abandon(build, PassAllReason::OutOfMemory),
            }
        }
    }
}

/// One probe: what it is told must hold for every row of the build side.
async fn probe(
    cluster: &Cluster,
    registry: &Registry,
    id: ExecutionId,
    (query, filter, number): (usize, usize, usize),
) {
    let plan = &cluster.plan.queries[query];
    let filter_plan = &plan.filters[filter];
    let shared = &cluster.shared;
    tokio::time::sleep(filter_plan.probes[number].after).await;
    let needless = |told: &str| {
        if cluster.plan.faultless {
            shared.needless(format!("query {query}, filter {filter}: {told}"));
        }
    };
    let Some(execution) = registry.execution(&id) else {
        shared.told("nothing: the worker takes no part");
        needless("the worker takes no part");
        return;
    };
    let begin = Instant::now();
    let mut verdict = execution.verdict(filter as u32);
    let told = tokio::time::timeout(plan.wait, verdict.wait_for(Option::is_some)).await;
    let what = format!("a probe of query {query}, filter {filter}");
    shared.waited(what, plan.wait, begin.elapsed());
    let told = match told {
        Ok(Ok(told)) => told.clone(),
        Ok(Err(_)) | Err(_) => None,
    };
    match told {
        None => {
            shared.told("nothing in time");
            needless("nothing in time");
        }
        Some(Verdict::PassAll(reason)) => {
            shared.told(&format!("to pass all: {reason}"));
            needless(&reason.to_string());
        }
        Some(Verdict::Filter(told)) => {
            shared.told(FILTER);
            for (task, build) in filter_plan.builds.iter().enumerate() {
                for (number, partition) in build.partitions.iter().enumerate() {
                    let place = || {
                        format!("query {query}, filter {filter}, task {task}, partition {number}")
                    };
                    if partition.ending != Ending::Sealed {
                        shared.wrong(format!("{}: {:?}", place(), partition.ending));
                    }
                    let mut bitmap = Vec::new();
                    told.probe(&partition.keys, &mut bitmap);
                    let kept: u32 = bitmap.iter().map(|word| word.count_ones()).sum();
                    shared.lock().keys_checked += partition.keys.len() as u64;
                    if (kept as usize) < partition.keys.len() {
                        let lost = partition.keys.len() - kept as usize;
                        shared.wrong(format!("{}: {lost} keys lost", place()));
                    }
                }
            }
        }
    }
}

/// Runs at the host of the coordinator.
pub(crate) async fn coordinator(cluster: Arc<Cluster>) -> Software {
    let exchange = Arc::new(InProcessExchange::new());
    let mut dial = Simulated {
        shared: Some(Arc::clone(&cluster.shared)),
        ..Simulated::default()
    };
    for (number, worker) in cluster.plan.workers.iter().enumerate() {
        let cuts = (address(&cluster, number), worker.cuts.clone());
        dial.cuts.push((cuts.0, cuts.1, AtomicUsize::new(0)));
    }
    let links = Arc::new(Links::with_dial(exchange.coordinator(), Arc::new(dial)));
    *relock(&cluster.links) = Some(Arc::clone(&links));
    let queries: Vec<_> = (0..cluster.plan.queries.len())
        .map(|number| {
            let (cluster, exchange) = (Arc::clone(&cluster), Arc::clone(&exchange));
            let links = Arc::clone(&links);
            tokio::spawn(async move { query(&cluster, &exchange, &links, number).await })
        })
        .collect();
    for query in queries {
        query.await?;
    }
    if !exchange.registry().is_empty() {
        let left = exchange.registry().len();
        cluster.shared.leak(format!("{left} at the coordinator"));
    }
    cluster.finished.store(true, Ordering::Relaxed);
    // Its streams stay open until the simulation closes them.
    drop(links);
    pending().await
}

/// The host that the coordinator takes for a worker.
fn address(cluster: &Cluster, worker: usize) -> String {
    match cluster.plan.workers[worker].proxy {
        Some(_) => proxy_name(worker),
        None => worker_name(worker),
    }
}

fn policy(id: usize, max_bytes: usize) -> FilterPolicy {
    FilterPolicy {
        id: id as u32,
        rule: SizeRule::Fixed,
        sizing: SizingPolicy {
            max_bytes,
            ..SizingPolicy::default()
        },
        probe_bytes: None,
        probe_keys: None,
        max_cost_share: 0.5,
        force: true,
    }
}

async fn query(cluster: &Cluster, exchange: &InProcessExchange, links: &Links, number: usize) {
    let plan = &cluster.plan.queries[number];
    let shared = &cluster.shared;
    tokio::time::sleep(plan.at).await;
    shared.lock().queries += 1;
    let begin = Instant::now();
    let run = run_query(cluster, exchange, links, number, plan);
    let ended_early = match plan.cancel {
        Some(cancel) => tokio::time::timeout(cancel, run).await.unwrap_or(true),
        None => run.await,
    };
    if ended_early {
        shared.lock().queries_ended_early += 1;
    }
    let latest = plan.filters.iter().flat_map(|filter| &filter.probes);
    let latest = latest.map(|probe| probe.after).max().unwrap_or_default();
    let allowed = BEGIN_TIMEOUT + latest + plan.wait;
    shared.waited(format!("query {number}"), allowed, begin.elapsed());
}

/// Returns whether the query failed.
async fn run_query(
    cluster: &Cluster,
    exchange: &InProcessExchange,
    links: &Links,
    number: usize,
    plan: &QueryPlan,
) -> bool {
    let active = exchange.begin(ExecutionRequest {
        max_filter_bytes: plan.max_filter_bytes,
        filters: (0..plan.filters.len())
            .map(|filter| policy(filter, plan.max_filter_bytes))
            .collect(),
    });
    let urls: Vec<Url> = (0..cluster.workers.len())
        .filter_map(|worker| {
            format!("http://{}:{PORT}", address(cluster, worker))
                .parse()
                .ok()
        })
        .collect();
    let begin = Instant::now();
    let active = links.begin(active, &urls, BEGIN_TIMEOUT).await;
    let what = format!("the begin of query {number}");
    cluster.shared.waited(what, BEGIN_TIMEOUT, begin.elapsed());

    let execution = active.id();
    let order = |worker: usize, order| {
        let orders = relock(&cluster.workers[worker].orders);
        orders
            .as_ref()
            .is_some_and(|orders| orders.send(order).is_ok())
    };
    let mut waiting = Vec::new();
    for (filter, filter_plan) in plan.filters.iter().enumerate() {
        for (task, build) in filter_plan.builds.iter().enumerate() {
            let build_order = Order::Build {
                execution,
                query: number,
                filter,
                task,
            };
            if !order(build.worker, build_order) {
                return true;
            }
        }
        for (probe, probe_plan) in filter_plan.probes.iter().enumerate() {
            let (done, ended) = oneshot::channel();
            let probe_order = Order::Probe {
                execution,
                query: number,
                filter,
                probe,
                done,
            };
            if !order(probe_plan.worker, probe_order) {
                return true;
            }
            waiting.push(ended);
        }
    }
    for ended in waiting {
        if ended.await.is_err() {
            return true;
        }
    }
    for record in active.hub().records() {
        let mut tasks = plan.filters[record.id as usize].builds.iter();
        let complete = tasks.all(|task| {
            let mut partitions = task.partitions.iter();
            partitions.all(|partition| partition.ending == Ending::Sealed)
        });
        if matches!(record.verdict, Some(Verdict::Filter(_))) && !complete {
            let filter = record.id;
            let what = format!("query {number}: filter {filter} of an incomplete build side");
            cluster.shared.wrong(what);
        }
    }
    false
}

/// Runs at the host of a proxy.
pub(crate) async fn proxy(cluster: Arc<Cluster>, number: usize) -> Software {
    let Some(plan) = cluster.plan.workers[number].proxy else {
        return Ok(());
    };
    let worker = format!("{}:{PORT}", worker_name(number));
    let proxy = Proxy::new(worker, plan, Arc::clone(&cluster.shared));
    keep_alive(Server::builder())
        .add_service(RuntimeFilterExchangeServer::new(proxy))
        .serve_with_incoming(incoming().await?)
        .await?;
    Ok(())
}

/// A worker of another version.
struct Foreign(Kind);

#[tonic::async_trait]
impl RuntimeFilterExchange for Foreign {
    type ExchangeStream = Pin<Box<dyn Stream<Item = Result<proto::ToCoordinator, Status>> + Send>>;

    async fn exchange(
        &self,
        _: Request<Streaming<proto::ToWorker>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let (protocol_version, hash_scheme) = match self.0 {
            Kind::OtherProtocol => (PROTOCOL_VERSION + 1, HASH_SCHEME),
            Kind::OtherHash => (PROTOCOL_VERSION, HASH_SCHEME + 1),
            Kind::Sound | Kind::Silent => return Ok(Response::new(stream::pending().boxed())),
        };
        let welcome = proto::ToCoordinator {
            message: Some(proto::to_coordinator::Message::Welcome(proto::Welcome {
                protocol_version,
                hash_scheme,
            })),
        };
        // It goes on to talk, as one that has not noticed would.
        let answers = stream::iter([Ok(welcome)]).chain(stream::pending());
        Ok(Response::new(answers.boxed()))
    }
}

/// Long enough for every end to notice that the other is gone.
pub(crate) const SETTLE: Duration = Duration::from_secs(45);
