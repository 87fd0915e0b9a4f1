//! A steady remote over remotes that fail when they are told to.

mod appends;
mod conformance;
mod cuts;
mod files;
mod flushes;
mod gateways;
mod names;
mod opens;
mod random;
mod real;
mod runs;
mod sharers;
mod stage;
mod telling;
mod waiting;
