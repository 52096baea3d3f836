//! From a request to its answer.

use std::future::Future;

use axum::extract::Request;
use axum::response::Response;

use super::super::fields::{of_body, Fields, Unread};
use super::super::service::Service;
use super::refusal::refusal;
use crate::model::{Context, Result};

/// The protocol's name in metrics.
const PROTOCOL: &str = "tei";

/// Answers a request: `read` takes all fields of its body, and `run` does what they ask for.
pub(super) async fn answer<B, F: Future<Output = Result<Response>>>(
    service: Service,
    request: Request,
    read: impl FnOnce(&Fields) -> Result<B>,
    run: impl FnOnce(Service, B, Context) -> F,
) -> Response {
    let answered = async {
        let (parts, body) = request.into_parts();
        let bytes = service.body(&parts, body).await?;
        let asked = {
            let fields = of_body(&bytes)?;
            let asked = read(&fields)?;
            Unread { is_allowed: service.limits.allows_unread, ..Unread::default() }.check(&fields)?;
            asked
        };
        run(service.clone(), asked, service.context(&parts.extensions, None)?).await
    };
    let result = answered.await;
    service.count(PROTOCOL, &result);
    result.unwrap_or_else(|failure| refusal(&failure))
}
