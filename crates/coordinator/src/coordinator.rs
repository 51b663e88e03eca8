//! How a query begins and ends on the workers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use datafusion::prelude::SessionConfig;
use datafusion_distributed::{WorkerResolver, get_distributed_worker_resolver};
use futures::future::join_all;
use runtime_filter_exchange::{
    ActiveExecution, ExecutionRequest, Hubs, InProcessExchange, PassAllReason, Registry,
};
use runtime_filter_plan::config::RuntimeFilterOptions;
use runtime_filter_plan::nodes::ClusterCoordinator;
use url::Url;

use crate::link::{Link, LinkError, relock};

/// How long a worker that could not be reached is not asked again: a query must
/// not pay a connection timeout for each worker that is down.
const RETRY_AFTER: Duration = Duration::from_secs(2);

enum Slot {
    Open(Arc<Link>),
    Failed(Instant),
}

/// Begins executions on the workers that a session's `WorkerResolver` names, over
/// one gRPC stream per worker that is kept for all queries.
///
/// Stages that the coordinating process runs itself are served in process.
#[derive(Default)]
pub struct Coordinator {
    exchange: InProcessExchange,
    hubs: Arc<Hubs>,
    // An async lock per worker would serialise dialling; this one is only held to
    // look a link up or to put it in.
    links: Mutex<HashMap<Url, Slot>>,
}

impl std::fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coordinator")
            .field("exchange", &self.exchange)
            .finish_non_exhaustive()
    }
}

impl Coordinator {
    /// A coordinator without connections.
    pub fn new() -> Self {
        Self::default()
    }

    /// The registry of this process, for stages that it runs itself.
    pub fn registry(&self) -> &Arc<Registry> {
        self.exchange.registry()
    }

    /// Executions in progress on this coordinator.
    pub fn executions(&self) -> usize {
        self.hubs.len()
    }

    fn links(&self) -> MutexGuard<'_, HashMap<Url, Slot>> {
        relock(&self.links)
    }

    async fn link(&self, url: &Url) -> Result<Arc<Link>, LinkError> {
        match self.links().get(url) {
            Some(Slot::Open(link)) if link.is_open() => return Ok(Arc::clone(link)),
            Some(Slot::Failed(at)) if at.elapsed() < RETRY_AFTER => return Err(LinkError::Closed),
            _ => {}
        }
        // Two queries that begin at once may both dial; the later link serves both
        // from then on, and the earlier one ends with the query that holds it.
        match Link::dial(url, self.exchange.coordinator(), Arc::clone(&self.hubs)).await {
            Ok(link) => {
                let link = Arc::new(link);
                self.links()
                    .insert(url.clone(), Slot::Open(Arc::clone(&link)));
                Ok(link)
            }
            Err(error) => {
                self.links()
                    .insert(url.clone(), Slot::Failed(Instant::now()));
                Err(error)
            }
        }
    }
}

#[async_trait]
impl ClusterCoordinator for Coordinator {
    async fn begin(
        &self,
        request: ExecutionRequest,
        options: &RuntimeFilterOptions,
        config: &SessionConfig,
    ) -> ActiveExecution {
        let nothing_to_do = request.filters.is_empty();
        let active = self.exchange.begin(request);
        if nothing_to_do {
            return active;
        }
        let urls = get_distributed_worker_resolver(config)
            .and_then(|resolver| resolver.get_urls())
            .unwrap_or_default();
        let id = active.id();
        let hub = Arc::clone(active.hub());
        // Their probes come only once the build side is read, when the filter is sized.
        hub.expect_receivers(urls.len());
        self.hubs.insert(id.sequence, Arc::clone(&hub));
        // Before the first await: a query that is cancelled while it begins ends, too.
        let links: Arc<Mutex<Vec<Arc<Link>>>> = Arc::default();
        let active = active.on_end({
            let (hubs, links) = (Arc::clone(&self.hubs), Arc::clone(&links));
            move || {
                hubs.remove(id.sequence);
                for link in relock(&links).drain(..) {
                    link.end(id);
                }
            }
        });

        let begun = join_all(urls.iter().map(|url| async {
            let begin = async {
                let link = self.link(url).await?;
                link.begin(id, &hub).await?;
                relock(&links).push(link);
                Ok::<_, LinkError>(())
            };
            let begun = tokio::time::timeout(options.begin_timeout(), begin).await;
            if begun.is_err() {
                self.links()
                    .insert(url.clone(), Slot::Failed(Instant::now()));
            }
            matches!(begun, Ok(Ok(())))
        }))
        .await;
        // A worker that takes no part sends no partials: no filter can be proven
        // complete, and nobody shall wait for one.
        if urls.is_empty() || begun.contains(&false) {
            hub.fail(None, PassAllReason::WorkerUnavailable);
        }
        active
    }
}
