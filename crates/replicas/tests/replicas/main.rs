//! A pool over gateways in memory, over gateways that fail, stall and lag, and over real servers.

mod conformance;
mod failing;
mod pool;
mod silent;
mod spreading;
mod two_links;
mod visibility;
