//! The server through this project's own client, and byte by byte.

mod conformance;
mod digests;
mod locks;
mod order;
mod peer;
mod refusals;
