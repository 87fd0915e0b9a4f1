//! `sshoal bench`: whole runs, of a little work, with real peers and with bad ones.
//!
//! No test here asks for a time: what the figures are is the bench's business.

mod advice;
mod bad_input;
mod bad_peers;
mod ending;
mod published;
mod runs;
mod scene;
