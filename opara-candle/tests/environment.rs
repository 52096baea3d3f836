//! Tests of `docs/environment.md`. Each test runs itself again in a separate process with certain environment
//! variables.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use opara_candle::candle::{Device, Tensor};
use opara_candle::prelude::*;
use opara_candle::{ops, Builder};

/// Set in the separate process of a test.
const RUNNING: &str = "OPARA_ISOLATED_TEST";

/// Runs the test `name` in a separate process with these variables and returns its output. Returns `None` in that
/// process itself.
fn printed_with(name: &str, variables: &[(&str, &str)]) -> Result<Option<String>> {
    if std::env::var(RUNNING).is_ok_and(|running| running == name) {
        return Ok(None);
    }
    let mut process = Command::new(std::env::current_exe()?);
    for variable in ["OPARA_OFF", "OPARA_FUSE", "OPARA_VERIFY", "OPARA_CACHE"] {
        process.env_remove(variable);
    }
    let process =
        process.args([name, "--exact", "--nocapture"]).env(RUNNING, name).envs(variables.iter().copied()).output()?;
    let printed = [&process.stdout[..], &process.stderr].concat();
    let printed = String::from_utf8(printed)?;
    ensure!(process.status.success() && printed.contains("1 passed"), "{variables:?}: {printed}");
    Ok(Some(printed))
}

fn input() -> Result<Tensor> {
    Ok(Tensor::new(&[-1f32, 2.], &Device::Cpu)?)
}

/// Builds an executor of a ReLU, and counts the calls during building.
fn relu(builder: Builder) -> Result<(OparaExecutor, usize)> {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let module = move |x: &Tensor| {
        counted.fetch_add(1, Ordering::Relaxed);
        ops::relu(x)
    };
    let fast = builder.build(module, &input()?)?;
    ensure!(fast.forward(&input()?)?.to_vec1::<f32>()? == [0., 2.], "the answer is right in any case");
    Ok((fast, calls.load(Ordering::Relaxed)))
}

#[test]
fn executors_are_switched_off() -> Result<()> {
    if printed_with("executors_are_switched_off", &[("OPARA_OFF", "1")])?.is_none() {
        let strict = OparaExecutor::builder().on_uncapturable(OnUncapturable::Error);
        let (fast, calls) = relu(strict)?;
        ensure!(calls == 1, "the one call of the executor, and none while it was built: {calls}");
        let report = fast.report();
        ensure!(report.mode() == Mode::Eager, "{report}");
        ensure!(report.reason().is_some_and(|reason| reason.contains("OPARA_OFF")), "it says why");
    }
    Ok(())
}

#[test]
fn verification_is_switched_off() -> Result<()> {
    if printed_with("verification_is_switched_off", &[("OPARA_VERIFY", "0"), ("OPARA_FUSE", "0")])?.is_none() {
        let report = relu(OparaExecutor::builder().verify(true))?.0.report();
        ensure!((report.mode(), report.is_verified(), report.counts().fused) == (Mode::Threads, false, 0), "{report}");
    }
    Ok(())
}

#[test]
fn invalid_values_are_warned_of_once() -> Result<()> {
    let name = "invalid_values_are_warned_of_once";
    let Some(printed) = printed_with(name, &[("OPARA_OFF", "yes"), ("OPARA_VERIFY", "no")])? else {
        tracing_subscriber::fmt().with_ansi(false).init();
        for _ in 0..2 {
            let report = relu(OparaExecutor::builder())?.0.report();
            ensure!((report.mode(), report.is_verified()) == (Mode::Threads, true), "{report}");
        }
        return Ok(());
    };
    for warned in ["OPARA_OFF=yes is ignored: set it to 0 or 1", "OPARA_VERIFY=no is ignored: set it to 0 or 1"] {
        ensure!(printed.matches(warned).count() == 1, "{warned}: {printed}");
    }
    Ok(())
}

/// Counts the files of tuned plans in a folder.
fn plans(folder: &Path) -> Result<usize> {
    let files = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    Ok(files.iter().filter(|file| file.file_name().to_string_lossy().ends_with(".plan.json")).count())
}

#[test]
fn plans_are_cached_in_another_folder_or_not_at_all() -> Result<()> {
    /// The folder that the program sets for its plans.
    const OWN: &str = "FOLDER_OF_THE_PROGRAM";
    let name = "plans_are_cached_in_another_folder_or_not_at_all";
    for (elsewhere, in_own, in_other) in [(None, 1, 0), (Some(true), 0, 1), (Some(false), 0, 0)] {
        let (own, other) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let own = own.path().to_str().context("a name in UTF-8")?;
        let other = other.path().to_str().context("a name in UTF-8")?;
        let cache = elsewhere.map_or("", |elsewhere| if elsewhere { other } else { "off" });
        if printed_with(name, &[("OPARA_CACHE", cache), (OWN, own)])?.is_none() {
            let folder = std::env::var_os(OWN).context("a folder")?.into();
            let tuning = Search::default().proposals(1).cache(Some(folder));
            let report = relu(OparaExecutor::builder().scheduler(tuning))?.0.report();
            ensure!(report.search().is_some(), "{report}");
            return Ok(());
        }
        let found = (plans(own.as_ref())?, plans(other.as_ref())?);
        ensure!(found == (in_own, in_other), "OPARA_CACHE={cache}: {found:?}");
    }
    Ok(())
}
