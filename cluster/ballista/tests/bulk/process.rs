//! The program as a child process, whose log is read line by line.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

/// How long a line may take to come: a bound on tests that hang.
const PATIENCE: Duration = Duration::from_secs(180);

/// What the tests wait for is in the log.
const LOG: &str = "info,opara_ballista=debug,ballista_scheduler::scheduler_server::grpc=debug";

/// The program with these arguments.
pub fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_opara-ballista"));
    command.args(args).env_remove("RUST_BACKTRACE").env("RUST_LOG", LOG);
    command
}

/// Runs the program to its end.
pub fn run(args: &[&str]) -> Result<Output> {
    Ok(program(args).output()?)
}

/// What the program wrote to its log.
pub fn log(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Which of these processes is the first to log this text.
pub fn first_with(processes: &mut [Process], text: &str) -> Result<usize> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        for (index, process) in processes.iter_mut().enumerate() {
            while let Ok(line) = process.lines.recv_timeout(Duration::from_millis(1)) {
                let is_it = line.contains(text);
                process.seen.push(line);
                if is_it {
                    return Ok(index);
                }
            }
        }
    }
    bail!("no process has a line with {text:?}")
}

/// A child process, which is killed when it is dropped.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Process {
    pub fn start(args: &[&str]) -> Result<Self> {
        let mut child = program(args).stderr(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let (sender, lines) = channel();
        let log = BufReader::new(child.stderr.take().context("no log")?);
        std::thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Ok(Self { child, lines, seen: Vec::new() })
    }

    /// Reads on to the next line that has this text.
    pub fn line(&mut self, text: &str) -> Result<String> {
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                bail!("no line with {text:?} in:\n{}", self.seen.join("\n"));
            };
            self.seen.push(line.clone());
            if line.contains(text) {
                return Ok(line);
            }
        }
    }

    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits for the end, and gives the log if it did not succeed.
    pub fn succeed(&mut self) -> Result<()> {
        self.seen.extend(self.lines.iter());
        match self.child.wait()?.success() {
            true => Ok(()),
            false => bail!("it failed:\n{}", self.seen.join("\n")),
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
