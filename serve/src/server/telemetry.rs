//! Logs and traces.

use std::io::IsTerminal as _;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{fmt, EnvFilter, Layer, Registry};

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// An object of JSON a line.
    Json,
}

/// Keeps logs and traces alive; dropping it sends the last traces.
pub struct Telemetry {
    #[cfg(feature = "otel")]
    provider: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

/// Starts the log on stderr, and traces to a collector if there is one. Panics are logged by their place alone, since their
/// message may quote a request.
///
/// # Errors
/// An address of a collector that is none.
pub fn start_logs(format: LogFormat, otlp_endpoint: Option<&str>) -> Result<Telemetry> {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let layer = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    let logs = tracing_subscriber::registry().with(layer.with_filter(filter));
    let telemetry = traced(logs, otlp_endpoint)?;
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        tracing::error!(place, thread, "a panic");
    }));
    Ok(telemetry)
}

#[cfg(not(feature = "otel"))]
fn traced(logs: impl tracing::Subscriber + Send + Sync, _: Option<&str>) -> Result<Telemetry> {
    tracing::subscriber::set_global_default(logs)?;
    Ok(Telemetry {})
}

#[cfg(feature = "otel")]
fn traced<S>(logs: S, otlp_endpoint: Option<&str>) -> Result<Telemetry>
where
    S: tracing::Subscriber + Send + Sync + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_otlp::WithExportConfig as _;

    let Some(endpoint) = otlp_endpoint else {
        tracing::subscriber::set_global_default(logs)?;
        return Ok(Telemetry { provider: None });
    };
    let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
    let resource = opentelemetry_sdk::Resource::builder().with_service_name(crate::protocol::NAME).build();
    let provider = opentelemetry_sdk::trace::SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .build();
    let traces = tracing_opentelemetry::layer().with_tracer(provider.tracer(crate::protocol::NAME));
    tracing::subscriber::set_global_default(logs.with(traces.with_filter(LevelFilter::INFO)))?;
    Ok(Telemetry { provider: Some(provider) })
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        #[cfg(feature = "otel")]
        if let Some(provider) = &self.provider {
            // The collector may be gone.
            let _ = provider.shutdown();
        }
    }
}
