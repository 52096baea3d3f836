//! `Loader`: batches that are made and uploaded ahead of their steps.

use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;
use std::thread::JoinHandle;

use candle::{bail, Device, Result, Tensor};

use crate::cuda::Upload;

/// Gives the batch of these rows, on a CPU.
type Make = dyn Fn(&[usize]) -> Result<Vec<Tensor>> + Send + Sync;

/// Batches in an order that follows from seed and epoch. A thread makes them ahead of the steps; on a GPU it writes them to page-locked
/// memory and uploads them on a stream of its own, while steps run. It gives batches without end, each epoch as many as rows fill.
///
/// ```
/// use candle::{Device, Tensor};
/// use opara_candle::Loader;
///
/// let squares = |rows: &[usize]| {
///     let x: Vec<f32> = rows.iter().map(|&row| row as f32).collect();
///     let x = Tensor::new(x, &Device::Cpu)?;
///     Ok(vec![x.clone(), x.sqr()?])
/// };
/// let mut batches = Loader::new(10, 4, &Device::Cpu, squares).shuffle(7);
/// let first = batches.next().unwrap()?;
/// assert_eq!(first[0].dims(), [4]);
/// assert_eq!(batches.position(), 1);
///
/// let mut again = Loader::new(10, 4, &Device::Cpu, squares).shuffle(7);
/// assert_eq!(again.next().unwrap()?[1].to_vec1::<f32>()?, first[1].to_vec1::<f32>()?);
/// # Ok::<(), candle::Error>(())
/// ```
pub struct Loader {
    order: Order,
    device: Device,
    make: Arc<Make>,
    position: u64,
    ahead: Option<Ahead>,
}

/// Which rows a batch has.
#[derive(Debug, Clone, Copy)]
struct Order {
    rows: usize,
    batch: usize,
    seed: Option<u64>,
}

impl Order {
    /// Batches of an epoch.
    fn per_epoch(&self) -> u64 {
        (self.rows / self.batch.max(1)) as u64
    }

    /// All rows, in the order of an epoch.
    fn of_epoch(&self, epoch: u64) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..self.rows).collect();
        if let Some(seed) = self.seed {
            fastrand::Rng::with_seed(seed.wrapping_add(epoch.wrapping_mul(0x9E37_79B9_7F4A_7C15))).shuffle(&mut rows);
        }
        rows
    }
}

impl Loader {
    /// Batches of `batch` of `rows` rows. `make` gives the tensors of rows on a CPU, of the same shapes each time; the loader's are on
    /// `device`.
    pub fn new<F>(rows: usize, batch: usize, device: &Device, make: F) -> Self
    where
        F: Fn(&[usize]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    {
        let order = Order { rows, batch, seed: None };
        Self { order, device: device.clone(), make: Arc::new(make), position: 0, ahead: None }
    }

    /// Gives rows in another order at each epoch.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.order.seed = Some(seed);
        self.ahead = None;
        self
    }

    /// Batches that were given.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Goes to where so many batches were given.
    pub fn seek(&mut self, position: u64) {
        self.position = position;
        self.ahead = None;
    }

    /// What its order follows from, for checkpoints.
    pub(crate) fn order(&self) -> String {
        let Order { rows, batch, seed } = self.order;
        let order = seed.map_or("in their order".into(), |seed| format!("shuffled by {seed}"));
        format!("{batch} of {rows} rows {order}")
    }

    fn start(&self) -> Result<Ahead> {
        if self.order.per_epoch() == 0 {
            bail!("{} rows fill no batch of {}", self.order.rows, self.order.batch)
        }
        Ahead::start(Work {
            order: self.order,
            device: self.device.clone(),
            make: self.make.clone(),
            position: self.position,
            rows: None,
        })
    }

    fn taken(&mut self) -> Result<Vec<Tensor>> {
        let mut ahead = self.ahead.take().map_or_else(|| self.start(), Ok)?;
        let batch = ahead.take()?;
        // After an error the next call begins again at the same batch.
        self.ahead = Some(ahead);
        self.position += 1;
        Ok(batch)
    }
}

impl Iterator for Loader {
    type Item = Result<Vec<Tensor>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.taken())
    }
}

/// A batch that is ready.
enum Ready {
    OnCpu(Vec<Tensor>),
    Uploaded(Box<Upload>),
}

/// A thread that makes batches.
struct Ahead {
    ready: Option<Receiver<Result<Ready>>>,
    /// Uploads that are read give their memory back.
    free: SyncSender<Box<Upload>>,
    thread: Option<JoinHandle<()>>,
}

/// Batches that are ready at most, and memory for one more, which is filled meanwhile.
const AHEAD: usize = 2;

impl Ahead {
    fn start(mut work: Work) -> Result<Self> {
        let ((give, ready), (free, freed)) = (sync_channel(AHEAD), sync_channel(AHEAD + 2));
        let run = move || {
            for position in work.position.. {
                work.position = position;
                let batch = work.batch(&freed);
                let is_last = batch.is_err();
                if give.send(batch).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("opara-loader".into()).spawn(run).map_err(candle::Error::wrap)?;
        Ok(Self { ready: Some(ready), free, thread: Some(thread) })
    }

    fn take(&mut self) -> Result<Vec<Tensor>> {
        let ready = self.ready.as_ref().and_then(|ready| ready.recv().ok());
        match ready.unwrap_or_else(|| Err(candle::Error::Msg("the function that makes batches panicked".into())))? {
            Ready::OnCpu(batch) => Ok(batch),
            Ready::Uploaded(mut upload) => {
                let batch = upload.take().map_err(candle::Error::wrap)?;
                // There is room for all.
                let _ = self.free.try_send(upload);
                Ok(batch)
            }
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // The thread sends no more then, and ends.
        self.ready = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread does.
struct Work {
    order: Order,
    device: Device,
    make: Arc<Make>,
    position: u64,
    /// An epoch, and the order of its rows.
    rows: Option<(u64, Vec<usize>)>,
}

impl Work {
    /// The batch at the position.
    fn batch(&mut self, freed: &Receiver<Box<Upload>>) -> Result<Ready> {
        let (epoch, at) = (self.position / self.order.per_epoch(), self.position % self.order.per_epoch());
        let rows = match self.rows.take() {
            Some((of, rows)) if of == epoch => rows,
            _ => self.order.of_epoch(epoch),
        };
        let (_, rows) = self.rows.insert((epoch, rows));
        let batch = (self.make)(&rows[at as usize * self.order.batch..][..self.order.batch])?;
        if !self.device.is_cuda() {
            return Ok(Ready::OnCpu(batch));
        }
        let free = freed.try_recv().ok().filter(|upload| upload.fits(&batch));
        let mut upload = match free {
            Some(upload) => upload,
            None => Box::new(Upload::new(&self.device, &batch).map_err(candle::Error::wrap)?),
        };
        upload.enqueue(&batch).map_err(candle::Error::wrap)?;
        Ok(Ready::Uploaded(upload))
    }
}
