//! Sessions that have the function `embed`, and read files by their names.

use anyhow::{Context, Result};
use ballista::extension::{SessionConfigExt, SessionContextExt};
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::{embed, Models};

/// Rows of a batch. The default of 8,192 makes messages of more than Ballista's 16 MiB with vectors of 512 elements.
const BATCH_ROWS: usize = 1_024;

/// A session on this machine, which runs so many batches at a time.
pub fn local(models: Models, tasks: usize) -> SessionContext {
    let session = SessionContext::new_with_config(settings(SessionConfig::new(), tasks)).enable_url_table();
    session.register_udf(embed(models));
    session
}

/// A session on the cluster of the scheduler at `HOST:PORT`, whose scans are divided among so many tasks.
///
/// # Errors
/// An address that is none. The scheduler is asked at the first query.
pub async fn remote(scheduler: &str, partitions: usize) -> Result<SessionContext> {
    // One at a time: an executor of several tasks would wait for the slowest before it gets new ones.
    let config = settings(SessionConfig::new_with_ballista(), partitions)
        .set_usize(ballista_core::config::BALLISTA_SCHEDULER_MAX_PARTITIONS_PER_TASK, 1);
    let state = SessionStateBuilder::new().with_default_features().with_config(config).build();
    let session = SessionContext::remote_with_state(&format!("df://{scheduler}"), state).await;
    let session = session.with_context(|| format!("{scheduler:?} is not HOST:PORT"))?.enable_url_table();
    // Not in the state: Ballista replaces the state's functions by its own.
    session.register_udf(embed(Models::none()));
    Ok(session)
}

/// The state of a session in a scheduler.
///
/// # Errors
/// Those of Ballista.
pub(crate) fn of_scheduler(config: SessionConfig) -> datafusion::common::Result<SessionState> {
    let state = ballista_core::utils::default_session_builder(config)?;
    let session = SessionContext::new_with_state(state);
    session.register_udf(embed(Models::none()));
    Ok(session.state())
}

/// Small files are divided, too: the time goes into rows, not into bytes.
fn settings(config: SessionConfig, partitions: usize) -> SessionConfig {
    config
        .with_target_partitions(partitions.max(1))
        .with_batch_size(BATCH_ROWS)
        .set_usize("datafusion.optimizer.repartition_file_min_size", 1)
}
