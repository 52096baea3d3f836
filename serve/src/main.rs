//! The program `opara-serve`.

use std::process::ExitCode;

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

/// candle starts a thread for each core of the machine unless `RAYON_NUM_THREADS` says otherwise. In a container, or with an
/// affinity, that is more than may run, and matmuls on the CPU become several times slower.
fn use_allowed_cores() {
    const THREADS: &str = "RAYON_NUM_THREADS";
    if let (None, Ok(allowed)) = (std::env::var_os(THREADS), std::thread::available_parallelism()) {
        std::env::set_var(THREADS, allowed.to_string());
    }
}

fn served() -> anyhow::Result<()> {
    // Before there are other threads, which may read the environment.
    use_allowed_cores();
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
