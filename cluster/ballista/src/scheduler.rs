//! Ballista's scheduler with the function `embed`.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tokio::net::TcpListener;

use crate::session;

/// Runs the scheduler of a cluster. It has no model and needs little memory.
#[derive(Debug, Clone, clap::Args)]
pub struct SchedulerOptions {
    /// Address to listen on. Who can reach it can read every file that executors can read.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 50050)]
    pub port: u16,

    /// The name or address by which executors reach this machine. Default: that of `--host`.
    #[arg(long)]
    pub external_host: Option<String>,

    /// Seconds without a sign of life after which an executor counts as lost, and its work is given to others. Executors
    /// report every `--heartbeat-seconds`.
    #[arg(long, default_value_t = 15)]
    pub executor_timeout_seconds: u64,

    /// Executors without which `/readyz` says 503.
    #[arg(long, default_value_t = 1)]
    pub min_executors: usize,

    /// Seconds that executors keep an answer for its client to fetch.
    #[arg(long, default_value_t = 3_600)]
    pub keep_seconds: u64,
}

/// Runs until the process is ended.
///
/// # Errors
/// A port that cannot be listened on.
pub async fn run(options: &SchedulerOptions) -> Result<()> {
    let (host, port) = (options.host, options.port);
    let listener = TcpListener::bind((host, port)).await.with_context(|| format!("{host}:{port} cannot be used"))?;
    let config = SchedulerConfig {
        // Executors report to this address and port, whatever they were told to connect to.
        external_host: options.external_host.clone().unwrap_or_else(|| host.to_string()),
        bind_host: host.to_string(),
        bind_port: listener.local_addr()?.port(),
        executor_timeout_seconds: options.executor_timeout_seconds,
        expire_dead_executor_interval_seconds: 1,
        no_executors_grace_period_seconds: options.executor_timeout_seconds.max(60),
        min_ready_executors: options.min_executors,
        finished_job_data_clean_up_interval_seconds: options.keep_seconds,
        finished_job_state_clean_up_interval_seconds: options.keep_seconds,
        override_session_builder: Some(Arc::new(session::of_scheduler)),
        ..SchedulerConfig::default()
    };
    config.validate()?;
    let cluster = BallistaCluster::new_from_config(&config).await?;
    let scheduler = create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, Arc::new(config)).await?;
    tracing::info!("listening on {}", listener.local_addr()?);
    Ok(start_grpc_service_with_listener(listener, scheduler).await?)
}
