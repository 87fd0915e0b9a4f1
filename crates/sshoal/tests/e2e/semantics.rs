//! The promises of docs/semantics.md that need a kernel, by number. A3, A4, A5 and A9 are in
//! `faults`.

mod ahead;
mod directories;
mod freshness;
mod gone;
mod reading;
mod sharing;

use std::net::SocketAddr;

use sandbox::link::{Link, LinkOptions};

use crate::mount::Mount;
use crate::world::World;

/// A mount whose traffic is counted.
fn counted(world: &World, options: &[&str]) -> (Link, Mount) {
    linked(world, LinkOptions::default(), options)
}

/// A mount over a simulated link.
fn linked(world: &World, link: LinkOptions, options: &[&str]) -> (Link, Mount) {
    let target = SocketAddr::from(([127, 0, 0, 1], world.sshd().port()));
    let link = Link::start(target, link).unwrap();
    let port = link.port().to_string();
    let mut words = vec!["-p", &port];
    words.extend(options);
    let mount = world.mount(&words);
    (link, mount)
}

/// Bytes in both directions.
fn traffic(link: &Link) -> u64 {
    link.bytes_to_target() + link.bytes_from_target()
}
