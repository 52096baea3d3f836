//! The batcher: every request gets its own answer or one error, whatever happens to workers, clients and devices.

mod common;

use std::time::{Duration, Instant};

use candle::{DType, Device, Tensor};
use common::{answer, Fake, Order};
use opara_candle::{ops, OparaExecutor};
use opara_serve::batch::{Axis, Batcher, Bucket, Buckets, Engine, EngineError, Error, Job, Rows, Settings};
use opara_serve::embed::{Size, TextModel, TextRow};

fn buckets() -> Buckets {
    Buckets::new([1, 2, 4], [4, 8], 32).expect("they are sound")
}

fn row(first: u32, length: usize) -> Vec<u32> {
    (first..).take(length).collect()
}

#[test]
fn rows_that_wait_become_one_batch_and_answers_find_their_rows() -> anyhow::Result<()> {
    let (fake, orders, started) = Fake::new();
    let batcher = Batcher::start([fake], buckets(), Settings::default());
    let first = batcher.submit(Job::of([row(1, 3)]))?;
    assert_eq!(started.recv()?.0, Bucket { batch: 1, length: 4 });
    let both = batcher.submit(Job::of([row(5, 4), row(9, 2)]))?;
    let third = batcher.submit(Job::of([row(7, 1)]))?;
    (0..2).try_for_each(|_| orders.send(Order::Run))?;
    assert_eq!(started.recv()?, (Bucket { batch: 4, length: 4 }, vec![row(5, 4), row(9, 2), row(7, 1)]));
    assert_eq!(first.wait()?, [answer(&row(1, 3))]);
    assert_eq!(both.wait()?, [answer(&row(5, 4)), answer(&row(9, 2))]);
    assert_eq!(third.wait()?, [answer(&row(7, 1))]);
    Ok(())
}

#[test]
fn a_request_without_rows_is_answered_at_once() -> anyhow::Result<()> {
    let batcher = Batcher::start([Fake::new().0], buckets(), Settings::default());
    assert!(batcher.submit(Job::of([]))?.wait()?.is_empty());
    Ok(())
}

#[test]
fn a_full_queue_refuses_and_room_of_clients_that_left_is_used() -> anyhow::Result<()> {
    let (fake, orders, started) = Fake::new();
    let batcher = Batcher::start([fake], buckets(), Settings::default().queue_rows(2));
    let running = batcher.submit(Job::of([row(0, 1)]))?;
    started.recv()?;
    let waiting = [batcher.submit(Job::of([row(1, 1)]))?, batcher.submit(Job::of([row(2, 1)]))?];
    let refused = batcher.submit(Job::of([row(3, 1)])).expect_err("the queue is full");
    assert_eq!(refused, Error::Full { retry_after: Duration::from_secs(1) });
    let never = batcher.submit(Job::of([row(3, 1), row(4, 1), row(5, 1)])).expect_err("it never fits");
    assert_eq!(never, Error::TooManyRows { rows: 3, limit: 2 });
    let [kept, left] = waiting;
    drop(left);
    let taken = batcher.submit(Job::of([row(4, 1)]))?;
    (0..2).try_for_each(|_| orders.send(Order::Run))?;
    assert_eq!(started.recv()?.1, [row(1, 1), row(4, 1)], "the row of the client that left is not run");
    for (pending, expected) in [(running, row(0, 1)), (kept, row(1, 1)), (taken, row(4, 1))] {
        assert_eq!(pending.wait()?, [answer(&expected)]);
    }
    Ok(())
}

#[test]
fn a_row_that_no_bucket_holds_is_named() {
    let batcher = Batcher::start([Fake::new().0], buckets(), Settings::default());
    let error = batcher.submit(Job::of([row(0, 8), row(0, 9)])).expect_err("the second is too long");
    assert_eq!(error, Error::TooLong { row: 1, length: 9, limit: 8 });
}

#[test]
fn a_deadline_that_passed_is_answered_and_not_run() -> anyhow::Result<()> {
    let (fake, orders, started) = Fake::new();
    let batcher = Batcher::start([fake], buckets(), Settings::default());
    let running = batcher.submit(Job::of([row(0, 1)]))?;
    started.recv()?;
    let late = batcher.submit(Job::of([row(1, 1)]).deadline(Instant::now()))?;
    let other = batcher.submit(Job::of([row(2, 1)]))?;
    (0..2).try_for_each(|_| orders.send(Order::Run))?;
    assert_eq!(started.recv()?.1, [row(2, 1)]);
    assert_eq!(late.wait(), Err(Error::Deadline));
    assert_eq!((running.wait()?, other.wait()?), (vec![answer(&[0])], vec![answer(&[2])]));
    Ok(())
}

#[tokio::test]
async fn a_deadline_does_not_wait_for_a_worker() -> anyhow::Result<()> {
    let (fake, _orders, _started) = Fake::new();
    let batcher = Batcher::start([fake], buckets(), Settings::default());
    let pending = batcher.submit(Job::of([row(0, 1)]).deadline(Instant::now() + Duration::from_millis(20)))?;
    assert_eq!(pending.answers().await, Err(Error::Deadline), "its batch has no end");
    Ok(())
}

#[test]
fn a_panic_and_a_failure_cost_their_batch_alone() -> anyhow::Result<()> {
    let (fake, orders, started) = Fake::new();
    let batcher = Batcher::start([fake], buckets(), Settings::default());
    for (order, expected) in
        [(Order::Panic, Some("panicked")), (Order::Run, None), (Order::Fail, Some("on purpose")), (Order::Run, None)]
    {
        let pending = batcher.submit(Job::of([row(1, 2)]))?;
        started.recv()?;
        orders.send(order)?;
        match (pending.wait(), expected) {
            (Ok(answers), None) => assert_eq!(answers, [answer(&row(1, 2))]),
            (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{error}"),
            (result, _) => panic!("{result:?}"),
        }
    }
    assert!(batcher.is_ready());
    Ok(())
}

#[test]
fn rows_of_a_lost_device_are_run_on_another_one() -> anyhow::Result<()> {
    let (fake, orders, started) = Fake::new();
    let batcher = Batcher::start([fake.clone(), fake], buckets(), Settings::default());
    let pending = batcher.submit(Job::of([row(1, 2)]))?;
    let first = started.recv()?;
    orders.send(Order::LoseDevice)?;
    assert_eq!(started.recv()?, first, "it is run again");
    orders.send(Order::Run)?;
    assert_eq!(pending.wait()?, [answer(&row(1, 2))]);
    assert!(batcher.is_ready() && !batcher.is_lost());
    Ok(())
}

#[test]
fn without_a_device_everything_that_waits_fails() -> anyhow::Result<()> {
    let (fake, orders, started) = Fake::new();
    let batcher = Batcher::start([fake], buckets(), Settings::default());
    let running = batcher.submit(Job::of([row(0, 1)]))?;
    started.recv()?;
    let waiting = batcher.submit(Job::of([row(1, 1)]))?;
    orders.send(Order::LoseDevice)?;
    assert!(matches!(running.wait(), Err(Error::Engine(error)) if error.is_fatal()));
    assert_eq!(waiting.wait(), Err(Error::NoDevice));
    assert_eq!(batcher.submit(Job::of([row(1, 1)])).expect_err("there is no device"), Error::NoDevice);
    assert!(!batcher.is_ready() && batcher.is_lost());
    Ok(())
}

#[test]
fn draining_answers_all_that_was_taken() -> anyhow::Result<()> {
    let (fake, orders, started) = Fake::new();
    let batcher = Batcher::start([fake], buckets(), Settings::default());
    let pending: Vec<_> = (0..20).map(|n| batcher.submit(Job::of([row(n, 1)]))).collect::<Result<_, _>>()?;
    started.recv()?;
    // Without a sender every further batch runs.
    drop(orders);
    batcher.drain();
    assert_eq!(batcher.submit(Job::of([row(1, 1)])).expect_err("it drains"), Error::Draining);
    for (n, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.wait()?, [answer(&[n as u32])]);
    }
    Ok(())
}

#[test]
fn dropping_a_batcher_answers_all_that_was_taken() -> anyhow::Result<()> {
    let (fake, orders, _started) = Fake::new();
    let batcher = Batcher::start([fake], buckets(), Settings::default());
    let pending: Vec<_> = (0..9).map(|n| batcher.submit(Job::of([row(n, 1)]))).collect::<Result<_, _>>()?;
    drop((batcher, orders));
    assert!(pending.into_iter().all(|pending| pending.wait().is_ok()));
    Ok(())
}

/// Rows padded to a bucket, stacked and cut back have the bits of the same rows alone, for an operator that treats
/// tokens one by one.
#[test]
fn rows_of_an_executor_have_the_modules_bits() -> anyhow::Result<()> {
    let table = Tensor::randn(0f32, 1., (100, 8), &Device::Cpu)?;
    let weights = table.clone();
    let forward = move |x: &[Tensor]| Ok(vec![ops::relu(&ops::embedding(&weights, &x[0])?)?, x[0].clone()]);
    let example = Tensor::zeros((1, 4), DType::U32, &Device::Cpu)?;
    let executor = OparaExecutor::builder().max_shapes(buckets().len()).build_fn(forward, &[example])?;
    let length = Axis::Length { pad: 0. };
    let engine = Rows::new(executor, Device::Cpu, [length], [length, length]);
    let engine = engine.example(vec![Tensor::new(&[1u32, 2, 3], &Device::Cpu)?]);
    let batcher = Batcher::start([engine], buckets(), Settings::default());
    let mut built = Vec::new();
    batcher.warm_up(|bucket, done, all| built.push((bucket, done, all)))?;
    assert_eq!(built.len(), buckets().len());
    let rows = [row(1, 3), row(20, 8), row(50, 1), row(60, 4)];
    let job =
        rows.iter().map(|row| Ok(vec![Tensor::new(&row[..], &Device::Cpu)?])).collect::<anyhow::Result<Vec<_>>>()?;
    for (answer, row) in batcher.submit(Job::of(job))?.wait()?.iter().zip(&rows) {
        let expected = table.index_select(&Tensor::new(&row[..], &Device::Cpu)?, 0)?.relu()?;
        assert_eq!(answer[0].to_vec2::<f32>()?, expected.to_vec2::<f32>()?);
        assert_eq!(answer[1].to_vec1::<u32>()?, *row);
    }
    Ok(())
}

/// Padding and neighbours in a batch change nothing but rounding.
#[test]
fn an_embedding_does_not_depend_on_its_batch() -> anyhow::Result<()> {
    let model = TextModel::random(Size::Tiny, 3);
    let alone = model.embedder(&Device::Cpu, DType::F32, &Buckets::new([1], [64], 64)?)?;
    let batched = model.embedder(&Device::Cpu, DType::F32, &Buckets::new([1, 4], [8, 16, 64], 256)?)?;
    let words = |n: usize| (0..n).map(|i| format!("word{i}")).collect::<Vec<_>>().join(" ");
    let texts: Vec<String> = [1, 3, 7, 8, 12, 15, 30, 60, 2].map(words).to_vec();
    for (a, b) in alone.embed(&texts)?.iter().zip(batched.embed(&texts)?) {
        let dot: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
        assert!((dot - 1.).abs() < 1e-5, "{dot}");
    }
    Ok(())
}

/// Texts side by side have the answers of texts alone: vectors, parts of them behind a prompt, tokens' hidden states, and tokens of other types.
#[test]
fn texts_side_by_side_have_the_answers_of_texts_alone() -> anyhow::Result<()> {
    let model = TextModel::random(Size::Tiny, 3);
    let alone = model.embedder(&Device::Cpu, DType::F32, &Buckets::new([1], [64], 64)?)?;
    let packed = model.embedder(&Device::Cpu, DType::F32, &Buckets::packed([16, 64, 256], 64)?)?;
    let mut rng = fastrand::Rng::with_seed(5);
    let mut rows = Vec::new();
    for length in [3, 1, 17, 40, 64, 2, 9] {
        let ids = (0..length).map(|_| rng.u32(2..100)).collect::<Vec<_>>();
        let types = if length == 17 { (0..17).map(|at| at / 9).collect() } else { Vec::new() };
        rows.push(TextRow { types, has_tokens: length % 2 == 0, unpooled: length / 4, ..TextRow::from(ids) });
    }
    let (one, all) = (Bucket { batch: 1, length: 64 }, Bucket { batch: 1, length: 256 });
    let together = packed.run(all, &rows.iter().collect::<Vec<_>>())?;
    for (row, together) in rows.iter().zip(together) {
        let alone = alone.run(one, &[row])?.swap_remove(0);
        assert_eq!(together.len(), alone.len());
        let apart = together.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
        assert!(apart < 1e-5, "{} tokens: {apart}", row.ids.len());
    }
    // What does not fit is refused, not cut.
    let long = TextRow::from(vec![5; 60]);
    let error = packed.run(one, &[&long, &rows[2]]).err().map(|error| error.to_string());
    assert!(error.is_some_and(|error| error.contains("2 rows of 77 tokens")), "a batch of 64 tokens");
    let words = |n: usize| (0..n).map(|i| format!("word{i}")).collect::<Vec<_>>().join(" ");
    let texts: Vec<String> = [1, 3, 7, 8, 12, 15, 30, 60, 2].into_iter().cycle().take(40).map(words).collect();
    for (a, b) in alone.embed(&texts)?.iter().zip(packed.embed(&texts)?) {
        let dot: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
        assert!((dot - 1.).abs() < 1e-5, "{dot}");
    }
    Ok(())
}

/// Answers whether it runs on threads of a pool, once it may.
struct InPool(parking_lot::Mutex<std::sync::mpsc::Receiver<()>>, std::sync::mpsc::Sender<()>);

impl Engine for InPool {
    type Row = ();
    type Answer = bool;

    fn length(&self, (): &()) -> usize {
        1
    }

    fn run(&self, _: Bucket, rows: &[&()]) -> Result<Vec<bool>, EngineError> {
        let _ = self.1.send(());
        // The test is over if this fails.
        let _ = self.0.lock().recv();
        Ok(vec![rayon::current_thread_index().is_some(); rows.len()])
    }
}

#[test]
fn a_batch_beside_another_one_has_its_share_of_the_cores() -> anyhow::Result<()> {
    let ((go, wait), (send, started)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let settings = Settings::default().in_flight(2).share_cores(true);
    let batcher = Batcher::start([InPool(parking_lot::Mutex::new(wait), send)], buckets(), settings);
    let alone = batcher.submit(Job::of([()]))?;
    started.recv()?;
    let beside = batcher.submit(Job::of([()]))?;
    started.recv()?;
    (0..2).try_for_each(|_| go.send(()))?;
    assert_eq!((alone.wait()?, beside.wait()?), (vec![false], vec![true]));
    Ok(())
}
