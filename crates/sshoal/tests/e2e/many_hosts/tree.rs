//! Sources that are merged, placed, local, or of another kind.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::{Hosts, content, names, put};

#[test]
fn two_hosts_are_one_tree_in_the_order_given() {
    let hosts = Hosts::new(&["alpha", "beta"]);
    hosts.put("alpha", "both", "of alpha");
    hosts.put("beta", "both", "of beta");
    hosts.put("alpha", "dir/a", "a");
    hosts.put("beta", "dir/b", "b");
    hosts.put("beta", "deep/er/file", "deep");
    let mount = hosts.mount(&[hosts.source("alpha"), hosts.source("beta")], &[]);
    assert_eq!(names(mount.place()), ["both", "deep", "dir"]);
    assert_eq!(names(mount.at("dir")), ["a", "b"]);
    assert_eq!(content(mount.at("both")), "of alpha");
    assert_eq!(content(mount.at("deep/er/file")), "deep");
    // Where the directory is, something new is made.
    fs::write(mount.at("deep/new"), "new").unwrap();
    fs::write(mount.at("top"), "top").unwrap();
    assert_eq!(content(hosts.served("beta", "deep/new")), "new");
    assert_eq!(content(hosts.served("alpha", "top")), "top");
    // What is removed does not come back from behind.
    let error = fs::remove_file(mount.at("both")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    mount.unmount();
    let mount = hosts.mount(&[hosts.source("beta"), hosts.source("alpha")], &["-oaction=all"]);
    assert_eq!(content(mount.at("both")), "of beta");
    fs::remove_file(mount.at("both")).unwrap();
    assert!(!mount.at("both").exists());
    assert!(!hosts.served("alpha", "both").exists() && !hosts.served("beta", "both").exists());
}

#[test]
fn sources_have_places_to_any_depth_beside_a_merged_root() {
    let hosts = Hosts::new(&["alpha", "beta"]);
    hosts.put("alpha", "root", "alpha");
    hosts.put("beta", "file", "beta");
    put(&hosts.local("here/file"), "local");
    let sources = [
        hosts.source("alpha"),
        format!("P/Q={}", hosts.source("beta")),
        format!("L=local:{}", hosts.local("here").display()),
    ];
    let mount = hosts.mount(&sources, &[]);
    assert_eq!(names(mount.place()), ["L", "P", "root"]);
    assert_eq!(content(mount.at("P/Q/file")), "beta");
    assert_eq!(content(mount.at("L/file")), "local");
    fs::write(mount.at("P/Q/new"), "there").unwrap();
    fs::write(mount.at("L/new"), "here").unwrap();
    assert_eq!(content(hosts.served("beta", "new")), "there");
    assert_eq!(content(hosts.local("here/new")), "here");
    // Across branches it is a copy.
    let error = fs::rename(mount.at("L/new"), mount.at("P/Q/moved")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EXDEV));
    assert!(fs::remove_dir(mount.at("P")).is_err());
}

#[test]
fn branch_modes_limit_changes_and_creation() {
    let hosts = Hosts::new(&["alpha", "beta"]);
    hosts.put("alpha", "a", "old");
    hosts.put("beta", "b", "old");
    let sources = [hosts.source("alpha") + "=ro", hosts.source("beta") + "=nc"];
    let mount = hosts.mount(&sources, &[]);
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    assert_eq!(errno(fs::write(mount.at("a"), "new")), Some(libc::EROFS));
    fs::write(mount.at("b"), "new").unwrap();
    assert_eq!(content(hosts.served("beta", "b")), "new");
    assert_eq!(errno(fs::write(mount.at("c"), "new")), Some(libc::EROFS));
    // The last column of the table of mounts says nothing of it: the mount itself is writable.
    mount.unmount();
    let mount = hosts.mount(&[hosts.source("alpha") + "=ro"], &[]);
    assert_eq!(errno(fs::write(mount.at("a"), "new")), Some(libc::EROFS));
    assert_eq!(content(mount.at("a")), "old");
}

#[test]
fn new_files_go_where_the_policy_says() {
    let hosts = Hosts::new(&["alpha", "beta"]);
    hosts.put("beta", "dir/b", "b");
    let sources = [hosts.source("alpha"), hosts.source("beta")];
    let mount = hosts.mount(&sources, &["-o", "create=ff"]);
    fs::write(mount.at("dir/new"), "new").unwrap();
    assert_eq!(content(hosts.served("alpha", "dir/new")), "new");
    mount.unmount();
    let mount = hosts.mount(&sources, &["-o", "create=epff"]);
    fs::write(mount.at("dir/newer"), "newer").unwrap();
    // Both have the directory by now.
    assert_eq!(content(hosts.served("alpha", "dir/newer")), "newer");
}

#[test]
fn absolute_links_lead_to_the_same_file_in_the_mount() {
    let hosts = Hosts::new(&["alpha", "beta"]);
    for host in ["alpha", "beta"] {
        hosts.put(host, "dir/file", host);
        symlink(hosts.served(host, "dir/file"), hosts.served(host, "dir/absolute")).unwrap();
        symlink("/etc/passwd", hosts.served(host, "outside")).unwrap();
    }
    put(&hosts.local("here/file"), "local");
    symlink(hosts.local("here/file"), hosts.local("here/absolute")).unwrap();
    let sources = [
        format!("A={}", hosts.source("alpha")),
        format!("B/B={}", hosts.source("beta")),
        format!("L=local:{}", hosts.local("here").display()),
    ];
    let mount = hosts.mount(&sources, &[]).with_errors();
    assert_eq!(content(mount.at("A/dir/absolute")), "alpha");
    assert_eq!(content(mount.at("B/B/dir/absolute")), "beta");
    assert_eq!(content(mount.at("L/absolute")), "local");
    assert!(fs::read_link(mount.at("A/dir/absolute")).unwrap().is_relative());
    let error = fs::read_link(mount.at("A/outside")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    mount.unmount();
    let mount = hosts.mount(&sources, &["-o", "no_contain_symlinks"]);
    let target = fs::read_link(mount.at("A/dir/absolute")).unwrap();
    assert_eq!(target, hosts.served("alpha", "dir/file"), "left as it is");
}

/// Each host has a login of its own, which is root here; with the local user being root as well,
/// only that nothing else is changed can be seen.
#[test]
fn owners_are_translated_for_each_host() {
    let hosts = Hosts::new(&["alpha", "beta"]);
    hosts.put("alpha", "own", "a");
    hosts.put("beta", "others", "b");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    std::os::unix::fs::chown(hosts.served("beta", "others"), Some(4321), Some(4322)).unwrap();
    let sources = [hosts.source("alpha"), hosts.source("beta")];
    let mount = hosts.mount(&sources, &["-o", "idmap=user"]);
    let own = fs::metadata(mount.at("own")).unwrap();
    let others = fs::metadata(mount.at("others")).unwrap();
    assert_eq!((own.uid(), others.uid(), others.gid()), (0, 4321, 4322));
    std::os::unix::fs::chown(mount.at("others"), Some(0), Some(4322)).unwrap();
    assert_eq!(fs::metadata(hosts.served("beta", "others")).unwrap().uid(), 0);
}

#[test]
fn a_single_local_source_can_be_mounted() {
    let hosts = Hosts::new(&[]);
    put(&hosts.local("here/file"), "local");
    fs::set_permissions(hosts.local("here/file"), fs::Permissions::from_mode(0o640)).unwrap();
    let mount = hosts.mount(&[format!("local:{}", hosts.local("here").display())], &[]);
    assert_eq!(content(mount.at("file")), "local");
    assert_eq!(fs::metadata(mount.at("file")).unwrap().mode() & 0o777, 0o640);
    fs::write(mount.at("new"), "new").unwrap();
    assert_eq!(content(hosts.local("here/new")), "new");
}

/// A directory may be mounted over itself: what was there is the branch.
#[test]
fn a_local_directory_under_the_mount_point_is_reachable_as_a_branch() {
    let hosts = Hosts::new(&["alpha"]);
    hosts.put("alpha", "far", "far");
    let place = hosts.mountpoint();
    put(&place.join("near"), "near");
    let mut command = hosts.command();
    command.arg("-f").arg(format!("local:{}", place.display())).arg(hosts.source("alpha"));
    command.arg(&place);
    let mount = crate::mount::Mount::start(command, place.clone());
    assert_eq!(names(mount.place()), ["far", "near"]);
    assert_eq!(
        (content(mount.at("near")), content(mount.at("far"))),
        ("near".into(), "far".into())
    );
    fs::write(mount.at("new"), "new").unwrap();
    mount.unmount();
    assert_eq!(content(place.join("new")), "new");
}
