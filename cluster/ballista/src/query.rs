//! One query, on this machine or on a cluster.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{ensure, Result};
use datafusion::common::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::prelude::SessionContext;
use futures::StreamExt;

use crate::output::Output;
use crate::{session, ModelOptions};

/// How often a cluster is asked, if executors are lost with rows that were done.
const ATTEMPTS: usize = 3;

/// Answers a query: on this machine, or on a cluster with `--scheduler`.
#[derive(Debug, Clone, clap::Args)]
pub struct QueryOptions {
    /// The query: select id, embed(text) as vector from 'texts/*.parquet'
    pub sql: String,

    /// Write the rows to this Parquet file, instead of as lines of JSON to stdout.
    #[arg(long)]
    pub output: Option<PathBuf>,

    /// HOST:PORT of a cluster's scheduler. Its executors have the models; the flags for models are for this machine.
    #[arg(long)]
    pub scheduler: Option<String>,

    /// Tasks that a cluster divides a scan into: several for each executor.
    #[arg(long, default_value_t = 64)]
    pub partitions: usize,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub models: ModelOptions,
}

/// Runs the query and writes its rows. The number of rows and their rate go to the log.
///
/// # Errors
/// Models that cannot be loaded, SQL that is not sound or no query, and what running it may fail with. No file is left then.
pub async fn run(options: &QueryOptions) -> Result<()> {
    ensure!(
        options.scheduler.is_none() || options.models.models.is_empty(),
        "--model is for this machine: with --scheduler, executors have the models"
    );
    let session = match &options.scheduler {
        Some(scheduler) => session::remote(scheduler, options.partitions).await?,
        None => session::local(options.models.load()?, options.models.tasks()),
    };
    let start = Instant::now();
    // What was printed cannot be taken back.
    let may_repeat = options.scheduler.is_some() && options.output.is_some();
    let mut attempts = if may_repeat { ATTEMPTS } else { 1 };
    let rows = loop {
        attempts -= 1;
        match answer(&session, options).await {
            Err(error) if attempts > 0 && is_lost(&error) => tracing::warn!("asking once more: {error:#}"),
            answer => break answer?,
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    tracing::info!("{rows} rows in {seconds:.1} s, {:.1} rows/s", rows as f64 / seconds);
    Ok(())
}

/// Gives the number of rows.
async fn answer(session: &SessionContext, options: &QueryOptions) -> Result<usize> {
    // Tasks that run twice, after a loss, could write files twice: only queries are taken.
    let only_queries = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let mut batches = session.sql_with_options(&options.sql, only_queries).await?.execute_stream().await?;
    let mut output = Output::new(options.output.as_deref(), batches.schema())?;
    let mut rows = 0;
    while let Some(batch) = batches.next().await {
        let batch = batch.map_err(Running)?;
        output.write(&batch)?;
        rows += batch.num_rows();
    }
    output.finish()?;
    Ok(rows)
}

/// An error of a query that was accepted.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Running(DataFusionError);

/// Whether rows that were done could not be fetched, and not the query itself failed, which Ballista reports as a job's.
fn is_lost(error: &anyhow::Error) -> bool {
    let is_job = |error: &DataFusionError| matches!(error, DataFusionError::Execution(why) if why.starts_with("Job "));
    error.downcast_ref::<Running>().is_some_and(|Running(error)| !is_job(error.find_root()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_fetched_is_asked_again() {
        let job = DataFusionError::Execution("Job 7 failed: there is no model".into()).context("running");
        let fetch = DataFusionError::External("GrpcConnectionError".into());
        let plan = DataFusionError::Plan("no such column".into());
        assert!(!is_lost(&Running(job).into()));
        assert!(is_lost(&Running(fetch).into()));
        assert!(!is_lost(&plan.into()));
    }
}
