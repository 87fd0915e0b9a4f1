//! Servers that are not what they were, or not where they were, when the link is back, and a mount
//! that was asleep.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;

use rustix::process::Signal;
use sandbox::link::{Link, LinkOptions};

use super::{HOST, Line, Outage, SOON, outage_time};
use crate::process::eventually;

/// L4 and L5: what is gone is gone, which is not the same as out of reach. While the server is out
/// of reach nothing is empty or absent.
#[test]
fn a_removed_file_is_distinguished_from_an_unreachable_one() {
    let line = Line::new(None);
    fs::create_dir(line.served("dir")).unwrap();
    fs::write(line.served("dir/file"), "content").unwrap();
    let mount = line.mount(&["-o", "dir_cache=no,soft=1"]);
    let file = File::open(mount.at("dir/file")).unwrap();
    line.break_it(Outage::Cut);
    for name in ["dir", "dir/file", "dir/none"] {
        let error = fs::metadata(mount.at(name)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT), "{name}");
    }
    let listing = fs::read_dir(mount.at("dir")).and_then(|mut dir| dir.next().transpose());
    assert_eq!(listing.unwrap_err().raw_os_error(), Some(libc::ETIMEDOUT));
    fs::rename(line.served("dir"), line.served("moved")).unwrap();
    line.mend(Outage::Cut);
    eventually(SOON, "it is told that the directory is gone", || {
        let error = fs::metadata(mount.at("dir")).unwrap_err().raw_os_error();
        error == Some(libc::ENOENT)
    });
    let error = fs::read_dir(mount.at("dir")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    let error = file.read_at(&mut [0; 7], 0).err().and_then(|error| error.raw_os_error());
    assert!(matches!(error, None | Some(libc::ESTALE)), "{error:?}");
    assert_eq!(fs::read(mount.at("moved/file")).unwrap(), b"content");
}

/// L1: as when a laptop was closed: the program and its ssh stand still, the server goes away and
/// comes back, and nobody was told.
#[test]
fn a_mount_that_was_asleep_goes_on() {
    let mut line = Line::new(None);
    fs::write(line.served("file"), "content").unwrap();
    let mount = line.mount(&["-o", "dir_cache=no"]);
    fs::read(mount.at("file")).unwrap();
    // Nothing is open: the server's new processes would inherit it, and close it at the mount that
    // sleeps.
    mount.daemon().stop();
    line.hosts.fleet.kill(HOST);
    std::thread::sleep(outage_time());
    line.hosts.fleet.restart(HOST).unwrap();
    mount.daemon().signal(Signal::CONT);
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"content");
    let file = File::options().write(true).open(mount.at("file")).unwrap();
    file.write_all_at(b"CON", 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(line.served("file")).unwrap(), b"CONtent");
}

/// L1: as when a laptop was carried into another network: what was sent over the old connection
/// gets no answer, not even an error, and the host is reached by another way.
#[test]
fn a_mount_continues_over_another_route() {
    let line = Line::new(None);
    fs::write(line.served("file"), "content").unwrap();
    let sshd = line.hosts.fleet.sshd(HOST);
    let target = SocketAddr::from(([127, 0, 0, 1], sshd.port()));
    let new_way = Link::start(target, LinkOptions::default()).unwrap();
    let ssh_config = line.local("ssh_config");
    let lead_to = |port: u16| {
        let own = sshd.config_path();
        let text = format!("Host {HOST}\nPort {port}\nInclude {}\n", own.display());
        fs::write(&ssh_config, text).unwrap();
    };
    lead_to(line.hosts.fleet.link(HOST).port());
    let mount = line.mount_by(&ssh_config, &["-o", "dir_cache=no,request_timeout=2"]);
    let file = File::options().read(true).write(true).open(mount.at("file")).unwrap();
    file.write_all_at(b"C", 0).unwrap();
    file.sync_all().unwrap();
    line.break_it(Outage::Stall);
    lead_to(new_way.port());
    assert_eq!(fs::metadata(mount.at("file")).unwrap().len(), 7);
    file.write_all_at(b"T!", 6).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"ContenT!");
    assert_eq!(fs::read(line.served("file")).unwrap(), b"ContenT!");
    assert!(new_way.bytes_to_target() > 0);
    drop(file);
    mount.unmount();
    line.mend(Outage::Stall);
}
