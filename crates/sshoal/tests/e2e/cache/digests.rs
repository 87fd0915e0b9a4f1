//! Digests as extended attributes.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use rustix::fs::{getxattr, listxattr};
use rustix::io::Errno;
use sandbox::link::{Link, LinkOptions};

use super::{LIMIT, mount, put, ready, with_cache};
use crate::behaviours::pattern;
use crate::helper::served_by_helper;
use crate::process::{eventually, succeed};
use crate::world::World;

fn attribute(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 4096];
    let len = getxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest that a program tells.
fn sum(program: &str, path: &Path) -> String {
    let said = succeed(Command::new(program).arg(path));
    said.split(' ').next().unwrap().to_owned()
}

/// What b3sum tells of "abc".
const ABC_BLAKE3: &str = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85";

#[test]
fn a_content_that_was_read_has_the_digests_that_others_make_of_it() {
    let world = World::new();
    put(&world, "abc", b"abc");
    put(&world, "long", &pattern(1_000_000));
    let mount = mount(&world, "");
    for name in ["abc", "long"] {
        let (here, there) = (mount.at(name), world.served(name));
        assert_eq!(attribute(&here, "user.sha256"), Err(Errno::NODATA), "not known yet");
        fs::read(&here).unwrap();
        eventually(LIMIT, "it is in the store", || attribute(&here, "user.sha256").is_ok());
        for (kind, program) in [("md5", "md5sum"), ("sha1", "sha1sum"), ("sha256", "sha256sum")] {
            let wanted = sum(program, &there);
            let text = attribute(&here, &format!("user.{kind}")).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), wanted);
            let raw = attribute(&here, &format!("user.checksum.{kind}")).unwrap();
            assert_eq!(hex(&raw), wanted);
        }
    }
    let blake3 = attribute(&mount.at("abc"), "user.checksum.blake3").unwrap();
    assert_eq!(hex(&blake3), ABC_BLAKE3);
    // There is none of a directory, and no other attribute; none is listed.
    assert_eq!(attribute(mount.place(), "user.sha256"), Err(Errno::NODATA));
    for name in ["user.blake3", "user.other", "user.sshoal.branch", "trusted.x"] {
        assert_eq!(attribute(&mount.at("abc"), name), Err(Errno::OPNOTSUPP), "{name}");
    }
    assert_eq!(listxattr(mount.at("abc"), &mut [0; 100][..]), Err(Errno::OPNOTSUPP));
    mount.unmount();
}

/// A digest is of the content that the file has: not of the one before, nor while that is unsure.
#[test]
fn a_file_that_was_changed_has_no_digest_of_before() {
    let world = World::new();
    put(&world, "file", b"one");
    let mount = mount(&world, "open_revalidate=0");
    let file = mount.at("file");
    fs::read(&file).unwrap();
    eventually(LIMIT, "it is in the store", || attribute(&file, "user.md5").is_ok());
    put(&world, "file", b"other");
    assert_eq!(attribute(&file, "user.md5"), Err(Errno::NODATA), "changed there");
    fs::read(&file).unwrap();
    let new = sum("md5sum", &world.served("file")).into_bytes();
    eventually(LIMIT, "it is known again", || attribute(&file, "user.md5") == Ok(new.clone()));
    fs::write(&file, "third").unwrap();
    assert_eq!(attribute(&file, "user.md5"), Err(Errno::NODATA), "changed here");
    mount.unmount();
}

#[test]
fn what_is_not_known_is_fetched_where_that_is_wanted() {
    let world = World::new();
    put(&world, "file", &pattern(500_000));
    let mount = mount(&world, "digest=compute");
    let told = attribute(&mount.at("file"), "user.sha1").unwrap();
    assert_eq!(told, sum("sha1sum", &world.served("file")).into_bytes());
    // And it is here now.
    fs::read(mount.at("file")).unwrap();
    assert_eq!(super::disk(&mount, "hits"), 1);
    mount.unmount();
}

#[test]
fn names_can_be_others_and_attributes_can_be_off() {
    let world = World::new();
    put(&world, "abc", b"abc");
    let options = "digest=compute,digest_attribute=none,digest_attribute=blake3:hex:user.b3";
    let one = mount(&world, options);
    assert_eq!(attribute(&one.at("abc"), "user.b3"), Ok(ABC_BLAKE3.as_bytes().to_vec()));
    assert_eq!(attribute(&one.at("abc"), "user.md5"), Err(Errno::OPNOTSUPP));
    one.unmount();
    let off = mount(&world, "digest=off");
    fs::read(off.at("abc")).unwrap();
    assert_eq!(attribute(&off.at("abc"), "user.md5"), Err(Errno::OPNOTSUPP));
    off.unmount();
}

/// What is known of a file that the server has told of lately costs no request, nor does what is no
/// digest.
#[test]
fn known_digests_and_other_names_cost_no_request() {
    let world = World::new();
    put(&world, "file", b"content");
    let target = SocketAddr::from(([127, 0, 0, 1], world.sshd().port()));
    let link = Link::start(target, LinkOptions::default()).unwrap();
    let port = link.port().to_string();
    let option = with_cache(&world, "open_revalidate=1000,actimeo=1000");
    let mount = ready(world.mount(&["-p", &port, &option]));
    fs::read(mount.at("file")).unwrap();
    eventually(LIMIT, "it is in the store", || attribute(&mount.at("file"), "user.md5").is_ok());
    let before = link.bytes_to_target();
    for _ in 0..1000 {
        attribute(&mount.at("file"), "user.sha256").unwrap();
        assert_eq!(attribute(&mount.at("file"), "security.capability"), Err(Errno::OPNOTSUPP));
        assert_eq!(attribute(&mount.at("file"), "user.x"), Err(Errno::OPNOTSUPP));
    }
    // ssh may ask whether the server is there, and a bulk session may come about.
    let moved = link.bytes_to_target() - before;
    assert!(moved < 20_000, "{moved} bytes for 3,000 questions");
    mount.unmount();
}

#[test]
fn digests_of_the_helper_avoid_fetching_cached_contents() {
    let world = served_by_helper("");
    digests_avoid_fetching(&world, "server_digests,consistency=immutable");
}

#[test]
fn without_the_helper_the_mount_says_that_there_are_no_digests() {
    let world = World::new();
    put(&world, "file", b"content");
    let mount = mount(&world, "server_digests").with_errors();
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"content");
    assert!(mount.words().contains("has no sshoal helper"), "{}", mount.words());
    mount.unmount();
}

/// A file is not read to make its digest.
#[test]
fn the_helper_makes_the_digest_of_a_file_that_was_not_read() {
    let world = served_by_helper("");
    put(&world, "file", &vec![b'x'; 30_000_000]);
    let mount = mount(&world, "digest=compute");
    let digest = attribute(&mount.at("file"), "user.sha256").unwrap();
    assert_eq!(digest, sum("sha256sum", &world.served("file")).into_bytes());
    assert_eq!(super::disk(&mount, "read_there_bytes"), 0);
    put(&world, "file", b"abc");
    eventually(LIMIT, "the digest is that of the new content", || {
        let digest = attribute(&mount.at("file"), "user.md5");
        digest.is_ok_and(|digest| digest == b"900150983cd24fb0d6963f7d28e17f72")
    });
    mount.unmount();
}

fn digests_avoid_fetching(world: &World, options: &str) {
    for number in 0..20_u8 {
        put(world, &format!("rev1/file {number}"), &vec![number; 100_000]);
        put(world, &format!("rev2/file {number}"), &vec![number; 100_000]);
    }
    put(world, "rev2/file 7", &[77; 100_000]);
    let mount = mount(world, options);
    let read = |revision: &str| {
        let before = super::disk(&mount, "read_there_bytes");
        // What is in a directory is asked for together, as far as it is known.
        assert_eq!(super::names(mount.at(revision)).len(), 20);
        for number in 0..20 {
            let name = format!("{revision}/file {number}");
            assert!(fs::read(mount.at(&name)).unwrap() == fs::read(world.served(&name)).unwrap());
        }
        super::disk(&mount, "read_there_bytes") - before
    };
    let first = read("rev1");
    assert!(first >= 2_000_000, "{first}");
    eventually(LIMIT, "all are in the store", || super::disk(&mount, "completed") >= 20);
    let second = read("rev2");
    // Those at the beginning may be fetched ahead while the command is at work.
    assert!(second <= first / 2, "{second} of {first}");
    mount.unmount();
}
