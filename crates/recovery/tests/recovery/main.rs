//! Tests of `Recovering` over remotes with injected faults.

mod appends;
mod conformance;
mod cuts;
mod files;
mod flushes;
mod gateways;
mod locks;
mod names;
mod opens;
mod outage_log;
mod random;
mod real;
mod restarts;
mod shared_files;
mod stage;
mod waiting;
