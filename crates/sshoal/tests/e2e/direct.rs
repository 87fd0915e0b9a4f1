//! Direct connections past ssh, through real mounts and copies.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use sandbox::link::{Link, LinkOptions};
use serde_json::Value;

use crate::behaviours::pattern;
use crate::helper::compression::text;
use crate::helper::served_by_helper;
use crate::mount::Mount;
use crate::process::{eventually, run, succeed};
use crate::status::status;
use crate::world::{World, program};

const SOON: Duration = Duration::from_secs(60);

/// A port that is free on the loopback address.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A server with the helper, and a link for direct connections to it.
struct Site {
    world: World,
    link: Link,
    options: String,
}

impl Site {
    fn new(options: LinkOptions) -> Site {
        let world = served_by_helper("");
        let port = free_port();
        let link = Link::start(SocketAddr::from(([127, 0, 0, 1], port)), options).unwrap();
        let at = link.port();
        let options = format!("direct_ports={port}-{port},direct_address=127.0.0.1:{at}");
        Site { world, link, options }
    }

    fn mount(&self, options: &str) -> Mount {
        self.world.mount(&["-o", &self.options, "-o", options])
    }
}

fn host(mount: &Mount) -> Value {
    status(mount.place())["status"]["sources"][0]["hosts"][0].clone()
}

#[test]
fn data_goes_past_ssh_and_the_status_says_so() {
    let site = Site::new(LinkOptions::default());
    let content = pattern(5_000_000);
    fs::write(site.world.served("file"), &content).unwrap();
    let mount = site.mount("direct=yes");
    assert_eq!(fs::read(mount.at("file")).unwrap(), content);
    assert!(site.link.bytes_from_target() > content.len() as u64);
    fs::write(mount.at("new"), &content).unwrap();
    assert_eq!(fs::read(site.world.served("new")).unwrap(), content);
    assert!(site.link.bytes_to_target() > content.len() as u64);
    let host = host(&mount);
    let address = format!("127.0.0.1:{}", site.link.port());
    assert_eq!(host["direct"], address.as_str(), "{host}");
    assert_eq!(host["sessions"][0]["is_direct"], true, "{host}");
    let shown = succeed(program().arg("status").arg(mount.place()));
    assert!(shown.contains(&format!("direct to {address}")), "{shown}");
    mount.unmount();
    eventually(SOON, "nobody listens any more", || {
        std::net::TcpStream::connect(&*address).is_ok_and(|mut stream| {
            stream.set_read_timeout(Some(SOON)).unwrap();
            stream.read(&mut [0]).map_or(true, |read| read == 0)
        })
    });
}

#[test]
fn doctor_measures_a_direct_connection() {
    let site = Site::new(LinkOptions::default());
    let mut doctor = program();
    doctor.args(["doctor", "--json", "-F"]).arg(site.world.sshd().config_path());
    let ended = run(doctor.args(["-o", &site.options, "-o", "direct=yes", &site.world.source()]));
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let checks = document["checks"].as_array().unwrap();
    let direct = checks.iter().find(|check| check["what"] == "direct").unwrap();
    let found = direct["found"].as_str().unwrap();
    let expected = format!("TLS 1.3 to 127.0.0.1:{}, ", site.link.port());
    let rate = found.strip_prefix(&expected).unwrap_or_else(|| panic!("{document}"));
    let rate: u32 = rate.strip_suffix(" MB/s from the server").unwrap().parse().unwrap();
    assert!(rate > 0, "{document}");
    assert!(site.link.bytes_from_target() > 1_000_000, "{document}");
}

/// Programs notice nothing, whichever of the two connections breaks.
#[test]
fn without_tcp_the_mount_goes_on_through_ssh() {
    let site = Site::new(LinkOptions::default());
    let mount = site.mount("direct=yes").with_errors();
    let mut file = File::create(mount.at("log")).unwrap();
    let mut expected = Vec::new();
    let mut record = |file: &mut File, number: u32| {
        let line = format!("{number:08}\n");
        expected.extend_from_slice(line.as_bytes());
        file.write_all(line.as_bytes()).unwrap();
        file.sync_data().unwrap();
    };
    for number in 0..300 {
        match number {
            50 | 100 => site.link.cut(),
            150 => site.world.sshd().kill_sessions(),
            200 => {
                site.link.refuse();
                site.link.cut();
            }
            _ => {}
        }
        record(&mut file, number);
    }
    drop(file);
    assert_eq!(fs::read(site.world.served("log")).unwrap(), expected);
    let through_ssh = host(&mount);
    assert_eq!(through_ssh["direct"], Value::Null, "{through_ssh}");
    assert!(through_ssh["not_direct"].as_str().unwrap().contains("127.0.0.1"), "{through_ssh}");
    // With the next ssh session, direct connections are tried again.
    site.link.accept();
    site.world.sshd().kill_sessions();
    fs::write(mount.at("after"), "x").unwrap();
    eventually(SOON, "the mount is direct again", || host(&mount)["direct"].is_string());
    mount.unmount();
}

#[test]
fn a_required_connection_that_cannot_be_made_is_refused() {
    let world = World::new();
    let mountpoint = world.mountpoint();
    let refuse = |world: &World, options: &str| {
        let place = mountpoint.display().to_string();
        world.refusal(&["-f", &world.source(), &place, "-o", options])
    };
    let plain = refuse(&world, "direct=require");
    assert!(plain.contains("no direct connection: only the helper offers it"), "{plain}");
    let forbidden = served_by_helper("--no-direct");
    let none = refuse(&forbidden, "direct=require");
    assert!(none.contains("no direct connection: the helper at the server allows none"), "{none}");
    let helper = served_by_helper("");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    let late = refuse(&helper, &format!("direct=require,direct_address={at}"));
    assert!(late.contains(&format!("no direct connection: {at}: ")), "{late}");
    for (options, why) in [
        ("direct=maybe", "direct"),
        ("direct_ports=9-8", "must be a port or a range of ports"),
        ("direct_ports=0", "must be a port or a range of ports"),
        ("direct_address=[::1", "must be a name or an address"),
        ("direct=yes,directport=7", "'direct' and 'directport'"),
    ] {
        let refused = refuse(&helper, options);
        assert!(refused.contains(why), "{options}: {refused}");
    }
    // If it is only wished for, the mount comes about, and says why.
    let mount = forbidden.mount(&["-o", "direct=yes"]).with_errors();
    fs::write(mount.at("file"), "x").unwrap();
    eventually(SOON, "the reason", || {
        mount.words().contains("the helper at the server allows none")
    });
    mount.unmount();
}

#[test]
fn copies_go_past_ssh() {
    let site = Site::new(LinkOptions::default());
    let content = pattern(3_000_000);
    fs::create_dir(site.world.served("tree")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(site.world.served("tree").join(name), &content).unwrap();
    }
    let options = format!("{},direct=require", site.options);
    let copy = |command: &str, from: &str, to: &str| {
        let mut copy = site.world.command();
        let words: Vec<_> = copy.get_args().map(ToOwned::to_owned).collect();
        copy = program();
        copy.arg(command).args(words).args(["-o", &options, from, to]);
        succeed(&mut copy)
    };
    let local = site.world.local("copies");
    fs::create_dir(&local).unwrap();
    let source = format!("{}/tree", site.world.source().trim_end_matches('/'));
    copy("pull", &source, local.to_str().unwrap());
    let carried = site.link.bytes_from_target();
    assert!(carried > 9_000_000, "{carried} bytes");
    succeed(Command::new("diff").arg("-r").arg(local.join("tree")).arg(site.world.served("tree")));
    let back = format!("{}/back", site.world.source().trim_end_matches('/'));
    copy("push", local.join("tree/").to_str().unwrap(), &back);
    assert!(site.link.bytes_to_target() > 9_000_000);
    succeed(Command::new("diff").arg("-r").arg(local.join("tree")).arg(site.world.served("back")));
    let mut refused = program();
    let words: Vec<_> = site.world.command().get_args().map(ToOwned::to_owned).collect();
    refused.arg("pull").args(words).args(["-o", "direct=require,direct_address=127.0.0.1:1"]);
    let ended = run(refused.arg(&source).arg(site.world.local("nothing")));
    assert_ne!(ended.status.code(), Some(0));
    assert!(ended.stderr.contains("no direct connection: 127.0.0.1:1: "), "{}", ended.stderr);
}

/// Compression by ssh is only of what goes through ssh.
#[test]
fn direct_connections_are_compressed() {
    let site = Site::new(LinkOptions::default());
    let content = text(3_000_000);
    fs::write(site.world.served("file"), &content).unwrap();
    let options = format!("{},direct=require,compress=yes", site.options);
    let mount = site.world.mount(&["-C", "-o", &options]);
    assert_eq!(fs::read(mount.at("file")).unwrap(), content);
    fs::write(mount.at("new"), &content).unwrap();
    assert_eq!(fs::read(site.world.served("new")).unwrap(), content);
    for carried in [site.link.bytes_from_target(), site.link.bytes_to_target()] {
        assert!(carried < content.len() as u64 / 3, "{carried} bytes");
    }
    let first = host(&mount)["sessions"][0].clone();
    assert_eq!((&first["is_direct"], &first["is_compressed"]), (&true.into(), &true.into()));
    mount.unmount();
}

/// Over a link of 20 ms, a large file is carried by several connections.
#[test]
fn large_files_take_several_connections() {
    let options =
        LinkOptions { rtt: Duration::from_millis(20), rate_bytes_per_s: Some(200_000_000) };
    let site = Site::new(options);
    let content = pattern(40_000_000);
    fs::write(site.world.served("file"), &content).unwrap();
    let mount = site.mount("direct=yes,max_conns=4");
    let mut large = 0;
    for _ in 0..5 {
        assert!(fs::read(mount.at("file")).unwrap() == content);
        let sessions = host(&mount)["sessions"].as_array().unwrap().clone();
        assert!(sessions.iter().all(|it| it["state"] != "up" || it["is_direct"] == true));
        large = large.max(sessions.len());
        // Read from the server anew.
        fs::write(site.world.served("file"), &content).unwrap();
    }
    assert!(large > 1, "{large} sessions");
    mount.unmount();
}
