//! Printing of the library's warnings on stderr.

use std::io::{stderr, IsTerminal};

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{fmt, Layer, Registry};

/// Prints warnings and errors to stderr, in color on a terminal. It must be the first layer of the registry.
pub fn warnings() -> impl Layer<Registry> {
    let lines = fmt::layer().with_writer(stderr).with_ansi(stderr().is_terminal()).without_time();
    lines.with_filter(LevelFilter::WARN)
}
