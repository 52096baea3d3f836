//! The dependencies of a user's build: the default features and their crates.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{ensure, Context};

/// The lines of `cargo tree` for a user who depends on a crate with its default features.
fn tree(arguments: &[&str]) -> anyhow::Result<Vec<String>> {
    let run = |offline: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "--locked", "--prefix", "none", "--no-dedupe"]).args(offline).args(arguments);
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().context("cargo tree")
    };
    // It also reads the manifests of crates that no build here has needed, which a fresh machine has not fetched.
    let mut cargo = run(&["--offline"])?;
    if !cargo.status.success() {
        cargo = run(&[])?;
    }
    ensure!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    Ok(String::from_utf8(cargo.stdout)?.lines().map(String::from).collect())
}

#[test]
fn test_features_are_not_default_features() -> anyhow::Result<()> {
    let features = tree(&["-e", "normal", "-p", "opara-candle", "--depth", "0", "--format", "{f}"])?.concat();
    for feature in ["testing", "faults", "cuda"] {
        ensure!(!features.split(',').any(|enabled| enabled == feature), "`{feature}` is a default feature: {features}");
    }
    Ok(())
}

/// The number of crates in a user's build that candle does not need, including this crate and `opara-plan`.
const CRATES: usize = 22;

#[test]
fn a_users_build_adds_few_crates_to_candles() -> anyhow::Result<()> {
    let crates = |package| -> anyhow::Result<BTreeSet<String>> {
        let lines = tree(&["-e", "normal", "-p", package])?;
        Ok(lines.into_iter().map(|line| line.split(" (").next().unwrap_or_default().to_string()).collect())
    };
    let candle = &crates("candle-core")? | &crates("candle-nn")?;
    let gained = &crates("opara-candle")? - &candle;
    let optional = ["tracing-subscriber", "svg"];
    let unwanted = gained.iter().find(|name| optional.contains(&name.split(' ').next().unwrap_or_default()));
    ensure!(unwanted.is_none(), "{unwanted:?} is for a feature that is off");
    ensure!(gained.len() <= CRATES, "{} crates: {gained:?}", gained.len());
    println!("{} crates: {gained:?}", gained.len());
    Ok(())
}
