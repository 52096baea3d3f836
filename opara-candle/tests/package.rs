//! What a user's build gets: the default features, and the crates that come with them.

use std::process::Command;

use anyhow::{ensure, Context};

/// Lines of `cargo tree` for a user who depends on this crate with its default features.
fn tree(arguments: &[&str]) -> anyhow::Result<Vec<String>> {
    let cargo = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "-p", "opara-candle", "--prefix", "none", "--no-dedupe"])
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .context("cargo tree")?;
    ensure!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    Ok(String::from_utf8(cargo.stdout)?.lines().map(String::from).collect())
}

#[test]
fn nothing_for_tests_is_in_a_users_build() -> anyhow::Result<()> {
    let features = tree(&["-e", "normal", "--depth", "0", "--format", "{f}"])?.concat();
    for feature in ["testing", "faults", "cuda"] {
        ensure!(!features.split(',').any(|enabled| enabled == feature), "`{feature}` is a default feature: {features}");
    }
    Ok(())
}
