//! How a file begins.

/// First bytes of a file. Like PNG's they are no text, and show a transfer that rewrote line ends or the eighth bit.
pub(super) const MAGIC: [u8; 8] = *b"\x89OPARA\r\n";

/// Version that is written, and the newest that is read.
pub(super) const VERSION: u16 = 1;
