//! Schedulers of a user's own, and searches.

use candle::{DType, Module, Tensor};
use opara_candle::plan::schedule::{Problem, Schedule};
use opara_candle::{ops, BuiltIn, Error, Mode, OparaExecutor, Scheduler, Search};
use std::sync::Arc;

use super::executor::Block;

use super::common::{same_bits, waves, CPU};

/// Every op on a stream of its own; without any waits if it is reckless.
#[derive(Debug)]
struct Scattered {
    reckless: bool,
}

impl Scheduler for Scattered {
    fn name(&self) -> String {
        "scattered".into()
    }

    fn schedule(&self, problem: &Problem) -> opara_candle::plan::schedule::Result<Schedule> {
        let ops = problem.graph.len();
        let mut schedule = Schedule::new(problem.graph, (0..ops).collect(), (0..ops).collect())?;
        if self.reckless {
            schedule.predecessors.iter_mut().for_each(Vec::clear);
        }
        Ok(schedule)
    }
}

#[test]
fn custom_schedulers_are_used_and_checked() -> anyhow::Result<()> {
    let block = Block::new(opara_weights::seeded(1, DType::F32, CPU))?;
    let x = Tensor::rand(-1f32, 1., (1, 8, 9, 9), CPU)?;
    let build =
        |reckless| OparaExecutor::builder().scheduler(Arc::new(Scattered { reckless })).build(block.clone(), &x);
    let fast = build(false)?;
    assert_eq!((fast.report().scheduler(), fast.report().mode()), ("scattered", Mode::Threads));
    assert!(same_bits(&fast.forward(&x)?, &block.forward(&x)?)?);
    let Err(error) = build(true) else { panic!("ops may overtake what they read") };
    assert!(matches!(error, Error::InvalidSchedule(_)), "{error}");
    Ok(())
}

/// A scheduler that panics.
#[derive(Debug)]
struct Faulty;

impl Scheduler for Faulty {
    fn name(&self) -> String {
        "faulty".into()
    }

    fn schedule(&self, problem: &Problem) -> opara_candle::plan::schedule::Result<Schedule> {
        panic!("{} ops are too many", problem.graph.len())
    }
}

#[test]
fn a_scheduler_that_panics_is_an_error() -> anyhow::Result<()> {
    let x = waves(0, (2, 2))?;
    let built = OparaExecutor::builder().scheduler(Arc::new(Faulty)).build(|x: &Tensor| ops::relu(x), &x);
    let Err(error) = built else { panic!("it made no schedule") };
    let named = matches!(&error, Error::SchedulerPanicked { scheduler, .. } if scheduler == "faulty");
    assert!(named && error.to_string().ends_with("1 ops are too many"), "{error}");
    Ok(())
}

#[test]
fn only_the_scheduler_set_last_is_used() -> anyhow::Result<()> {
    let x = waves(0, (2, 2))?;
    let search = || Search::default().proposals(1).cache(None);
    let last = |builder: opara_candle::Builder| -> anyhow::Result<_> {
        let report = builder.build(|x: &Tensor| ops::relu(x), &x)?.report();
        Ok((report.scheduler().to_owned(), report.search().is_some()))
    };
    let builder = OparaExecutor::builder;
    let own = || Arc::new(Scattered { reckless: false });
    assert_eq!(last(builder().scheduler(search()).scheduler(own()))?, ("scattered".into(), false));
    assert_eq!(last(builder().scheduler(own()).scheduler(BuiltIn::Nimble))?, ("nimble".into(), false));
    assert_eq!(last(builder().scheduler(own()).scheduler(search()))?, ("tuned".into(), true));
    Ok(())
}

#[test]
fn a_search_works_on_the_cpu() -> anyhow::Result<()> {
    let block = Block::new(opara_weights::seeded(1, DType::F32, CPU))?;
    let x = Tensor::rand(-1f32, 1., (1, 8, 9, 9), CPU)?;
    let folder = tempfile::tempdir()?;
    let search = Search::default().proposals(8).cache(Some(folder.path().into()));
    let build = || OparaExecutor::builder().scheduler(search.clone()).build(block.clone(), &x);
    for cached in [false, true] {
        let fast = build()?;
        let report = fast.report();
        let findings = report.search().expect("a search");
        assert_eq!((findings.cached, fast.report().scheduler()), (cached, "tuned"));
        assert!(same_bits(&fast.forward(&x)?, &block.forward(&x)?)?);
    }
    Ok(())
}
