//! The client against a real server, against scripted hostile ones, and cancelled at every point.

mod cancel;
mod gathered;
mod hostile;
mod order;
mod peer;
mod server;
