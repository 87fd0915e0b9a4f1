//! Which program serves a mount, and by how many logins.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::Value;

use super::served_by_helper;
use super::site::{BOTH, HELPER, Logins, PLAIN, Site, installed, session};
use crate::process::{eventually, succeed};
use crate::world::program;

#[test]
fn a_server_without_it_sees_one_login_for_the_subsystem() {
    let Some(site) = Site::new(&[]) else { return };
    for option in ["-ohelper=auto", "-oreconnect", "-odelay_connect"] {
        let (seen, logins) = site.mount_once(&[option]);
        seen.is_served_by("sftp");
        assert_eq!((logins, seen.words.as_str(), site.records()), (PLAIN, "", 0), "{option}");
    }
}

/// The first mount finds it, later ones know it, until it is gone.
#[test]
fn it_is_found_remembered_and_forgotten() {
    let Some(site) = Site::new(&[]) else { return };
    let helper = site.put_helper();
    let (first, logins) = site.mount_once(&[]);
    first.is_served_by("helper");
    assert_eq!((logins, site.records()), (BOTH, 1));
    assert_eq!(first.session["server_version"], env!("CARGO_PKG_VERSION"));
    let extensions = first.session["extensions"].as_array().unwrap();
    assert!(extensions.contains(&Value::from("attrs@sshoal")), "{}", first.session);
    for option in ["-oreconnect", "-odelay_connect"] {
        let (later, logins) = site.mount_once(&[option]);
        later.is_served_by("helper");
        assert_eq!((logins, later.words.as_str()), (HELPER, ""), "{option}");
    }

    let (without, logins) = site.mount_once(&["-ohelper=no"]);
    without.is_served_by("sftp");
    assert_eq!((logins, site.records()), (PLAIN, 1));

    fs::remove_file(&helper).unwrap();
    let (gone, logins) = site.mount_once(&[]);
    gone.is_served_by("sftp");
    assert_eq!((logins, site.records()), (BOTH, 0));
    let why = format!("the helper {} is not used, but plain SFTP: ssh: ", installed());
    assert!(gone.words.contains(&why) && gone.words.contains("No such file"), "{}", gone.words);
    let (after, logins) = site.mount_once(&[]);
    assert_eq!((logins, after.words.as_str()), (PLAIN, ""));
}

/// A mount that began with the helper does not change to plain SFTP.
#[test]
fn a_helper_that_is_gone_fails_the_reconnect() {
    let Some(site) = Site::new(&[]) else { return };
    let helper = site.put_helper();
    let mount = site.mount(&["-osoft=2"]).with_errors();
    fs::write(mount.at("file"), "content").unwrap();
    fs::remove_file(&helper).unwrap();
    site.world.sshd().kill_sessions();
    site.logins();
    let error = fs::read(mount.at("other")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc_etimedout()), "{error}");
    let gone = format!("the helper {} is gone: ssh: ", installed());
    eventually(Duration::from_secs(20), "the log has the reason", || mount.words().contains(&gone));
    assert_eq!(site.logins().subsystem, 0, "no plain SFTP");

    site.put_helper();
    eventually(Duration::from_secs(100), "the mount is back", || {
        fs::read(mount.at("file")).is_ok_and(|content| content == b"content")
    });
    assert_eq!(session(&mount)["server"], "helper");
    mount.unmount();
}

fn libc_etimedout() -> i32 {
    rustix::io::Errno::TIMEDOUT.raw_os_error()
}

#[test]
fn a_helper_at_a_path() {
    let Some(site) = Site::new(&[]) else { return };
    let helper = site.put_helper();
    fs::create_dir(site.home("my 'own'")).unwrap();
    fs::rename(&helper, site.home("my 'own'/sshoal")).unwrap();
    for path in ["~/my 'own'/sshoal", "./my 'own'/sshoal"] {
        let (seen, logins) = site.mount_once(&["-o", &format!("helper={path}")]);
        seen.is_served_by("helper");
        assert_eq!((logins, site.records()), (HELPER, 0));
    }
    let refused = site.refusal(&["-ohelper=/no/such/program"]);
    let why = "testhost: the helper /no/such/program does not serve: ssh: ";
    assert!(refused.contains(why) && refused.contains("No such file"), "{refused}");
    let refused = site.refusal(&["-ohelper=/bin/cat"]);
    assert!(refused.contains("the helper /bin/cat does not serve: "), "{refused}");
    let refused = site.refusal(&["-ohelper=/usr/lib/openssh/sftp-server"]);
    assert!(refused.contains("/usr/lib/openssh/sftp-server does not serve: "), "{refused}");
    let refused = site.refusal(&["-ohelper=atuo"]);
    assert!(refused.contains("must be auto, no, install, or the path"), "{refused}");
    let refused = site.refusal(&["-ohelper=install,sftp_server=sftp"]);
    assert!(refused.contains("'helper' and 'sftp_server'"), "{refused}");
}

/// What cannot be the helper is not started, and what is started and is none costs one message.
#[test]
fn a_program_that_is_no_helper_leaves_plain_sftp() {
    let Some(site) = Site::new(&[]) else { return };
    let helper = site.put(&installed(), "#!/bin/sh\ntouch started\n");
    let mode = |mode| fs::set_permissions(&helper, Permissions::from_mode(mode)).unwrap();
    let why = |what: &str| format!("is not used, but plain SFTP: {what}");
    mode(0o775);
    let (seen, logins) = site.mount_once(&[]);
    seen.is_served_by("sftp");
    assert!(seen.words.contains(&why("others than its owner may write it")), "{}", seen.words);
    assert_eq!(logins, PLAIN);
    mode(0o755);
    std::os::unix::fs::chown(&helper, Some(4), None).unwrap();
    let (seen, logins) = site.mount_once(&[]);
    assert!(seen.words.contains(&why("it belongs to user 4")), "{}", seen.words);
    assert_eq!(logins, PLAIN);
    assert!(!site.home("started").exists());
    mode(0o644);
    let (seen, logins) = site.mount_once(&[]);
    assert_eq!((logins, seen.words.as_str()), (PLAIN, ""), "it cannot be executed");

    for (script, said) in [
        ("exit 3", "ssh ended without a message (exit status: 3)"),
        ("echo this account is for files only; exit 1", "sent text before the SFTP stream"),
        ("exec /usr/lib/openssh/sftp-server", "another SFTP server answered"),
        ("exec sleep 60", "no answer within 10 s"),
    ] {
        fs::remove_file(&helper).unwrap();
        site.put(&installed(), &format!("#!/bin/sh\n{script}\n"));
        let (seen, logins) = site.mount_once(&[]);
        seen.is_served_by("sftp");
        assert!(seen.words.contains(&why("")) && seen.words.contains(said), "{}", seen.words);
        assert_eq!((logins, site.records()), (BOTH, 0), "{script}");
    }
    // It works, but elsewhere.
    let program = crate::world::program_path();
    site.put(&installed(), &format!("#!/bin/sh\nexec {} \"$@\" -d /\n", program.display()));
    let (seen, _) = site.mount_once(&[]);
    seen.is_served_by("sftp");
    assert!(seen.words.contains("it starts in another directory"), "{}", seen.words);
}

/// Nothing is to be found or started: the subsystem is the helper.
#[test]
fn the_helper_as_subsystem_is_in_use() {
    let world = served_by_helper("");
    let mount = world.mount(&[]);
    assert_eq!(session(&mount)["server"], "helper");
    // The daemon answers by now.
    let shown = succeed(program().arg("status").arg(mount.place()));
    let named = format!(", helper {}, ", env!("CARGO_PKG_VERSION"));
    assert!(shown.contains(&named), "{shown}");
    let stats = succeed(program().args(["stats", "--total", "--json"]).arg(mount.place()));
    let stats: Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["hosts"][0]["server"], "helper");
    mount.unmount();
    assert_eq!(world.sshd().log().matches("Starting session").count(), 1);
}

/// A copy by SFTP uses it as a mount does.
#[test]
fn copies_use_it() {
    let Some(site) = Site::new(&[]) else { return };
    site.put_helper();
    fs::write(site.world.served("file"), "content").unwrap();
    let pull = |target: &str, options: &[&str]| {
        let mut command = site.program();
        command.arg("pull").arg("-F").arg(site.world.sshd().config_path());
        command.args(["--engine", "sftp"]).args(options);
        command.arg(format!("{}file", site.world.source())).arg(site.world.local(target));
        succeed(&mut command);
        assert_eq!(fs::read_to_string(site.world.local(target)).unwrap(), "content");
        site.logins()
    };
    site.logins();
    assert_eq!(pull("first", &[]), BOTH);
    assert_eq!(pull("second", &[]), HELPER);
    let path = format!("helper={}", installed());
    assert_eq!(pull("third", &["-o", &path]), HELPER);
    assert_eq!(pull("fourth", &["-o", "helper=no"]), PLAIN);
}

/// All sessions of a mount are served by it.
#[test]
fn further_sessions_are_served_by_it() {
    let Some(site) = Site::new(&[]) else { return };
    site.put_helper();
    let file = fs::File::create(site.world.served("large")).unwrap();
    file.set_len(64 << 20).unwrap();
    site.mount_once(&[]);
    let mount = site.mount(&["-omax_conns=2,dcache_timeout=0"]);
    let opened = |logins: &Logins| logins.command;
    let mut logins = site.logins();
    eventually(Duration::from_secs(60), "a second session", || {
        assert_eq!(fs::read(mount.at("large")).unwrap().len(), 64 << 20);
        fs::File::options().write(true).open(mount.at("large")).unwrap().set_len(64 << 20).unwrap();
        let more = site.logins();
        logins.command += more.command;
        logins.subsystem += more.subsystem;
        opened(&logins) >= 2
    });
    assert_eq!(logins.subsystem, 0);
    mount.unmount();
}
