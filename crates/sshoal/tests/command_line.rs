//! The program as a user sees it: exit codes, standard output and error, and its names.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

/// Runs the program under `name` with these words.
fn run(name: &str, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sshoal")).arg0(name).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The one message of a run that fails, with exit code 1 and nothing on standard output.
fn failure(name: &str, words: &[&str]) -> String {
    let output = run(name, words);
    assert_eq!(output.status.code(), Some(1), "{words:?}");
    assert_eq!(text(&output.stdout), "", "{words:?}");
    text(&output.stderr).to_owned()
}

fn success(name: &str, words: &[&str]) -> String {
    let output = run(name, words);
    assert_eq!(text(&output.stderr), "", "{words:?}");
    assert_eq!(output.status.code(), Some(0), "{words:?}");
    text(&output.stdout).to_owned()
}

#[test]
fn help_and_version_go_to_standard_output() {
    let help = success("sshoal", &["--help"]);
    assert!(help.starts_with("usage: sshoal [user@]host:[dir] mountpoint [options]\n"));
    for words in [&["help"][..], &["-h"], &["mount", "--help"], &["help", "mount"]] {
        assert_eq!(success("sshoal", words), help);
    }
    assert!(success("/usr/bin/sshfs", &["-h"]).starts_with("usage: sshfs "));
    assert!(success("sshfs", &["-V"]).starts_with("SSHFS version 3."));
    assert!(success("sshoal", &["--version"]).starts_with("sshoal "));
    assert!(success("sshoal", &["help", "options"]).contains("dcache_max_size"));
    assert!(success("sshoal", &["help", "nomap"]).starts_with("  -o nomap=ignore|error"));
    for words in [&["umount", "--help"][..], &["help", "umount"]] {
        assert!(success("sshoal", words).contains("--lazy"), "{words:?}");
    }
}

#[test]
fn help_into_a_closed_pipe_is_no_error() {
    let script =
        format!("{} help options | true; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_sshoal"));
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

/// By a shell, with `$0` as the program.
fn by_shell(script: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_sshoal");
    Command::new("bash").args(["-c", script, program]).output().unwrap()
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    for words in [
        "help",
        "help unit",
        "--version",
        "umount --help",
        "status --json",
        "stats --help",
        "doctor",
        "doctor --json",
        "config check",
        "unit h: /mnt/x",
        "autofs",
        "complete -- sta",
        "help options",
    ] {
        let output = by_shell(&format!("exec \"$0\" {words} >/dev/full"));
        assert_eq!(output.status.code(), Some(1), "{words}");
        let expected = "sshoal: standard output: No space left on device (os error 28)\n";
        assert_eq!(text(&output.stderr), expected, "{words}");
    }
}

#[test]
fn messages_that_cannot_be_written_change_no_exit_code() {
    for to in [">/dev/full", "| true"] {
        let script = format!("\"$0\" umount /no/such/place 2>&1 {to}; exit ${{PIPESTATUS[0]}}");
        // The reader may still be there.
        for _ in 0..3 {
            assert_eq!(by_shell(&script).status.code(), Some(1), "{to}");
        }
    }
}

#[test]
fn run_has_the_exit_codes_of_env() {
    for words in [&["run"][..], &["run", "-x", "true"], &["run", "-C"], &["run", "-C", "/", "true"]]
    {
        let output = run("sshoal", words);
        assert_eq!(output.status.code(), Some(125), "{words:?}");
        assert_eq!(text(&output.stdout), "", "{words:?}");
        assert!(text(&output.stderr).starts_with("sshoal: "), "{words:?}");
    }
    success("sshoal", &["run", "--help"]);
}

#[test]
fn a_current_directory_that_was_removed_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for words in ["run true", "unit h: x"] {
        let script = format!(
            "mkdir {0}/x; cd {0}/x; rmdir {0}/x; exec \"$0\" {words}",
            dir.path().display()
        );
        let output = by_shell(&script);
        let expected =
            "current directory: it was removed or unmounted\n  change to another directory\n";
        assert!(text(&output.stderr).ends_with(expected), "{words}: {output:?}");
    }
}

#[test]
fn mistakes_are_one_line_and_a_hint() {
    for (name, words, said) in [
        ("sshoal", &[][..], "sshoal: source: missing\n  `sshoal --help` shows the usage\n"),
        ("sshfs", &["h:"], "sshfs: mount point: missing\n  `sshfs --help` shows the usage\n"),
        (
            "sshoal",
            &["h:", "/", "-o", "reconect"],
            "sshoal: option 'reconect': no such option\n  did you mean 'reconnect'?\n",
        ),
        (
            "sshoal",
            &["h:", "/no/dir"],
            "sshoal: mount point '/no/dir': No such file or directory\n  mkdir /no/dir\n",
        ),
        (
            "sshoal",
            &["branch"],
            "sshoal: command line: a command is missing: list, add, rm, set\n  usage: sshoal branch \
             <COMMAND>\n",
        ),
        ("sshoal", &["", "/"], "sshoal: source: missing\n  `sshoal --help` shows the usage\n"),
        (
            "sshoal",
            &["help", "me"],
            "sshoal: help 'me': no such command or option\n  `sshoal help` lists the commands, \
             `sshoal help options` all options\n",
        ),
        (
            "sshfs",
            &["umount", "/"],
            "sshfs: source 'umount': contains no ':'\n  a source is [user@]host:[dir]; the home directory on umount is 'umount:'\n",
        ),
    ] {
        assert_eq!(failure(name, words), said, "{words:?}");
    }
}

/// Words of which none is a mount point that exists, or the name of a configured mount.
#[test]
fn an_option_of_rsync_that_is_not_there_is_named() {
    for (typed, option) in [("-avzL", "-L"), ("--max-size=1M", "--max-size")] {
        let output = run("sshoal", &["pull", typed, "h:a", "b"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let expected = format!(
            "sshoal: option '{option}': is rsync's\n  it is not there; `rsync` works on a mount, and \
             over ssh\n"
        );
        assert_eq!(text(&output.stderr), expected);
    }
    let unknown = run("sshoal", &["pull", "--max-sizes", "h:a", "b"]);
    assert!(text(&unknown.stderr).contains("unexpected argument '--max-sizes'"), "{unknown:?}");
    let other = run("sshoal", &["status", "-L"]);
    assert!(text(&other.stderr).contains("unexpected argument '-L'"), "{other:?}");
}

#[test]
fn in_a_copy_h_is_rsyncs_and_no_help_unless_it_is_alone() {
    for command in ["pull", "push"] {
        let output = run("sshoal", &[command, "-avzh", "a", "b"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("on another machine"), "{output:?}");
        let help = success("sshoal", &[command, "--help"]);
        assert!(help.contains("      --help") && !help.contains("human-readable"), "{help}");
        assert_eq!(success("sshoal", &[command, "-h"]), help);
    }
}

/// A shell makes one of a variable that is not set.
#[test]
fn an_empty_operand_of_a_copy_is_not_the_current_directory() {
    for (words, role) in [
        (&["pull", "--delete", "h:src/", ""][..], "target"),
        (&["push", "", "h:a"], "source"),
        (&["push", "a", "", "h:a"], "source"),
    ] {
        let output = run("sshoal", words);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let expected = format!(
            "sshoal: {}: {role} '': an empty name\n  the current directory is written '.'\n",
            words[0]
        );
        assert_eq!(text(&output.stderr), expected);
    }
}

#[test]
fn several_sources_take_one_password_from_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let ssh = dir.path().join("ssh");
    sandbox::write_program(&ssh, "#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n").unwrap();
    for name in ["one", "two"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    std::fs::create_dir(dir.path().join("target")).unwrap();
    let script = format!(
        "cd {}; echo secret | \"$0\" pull -o password_stdin,ssh_command=$PWD/ssh \
         h:$PWD/one $1:$PWD/two target",
        dir.path().display()
    );
    let by_shell = |host: &str| {
        let program = env!("CARGO_BIN_EXE_sshoal");
        Command::new("sh").args(["-c", &script, program, host]).output().unwrap()
    };
    let output = by_shell("other");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = "option 'password_stdin': would send one password to several hosts";
    assert!(text(&output.stderr).contains(said), "{output:?}");
    let output = by_shell("h");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(std::fs::read(dir.path().join("target/two")).unwrap(), b"two");
}

#[test]
fn a_copy_that_cannot_start_has_not_a_wrong_command_line() {
    // The loader of programs uses one more for a moment.
    let output = by_shell("ulimit -n 4; exec \"$0\" pull h:x .");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stderr).contains("cannot start"), "{output:?}");
}

#[test]
fn a_pushed_target_that_is_a_link_takes_the_same_password_from_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let ssh = dir.path().join("ssh");
    sandbox::write_program(&ssh, "#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n").unwrap();
    std::fs::write(dir.path().join("file"), "content").unwrap();
    for name in ["target", "other"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    std::os::unix::fs::symlink("../other", dir.path().join("target/link")).unwrap();
    let script = format!(
        "cd {}; echo secret | \"$0\" push -o password_stdin,ssh_command=$PWD/ssh \
         file h:$PWD/target/link",
        dir.path().display()
    );
    let program = env!("CARGO_BIN_EXE_sshoal");
    let output = Command::new("sh").args(["-c", &script, program]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(std::fs::read(dir.path().join("other/file")).unwrap(), b"content");
}

#[test]
fn a_wrong_command_is_said_with_the_nearest() {
    let dir = tempfile::tempdir().unwrap();
    let said = |name: &str, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sshoal"));
        command.arg0(name).args(words).current_dir(&dir).env("XDG_CONFIG_HOME", dir.path());
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{words:?}");
        text(&output.stderr).to_owned()
    };
    for (words, meant) in [
        (&["stauts"][..], "status"),
        (&["stauts", "mnt"], "status"),
        (&["stauts", "--json"], "status"),
        (&["doctr", "host:"], "doctor"),
        (&["moutn", "host:", "mnt"], "mount"),
        (&["unmount", "mnt"], "umount"),
        (&["puhs", "-a", "file", "host:"], "push"),
    ] {
        let wanted =
            format!("sshoal: command '{}': no such command\n  did you mean '{meant}'?\n", words[0]);
        assert_eq!(said("sshoal", words), wanted, "{words:?}");
    }
    let other = "sshoal: command 'list': no such command\n  `sshoal help` lists the commands; a \
        source is [user@]host:[dir]\n";
    assert_eq!(said("sshoal", &["list"]), other);

    // As in sshfs, which has no commands.
    let source = "a source is [user@]host:[dir]";
    for (name, words, wanted) in [
        (
            "sshfs",
            &["stauts"][..],
            format!("source: missing (only 'stauts' was given)\n  {source}"),
        ),
        (
            "sshoal",
            &["list", "mnt"],
            format!(
                "source 'list': contains no ':'\n  {source}; the home directory on list is 'list:'"
            ),
        ),
        (
            "sshoal",
            &["mnt", "host:"],
            "mount point 'mnt': No such file or directory\n  mkdir mnt".to_owned(),
        ),
        (
            "sshoal",
            &["host:", "stauts"],
            "mount point 'stauts': No such file or directory\n  mkdir stauts".to_owned(),
        ),
    ] {
        assert_eq!(said(name, words), format!("{name}: {wanted}\n"), "{words:?}");
    }

    std::fs::write(dir.path().join("doctr"), "").unwrap();
    for (words, wanted) in [
        (&["doctr", "host:"][..], "mount point 'doctr': not a directory"),
        (&["doctr"], "source: missing (only 'doctr' was given)"),
    ] {
        let said = said("sshoal", words);
        assert!(said.starts_with(&format!("sshoal: {wanted}\n")), "{said}");
    }
    std::fs::create_dir(dir.path().join("sshoal")).unwrap();
    let configuration = "[mount.stauts]\nsources = ['host:']\n";
    std::fs::write(dir.path().join("sshoal/config.toml"), configuration).unwrap();
    let configured = said("sshoal", &["stauts", "mnt"]);
    assert!(configured.starts_with("sshoal: source 'stauts': contains no ':'"), "{configured}");
}

#[test]
fn of_an_option_given_twice_the_last_value_is_valid() {
    let said = success("sshoal", &["autofs", "--timeout=1", "--timeout=2", "--master"]);
    assert!(said.contains("--timeout=2"), "{said}");
    success("sshoal", &["status", "--json", "--json"]);
}

#[test]
fn umount_needs_a_mount_of_ours() {
    let missing = failure("sshoal", &["umount"]);
    assert!(missing.starts_with("sshoal: command line: "), "{missing}");
    assert!(missing.contains("<MOUNTPOINT>"), "{missing}");
    let wrong = failure("sshoal", &["umount", "-q", "/mnt"]);
    assert!(wrong.contains("'-q'") && wrong.contains("usage: sshoal umount"), "{wrong}");
    let other = failure("sshoal", &["umount", "/proc"]);
    assert!(
        other.starts_with("sshoal: '/proc': not a mount of sshoal, but of type proc"),
        "{other}"
    );
    let dir = tempfile::tempdir().unwrap();
    let nothing = failure("sshoal", &["umount", dir.path().to_str().unwrap()]);
    assert!(nothing.contains("nothing is mounted here"), "{nothing}");
}

#[test]
fn a_mount_helper_that_fakes_checks_and_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let said = success("mount.fuse.sshfs", &["h:", dir, "-f", "-s", "-o", "rw,unheard_of"]);
    assert_eq!(said, "");
    let said = failure("mount.sshoal", &["h:", dir, "-f", "-o", "unheard_of"]);
    assert!(said.contains("no such option"), "{said}");
}

#[test]
fn odd_bytes_in_the_command_line_do_no_harm() {
    use std::os::unix::ffi::OsStrExt;
    let output = Command::new(env!("CARGO_BIN_EXE_sshoal"))
        .args([OsStr::from_bytes(b"h:\xff"), OsStr::from_bytes(b"/\xfe\x1b[2J")])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("sshoal: mount point '/\\xfe\\u{1b}[2J': No such"));
}

/// Prints the candidates for `$2` by the script `$1`, without descriptions.
const IN_BASH: &str = r#"
source "$1"; compopt() { :; }; COMP_LINE=$2 COMP_POINT=${#2}; _sshoal
printf '%s\n' "${COMPREPLY[@]}""#;
const IN_ZSH: &str = r#"
compdef() { :; }; compset() { :; }; compadd() { print -r -- ${@[-1]} }; _files() { print -r -- *(/) }
source "$1"; words=("${(@s: :)2}"); CURRENT=$#words; PREFIX=$words[-1]; _sshoal"#;
const IN_FISH: &str = r#"source $argv[1]; complete -C $argv[2] | string replace -r '\t.*' ''"#;

#[test]
fn the_scripts_of_all_shells_complete() {
    assert_eq!(success("sshoal", &["complete"]), "");
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(home.path().join(".ssh")).unwrap();
    std::fs::write(home.path().join(".ssh/config"), "Host alpha gate\n").unwrap();
    std::fs::create_dir(home.path().join("place")).unwrap();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_sshoal"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/completions/sshoal.");
    for (shell, words, code, suffix) in [
        ("bash", &["--norc", "-c"][..], IN_BASH, ""),
        ("zsh", &["-f", "-c"], IN_ZSH, ""),
        ("fish", &["--no-config", "-c"], IN_FISH, "/"),
    ] {
        let completed = |line: &str| {
            let mut command = Command::new(shell);
            command.args(words).arg(code);
            // fish has no name of the script among the arguments.
            command.args((shell != "fish").then_some(shell));
            command.args([&format!("{scripts}{shell}"), line]);
            command.env("PATH", &path).env("HOME", home.path()).current_dir(home.path());
            let output = command.output().unwrap();
            assert_eq!(text(&output.stderr), "", "{shell}: {line}");
            text(&output.stdout).trim_end().to_owned()
        };
        assert_eq!(completed("sshoal umo"), "umount", "{shell}");
        assert_eq!(completed("sshoal al"), "alpha:", "{shell}");
        assert_eq!(completed("sshoal x: m -o ro,allow_o"), "ro,allow_other", "{shell}");
        assert_eq!(completed("sshoal demo --ke"), "--keep", "{shell}");
        assert_eq!(completed("sshoal gate: pl"), format!("place{suffix}"), "{shell}");
        assert_eq!(completed("sshoal nothing-has-this-name"), "", "{shell}");
    }
}
