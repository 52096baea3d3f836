//! The threads: their roles, their deadline, and the diagnosis of a thread that hangs.

use std::sync::mpsc::channel;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;
use parking_lot::Mutex;

use crate::builds::Builds;
use crate::calls::Calls;
use crate::fleeting;
use crate::plain::Plain;
use crate::tally::Tally;
use crate::world::World;

/// Time that a thread may take after the deadline. Only a deadlock takes that long.
const GRACE: Duration = Duration::from_secs(120);

/// The roles of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Runs plain candle code.
    Plain,
    /// Calls shared executors.
    Calls,
    /// Builds its own executors.
    Builds,
    /// Starts short-lived threads.
    Fleeting,
}

/// Roles in turn. With sixteen threads, six run plain code, six call, two build, and two start short-lived threads.
const ROLES: [Role; 8] =
    [Role::Plain, Role::Calls, Role::Plain, Role::Builds, Role::Calls, Role::Fleeting, Role::Plain, Role::Calls];

/// The parameters of one half of a run.
pub struct Plan<'a> {
    pub threads: usize,
    /// Threads of other roles do nothing. Empty: all roles work.
    pub only: &'a [Role],
    pub seed: u64,
    pub half: u64,
    pub length: Duration,
}

/// Runs all threads until the deadline. A thread that hangs ends the program with exit code 1.
///
/// # Errors
/// Only errors of starting; errors of operations are counted.
pub fn run(world: &World, plan: &Plan<'_>) -> Result<Tally> {
    let deadline = Instant::now() + plan.length;
    let doing: Vec<Arc<Mutex<&'static str>>> = (0..plan.threads).map(|_| Arc::new(Mutex::new("starting"))).collect();
    let (finish, finished) = channel();
    thread::scope(|scope| {
        for (thread, doing) in doing.iter().enumerate() {
            let finish = finish.clone();
            scope.spawn(move || {
                let mut tally = Tally::of(doing.clone());
                let seed = plan.seed ^ (thread as u64) << 8 ^ plan.half << 32;
                let role = ROLES[thread % ROLES.len()];
                if plan.only.is_empty() || plan.only.contains(&role) {
                    work(world, role, &mut fastrand::Rng::with_seed(seed), deadline, &mut tally);
                }
                // The receiver waits for every thread, so it still exists.
                let _ = finish.send((thread, tally));
            });
        }
        drop(finish);
        let mut all = Tally::default();
        let mut left: Vec<usize> = (0..plan.threads).collect();
        while !left.is_empty() {
            let wait = (deadline + GRACE).saturating_duration_since(Instant::now());
            match finished.recv_timeout(wait) {
                Ok((thread, tally)) => {
                    left.retain(|other| *other != thread);
                    all.add(tally);
                }
                Err(_) => give_up(&left, &doing),
            }
        }
        Ok(all)
    })
}

/// Reports the threads that hang, and ends the program.
fn give_up(left: &[usize], doing: &[Arc<Mutex<&'static str>>]) -> ! {
    for &thread in left {
        let role = ROLES[thread % ROLES.len()];
        eprintln!("thread {thread} ({role:?}) hangs in: {}", doing[thread].lock());
    }
    std::process::exit(1)
}

fn work(world: &World, role: Role, rng: &mut fastrand::Rng, deadline: Instant, tally: &mut Tally) {
    let goes_on = || Instant::now() < deadline;
    match role {
        Role::Plain => {
            let mut plain = Plain::new(world);
            while goes_on() {
                plain.round(rng, tally);
            }
        }
        Role::Calls => {
            let mut calls = Calls::new(world);
            while goes_on() {
                calls.round(rng, tally);
            }
        }
        Role::Builds => {
            let mut builds = Builds::new(world);
            while goes_on() {
                builds.round(rng, tally);
            }
        }
        Role::Fleeting => {
            while goes_on() {
                fleeting::round(world, rng, tally);
            }
        }
    }
}
