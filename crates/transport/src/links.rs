//! How an execution begins and ends at the workers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::join_all;
use runtime_filter_exchange::{ActiveExecution, Hubs, PassAllReason};
use tokio::time::Instant;
use url::Url;

use crate::link::{Dial, Link, LinkError, Tcp, relock};

/// How long a worker that could not be reached is not asked again: a query must
/// not pay a connection timeout for each worker that is down.
const RETRY_AFTER: Duration = Duration::from_secs(2);

enum Slot {
    Open(Arc<Link>),
    Failed(Instant),
}

/// One stream per worker, kept for all executions of a coordinator.
pub struct Links {
    coordinator: u64,
    dial: Arc<dyn Dial>,
    hubs: Arc<Hubs>,
    // An async lock per worker would serialise dialling; this one is only held to
    // look a link up or to put it in.
    links: Mutex<HashMap<Url, Slot>>,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links")
            .field("coordinator", &self.coordinator)
            .field("executions", &self.executions())
            .finish_non_exhaustive()
    }
}

impl Links {
    /// No connection yet. `coordinator` names this process to its workers.
    pub fn new(coordinator: u64) -> Self {
        Self::with_dial(coordinator, Arc::new(Tcp))
    }

    /// The same over another network than TCP.
    pub fn with_dial(coordinator: u64, dial: Arc<dyn Dial>) -> Self {
        Self {
            coordinator,
            dial,
            hubs: Arc::default(),
            links: Mutex::default(),
        }
    }

    /// Executions in progress.
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
        let hubs = Arc::clone(&self.hubs);
        match Link::dial(self.dial.as_ref(), url, self.coordinator, hubs).await {
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

    /// Begins `active` at every worker of `urls` too, and ends it there when it ends here.
    ///
    /// Returns when each of them takes part or `timeout` has passed. Unless all do, every
    /// filter passes all: one that takes no part sends no partials.
    pub async fn begin(
        &self,
        active: ActiveExecution,
        urls: &[Url],
        timeout: Duration,
    ) -> ActiveExecution {
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
            let begun = tokio::time::timeout(timeout, begin).await;
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
