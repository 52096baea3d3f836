//! Why an engine gave no answers.

/// Why an engine gave no answers.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    message: String,
    is_fatal: bool,
}

impl EngineError {
    /// A failure that later batches need not meet.
    pub fn new(error: impl ToString) -> Self {
        Self { message: error.to_string(), is_fatal: false }
    }

    /// A failure that every later batch meets, such as a lost device. The worker ends; its rows go to another device.
    pub fn fatal(error: impl ToString) -> Self {
        Self { message: error.to_string(), is_fatal: true }
    }

    /// Whether every later batch fails, too.
    pub fn is_fatal(&self) -> bool {
        self.is_fatal
    }
}

impl From<opara_candle::Error> for EngineError {
    fn from(error: opara_candle::Error) -> Self {
        match error {
            opara_candle::Error::DeviceLost { .. } => Self::fatal(error),
            error => Self::new(error),
        }
    }
}

impl From<candle::Error> for EngineError {
    fn from(error: candle::Error) -> Self {
        opara_candle::Error::from(error).into()
    }
}
