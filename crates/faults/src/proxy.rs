//! A proxy that does not pass on every message as it came.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use runtime_filter_exchange::wire::proto;
use runtime_filter_transport::Dial;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status, Streaming};

use proto::runtime_filter_exchange_client::RuntimeFilterExchangeClient;
use proto::runtime_filter_exchange_server::RuntimeFilterExchange;

use crate::network::Simulated;
use crate::plan::ProxyPlan;
use crate::report::Shared;

/// A message that can be damaged.
trait Payload: Clone + Send + 'static {
    /// Its filter or partial, as far as it is one.
    fn damage(&mut self, rng: &mut StdRng) -> bool;
    /// Whether the stream comes to nothing without it.
    fn is_greeting(&self) -> bool;
}

/// Cuts `bytes` short or flips a bit of them.
fn damaged(bytes: &[u8], rng: &mut StdRng) -> Option<Vec<u8>> {
    if bytes.is_empty() {
        return None;
    }
    let mut bytes = bytes.to_vec();
    let at = rng.random_range(0..bytes.len());
    match rng.random_bool(0.5) {
        true => bytes.truncate(at),
        false => bytes[at] ^= 1 << rng.random_range(0..8),
    }
    Some(bytes)
}

impl Payload for proto::ToWorker {
    fn damage(&mut self, rng: &mut StdRng) -> bool {
        use proto::to_worker::Message::Verdict;
        use proto::verdict::Outcome::RuntimeFilter;
        if let Some(Verdict(verdict)) = &mut self.message
            && let Some(RuntimeFilter(bytes)) = &mut verdict.outcome
            && let Some(damaged) = damaged(bytes, rng)
        {
            *bytes = damaged.into();
            return true;
        }
        false
    }

    fn is_greeting(&self) -> bool {
        matches!(self.message, Some(proto::to_worker::Message::Hello(_)))
    }
}

impl Payload for proto::ToCoordinator {
    fn damage(&mut self, rng: &mut StdRng) -> bool {
        use proto::partial::Outcome::Keys;
        use proto::to_coordinator::Message::Partial;
        if let Some(Partial(partial)) = &mut self.message
            && let Some(Keys(bytes)) = &mut partial.outcome
            && let Some(damaged) = damaged(bytes, rng)
        {
            *bytes = damaged;
            return true;
        }
        false
    }

    fn is_greeting(&self) -> bool {
        matches!(
            self.message,
            Some(proto::to_coordinator::Message::Welcome(_))
        )
    }
}

/// Passes on what comes until either side ends.
async fn pass<M: Payload>(
    mut from: Streaming<M>,
    to: impl Fn(M) -> bool,
    plan: ProxyPlan,
    rng: Arc<Mutex<StdRng>>,
    shared: Arc<Shared>,
) {
    let mut held_back: Option<M> = None;
    while let Some(Ok(mut message)) = from.next().await {
        if message.is_greeting() {
            to(message);
            continue;
        }
        let mut copies = 1;
        let mut delay = None;
        {
            let rng = &mut *rng.lock().unwrap_or_else(PoisonError::into_inner);
            let mut chance = |share: u8| rng.random_range(0..100) < share;
            if chance(plan.abort) {
                shared.count("message: stream aborted");
                return;
            }
            if chance(plan.lose) {
                shared.count("message: lost");
                copies = 0;
            } else if chance(plan.repeat) {
                shared.count("message: repeated");
                copies = 2;
            } else if held_back.is_none() && chance(plan.swap) {
                shared.count("message: overtaken");
                held_back = Some(message);
                continue;
            }
            if chance(plan.damage) && message.damage(rng) {
                shared.count("message: damaged");
            }
            if rng.random_range(0..100) < plan.delay {
                shared.count("message: delayed");
                delay = Some(Duration::from_millis(rng.random_range(1..2_000)));
            }
        }
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        for _ in 0..copies {
            if !to(message.clone()) {
                return;
            }
        }
        if let Some(late) = held_back.take() {
            to(late);
        }
    }
}

/// Stands at the address of a worker, and passes messages on to it.
pub(crate) struct Proxy {
    pub(crate) worker: String,
    pub(crate) plan: ProxyPlan,
    pub(crate) shared: Arc<Shared>,
    pub(crate) rng: Arc<Mutex<StdRng>>,
}

impl Proxy {
    pub(crate) fn new(worker: String, plan: ProxyPlan, shared: Arc<Shared>) -> Self {
        let rng = StdRng::seed_from_u64(plan.seed);
        Self {
            worker,
            plan,
            shared,
            rng: Arc::new(Mutex::new(rng)),
        }
    }
}

type ToCoordinator = Result<proto::ToCoordinator, Status>;

#[tonic::async_trait]
impl RuntimeFilterExchange for Proxy {
    type ExchangeStream = Pin<Box<dyn Stream<Item = ToCoordinator> + Send>>;

    async fn exchange(
        &self,
        request: Request<Streaming<proto::ToWorker>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let unavailable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
        let endpoint = Endpoint::from_shared(format!("http://{}", self.worker))
            .map_err(unavailable)?
            .connect_timeout(Duration::from_secs(2))
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(5))
            .keep_alive_while_idle(true);
        let channel = Simulated::default()
            .connect(endpoint)
            .await
            .map_err(unavailable)?;
        let mut client = RuntimeFilterExchangeClient::new(channel);
        let (down, messages) = mpsc::unbounded_channel();
        let (up, answers): (UnboundedSender<ToCoordinator>, _) = mpsc::unbounded_channel();
        let (plan, shared, rng) = (self.plan, Arc::clone(&self.shared), Arc::clone(&self.rng));
        tokio::spawn(async move {
            // The worker answers once it has the first message.
            let answer = client.exchange(UnboundedReceiverStream::new(messages));
            let from_coordinator = pass(
                request.into_inner(),
                |message| down.send(message).is_ok(),
                plan,
                Arc::clone(&rng),
                Arc::clone(&shared),
            );
            let from_worker = async {
                match answer.await {
                    Ok(answer) => {
                        let to = |message| up.send(Ok(message)).is_ok();
                        pass(
                            answer.into_inner(),
                            to,
                            plan,
                            Arc::clone(&rng),
                            shared.clone(),
                        )
                        .await;
                    }
                    Err(status) => drop(up.send(Err(status))),
                }
            };
            tokio::select! {
                () = from_coordinator => {}
                () = from_worker => {}
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(answers).boxed()))
    }
}
