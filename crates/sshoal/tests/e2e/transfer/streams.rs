//! What comes by streams where there is something at the target already, and where there is not.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::Duration;

use sandbox::link::{Link, LinkOptions};

use super::{assert_same, ends, far, make_tree, summary};
use crate::helper::served_by_helper;
use crate::world::World;

/// Takes from a copy of the tree what a stream is to bring: so many entries.
fn spoil(copy: &Path) -> u64 {
    fs::remove_dir_all(copy.join("dir7")).unwrap();
    fs::write(copy.join("dir3/sub/file3"), "another").unwrap();
    fs::remove_file(copy.join("-odd name\n$x")).unwrap();
    fs::remove_file(copy.join("dir0/link")).unwrap();
    25 + 3
}

#[test]
fn a_non_empty_target_gets_missing_files_in_a_stream() {
    let world = World::new();
    let source = world.served("source");
    make_tree(&source);
    let (pulled, pushed) = (world.local("pulled"), world.served("pushed"));
    let (from, to) = (format!("{}/", far(&world, &source)), far(&world, &pushed));
    let near = format!("{}/", source.display());
    for (way, from, to, target) in
        [("pull", &from, pulled.to_str().unwrap(), &pulled), ("push", &near, &to[..], &pushed)]
    {
        let words = [&from[..], to, "--json", "--engine", "tar"];
        ends(&world, way, &words, 0);
        let lacking = spoil(target);
        let second = summary(&ends(&world, way, &words, 0));
        assert_same(target, &source);
        assert_eq!(second["engines"], serde_json::json!(["tar"]), "{way}");
        let count = |what: &str| second[what].as_u64().unwrap();
        assert_eq!(count("files_copied") + count("links_made"), lacking, "{way}");
        assert_eq!(second["entries"], super::kept(&source).len());
        // Nothing is lacking now.
        let third = summary(&ends(&world, way, &words, 0));
        assert_eq!(third["unchanged"], third["entries"]);
        assert_eq!(super::temporaries(target), [""; 0]);
    }
}

#[test]
fn many_files_come_in_a_stream_although_some_are_left_out() {
    let world = World::new();
    let (source, target) = (world.served("source"), world.local("target"));
    for number in 0..4000 {
        let name = source.join(format!("{}/{number}", number % 7));
        fs::create_dir_all(name.parent().unwrap()).unwrap();
        fs::write(name, number.to_string()).unwrap();
    }
    fs::write(source.join("large"), vec![3; 5 << 20]).unwrap();
    let from = format!("{}/", far(&world, &source));
    let words = [&from[..], target.to_str().unwrap(), "--json", "--exclude", "/0/"];
    let told = summary(&ends(&world, "pull", &words, 0));
    fs::remove_dir_all(source.join("0")).unwrap();
    let names = |tree: &Path| super::kept(tree).into_iter().map(|(name, kept)| (name, kept.3));
    assert!(names(&target).eq(names(&source)));
    // The large one comes over the sessions beside it.
    assert_eq!(told["engines"], serde_json::json!(["tar", "sftp"]));
}

#[test]
fn names_of_one_file_stay_so_in_a_place_that_is_not_empty() {
    let world = World::new();
    let (source, target) = (world.served("source"), world.local("target"));
    fs::create_dir_all(source.join("d")).unwrap();
    fs::create_dir(&target).unwrap();
    for place in [&source, &target] {
        fs::write(place.join("here"), "already").unwrap();
    }
    fs::write(source.join("one"), "content").unwrap();
    fs::hard_link(source.join("one"), source.join("d/two")).unwrap();
    let from = format!("{}/", far(&world, &source));
    ends(&world, "pull", &[&from, target.to_str().unwrap(), "-H"], 0);
    let number = |name| fs::metadata(target.join(name)).unwrap().ino();
    assert_eq!(number("one"), number("d/two"));
    assert_eq!(fs::read(target.join("d/two")).unwrap(), b"content");
}

/// SFTP does not report them; the helper does.
#[test]
fn names_of_one_file_stay_so_without_a_stream() {
    for helper in [true, false] {
        let world = if helper { served_by_helper("") } else { World::new() };
        let (source, target) = (world.served("source"), world.local("target"));
        fs::create_dir_all(source.join("d")).unwrap();
        fs::create_dir(&target).unwrap();
        fs::write(source.join("one"), "content").unwrap();
        for name in ["d/two", "three"] {
            fs::hard_link(source.join("one"), source.join(name)).unwrap();
        }
        let from = format!("{}/", far(&world, &source));
        let words = [&from[..], target.to_str().unwrap(), "-H", "--engine", "sftp", "--json"];
        if !helper {
            let ended = ends(&world, "pull", &words, 3);
            assert!(ended.stderr.contains("leave -H out"), "{ended:?}");
            continue;
        }
        let told = summary(&ends(&world, "pull", &words, 0));
        assert_eq!(told["files_copied"], 1, "{told}");
        let number = |name| fs::metadata(target.join(name)).unwrap().ino();
        assert!(number("one") == number("d/two") && number("one") == number("three"));
        // Of a file that changes, all names do.
        fs::write(source.join("one"), "another content").unwrap();
        ends(&world, "pull", &words, 0);
        assert!(number("one") == number("d/two") && number("one") == number("three"));
        assert_eq!(fs::read(target.join("three")).unwrap(), b"another content");
    }
}

#[test]
fn a_target_that_has_to_be_made_takes_a_stream() {
    let world = World::new();
    let source = world.local("source");
    make_tree(&source);
    let target = world.served("absent");
    let words = [source.to_str().unwrap(), &far(&world, &target), "--json"];
    let told = summary(&ends(&world, "push", &words, 0));
    assert_eq!(told["engines"], serde_json::json!(["tar"]));
    assert_same(&target.join("source"), &source);
    // As any directory that the login makes.
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    fs::create_dir(world.served("made")).unwrap();
    assert_eq!(mode(&target), mode(&world.served("made")));
    // The one above it is not made.
    let deep = far(&world, &world.served("not/there"));
    let ended = ends(&world, "push", &[source.to_str().unwrap(), &deep], 3);
    assert!(!world.served("not").exists(), "{ended:?}");
}

#[test]
fn a_copy_of_existing_files_takes_one_login() {
    let world = World::new();
    let source = world.served("source");
    make_tree(&source);
    let (pulled, pushed) = (world.local("pulled"), world.served("pushed"));
    let (from, to) = (format!("{}/", far(&world, &source)), far(&world, &pushed));
    let near = format!("{}/", source.display());
    let logins = || world.sshd().log().matches("Accepted publickey").count();
    for (way, from, to) in [("pull", &from, pulled.to_str().unwrap()), ("push", &near, &to[..])] {
        let before = logins();
        let words = [&from[..], to, "--json"];
        let first = summary(&ends(&world, way, &words, 0));
        assert_eq!(first["engines"], serde_json::json!(["tar"]), "{way}");
        assert_eq!(logins() - before, 1, "{way}: of nothing there is a stream, and nothing else");
        let second = summary(&ends(&world, way, &words, 0));
        assert_eq!(second["unchanged"], second["entries"], "{way}");
        assert_eq!(logins() - before, 2, "{way}");
    }
    assert_same(&pushed, &source);
    // So it is with sources that go to several names, of which some are there.
    fs::create_dir(world.served("several")).unwrap();
    let several = far(&world, &world.served("several"));
    let [one, two] = ["dir5", "dir6"].map(|name| source.join(name).display().to_string());
    ends(&world, "push", &[&one, &two, &several], 0);
    let before = logins();
    let told = summary(&ends(&world, "push", &[&one, &two, &several, "--json"], 0));
    assert_eq!(told["unchanged"], told["entries"]);
    assert_eq!(logins() - before, 1);
}

#[test]
fn a_copy_to_a_new_name_is_one_login() {
    let world = World::new();
    let source = world.served("source");
    make_tree(&source);
    fs::write(world.served("file"), "content").unwrap();
    symlink("nowhere", world.served("link")).unwrap();
    fs::create_dir(world.served("there")).unwrap();
    fs::create_dir(world.local("here")).unwrap();
    let logins = || world.sshd().log().matches("Accepted publickey").count();
    let copied = |way: &str, from: &str, to: &str, count: usize| {
        let before = logins();
        // Where logins take long, others are begun beside the first one, but for this option.
        let words = [from, to, "--json", "-o", "max_conns=1"];
        let told = summary(&ends(&world, way, &words, 0));
        assert_eq!(told["engines"], serde_json::json!(["tar"]), "{way} {from} {to}");
        assert_eq!(told["notes"], serde_json::json!([]), "{way} {from} {to}");
        assert_eq!(logins() - before, count, "{way} {from} {to}");
    };
    // The name is the file's.
    let near = world.local("new");
    copied("pull", &far(&world, &world.served("file")), near.to_str().unwrap(), 1);
    assert_eq!(fs::read(&near).unwrap(), b"content");
    let new = world.served("new");
    copied("push", near.to_str().unwrap(), &far(&world, &new), 1);
    assert_eq!(fs::read(&new).unwrap(), b"content");
    // A link's, too, whatever it leads to.
    let link = world.local("link");
    copied("pull", &far(&world, &world.served("link")), link.to_str().unwrap(), 1);
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("nowhere"));
    // Of a directory it is the one that it comes into, with the rights that directories have.
    let above = world.local("above");
    copied("pull", &far(&world, &source), above.to_str().unwrap(), 1);
    assert_same(&above.join("source"), &source);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&above), mode(&world.local("here")));
    // What is there may be a directory: then the login that has found it is not lost, though a
    // stream takes one of its own.
    let there = far(&world, &world.served("there"));
    let before = logins();
    ends(&world, "push", &[near.to_str().unwrap(), &there, "-o", "max_conns=1"], 0);
    assert!(logins() - before <= 2);
    assert_eq!(fs::read(world.served("there/new")).unwrap(), b"content");
    // Or a file, which is replaced by the login that has found it.
    fs::write(&near, "other content").unwrap();
    let before = logins();
    ends(&world, "push", &[near.to_str().unwrap(), &far(&world, &new), "-o", "max_conns=1"], 0);
    assert_eq!(logins() - before, 1);
    assert_eq!(fs::read(&new).unwrap(), b"other content");
}

#[test]
fn existing_files_are_listed_by_one_command() {
    let world = World::new();
    let (source, near, far_copy) =
        (world.served("source"), world.local("near"), world.served("copy"));
    for directory in 0..300 {
        let path = source.join(format!("dir{}/sub{directory}", directory % 20));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("file"), "content").unwrap();
    }
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, world.sshd().port()));
    let options = LinkOptions { rtt: Duration::from_millis(1), rate_bytes_per_s: None };
    let link = Link::start(server, options).unwrap();
    let port = link.port().to_string();
    let (from, to) = (format!("{}/", far(&world, &source)), far(&world, &far_copy));
    let here = format!("{}/", source.display());
    // Bytes to the server, and what is told.
    let asked = |way: &str, words: &[&str], more: &[&str]| {
        let before = link.bytes_to_target();
        let all = [words, &["-p", &port, "--json", "--delete"], more].concat();
        let told = summary(&ends(&world, way, &all, 0));
        (link.bytes_to_target() - before, told)
    };
    for (way, words) in
        [("pull", [&from[..], near.to_str().unwrap()]), ("push", [&here[..], &to[..]])]
    {
        ends(&world, way, &[&words[..], &["-p", &port]].concat(), 0);
        let (by_one, told) = asked(way, &words, &[]);
        assert_eq!(told["unchanged"], told["entries"], "{way}");
        let (by_sftp, _) = asked(way, &words, &["--engine", "sftp"]);
        // Three requests for each of 321 directories, some of them in one packet.
        assert!(by_sftp > 3 * by_one, "{way}: {by_one} and {by_sftp} bytes");
        // What differs is found all the same.
        let changed = if way == "pull" { &near } else { &far_copy };
        fs::remove_file(changed.join("dir3/sub3/file")).unwrap();
        fs::write(changed.join("dir4/more"), "").unwrap();
        let (_, told) = asked(way, &words, &[]);
        assert_eq!((told["files_copied"].clone(), told["deleted"].clone()), (1.into(), 1.into()));
        assert_same(changed, &source);
        // And a dry run tells it, without a stream that would have been tried before.
        fs::remove_file(changed.join("dir3/sub3/file")).unwrap();
        let (dry, told) = asked(way, &words, &["--dry-run"]);
        assert_eq!(told["files_copied"], 1, "{way}");
        assert!(by_sftp > 3 * dry, "{way}: {dry} and {by_sftp} bytes");
    }
}

#[test]
fn a_large_file_over_a_long_way_has_its_sessions_begun_together() {
    let world = World::new();
    let source = world.served("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("large"), vec![5; 20 << 20]).unwrap();
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, world.sshd().port()));
    // The rate is one that a single session carries, so that nobody needs others for it.
    let rate_bytes_per_s = Some(8 << 20);
    let link =
        Link::start(server, LinkOptions { rtt: Duration::from_millis(60), rate_bytes_per_s });
    let link = link.unwrap();
    let port = link.port().to_string();
    let connections = || world.sshd().log().matches("Connection from").count();
    for (conns, most) in [("max_conns=8", 8), ("max_conns=3", 3)] {
        let (before, target) = (connections(), world.local(conns));
        let words = [&format!("{}/", far(&world, &source))[..], target.to_str().unwrap()];
        let options = ["--compress", "never", "-p", &port, "-o", conns];
        ends(&world, "pull", &[&words[..], &options].concat(), 0);
        assert_same(&target, &source);
        let made = connections() - before;
        // The first and five more: 60 ms at 1 Gbit/s are four windows. On a busy machine an answer
        // takes longer than the way, and there are more of them. One more asks what the server
        // cannot look at.
        assert!((most.min(6)..=most + 1).contains(&made), "{conns}: {made}");
    }
}

#[test]
fn a_directory_that_is_not_there_is_found_out_by_one_login() {
    let world = World::new();
    let file = world.local("file");
    fs::write(&file, "content").unwrap();
    fs::write(world.served("plain"), "content").unwrap();
    let logins = || world.sshd().log().matches("Accepted publickey").count();
    let near = world.local("new");
    let (file, near) = (file.to_str().unwrap(), near.to_str().unwrap());
    // One that is missing, and one that is no directory.
    for (path, why) in
        [("nodir/new", "no such directory on the server"), ("plain/new", "on the server")]
    {
        let place = far(&world, &world.served(path));
        for (way, from, to) in [("push", file, &place[..]), ("pull", &place, near)] {
            let before = logins();
            let ended = ends(&world, way, &[from, to, "-o", "max_conns=1"], 3);
            assert!(ended.stderr.contains(why), "{way} {path}: {ended:?}");
            assert_eq!(logins() - before, 1, "{way} {path}: {ended:?}");
        }
    }
}

/// What is left out leaves nothing, and is no error, with a new name as with any other target.
#[test]
fn nothing_comes_of_a_pipe_that_is_left_out() {
    let world = World::new();
    let pipe = world.local("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let place = world.served("new");
    let to = far(&world, &place);
    for engine in ["auto", "sftp"] {
        let words = [pipe.to_str().unwrap(), &to, "--engine", engine, "--json"];
        let told = summary(&ends(&world, "push", &words, 0));
        assert_eq!(told["files_copied"], 0, "{engine}: {told}");
        assert!(!place.exists(), "{engine}");
        assert_eq!(super::temporaries(place.parent().unwrap()), [""; 0], "{engine}");
    }
}

/// All that a tree can have, where the server runs no tar: by the helper's requests.
#[test]
fn attributes_and_special_files_are_copied_over_the_helper() {
    use rustix::fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, lsetxattr, makedev, mknodat};
    use std::os::unix::fs::FileTypeExt;
    let world = served_by_helper("");
    let source = world.served("source");
    fs::create_dir_all(source.join("d")).unwrap();
    fs::write(source.join("d/f"), "content").unwrap();
    fs::write(source.join("d/large"), vec![1; 3 << 20]).unwrap();
    symlink("f", source.join("d/link")).unwrap();
    fs::hard_link(source.join("d/f"), source.join("d/name")).unwrap();
    mknodat(CWD, source.join("d/pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let mut attributes = vec![("d", "user.note"), ("d/f", "user.note"), ("d/large", "user.note")];
    let is_root = rustix::process::geteuid().is_root();
    let device = source.join("d/device");
    let (kind, number) = (FileType::CharacterDevice, makedev(1, 5));
    let has_device = is_root && mknodat(CWD, &device, kind, Mode::RUSR, number).is_ok();
    if is_root {
        attributes.extend([("d/link", "trusted.note"), ("d/pipe", "trusted.note")]);
    }
    for (name, attribute) in &attributes {
        lsetxattr(source.join(name), *attribute, name.as_bytes(), XattrFlags::empty()).unwrap();
    }
    let (pulled, pushed) = (world.local("pulled"), world.served("pushed"));
    let (from, near) = (far(&world, &source), pulled.join("source"));
    let words = ["--all-xattrs", "--devices", "-H", "--engine", "sftp", "--json"];
    fs::create_dir(&pulled).unwrap();
    fs::create_dir(&pushed).unwrap();
    let place = pulled.to_str().unwrap();
    ends(&world, "pull", &[&[&*from, place], &words[..]].concat(), 0);
    let place = far(&world, &pushed);
    ends(&world, "push", &[&[near.to_str().unwrap(), &*place], &words[..]].concat(), 0);
    for copy in [near, pushed.join("source")] {
        for (name, attribute) in &attributes {
            let mut value = [0; 64];
            let len = lgetxattr(copy.join(name), *attribute, &mut value[..]);
            assert_eq!(len.map(|len| &value[..len]), Ok(name.as_bytes()), "{copy:?} {name}");
        }
        let stat = |name: &str| fs::symlink_metadata(copy.join(name)).unwrap();
        assert!(stat("d/pipe").file_type().is_fifo());
        assert_eq!(stat("d/f").ino(), stat("d/name").ino());
        if has_device {
            assert_eq!(stat("d/device").rdev(), number);
        }
    }
}
