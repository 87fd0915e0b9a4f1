//! Several logins in one mount: what each of them may do is decided by the server that it is for.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::process::geteuid;
use sandbox::fleet::Plan;
use sandbox::sshd::{Options, SftpServer};

use super::{Hosts, content, names};

/// An ordinary user whom every Debian has, with the number that Debian gives him. He may have no
/// shell, so that it is sshd that has to serve SFTP.
const USER: (&str, u32) = ("games", 5);

/// Whom both users may log in to.
fn plan(name: &str) -> Plan {
    let settings = vec![format!("AllowUsers {}", USER.0)];
    Plan::new(name).with(Options {
        sftp_server: SftpServer::Internal,
        settings,
        ..Options::default()
    })
}

fn open_for_all(path: &Path, perm: u32) {
    fs::set_permissions(path, Permissions::from_mode(perm)).unwrap();
}

/// One directory of one host by two logins, and a second host by one of them.
#[test]
fn each_source_has_its_own_login() {
    if !geteuid().is_root() {
        eprintln!("left out: only root may let another user log in");
        return;
    }
    let hosts = Hosts::of([plan("alpha"), plan("beta")]);
    // He has to come to his keys, and to what is served.
    open_for_all(hosts.fleet.dir(), 0o755);
    for host in ["alpha", "beta"] {
        open_for_all(hosts.fleet.sshd(host).dir(), 0o755);
        open_for_all(&hosts.served(host, ""), 0o777);
    }
    hosts.put("alpha", "secret", "of root");
    open_for_all(&hosts.served("alpha", "secret"), 0o600);
    let user = USER.0;
    let sources = [
        format!("ROOT={}", hosts.source("alpha")),
        format!("USER={user}@{}", hosts.source("alpha")),
        format!("OTHER={user}@{}", hosts.source("beta")),
    ];
    let mount = hosts.mount(&sources, &[]);
    assert_eq!(names(mount.place()), ["OTHER", "ROOT", "USER"]);

    // What is made belongs to who has made it.
    for (place, host, owner) in
        [("ROOT", "alpha", 0), ("USER", "alpha", USER.1), ("OTHER", "beta", USER.1)]
    {
        let name = format!("by {place}");
        fs::write(mount.at(place).join(&name), place).unwrap();
        let made = fs::metadata(hosts.served(host, &name)).unwrap();
        assert_eq!((made.uid(), content(hosts.served(host, &name))), (owner, place.to_owned()));
    }

    // What one of them may not, the other still may.
    let refused = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    assert_eq!(refused(fs::read(mount.at("USER/secret")).map(drop)), Some(libc::EACCES));
    assert_eq!(content(mount.at("ROOT/secret")), "of root");
    let chown = |place: &str| {
        let owner = rustix::fs::Uid::from_raw(USER.1);
        rustix::fs::chown(mount.at(place).join("secret"), Some(owner), None).map_err(Into::into)
    };
    assert_eq!(refused(chown("USER")), Some(libc::EPERM));
    chown("ROOT").unwrap();
    assert_eq!(fs::metadata(hosts.served("alpha", "secret")).unwrap().uid(), USER.1);
    mount.unmount();
}
