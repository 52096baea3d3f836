//! What the library warns of, on stderr.

use std::io::{stderr, IsTerminal};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{fmt, Layer, Registry};

/// Prints warnings and errors to stderr, in colour on a terminal. Goes onto the registry first.
pub fn warnings() -> impl Layer<Registry> {
    let lines = fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal()).without_time();
    lines.with_filter(LevelFilter::WARN)
}
