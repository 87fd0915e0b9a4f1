//! The client over OpenSSH's server and over scripted hostile servers, and cancelled at every
//! point.

mod cancel;
mod coalescing;
mod compressed;
mod hostile;
mod order;
mod peer;
mod server;
