//! `user.sshoal.*`: where a file is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::{Hosts, mounted};
use crate::process::{run, succeed};

fn attribute(path: &Path, name: &str) -> Result<String, Errno> {
    let mut value = vec![0; 4096];
    let len = getxattr(path, name, &mut value[..])?;
    Ok(String::from_utf8(value[..len].to_vec()).unwrap())
}

#[test]
fn an_extended_attribute_reports_the_location_of_a_file() {
    let hosts = Hosts::new(&["alpha", "beta"]);
    let (alpha, beta) = (hosts.fleet.source("alpha"), hosts.fleet.source("beta"));
    for (host, file) in
        [("alpha", "first"), ("alpha", "both"), ("beta", "both"), ("beta", "second")]
    {
        fs::write(hosts.served(host, file), "").unwrap();
    }
    let own = hosts.local("own");
    fs::create_dir(&own).unwrap();
    fs::write(own.join("mine"), "").unwrap();
    let local = format!("a/b=local:{}", own.display());
    let mount = mounted(&hosts, &[alpha.clone(), beta.clone(), local.clone()], &[]);
    let of = |file: &str, name: &str| attribute(&mount.at(file), &format!("user.sshoal.{name}"));
    for (file, source, host) in [
        ("first", &alpha, "alpha"),
        ("both", &alpha, "alpha"),
        ("second", &beta, "beta"),
        ("a/b/mine", &local, "localhost"),
    ] {
        assert_eq!(of(file, "branch").as_ref(), Ok(source), "{file}");
        assert_eq!(of(file, "host").as_deref(), Ok(host), "{file}");
    }
    assert_eq!(of("both", "branches"), Ok(format!("{alpha}\n{beta}")));
    assert_eq!(of("", "branches"), Ok(format!("{alpha}\n{beta}")));
    // A directory that only leads to the place of a branch is on no host.
    assert_eq!(of("a", "branch"), Err(Errno::NODATA));
    assert_eq!(of("first", "other"), Err(Errno::NODATA));

    // Others there are none, and none are listed or set.
    let first = mount.at("first");
    assert_eq!(attribute(&first, "user.other"), Err(Errno::OPNOTSUPP));
    assert_eq!(listxattr(&first, &mut [0; 100][..]), Err(Errno::OPNOTSUPP));
    let set = |name: &str| setxattr(&first, name, b"x", XattrFlags::empty());
    assert_eq!(set("user.sshoal.branch"), Err(Errno::OPNOTSUPP));
    assert_eq!(set("user.other"), Err(Errno::OPNOTSUPP));
    assert_eq!(removexattr(&first, "user.sshoal.host"), Err(Errno::OPNOTSUPP));
    assert_eq!(attribute(&first, "user.sshoal.branch"), Ok(alpha.clone()));
    if Command::new("getfattr").arg("--version").output().is_ok() {
        let mut command = Command::new("getfattr");
        command.args(["--only-values", "-n", "user.sshoal.branch"]).arg(&first);
        assert_eq!(succeed(&mut command), alpha);
    }
    // So a copy with all attributes has none of them.
    let copy = hosts.local("copy");
    succeed(Command::new("cp").arg("-a").arg(&first).arg(&copy));
    assert_eq!(attribute(&copy, "user.sshoal.branch"), Err(Errno::NODATA));
    mount.unmount();
}

#[test]
fn a_plain_mount_has_no_attributes() {
    let hosts = Hosts::new(&["alpha"]);
    fs::write(hosts.served("alpha", "file"), "").unwrap();
    let mount = mounted(&hosts, &[hosts.fleet.source("alpha")], &[]);
    assert_eq!(attribute(&mount.at("file"), "user.sshoal.branch"), Err(Errno::OPNOTSUPP));
    mount.unmount();
}

/// With attributes the kernel leaves it to the daemon to take set-id bits off a file that is
/// written to by somebody without privileges.
#[test]
fn set_id_bits_are_cleared_by_a_write_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it takes root to be several users");
        return;
    }
    let hosts = Hosts::new(&["alpha"]);
    fs::set_permissions(hosts.local(""), fs::Permissions::from_mode(0o755)).unwrap();
    let source = format!("{}=rw", hosts.fleet.source("alpha"));
    let mount = mounted(&hosts, &[source], &["-o", "allow_other"]);
    let mode = |name: &str| {
        fs::metadata(hosts.served("alpha", name)).unwrap().permissions().mode() & 0o7777
    };
    for (name, script) in [
        ("written", "echo x >>\"$1\""),
        ("truncated", "truncate -s 1 \"$1\""),
        ("emptied", ": >\"$1\""),
        (
            "direct",
            "dd if=/dev/zero of=\"$1\" bs=4096 count=1 oflag=direct conv=notrunc status=none",
        ),
    ] {
        let file = mount.at(name);
        fs::write(&file, "content").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6777)).unwrap();
        // Root may do it without.
        fs::OpenOptions::new().append(true).open(&file).unwrap();
        assert_eq!(mode(name), 0o6777, "{name}");
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "5", "--regid", "60", "--clear-groups", "sh", "-c", script, "sh"]);
        let ended = run(command.arg(&file));
        assert!(ended.status.success(), "{name}: {ended:?}");
        assert_eq!(mode(name), 0o777, "{name}");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o777, "{name}");
    }
    mount.unmount();
}
