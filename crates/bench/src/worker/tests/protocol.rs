//! SFTP over ssh, and servers that answer badly.

use sandbox::sshd::{Options, Sshd};

use super::*;

fn over(sshd: &Sshd) -> Vec<String> {
    let mut command = Command::new("ssh");
    command.arg("-F").arg(sshd.config_path()).args([sshd.alias(), "-s", "sftp"]);
    words_of(&command).unwrap()
}

#[test]
fn files_and_names_over_a_real_ssh() {
    let sshd = Sshd::start(Options::default()).unwrap();
    let (dir, path) = right_file();
    let ssh = over(&sshd);
    let target = Target::Sftp { ssh: ssh.clone(), path };
    let whole = Transfer { record_bytes: 0, depth: 32, ..all_of(target.clone()) };
    assert!(read(whole, content()).unwrap().verified);
    let done = read(scattered(target, 32), content()).unwrap();
    assert_eq!(done.latency.unwrap().count, FILE_BYTES / 4096);

    let copy = dir.path().join("copy");
    let target = Target::Sftp { ssh, path: copy.clone() };
    let transfer = Transfer { record_bytes: 0, depth: 32, ..all_of(target) };
    run(&Job::Write { transfer, seed: SEED, create: true }).unwrap();
    assert_eq!(corpus::digest_file(&copy).unwrap(), corpus::digest_content(SEED, FILE_BYTES));
}

#[test]
fn the_words_of_a_program_that_ends_are_shown() {
    let ssh = shell("echo 'no route\u{7} to host' >&2; exit 255");
    let target = Target::Sftp { ssh, path: "x".into() };
    let failure = read(all_of(target), content()).unwrap_err().to_string();
    assert!(failure.contains(r"no route\u{7} to host"), "{failure}");
}

#[test]
fn a_server_that_is_none_is_a_failure() {
    for script in [
        "printf '\\0\\0\\0\\5\\145\\0\\0\\0\\0'; cat >/dev/null",
        "printf '\\377\\377\\377\\377'; cat >/dev/null",
    ] {
        let target = Target::Sftp { ssh: shell(script), path: "x".into() };
        let failure = read(all_of(target), content()).unwrap_err();
        assert!(matches!(failure, Failure::Failed { .. }), "{failure}");
    }
}

#[test]
fn what_logging_in_has_used_is_told_apart() {
    let (_dir, path) = right_file();
    let busy = format!("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exec {SFTP_SERVER}");
    let done = read(all_of(Target::Sftp { ssh: shell(&busy), path }), content()).unwrap();
    assert!(done.before.user_s > 0.0, "{:?}", done.before);
}
