//! The program's flags.

use anyhow::Result;

use super::process::{log, run};

#[test]
fn wrong_flags_are_errors_that_say_what_to_do() -> Result<()> {
    let missing = tempfile::tempdir()?.path().join("missing").display().to_string();
    let model = format!("minilm={missing}");
    for (flags, message) in [
        (&["--model", &model][..], "there is no such folder"),
        (&["--model", "minilm"], "give a name and a folder"),
        (&["--size", "huge"], "unknown variant `huge`"),
        (&["--device", "gpu"], "give `cpu` or a GPU's number"),
        (&["--device", "99"], "`--device cpu` runs on the CPU instead"),
        (&["--dtype", "f64"], "give f32, f16 or bf16"),
        (&["--lengths", "0"], "cannot be 0"),
        (&["--scheduler", "127.0.0.1:port"], "is not HOST:PORT"),
        (&["--scheduler", "127.0.0.1:1"], "Connection refused"),
    ] {
        let done = run(&[&["query", "select embed('a')"], flags].concat())?;
        assert!(!done.status.success(), "{flags:?}");
        assert!(log(&done).contains(message), "{flags:?}: {}", log(&done));
    }
    Ok(())
}

#[test]
fn random_weights_are_said_to_be_random() -> Result<()> {
    let done = run(&["query", "select embed('a') as vector", "--device", "cpu", "--size", "tiny"])?;
    assert!(done.status.success() && log(&done).contains("random weights"), "{}", log(&done));
    Ok(())
}
