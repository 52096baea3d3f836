//! `opara-ballista query`, `scheduler` and `executor`: one program, so that all processes of a cluster have one version.

use std::io::IsTerminal;

use anyhow::Result;
use clap::Parser;
use opara_ballista::{executor, query, scheduler};
use tracing_subscriber::EnvFilter;

/// Stack of a thread: planning recurses along expressions.
const STACK_BYTES: usize = 16 << 20;

/// Bulk inference: SQL with the function `embed`, on one machine or on a cluster.
#[derive(Debug, Parser)]
#[command(version)]
enum Command {
    Query(query::QueryOptions),
    Scheduler(scheduler::SchedulerOptions),
    Executor(executor::ExecutorOptions),
}

fn main() -> Result<()> {
    let command = Command::parse();
    let (log, models) = match &command {
        Command::Query(options) => ("warn,opara_ballista=info", Some(&options.models)),
        Command::Scheduler(_) => ("info", None),
        Command::Executor(options) => ("info", Some(&options.models)),
    };
    if let Some(models) = models {
        opara_serve::bound_threads(models.threads);
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| log.into());
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_stack_size(STACK_BYTES).build()?;
    runtime.block_on(async {
        // A task of its own: this thread's stack is small.
        let running = tokio::spawn(async move {
            match &command {
                Command::Query(options) => query::run(options).await,
                Command::Scheduler(options) => scheduler::run(options).await,
                Command::Executor(options) => executor::run(options).await,
            }
        });
        running.await?
    })
}
