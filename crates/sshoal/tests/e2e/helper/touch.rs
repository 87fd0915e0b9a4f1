//! `touch` of a file that another user owns: SFTP can only send times, which the owner may set.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use rustix::io::Errno;
use sandbox::sshd::{Options, SftpServer};

use crate::process::succeed;
use crate::world::{World, program_path};

/// `touch` of a file that another user owns and the login may write, as in the directory of a
/// group. The server has the rights of root without capabilities.
#[test]
fn a_file_of_another_user_is_touched_by_who_may_write_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let touch = |path: &Path| {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        utimensat(CWD, path, &times, AtFlags::empty())
    };
    let helper = format!("{} helper", program_path().display());
    for (server, may_touch) in [(&*helper, true), ("/usr/lib/openssh/sftp-server", false)] {
        let command = format!("setpriv --bounding-set=-all {server}");
        let sftp_server = SftpServer::Command(command);
        let world = World::with(Options { sftp_server, ..Options::default() });
        for (name, mode) in [("writable", 0o666), ("readable", 0o644)] {
            let at = world.served(name);
            fs::write(&at, "content").unwrap();
            fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(&at, Some(65534), Some(65534)).unwrap();
            succeed(Command::new("touch").args(["-d", "@1000000000"]).arg(&at));
        }
        let mount = world.mount(&["-o", "helper=no"]);
        let writable = mount.at("writable");
        let before = fs::metadata(&writable).unwrap().modified().unwrap();
        let open = fs::OpenOptions::new().write(true).open(&writable).unwrap();
        assert_eq!(touch(&mount.at("readable")), Err(Errno::ACCESS), "{server}");
        match may_touch {
            true => {
                touch(&writable).unwrap();
                let touched = fs::metadata(&writable).unwrap().modified().unwrap();
                assert!(touched > before, "{touched:?}");
                let there = fs::metadata(world.served("writable")).unwrap();
                assert_eq!(touched, there.modified().unwrap());
                assert!(there.accessed().unwrap() > before);
            }
            false => assert_eq!(touch(&writable), Err(Errno::PERM)),
        }
        // Any other time is the owner's to set.
        let set = open.set_modified(before);
        assert_eq!(set.unwrap_err().raw_os_error(), Some(libc::EPERM), "{server}");
        drop(open);
        mount.unmount();
    }
}
