//! Ballista's executor with models for the function `embed`.

use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_executor::executor_process::{start_executor_process, ExecutorProcessConfig};

use crate::{embed, ModelOptions};

/// The exit status of an executor that lost its device.
const DEVICE_LOST: i32 = 70;

/// Runs an executor: one for each device.
#[derive(Debug, Clone, clap::Args)]
pub struct ExecutorOptions {
    /// HOST:PORT of the scheduler. It is waited for.
    #[arg(long, default_value = "127.0.0.1:50050", value_parser = address)]
    pub scheduler: (String, u16),

    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// Port from which answers are fetched; 0 takes a free one.
    #[arg(long, default_value_t = 50051)]
    pub port: u16,

    /// Port on which tasks come; 0 takes a free one.
    #[arg(long, default_value_t = 50052)]
    pub task_port: u16,

    /// The name or address by which others reach this machine. Default: the address from which the scheduler sees it.
    #[arg(long)]
    pub external_host: Option<String>,

    /// Folder for answers until clients have fetched them. Default: a temporary one.
    #[arg(long)]
    pub work_dir: Option<PathBuf>,

    /// Seconds between signs of life: a quarter of the scheduler's `--executor-timeout-seconds` or less.
    #[arg(long, default_value_t = 3)]
    pub heartbeat_seconds: u64,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub models: ModelOptions,
}

/// Runs until SIGTERM or the end of the cluster.
///
/// # Errors
/// Models that cannot be loaded; ports or a folder that cannot be used; a scheduler that refuses the executor.
pub async fn run(options: &ExecutorOptions) -> Result<()> {
    // Work that is given to this process would fail until a new one has the device.
    let models = options.models.load()?.when_lost(|| std::process::exit(DEVICE_LOST));
    let mut functions = BallistaFunctionRegistry::default();
    functions.scalar_functions.insert("embed".into(), Arc::new(embed(models)));
    let temporary = match options.work_dir {
        None => Some(tempfile::tempdir()?),
        Some(_) => None,
    };
    let work_dir = options.work_dir.as_deref().or(temporary.as_ref().map(|folder| folder.path()));
    let config = ExecutorProcessConfig {
        bind_host: options.host.to_string(),
        external_host: options.external_host.clone(),
        port: free(options.host, options.port)?,
        grpc_port: free(options.host, options.task_port)?,
        scheduler_host: options.scheduler.0.clone(),
        scheduler_port: options.scheduler.1,
        // Any but 0 waits for the scheduler.
        scheduler_connect_timeout_seconds: 1,
        vcores: options.models.tasks(),
        work_dir: work_dir.map(|folder| folder.display().to_string()),
        executor_heartbeat_interval_seconds: options.heartbeat_seconds.max(1),
        override_function_registry: Some(Arc::new(functions)),
        ..ExecutorProcessConfig::default()
    };
    Ok(start_executor_process(Arc::new(config)).await?)
}

/// This port, or a free one for 0: Ballista must know it before it listens.
fn free(host: IpAddr, port: u16) -> Result<u16> {
    let listener = TcpListener::bind((host, port)).with_context(|| format!("{host}:{port} cannot be used"))?;
    Ok(listener.local_addr()?.port())
}

fn address(text: &str) -> Result<(String, u16), String> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
    parts.filter(|(host, _)| !host.is_empty()).ok_or_else(|| "give HOST:PORT".into())
}
