//! gRPC's own health service, `grpc.health.v1`: whether the server, or one of its models, takes requests.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::unfold;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::model::{Models, State};
use crate::pb::grpc_inference_service_server::SERVICE_NAME;

/// How often a watched state is looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// The service as part of a server.
pub fn service(models: Arc<Models>) -> HealthServer<Service> {
    HealthServer::new(Service(models))
}

/// The service's calls.
pub struct Service(Arc<Models>);

/// The state of the server (an empty name, or the inference service's) or of the model of this name.
fn status(models: &Models, service: &str) -> ServingStatus {
    let is_ready = match service {
        "" | SERVICE_NAME => models.is_ready(),
        model => match models.state(model) {
            Ok(State::Loaded(model)) => model.is_ready(),
            Ok(_) => false,
            Err(_) => return ServingStatus::ServiceUnknown,
        },
    };
    if is_ready {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

fn reply(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for Service {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        match status(&self.0, &request.get_ref().service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found("there is no service or model of that name")),
            status => Ok(Response::new(reply(status))),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Tells the state, and each other one that follows.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (models, service) = (self.0.clone(), request.into_inner().service);
        let states = unfold(None, move |told| {
            let (models, service) = (models.clone(), service.clone());
            async move {
                loop {
                    let status = status(&models, &service);
                    if told != Some(status) {
                        return Some((Ok(reply(status)), Some(status)));
                    }
                    tokio::time::sleep(PERIOD).await;
                }
            }
        });
        Ok(Response::new(Box::pin(states)))
    }
}
