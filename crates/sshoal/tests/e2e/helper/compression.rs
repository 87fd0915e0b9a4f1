//! `compress=yes`, over a link that counts bytes.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use sandbox::link::{Link, LinkOptions};
use serde_json::Value;

use super::served_by_helper;
use super::site::session;
use crate::behaviours::pattern;
use crate::mount::Mount;
use crate::process::{eventually, succeed};
use crate::world::{World, program};

const SOON: Duration = Duration::from_secs(60);

struct Site {
    world: World,
    link: Link,
}

impl Site {
    fn new(world: World) -> Site {
        let sshd = SocketAddr::from(([127, 0, 0, 1], world.sshd().port()));
        let link = Link::start(sshd, LinkOptions::default()).unwrap();
        Site { world, link }
    }

    fn mount(&self, options: &[&str]) -> Mount {
        let port = self.link.port().to_string();
        let words = [&["-p", &port, "-o", "compress=yes"], options].concat();
        let mount = self.world.mount(&words);
        // It answers.
        session(&mount);
        mount
    }
}

/// Text of about this length.
pub fn text(len: usize) -> Vec<u8> {
    let mut text = Vec::new();
    for number in 0.. {
        if text.len() >= len {
            break;
        }
        text.extend_from_slice(format!("{number}: the quick brown fox\n").as_bytes());
    }
    text
}

/// Bytes that do not shrink.
fn random(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn host_of_stats(mount: &Mount) -> Value {
    let shown = succeed(program().args(["stats", "--total", "--json"]).arg(mount.place()));
    serde_json::from_str::<Value>(&shown).unwrap()["hosts"][0].clone()
}

#[test]
fn fewer_bytes_go_over_the_link_and_the_status_says_so() {
    let site = Site::new(served_by_helper(""));
    let (world, link) = (&site.world, &site.link);
    // An odd length: the last read is short.
    let [text, random] = [text(3_000_001), random(1_000_003)];
    let both = [&text[..], &random, &text[..10], &random[..300_000]].concat();
    for (name, content) in [("text", &text), ("random", &random), ("both", &both)] {
        fs::write(world.served(name), content).unwrap();
    }
    let mount = site.mount(&[]);
    let carried = || link.bytes_from_target() + link.bytes_to_target();
    let before = carried();
    assert!(fs::read(mount.at("text")).unwrap() == text);
    let read = carried() - before;
    assert!(read < text.len() as u64 / 3, "{read} bytes");
    fs::write(mount.at("new-text"), &text).unwrap();
    let written = carried() - before - read;
    assert!(written < text.len() as u64 / 3, "{written} bytes");
    assert!(fs::read(world.served("new-text")).unwrap() == text);
    let session = session(&mount);
    assert_eq!(session["is_compressed"], true, "{session}");
    let shown = succeed(program().arg("status").arg(mount.place()));
    assert!(shown.contains(", compressed,"), "{shown}");
    let counted = host_of_stats(&mount);
    for (bytes, saved) in
        [("sent_bytes", "sent_saved_bytes"), ("received_bytes", "received_saved_bytes")]
    {
        let [bytes, saved] = [bytes, saved].map(|name| counted[name].as_u64().unwrap());
        assert!(bytes < text.len() as u64 / 3, "{counted}");
        assert!(saved > 2_000_000 && bytes + saved > text.len() as u64, "{counted}");
    }
    // What does not shrink, and what shrinks in part.
    for (name, content) in [("random", &random), ("both", &both)] {
        assert!(fs::read(mount.at(name)).unwrap() == *content, "{name}");
        fs::write(mount.at("new"), content).unwrap();
        assert!(fs::read(world.served("new")).unwrap() == *content, "{name}");
    }
    mount.unmount();
}

/// A lost connection is recovered as without compression.
#[test]
fn nothing_is_lost_with_a_connection() {
    let site = Site::new(served_by_helper(""));
    let mount = site.mount(&[]).with_errors();
    let text = text(2_000_000);
    let mut file = File::create(mount.at("file")).unwrap();
    for (number, piece) in text.chunks(100_000).enumerate() {
        file.write_all(piece).unwrap();
        if number % 5 == 2 {
            site.link.cut();
        }
    }
    file.sync_all().unwrap();
    drop(file);
    assert!(fs::read(site.world.served("file")).unwrap() == text);
    eventually(SOON, "the session compresses", || session(&mount)["is_compressed"] == true);
    mount.unmount();
}

/// Not twice, and only with the helper.
#[test]
fn it_is_off_where_ssh_compresses_or_the_server_does_not() {
    for (world, options) in [
        (served_by_helper(""), &["-C"][..]),
        (served_by_helper(""), &["-o", "Compression=yes"]),
        (World::new(), &[]),
    ] {
        let site = Site::new(world);
        let content = pattern(300_000);
        fs::write(site.world.served("file"), &content).unwrap();
        let mount = site.mount(options);
        assert!(fs::read(mount.at("file")).unwrap() == content);
        let session = session(&mount);
        assert_eq!(session["is_compressed"], false, "{session}");
        assert_eq!(host_of_stats(&mount)["received_saved_bytes"], 0);
        mount.unmount();
    }
}
