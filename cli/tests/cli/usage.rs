//! Errors for invalid commands and files, and a clean end.

use std::io::Read;
use std::process::{Command, Stdio};

use super::{opara, trace};
use predicates::prelude::*;
use predicates::str::contains;

#[test]
fn wrong_usage_lists_the_alternatives() {
    let deepfm = trace("native-deepfm-f32");
    opara(&[]).code(2).stderr(contains("Usage"));
    opara(&["inspekt"]).code(2).stderr(contains("'inspect'"));
    let scheduler = opara(&["plan", &deepfm, "--scheduler", "oprra"]).code(2);
    scheduler.stderr(contains("possible values: sequential").and(contains("similar value exists: 'opara'")));
    opara(&["graph", &deepfm, "--format", "png"]).code(2).stderr(contains("possible values: dot, svg"));
    let device = opara(&["simulate", &deepfm, "--device", "h20"]).code(2);
    device.stderr(contains("possible values: v100").and(contains("h200, a100]")));
    opara(&["compare"]).code(2).stderr(contains("<TRACES>"));
}

#[test]
#[cfg(feature = "record")]
fn wrong_usage_of_record_lists_the_alternatives() {
    opara(&["record", "berd"]).code(2).stderr(contains("similar value exists: 'bert'"));
    opara(&["record", "bert", "--batch", "0"]).code(2).stderr(contains("0 is not in 1.."));
}

#[test]
#[cfg(not(feature = "record"))]
fn a_build_without_models_has_no_record_command() {
    opara(&["record", "bert"]).code(2).stderr(contains("unrecognized subcommand"));
}

#[test]
fn errors_name_invalid_files() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.trace");
    let missing = missing.to_str().unwrap();
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    opara(&["inspect", missing]).code(2).stderr(contains(missing).and(contains("No such file")));
    opara(&["inspect", here]).code(2).stderr(contains(here).and(contains("not those of a trace file")));
    opara(&["inspect", &format!("{missing}.json")]).code(2).stderr(contains("No such file"));
    let deepfm = trace("native-deepfm-f32");
    opara(&["check", &deepfm, missing]).code(2).stderr(contains(missing));
    let nowhere = format!("{missing}/plan.json");
    for args in [["plan", &deepfm, "-o", &nowhere], ["graph", &deepfm, "-o", &nowhere]] {
        opara(&args).code(2).stderr(contains("cannot write").and(contains(&nowhere)));
    }
    opara(&["convert", &deepfm, &nowhere]).code(2).stderr(contains("cannot write"));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_opara"))
        // More than a pipe buffers.
        .args(["graph", &trace("efficientnet-b0-f32")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 7];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(first, *b"digraph");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
#[cfg(feature = "record")]
fn models_are_recorded_on_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deepfm.trace");
    let path = path.to_str().unwrap();
    let recorded = opara(&["record", "deepfm", "--cpu", "--batch", "2", "-o", path]).success();
    recorded.stdout(contains("deepfm-f32 on cpu"));
    opara(&["inspect", path]).success().stdout(contains("host operators"));
    let nowhere = format!("{path}/deepfm.trace");
    opara(&["record", "deepfm", "--cpu", "-o", &nowhere]).code(2).stderr(contains(&nowhere));
}

/// A finished search would have stored its plan in the cache.
#[test]
#[cfg(feature = "record")]
fn an_unwritable_plan_is_reported_before_the_search() {
    let folder = tempfile::tempdir().unwrap();
    let [cache, nowhere] = ["cache", "nowhere/plan.json"].map(|name| folder.path().join(name).display().to_string());
    let search = ["tune", "deepfm", "--cpu", "--budget", "0.01", "--cache", &cache];
    for option in ["-o", "--trace"] {
        opara(&[&search[..], &[option, &nowhere]].concat())
            .code(2)
            .stderr(contains("cannot write").and(contains(&nowhere)));
        assert!(!std::path::Path::new(&cache).exists());
    }
    opara(&search).success();
    assert!(std::path::Path::new(&cache).exists());
}

#[test]
#[cfg(feature = "record")]
fn an_unusable_cache_folder_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let tune = |cache: &std::path::Path| {
        let cache = cache.to_str().unwrap();
        opara(&["tune", "deepfm", "--cpu", "--budget", "0.01", "--cache", cache]).success()
    };
    tune(&file.join("nowhere")).stderr(contains("cannot be cached").and(contains("nowhere")));

    let cache = folder.path().join("cache");
    tune(&cache).stderr(contains("kept").or(contains("plan on disk")).not());
    let plans = || std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(plans().count(), 1);
    plans().for_each(|plan| std::fs::write(plan, "{").unwrap());
    tune(&cache).stderr(contains("a tuned plan on disk is not used").and(contains(".plan.json")));
}

#[test]
#[cfg(all(feature = "record", not(feature = "cuda")))]
fn without_a_gpu_record_suggests_the_cpu() {
    opara(&["record", "deepfm"]).code(2).stderr(contains("--cpu uses the CPU").and(contains("--features cuda")));
}
