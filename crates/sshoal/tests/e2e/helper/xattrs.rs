//! Extended attributes and access lists.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, StatxFlags, XattrFlags, getxattr, getxattr_query, listxattr, removexattr,
    setxattr, statx,
};
use rustix::io::Errno;

use super::served_by_helper;
use crate::mount::Mount;
use crate::process::{eventually, shell, succeed};
use crate::world::program;

/// What a tree has beside contents: attributes, access lists, modes.
fn described(tree: &Path) -> String {
    let script = "cd \"$1\" && getfattr -R -d -m - -h . && getfacl -R -n . && find . -printf '%p %M %s\\n' | sort";
    shell(script, &[tree])
}

fn value(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 65_536];
    let len = getxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// A tree with attributes of several kinds, as far as this user may set them.
fn fill(tree: &Path) {
    let script = r#"
        mkdir -p "$1/dir/sub" && cd "$1" && echo content >file && echo other >dir/sub/other
        ln -s file link
        setfattr -n user.text -v 'some text' file
        setfattr -n user.binary -v 0x00ff0a00 file
        setfattr -n user.empty dir/sub/other
        setfattr -n user.on-directory -v yes dir
        setfacl -m u:4321:rw,g:4322:r,m::rw file
        setfacl -m u:4321:rwx -m d:u:4321:rwx,d:o::- dir
    "#;
    shell(script, &[tree]);
    if is_root() {
        let script = r#"
            cd "$1" && setfattr -n trusted.sshoal -v kept file && setfattr -h -n trusted.link -v 1 link
            setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 dir/sub/other
        "#;
        shell(script, &[tree]);
    }
}

#[test]
fn cp_and_rsync_keep_attributes_and_access_lists() {
    let world = served_by_helper("");
    let mount = world.mount(&[]);
    let tree = world.local("tree");
    fill(&tree);
    let expected = described(&tree);
    assert!(expected.contains("user.binary=0sAP8KAA==") && expected.contains("user:4321:rwx"));
    for (name, copy) in [("cp", "cp -a \"$1\" \"$2\""), ("rsync", "rsync -aAX \"$1/\" \"$2/\"")] {
        let there = mount.at(name);
        shell(copy, &[&tree, &there]);
        assert_eq!(described(&world.served(name)), expected, "{name} into the mount");
        assert_eq!(described(&there), expected, "{name} as the mount shows it");
        let back = world.local(format!("{name}-back"));
        shell(copy, &[&there, &back]);
        assert_eq!(described(&back), expected, "{name} out of the mount");
        // Nothing is left to do.
        let again = shell("rsync -aAXin \"$1/\" \"$2/\"", &[&tree, &there]);
        assert_eq!(again, "", "{name}");
    }
}

#[test]
fn attributes_are_set_read_and_removed() {
    let world = served_by_helper("");
    let (mount, other) = (world.mount(&[]), world.mount(&[]));
    fs::write(world.served("file"), "content").unwrap();
    let (here, there) = (mount.at("file"), world.served("file"));
    let none = XattrFlags::empty();
    setxattr(&here, "user.a", b"first", XattrFlags::CREATE).unwrap();
    assert_eq!(setxattr(&here, "user.a", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(setxattr(&here, "user.b", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
    assert_eq!(value(&there, "user.a").unwrap(), b"first");
    // Another mount sees it at once, and what another program has set.
    assert_eq!(value(&other.at("file"), "user.a").unwrap(), b"first");
    setxattr(&there, "user.a", b"second", none).unwrap();
    assert_eq!(value(&here, "user.a").unwrap(), b"second");
    // The sizes of system calls.
    assert_eq!(getxattr_query(&here, "user.a"), Ok(6));
    assert_eq!(getxattr(&here, "user.a", &mut [0; 5][..]), Err(Errno::RANGE));
    assert_eq!(listxattr(&here, &mut [0; 3][..]), Err(Errno::RANGE));
    assert_eq!(value(&here, "user.b"), Err(Errno::NODATA));
    removexattr(&here, "user.a").unwrap();
    assert_eq!(removexattr(&here, "user.a"), Err(Errno::NODATA));
    assert_eq!(value(&there, "user.a"), Err(Errno::NODATA));
    // As long as the server's file system has room for.
    let long = vec![7; 3000];
    setxattr(&here, "user.long", &long, none).unwrap();
    assert_eq!(value(&there, "user.long").unwrap(), long);
    let most = setxattr(&there, "user.most", &[7; 65_536], none);
    assert_eq!(setxattr(&here, "user.most", &[7; 65_536], none), most);
    // Errors are the server's.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        world.served("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert_eq!(setxattr(mount.at("fifo"), "user.a", b"x", none), Err(Errno::PERM));
    assert_eq!(setxattr(&here, "system.unknown", b"x", none), Err(Errno::OPNOTSUPP));
    assert_eq!(setxattr(mount.at("absent"), "user.a", b"x", none), Err(Errno::NOENT));
    let read_only = world.mount(&["-o", "ro"]);
    assert_eq!(setxattr(read_only.at("file"), "user.a", b"x", none), Err(Errno::ROFS));
    assert_eq!(value(&read_only.at("file"), "user.long").unwrap(), long);
}

#[test]
fn an_access_list_changes_the_mode_and_denies_what_it_says() {
    let world = served_by_helper("");
    let mount = world.mount(&[]);
    let here = mount.at("file");
    fs::write(&here, "content").unwrap();
    let modes = || {
        // The mode alone, as `stat -c %a` requests it: the kernel may have it.
        let mode = |path: &Path| {
            let stat = statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
            u32::from(stat.stx_mode) & 0o7777
        };
        (mode(&here), mode(&world.served("file")))
    };
    for (acl, mode) in [("u:4321:rwx,m::rwx", 0o674), ("g::-,m::r", 0o644), ("o::-", 0o640)] {
        assert!(modes().0 & 0o700 == 0o600);
        succeed(std::process::Command::new("setfacl").args(["-n", "-m", acl]).arg(&here));
        assert_eq!(modes(), (mode, mode), "{acl}");
    }
    succeed(std::process::Command::new("setfacl").arg("-b").arg(&here));
    assert_eq!(modes(), (0o600, 0o600));
    // New entries get what the default list of their directory leaves.
    fs::create_dir(mount.at("dir")).unwrap();
    shell("setfacl -m d:u::rwx,d:g::rx,d:o::- \"$1\"", &[&mount.at("dir")]);
    fs::write(mount.at("dir/file"), "").unwrap();
    fs::create_dir(mount.at("dir/sub")).unwrap();
    for (name, mode) in [("dir/file", 0o640), ("dir/sub", 0o750)] {
        for path in [mount.at(name), world.served(name)] {
            let found = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(found, mode, "{}", path.display());
        }
    }
}

/// In a directory of a group, all of the group may write to what any of them creates.
#[test]
fn a_default_access_list_replaces_the_umask_as_on_the_server() {
    let world = served_by_helper("");
    fs::create_dir(world.served("there")).unwrap();
    fs::create_dir(world.served("plain")).unwrap();
    shell("setfacl -m d:u::rwx,d:g::rwx,d:o::r \"$1\"", &[&world.served("there")]);
    let mount = world.mount(&[]);
    let create = "umask 077; mkdir -p \"$1/sub/below\"; touch \"$1/file\" \"$1/sub/below/file\"; \
        python3 -c 'import os, sys; os.mknod(sys.argv[1], 0o100666)' \"$1/node\"";
    let names = ["file", "node", "sub", "sub/below", "sub/below/file"];
    let modes = |dir: &Path| {
        names.map(|name| fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777)
    };
    fs::create_dir(world.served("local")).unwrap();
    shell("setfacl -m d:u::rwx,d:g::rwx,d:o::r \"$1\"", &[&world.served("local")]);
    shell(create, &[&world.served("local")]);
    assert_eq!(modes(&world.served("local")), [0o664, 0o664, 0o774, 0o774, 0o664]);
    for (name, expected) in [
        ("there", [0o664, 0o664, 0o774, 0o774, 0o664]),
        ("plain", [0o600, 0o600, 0o700, 0o700, 0o600]),
    ] {
        shell(create, &[&mount.at(name)]);
        assert_eq!(modes(&world.served(name)), expected, "{name}");
        assert_eq!(modes(&mount.at(name)), expected, "{name} in the mount");
    }
    // A list that was set through the mount is valid at once.
    fs::create_dir(mount.at("here")).unwrap();
    fs::write(mount.at("here/before"), "").unwrap();
    shell("setfacl -m d:u::rwx,d:g::rwx,d:o::r \"$1\"", &[&mount.at("here")]);
    shell(create, &[&mount.at("here")]);
    assert_eq!(modes(&world.served("here")), modes(&world.served("there")));
}

/// As a write does; the kernel does not mark these requests.
#[test]
fn an_allocation_by_another_user_clears_set_id_bits() {
    if !is_root() {
        return;
    }
    let world = served_by_helper("");
    let mount = world.mount(&["-o", "allow_other"]);
    for (user, left) in [("0", "6777"), ("65534", "777")] {
        for script in [
            "fallocate -l 100000 \"$1\"",
            "python3 -c 'import os, sys; f = os.open(sys.argv[1], os.O_RDWR); \
                os.copy_file_range(f, f, 10, 0, 100)' \"$1\"",
        ] {
            fs::write(mount.at("program"), [1; 1000]).unwrap();
            let mode = fs::Permissions::from_mode(0o6777);
            fs::set_permissions(mount.at("program"), mode).unwrap();
            let mut command = std::process::Command::new("setpriv");
            command.args(["--reuid", user, "--regid", user, "--clear-groups", "sh", "-c", script]);
            succeed(command.arg("sh").arg(mount.at("program")));
            for path in [mount.at("program"), world.served("program")] {
                let mode =
                    succeed(std::process::Command::new("stat").args(["-c", "%a"]).arg(&path));
                assert_eq!(mode.trim(), left, "{user} {script} {path:?}");
            }
        }
    }
}

/// A write removes the capabilities of a program, and the query before it sends no request.
#[test]
fn a_write_removes_capabilities() {
    if !is_root() {
        return;
    }
    let world = served_by_helper("");
    let mount = world.mount(&[]);
    fs::write(world.served("program"), "content").unwrap();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let name = "security.capability";
    setxattr(mount.at("program"), name, &capability, XattrFlags::empty()).unwrap();
    assert_eq!(getxattr_query(mount.at("program"), name), Ok(20));
    assert_eq!(value(&world.served("program"), name).unwrap(), capability);
    let before = requests(&mount, "getxattr");
    assert!(before > 0);
    let mut file = fs::OpenOptions::new().append(true).open(mount.at("program")).unwrap();
    for _ in 0..3 {
        std::io::Write::write_all(&mut file, b"more").unwrap();
        file.metadata().unwrap();
    }
    assert_eq!(requests(&mount, "getxattr"), before);
    drop(file);
    assert_eq!(value(&world.served("program"), name), Err(Errno::NODATA));
    assert_eq!(value(&mount.at("program"), name), Err(Errno::NODATA));
}

/// `ls -l` queries each file for its access list.
#[test]
fn a_long_listing_costs_no_request_for_each_file() {
    let world = served_by_helper("");
    let mount = world.mount(&[]);
    for number in 0..300 {
        fs::write(world.served(format!("file{number}")), "content").unwrap();
    }
    shell("setfacl -m u:4321:r \"$1\"", &[&world.served("file77")]);
    let shown = shell("ls -l --color=always \"$1\"", &[&mount.at("")]);
    assert_eq!(shown.matches("-rw-r--r--+").count(), 1, "{shown}");
    assert_eq!(shown.lines().count(), 301);
    let kinds = ["getxattr", "listxattr", "dirxattrs"];
    let sent: u64 = kinds.iter().map(|kind| requests(&mount, kind)).sum();
    assert!((1..20).contains(&sent), "{sent}");
}

/// Requests of this kind that the mount has sent.
fn requests(mount: &Mount, kind: &str) -> u64 {
    let shown = succeed(program().args(["stats", "--total", "--json"]).arg(mount.place()));
    let document: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let found = document.pointer(&format!("/hosts/0/requests/{kind}"));
    found.map_or(0, |count| count.as_u64().unwrap())
}

/// An open file stays open over a lost connection, whatever its access list has become.
#[test]
fn attributes_survive_a_lost_connection() {
    let world = served_by_helper("");
    let mount = world.mount(&[]).with_errors();
    let here = mount.at("file");
    fs::write(&here, "content").unwrap();
    let file = fs::OpenOptions::new().read(true).append(true).open(&here).unwrap();
    for round in 0..3_u8 {
        let acl = format!("u:432{round}:r,m::r{}", if round % 2 == 0 { "" } else { "w" });
        succeed(std::process::Command::new("setfacl").args(["-m", &acl]).arg(&here));
        world.sshd().kill_sessions();
        eventually(Duration::from_secs(20), "the attribute is set", || {
            setxattr(&here, "user.round", &[round], XattrFlags::empty()).is_ok()
        });
        assert_eq!(value(&world.served("file"), "user.round").unwrap(), [round]);
        std::io::Write::write_all(&mut &file, &[b'0' + round]).unwrap();
        file.sync_all().unwrap();
    }
    assert_eq!(fs::read_to_string(world.served("file")).unwrap(), "content012");
    assert!(shell("getfacl -n \"$1\"", &[&here]).contains("user:4322:r--"));
}
