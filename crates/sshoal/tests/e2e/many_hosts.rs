//! Several hosts in one mount: the sources of a command line, pools, directories of this machine,
//! hosts that are down, and the configuration file.
//!
//! What a union or a pool does with a call is tested in its crate; here it is that they are put
//! together as the user has said.

mod configuration;
mod helper;
mod inotify;
mod logins;
mod missing;
mod pool;
mod refused;
mod tree;

use std::fs;
use std::path::Path;

use crate::hosts::Hosts;
use crate::world::names;

fn put(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

#[track_caller]
fn content(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path.as_ref()).unwrap()
}
