//! The function `embed` in a session, in the program, and on a cluster of processes.

mod cluster;
mod function;
mod process;
mod program;
mod texts;
