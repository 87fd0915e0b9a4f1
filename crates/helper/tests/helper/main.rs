//! The server through this project's own client, and byte by byte.

mod compression;
mod conformance;
mod digests;
mod direct;
mod leases;
mod locks;
mod mounts;
mod order;
mod peer;
mod refusals;
mod watches;
