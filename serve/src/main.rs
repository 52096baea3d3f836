//! The program `opara-serve`.

use std::process::ExitCode;

use opara_serve::bound_threads;
use opara_serve::server::{run, start_logs, Settings};

fn main() -> ExitCode {
    match served() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn served() -> anyhow::Result<()> {
    bound_threads(None);
    let settings = Settings::read()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let _telemetry = start_logs(settings.log.unwrap_or_default(), settings.otlp_endpoint.as_deref())?;
        run(settings).await
    });
    // A model that is still being loaded is not waited for.
    runtime.shutdown_background();
    result
}
