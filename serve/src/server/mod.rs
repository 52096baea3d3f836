//! The server: settings, routes, keys, connections, telemetry.

mod access;
mod activity;
mod answer;
mod arrival;
mod connections;
mod guard;
mod load;
mod own_models;
mod routes;
mod sending;
mod settings;
mod telemetry;

pub use connections::{Listening, Running};
pub use load::models;
pub use own_models::OwnModels;
pub use routes::router;
pub use settings::{Dtype, Settings};
pub use telemetry::{start_logs, LogFormat, Telemetry};

use std::sync::Arc;

use anyhow::Result;

use crate::batch::Registry;
use crate::model::Models;
use crate::protocol::Service;

/// Serves until a signal asks to stop, then drains.
///
/// # Errors
/// Ports and files that cannot be used, and models that cannot be loaded.
pub async fn run(settings: Settings) -> Result<()> {
    let registry = Arc::new(Registry::default());
    let models = load::models(&settings, &registry)?;
    serve(models, registry, settings).await
}

/// Serves these models.
async fn serve(models: Models, registry: Arc<Registry>, settings: Settings) -> Result<()> {
    let models = Arc::new(models);
    let service = Service { models, registry, limits: settings.limits(), may_control: settings.model_control };
    let listening = Listening::bind(&settings).await?;
    let running = listening.serve(router(&service, &settings)?)?;
    let loaded = {
        let models = service.models.clone();
        tokio::task::spawn_blocking(move || {
            let names: Vec<String> = models.states().map(|(name, _)| name.to_owned()).collect();
            names.iter().find_map(|name| models.load(name).err())
        })
    };
    tokio::select! {
        signal = connections::signal() => signal?,
        failure = async { loaded.await.ok().flatten() } => match failure {
            Some(failure) => anyhow::bail!("{}", failure.message),
            None => {
                tracing::info!("ready");
                connections::signal().await?;
            }
        },
    }
    running.drain(&service.models, settings.drain_delay(), settings.drain_time()).await
}
