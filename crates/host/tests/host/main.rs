//! A host over OpenSSH's real sftp-server, and over servers played by the tests.

mod conformance;
mod connecting;
mod cuts;
mod errnos;
mod far;
mod files;
mod listing;
mod losing;
mod names;
mod peer;
mod pool;
mod scripted;
mod sizes;
mod spread;
mod status;
