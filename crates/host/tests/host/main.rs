//! A host over OpenSSH's sftp-server, and over scripted servers.

mod conformance;
mod connecting;
mod cuts;
mod errnos;
mod far;
mod files;
mod helper;
mod listing;
mod losing;
mod names;
mod peer;
mod pool;
mod scripted;
mod sizes;
mod spread;
mod status;
