//! A scheduler and executors as processes.

use anyhow::{Context, Result};
use opara_serve::embed::Size;

use super::process::{self, log, run, Process};
use super::texts::{self, Texts, SEED};

/// Starts a scheduler that gives silent executors up after so many seconds, and gives its address.
fn scheduler(timeout: &str) -> Result<(Process, String)> {
    let mut scheduler = Process::start(&["scheduler", "--port", "0", "--executor-timeout-seconds", timeout])?;
    let line = scheduler.line("listening on ")?;
    let address = line.rsplit(' ').next().context("no address")?.to_owned();
    Ok((scheduler, address))
}

/// Starts an executor with a random model of this size on one core.
fn executor(scheduler: &str, size: &str) -> Result<Process> {
    let seed = SEED.to_string();
    let cluster = ["executor", "--scheduler", scheduler, "--port", "0", "--task-port", "0", "--heartbeat-seconds", "1"];
    let model = ["--device", "cpu", "--threads", "1", "--size", size, "--seed", &seed];
    let mut executor = Process::start(&[&cluster[..], &model].concat())?;
    executor.line("Executor registration succeed")?;
    Ok(executor)
}

#[test]
fn a_killed_executor_costs_no_row() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let all = texts::some(0..12_000);
    texts::write(&folder.path().join("a.parquet"), &texts::some(0..7_000), 200)?;
    texts::write(&folder.path().join("b.parquet"), &texts::some(7_000..12_000), 200)?;
    texts::write(&folder.path().join("empty.parquet"), &Texts::new(), 200)?;
    let expected = texts::expected(&all, Size::Tiny)?;

    let (mut scheduler, address) = scheduler("6")?;
    let (_survivor, mut victim) = (executor(&address, "tiny")?, executor(&address, "tiny")?);
    let sql = format!("select id, embed(text) as vector from '{}/*.parquet'", folder.path().display());
    let answer = folder.path().join("answer");
    let output = answer.display().to_string();
    let mut query = Process::start(&["query", &sql, "--scheduler", &address, "--output", &output])?;
    // It has finished a task, whose rows are lost with it, and is at work on another one.
    victim.line("embedding a batch")?;
    victim.line("Finished task")?;
    victim.line("embedding a batch")?;
    victim.kill()?;
    assert!(query.is_running()? && !answer.exists(), "the query was done before the executor was killed");
    query.succeed()?;
    scheduler.line("heartbeat timed out")?;
    texts::check(&texts::vectors(&texts::read(&answer)?)?, &expected)
}

#[test]
fn rows_that_are_lost_when_all_is_done_are_asked_for_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // A file of few long words, and one of many short texts: each becomes a task, since they are divided by bytes.
    let long = |id: i64| (0..5_000).map(|n| format!("{:x}", (id * 5_000 + n) * 2_654_435_761)).collect::<String>();
    let few: Texts = (0..10).map(|id| (id, Some(long(id)))).collect();
    let many = texts::some(10..6_010);
    texts::write(&folder.path().join("a.parquet"), &few, 10)?;
    texts::write(&folder.path().join("b.parquet"), &many, 6_000)?;
    let expected = texts::expected(&few.into_iter().chain(many).collect(), Size::Tiny)?;

    let (mut scheduler, address) = scheduler("60")?;
    let mut executors = [executor(&address, "tiny")?, executor(&address, "tiny")?];
    let sql = format!("select id, embed(text) as vector from '{}/*.parquet'", folder.path().display());
    let answer = folder.path().join("answer");
    let output = answer.display().to_string();
    let flags = ["--scheduler", &address, "--output", &output, "--partitions", "2"];
    let mut query = Process::start(&[&["query", &sql][..], &flags].concat())?;
    // Its rows are lost, and the scheduler does not know when the other task ends.
    let done = process::first_with(&mut executors, "Finished task")?;
    scheduler.line("Received task status update")?;
    executors[done].kill()?;
    query.line("asking once more")?;
    query.succeed()?;
    texts::check(&texts::vectors(&texts::read(&answer)?)?, &expected)
}

#[test]
fn a_cluster_answers_as_one_machine() -> Result<()> {
    let folder = tempfile::tempdir()?;
    texts::write(&folder.path().join("texts.parquet"), &texts::some(0..100), 10)?;
    texts::write(&folder.path().join("empty.parquet"), &Texts::new(), 10)?;
    let files = format!("'{}/*.parquet'", folder.path().display());
    let (mut scheduler, address) = scheduler("6")?;
    let _executor = executor(&address, "tiny")?;
    let (seed, answer) = (SEED.to_string(), folder.path().join("answer"));
    let output = answer.display().to_string();
    let here = ["--device", "cpu", "--size", "tiny", "--seed", &seed];
    let there = ["--scheduler", &address];

    let sql = format!("select id, embed(text) as vector from {files}");
    let expected = texts::expected(&texts::some(0..100), Size::Tiny)?;
    for place in [&here[..], &there] {
        let query = [&["query", &sql, "--output", &output][..], place].concat();
        let done = run(&query)?;
        assert!(done.status.success(), "{}", log(&done));
        texts::check(&texts::vectors(&texts::read(&answer)?)?, &expected)?;
    }

    // Bad queries end with the same message in both places, and the cluster goes on.
    for (query, message) in [
        (format!("select embed(text, 'minilm') from {files}"), "there is no model 'minilm', only bert"),
        (format!("select embed(id) from {files}"), "embed takes texts, and this is Int64"),
        (format!("select embed(repeat('word ', 80)) from {files}"), "81 tokens"),
        (format!("copy (select embed(text) from {files}) to 'copy.parquet'"), "COPY"),
    ] {
        for place in [&here[..], &there] {
            let done = run(&[&["query", &query][..], place].concat())?;
            assert!(!done.status.success() && done.stdout.is_empty(), "{query}");
            assert!(log(&done).contains(message), "{query}: {}", log(&done));
        }
    }

    let lines = |place: &[&str]| {
        let done = run(&[&["query", "select embed('a cat') as vector"][..], place].concat())?;
        assert!(done.status.success(), "{}", log(&done));
        anyhow::Ok(String::from_utf8(done.stdout)?)
    };
    assert!(lines(&here)?.starts_with("{\"vector\":["));
    assert_eq!(lines(&here)?, lines(&there)?);
    assert!(scheduler.is_running()?);
    Ok(())
}
