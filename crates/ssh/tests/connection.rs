//! Connections through the real ssh to a private sshd, and what is said when there is none.

mod harness;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use harness::{Heard, config_of, dialer, failure, greet, output, script};
use sandbox::sshd::{Options, SftpServer, Sshd};
use ssh::{Cause, Config, Destination, Dialer, Error, Password, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn sshd() -> Sshd {
    Sshd::start(Options::default()).expect("a private sshd")
}

#[tokio::test]
async fn a_key_logs_in_and_the_stream_speaks_sftp() {
    let sshd = sshd();
    let mut connection = dialer(config_of(&sshd), &Heard::default()).connect().await.unwrap();
    greet(&mut connection).await.unwrap();
    assert_eq!(connection.diagnosis.status(), None);
    assert_eq!(connection.diagnosis.summary(), None);
    assert_eq!(sshd.sftp_server_pids().len(), 1);
}

#[tokio::test]
async fn many_bytes_pass_in_both_directions() {
    let sshd = Sshd::start(Options {
        sftp_server: SftpServer::Command("cat".to_owned()),
        ..Options::default()
    })
    .unwrap();
    let connection = dialer(config_of(&sshd), &Heard::default()).connect().await.unwrap();
    let (mut reader, mut writer) = (connection.reader, connection.writer);
    let sent: Vec<u8> = (0..8_000_000u32).map(|i| (i ^ (i >> 8)) as u8).collect();
    let mut received = vec![0; sent.len()];
    let (read, written) = tokio::join!(reader.read_exact(&mut received), writer.write_all(&sent));
    read.unwrap();
    written.unwrap();
    assert!(received == sent, "the bytes came back changed");
}

#[tokio::test]
async fn the_fast_cipher_is_chosen_only_where_the_user_chose_none() {
    let sshd = sshd();
    for (args, expected) in [
        (vec!["-v"], "aes128-gcm@openssh.com"),
        (vec!["-v", "-oCiphers=aes256-ctr"], "aes256-ctr"),
        (vec!["-v", "-c", "aes256-ctr"], "aes256-ctr"),
    ] {
        if expected.contains("gcm") && !base::processor::has_aes() {
            continue;
        }
        let mut config = config_of(&sshd);
        config.args.extend(args.iter().map(Into::into));
        let mut connection = dialer(config, &Heard::default()).connect().await.unwrap();
        greet(&mut connection).await.unwrap();
        let words = connection.diagnosis.words();
        let cipher = format!("kex: server->client cipher: {expected}");
        assert!(words.contains(&cipher), "{args:?}: {words}");
    }
}

fn with_password(alias: &str) -> Sshd {
    let alias = alias.to_owned();
    Sshd::start(Options { takes_password: true, alias, ..Options::default() }).unwrap()
}

/// Class of attack: the password of one host is given to another.
#[tokio::test]
async fn a_jump_host_that_asks_for_a_password_gets_none() {
    let (gate, inner) = (with_password("gate"), with_password("inner"));
    let through = |gate: &Sshd| {
        let (config, alias) = (gate.config_path(), gate.alias());
        let proxy = format!(
            "-oProxyCommand=ssh -F {} -W 127.0.0.1:{} {alias}",
            config.display(),
            inner.port()
        );
        let mut config = config_of(&inner);
        config.args.push(proxy.into());
        Config { password: Some(Password::new(inner.password())), ..config }
    };
    let failure = failure(through(&gate)).await;
    assert_eq!(failure.cause, Cause::PermissionDenied, "{failure}");
    let question = format!("not answered: {}@gate's password:", gate.user());
    assert!(failure.words.contains(&question), "{}", failure.words);
    assert_eq!(gate.log().matches("Failed password").count(), 0, "{}", gate.log());

    // A gate that knows the key: what is asked then comes from the destination.
    let gate = Sshd::start(Options { alias: "gate".to_owned(), ..Options::default() }).unwrap();
    let mut connection = dialer(through(&gate), &Heard::default()).connect().await.unwrap();
    if let Err(error) = greet(&mut connection).await {
        panic!("{error}: {}\n{}", connection.diagnosis.words(), inner.log());
    }
}

/// Class of attack: the password of one host is given to another. The settings do not always show
/// the jump host: `ssh -G` may fail, and a `Match exec` may choose another route at each
/// connection.
#[tokio::test]
async fn a_jump_host_that_the_settings_hide_gets_no_password() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().display();
    let ssh = script(
        dir.path(),
        "ssh",
        &format!(
            "case \" $* \" in *' -G '*) cat {place}/settings; exit ;; esac\n\
             exec 3<>/dev/tty\n\
             cat {place}/question >&3; read -r word <&3\n\
             echo \"[$word]\"\n"
        ),
    );
    let dialer_of = |destination: &[u8]| {
        let (destination, _) = Destination::parse(destination).unwrap();
        let password = Some(Password::new("secret"));
        let config = Config { ssh_command: (&ssh).into(), password, ..Config::new(destination) };
        dialer(config, &Heard::default())
    };
    let answer = async |dialer: &Dialer, settings: Option<&str>, question: &str| {
        let path = dir.path().join("settings");
        match settings {
            Some(settings) => std::fs::write(path, settings).unwrap(),
            None => drop(std::fs::remove_file(path)),
        }
        std::fs::write(dir.path().join("question"), question).unwrap();
        let mut connection = dialer.connect_again().await.unwrap();
        let mut text = String::new();
        connection.reader.read_to_string(&mut text).await.unwrap();
        text
    };
    let (ours, gates) = ("me@inner's password: ", "me@gate's password: ");

    let at_home = "user me\nhostname inner\npubkeyacceptedalgorithms all\n";
    let away = format!("{at_home}proxyjump gate\n");
    let dialer = dialer_of(b"inner:");
    assert_eq!(answer(&dialer, Some(at_home), ours).await, "[secret]\n");
    assert_eq!(answer(&dialer, Some(&away), gates).await, "");
    assert_eq!(answer(&dialer, Some(&away), ours).await, "[secret]\n");

    // Before OpenSSH 8.5, and without settings, the gate may choose the whole prompt.
    let old = away.replace("algorithms", "keytypes");
    assert_eq!(answer(&dialer, Some(&old), ours).await, "");
    let dialer = dialer_of(b"me@inner:");
    assert_eq!(answer(&dialer, None, gates).await, "");
    assert_eq!(answer(&dialer, None, ours).await, "");
}

#[tokio::test]
async fn a_password_answers_each_connection() {
    let sshd = with_password("testhost");
    let config = Config { password: Some(Password::new(sshd.password())), ..config_of(&sshd) };
    let dialer = dialer(config, &Heard::default());
    let mut open = Vec::new();
    for _ in 0..3 {
        let connections =
            [dialer.connect().await.unwrap(), dialer.connect_unasked().await.unwrap()];
        for mut connection in connections {
            if let Err(error) = greet(&mut connection).await {
                panic!("{error}: {}\n{}", connection.diagnosis.words(), sshd.log());
            }
            open.push(connection);
        }
    }
    assert_eq!(sshd.session_pids().len(), 6);
    assert!(sshd.log_with("Accepted password").contains("Accepted password"), "{}", sshd.log());
}

#[tokio::test]
async fn a_wrong_password_is_tried_once_and_reported() {
    let sshd = with_password("testhost");
    let config = Config { password: Some(Password::new("wrong")), ..config_of(&sshd) };
    let failure = failure(config).await;
    assert_eq!(failure.cause, Cause::PermissionDenied, "{failure}");
    let log = sshd.log_with("Failed password");
    assert_eq!(log.matches("Failed password").count(), 1, "{log}");
    assert!(!failure.words.contains("wrong"), "{}", failure.words);
}

#[tokio::test]
async fn a_key_that_is_not_known_is_no_password_question() {
    let sshd = sshd();
    let mut config = config_of(&sshd);
    config.args.push("-oIdentityFile=/dev/null".into());
    config.args.push("-oIdentitiesOnly=yes".into());
    config.args[1] = harness::without_keys(&sshd).into();
    let failure = failure(config).await;
    assert_eq!(failure.cause, Cause::PermissionDenied, "{failure}");
    assert!(failure.to_string().contains("Permission denied (publickey)"), "{failure}");
}

#[tokio::test]
async fn every_refusal_has_its_cause_and_sshs_own_words() {
    let sshd = sshd();
    let with = |args: &[&str]| {
        let mut config = config_of(&sshd);
        config.args.extend(args.iter().map(Into::into));
        config
    };
    // A port on which nobody listens: bound, but not listened to.
    let bound = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let free = bound.local_addr().unwrap().port();
    drop(bound);
    let refused = Config { port: Some(free), ..config_of(&sshd) };
    let table = [
        (refused, Cause::Refused, "connection refused"),
        (with(&["-oHostName=no-such-host.invalid"]), Cause::UnknownHost, "no-such-host.invalid"),
        (
            with(&["-oUserKnownHostsFile=/dev/null", "-oHostKeyAlias=stranger"]),
            Cause::HostKeyUnknown,
            "host key is known for stranger",
        ),
        (with(&["-oNoSuchKeyword=1"]), Cause::BadConfiguration, "nosuchkeyword"),
        // sshd offers no CBC cipher unless told to.
        (with(&["-oCiphers=aes256-cbc"]), Cause::NoCommonAlgorithm, "no matching cipher"),
        (
            Config { sftp_server: Some("nothing".to_owned()), ..with(&[]) },
            Cause::NoSubsystem,
            "subsystem request failed",
        ),
        (
            Config { sftp_server: Some("/no/sftp-server".to_owned()), ..with(&[]) },
            Cause::CommandNotFound,
            "/no/sftp-server",
        ),
    ];
    for (config, cause, words) in table {
        let failure = failure(config).await;
        assert_eq!(failure.cause, cause, "{}", failure.words);
        assert!(failure.to_string().to_lowercase().contains(words), "{failure}");
        assert!(Error::Ssh(failure).hint().is_some());
    }
}

#[tokio::test]
async fn a_changed_host_key_is_refused() {
    let mut sshd = sshd();
    sshd.change_host_key().unwrap();
    let failure = failure(config_of(&sshd)).await;
    assert_eq!(failure.cause, Cause::HostKeyChanged, "{}", failure.words);
    assert!(!failure.cause.is_transient());
    // The whole of ssh's warning is there for the user, with the file to correct.
    assert!(failure.words.contains("SOMEONE IS DOING SOMETHING NASTY"), "{}", failure.words);
    assert!(failure.words.contains("known_hosts"), "{}", failure.words);
}

#[tokio::test]
async fn a_server_without_sftp_says_so() {
    let options = Options { sftp_server: SftpServer::Disabled, ..Options::default() };
    let sshd = Sshd::start(options).unwrap();
    assert_eq!(failure(config_of(&sshd)).await.cause, Cause::NoSubsystem);
    // The program by its path works all the same.
    let path = "/usr/lib/openssh/sftp-server".to_owned();
    let config = Config { sftp_server: Some(path), ..config_of(&sshd) };
    let mut connection = dialer(config, &Heard::default()).connect().await.unwrap();
    greet(&mut connection).await.unwrap();
}

#[tokio::test]
async fn noise_of_a_shell_comes_through_as_bytes() {
    let noisy = "echo Welcome to the host; exec /usr/lib/openssh/sftp-server";
    let options =
        Options { sftp_server: SftpServer::Command(noisy.to_owned()), ..Options::default() };
    let sshd = Sshd::start(options).unwrap();
    let mut connection = dialer(config_of(&sshd), &Heard::default()).connect().await.unwrap();
    let mut text = [0; 19];
    connection.reader.read_exact(&mut text).await.unwrap();
    assert_eq!(&text, b"Welcome to the host");
}

#[tokio::test]
async fn stderr_is_passed_on_and_remembered() {
    // sshd throws away what a subsystem says on stderr, but not what a command says.
    let sshd = sshd();
    let loud = "echo disk almost full >&2; printf '\\033]52;c;eA==\\007\\342\\200\\256\\377\\n' >&2; exec /usr/lib/openssh/sftp-server\n";
    let config = Config { sftp_server: Some(script(sshd.dir(), "loud", loud)), ..config_of(&sshd) };
    let heard = Heard::default();
    let mut connection = dialer(config, &heard).connect().await.unwrap();
    greet(&mut connection).await.unwrap();
    drop((connection.reader, connection.writer));
    connection.diagnosis.ended().await;
    assert!(heard.text().contains("disk almost full\n"), "{}", heard.text());
    assert!(connection.diagnosis.words().contains("disk almost full\n"));
    // Class of attack: a server's words that the user's terminal obeys.
    let escaped = "\\u{1b}]52;c;eA==\\u{7}\\u{202e}\\xff\n";
    for words in [heard.text(), connection.diagnosis.words()] {
        assert!(words.contains(escaped), "{words:?}");
        assert!(!words.chars().any(|char| char.is_control() && char != '\n'), "{words:?}");
    }
}

#[tokio::test]
async fn a_killed_server_ends_the_stream_and_ssh() {
    let sshd = sshd();
    let mut connection = dialer(config_of(&sshd), &Heard::default()).connect().await.unwrap();
    greet(&mut connection).await.unwrap();
    sshd.kill_sessions();
    let mut rest = Vec::new();
    let _ = connection.reader.read_to_end(&mut rest).await;
    let Error::Ssh(failure) = connection.diagnosis.explain().await else { panic!("no failure") };
    assert_eq!(failure.status.and_then(|status| status.code()), Some(255));
    assert_eq!(failure.cause, Cause::Lost, "{}", failure.words);
    assert!(failure.cause.is_transient());
}

#[tokio::test]
async fn a_dropped_stream_ends_the_login_and_the_child_is_reaped() {
    let sshd = sshd();
    let mut connection = dialer(config_of(&sshd), &Heard::default()).connect().await.unwrap();
    greet(&mut connection).await.unwrap();
    drop((connection.reader, connection.writer));
    connection.diagnosis.ended().await;
    assert!(connection.diagnosis.status().unwrap().success(), "{}", connection.diagnosis.words());
    assert_eq!(harness::children_named("ssh", sshd.dir()), Vec::<u32>::new());
}

#[tokio::test]
async fn a_child_that_does_not_want_to_end_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    // It hears neither the end of its stdin nor SIGTERM.
    let stubborn = script(
        dir.path(),
        "stubborn",
        "trap '' TERM\nread -r _ </dev/null\n\
        echo up\nwhile :; do sleep 100 & wait $!; done\n",
    );
    let config = Config { ssh_command: stubborn.into(), ..harness::nowhere() };
    let mut connection = dialer(config, &Heard::default()).connect().await.unwrap();
    let mut up = [0; 3];
    connection.reader.read_exact(&mut up).await.unwrap();
    drop((connection.reader, connection.writer));
    let ended = tokio::time::timeout(Duration::from_secs(10), connection.diagnosis.ended()).await;
    assert!(ended.is_ok(), "the child lives on");
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(connection.diagnosis.status().unwrap().signal(), Some(9));
}

#[tokio::test]
async fn the_failure_of_a_connection_waits_for_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    // Its end of the stream is gone before it says why.
    let body = "exec 0<&- 1>&-\nsleep 0.2\necho 'the disk is on fire' >&2\nexit 9\n";
    let slow = script(dir.path(), "slow", body);
    let config = Config { ssh_command: slow.into(), ..harness::nowhere() };
    let dialer = dialer(config, &Heard::default());

    let mut connection = dialer.connect().await.unwrap();
    assert_eq!(connection.reader.read(&mut [0; 8]).await.unwrap(), 0);
    let reason = Some("ssh: the disk is on fire");
    assert_eq!(connection.diagnosis.summary().as_deref(), reason);

    let mut connection = dialer.connect().await.unwrap();
    while connection.writer.write(&[0; 1024]).await.is_ok() {}
    assert_eq!(connection.diagnosis.summary().as_deref(), reason);
}

#[tokio::test]
async fn an_ssh_that_dies_at_its_start_is_heard() {
    let dir = tempfile::tempdir().unwrap();
    let dying = script(dir.path(), "dying", "echo 'no luck today' >&2\nexit 7\n");
    let config = Config { ssh_command: dying.into(), ..harness::nowhere() };
    let failure = failure(config).await;
    assert_eq!(failure.to_string(), "ssh: no luck today");
    assert_eq!(failure.status.and_then(|status| status.code()), Some(7));

    let config = Config { ssh_command: "/no/such/ssh".into(), ..harness::nowhere() };
    let error = dialer(config, &Heard::default()).connect().await.unwrap_err();
    assert!(matches!(error, Error::Spawn { .. }), "{error}");
    assert!(error.hint().unwrap().contains("ssh_command"));
    assert!(!error.is_transient());
}

#[tokio::test]
async fn the_child_is_out_of_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let body = "pwd\necho \"$OLDPWD\"\ngrep SigIgn /proc/self/status\n\
        ls -l /proc/self/fd | grep -c socket:\n";
    let curious = script(dir.path(), "curious", body);
    let config = Config { ssh_command: curious.into(), ..harness::nowhere() };
    let (text, _) = output(config).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(&lines[..2], ["/", ""], "{text}");
    let ignored = lines[2].split_whitespace().last().unwrap();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        assert_ne!(ignored & (1 << (signal - 1)), 0, "signal {signal} is not ignored: {text}");
    }
    // Of sockets there is stdin, and no other end. (Stdout is ls's pipe there.)
    assert_eq!(lines[3], "1", "{text}");
}

#[tokio::test]
async fn the_arguments_are_those_of_sshfs_and_nothing_gets_in() {
    let dir = tempfile::tempdir().unwrap();
    let echo = script(dir.path(), "echo args", "for arg; do echo \"$arg\"; done\n");
    let command = echo.replace(' ', "\\ ") + " first";
    let (destination, _) = Destination::parse(b"me@[::1]:/x").unwrap();
    let config = Config {
        ssh_command: command.into(),
        port: Some(2222),
        args: ["-oIdentityFile=/key with space", "-J", "gate"].map(Into::into).into(),
        ..Config::new(destination)
    };
    let (text, _) = output(config).await;
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        [
            "first",
            "-x",
            "-a",
            "-oClearAllForwardings=yes",
            "-p",
            "2222",
            "-oIdentityFile=/key with space",
            "-J",
            "gate",
            "-oServerAliveInterval=15",
            "-oConnectTimeout=60",
            "-s",
            "--",
            "me@::1",
            "sftp",
        ]
    );
}

#[tokio::test]
async fn a_further_session_neither_prompts_nor_prints() {
    let dir = tempfile::tempdir().unwrap();
    let words =
        "for arg; do echo \"$arg\"; done\necho aloud >&2; echo ssh: Connection refused >&2\n";
    let echo = script(dir.path(), "echo", words);
    let (destination, _) = Destination::parse(b"host:").unwrap();
    let config = Config { ssh_command: echo.into(), ..Config::new(destination) };
    for (password, batch) in [(None, true), (Some(Password::new("known")), false)] {
        let heard = Heard::default();
        let dialer = dialer(Config { password, ..config.clone() }, &heard);
        // In the place of a lost one: no question either, but its words are heard, all but the
        // line that the message of the failure has.
        let mut again = dialer.connect_again().await.unwrap();
        let mut text = String::new();
        again.reader.read_to_string(&mut text).await.unwrap();
        again.diagnosis.ended().await;
        let asks = ssh::command::has_askpass();
        assert_eq!(text.contains("-oBatchMode=yes"), batch && !asks, "{text}");
        assert_eq!(std::mem::take(&mut *heard.lock()), b"aloud\n");
        assert_eq!(again.diagnosis.summary().unwrap(), "ssh: Connection refused");
        drop(again);
        let mut connection = dialer.connect_unasked().await.unwrap();
        let mut text = String::new();
        connection.reader.read_to_string(&mut text).await.unwrap();
        connection.diagnosis.ended().await;
        assert_eq!(text.lines().any(|line| line == "-oBatchMode=yes"), batch, "{text}");
        assert!(connection.diagnosis.words().contains("aloud"));
        assert_eq!(heard.text(), "");
    }
}

#[tokio::test]
async fn a_question_on_the_terminal_gets_the_password_and_only_that() {
    let dir = tempfile::tempdir().unwrap();
    let asking = script(
        dir.path(),
        "asking",
        "exec 3<>/dev/tty\n\
         printf 'Enter passphrase for key: ' >&3; read -r phrase <&3\n\
         printf 'me@host'\"'\"'s password: ' >&3; read -r word <&3\n\
         echo \"[$phrase][$word]\"\n",
    );
    let config = Config {
        ssh_command: asking.into(),
        password: Some(Password::new("open sesame")),
        ..harness::nowhere()
    };
    let (text, words) = output(config).await;
    assert_eq!(text, "[][open sesame]\n");
    assert_eq!(words, "not answered: Enter passphrase for key:\n");
}

#[tokio::test]
async fn a_direct_port_needs_no_ssh() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (destination, _) = Destination::parse(b"localhost:").unwrap();
    let config = Config { transport: Transport::DirectPort(port), ..Config::new(destination) };
    let dialer = Dialer::new(config, Heard::default().hook()).unwrap();
    let (connection, accepted) = tokio::join!(dialer.connect(), listener.accept());
    let (mut server, _) = accepted.unwrap();
    server.write_all(b"x").await.unwrap();
    let mut connection = connection.unwrap();
    assert_eq!(connection.reader.read_u8().await.unwrap(), b'x');
    assert!(matches!(connection.diagnosis.explain().await, Error::Closed));
}

#[tokio::test]
async fn a_program_that_may_not_be_executed_is_told_apart_from_none() {
    let dir = tempfile::tempdir().unwrap();
    let plain = script(dir.path(), "plain", "");
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
    let config = Config { ssh_command: plain.into(), ..harness::nowhere() };
    let error = dialer(config, &Heard::default()).connect().await.unwrap_err();
    assert!(error.to_string().contains("ermission denied"), "{error}");
}

/// Names the process that plays the other role in the test below.
const PASSIVE_CHILD: &str = "SSHOAL_TEST_PASSIVE_CHILD";

#[tokio::test]
async fn stdin_and_stdout_serve_one_connection() {
    let config = Config { transport: Transport::Passive, ..harness::nowhere() };
    if std::env::var_os(PASSIVE_CHILD).is_some() {
        let dialer = dialer(config, &Heard::default());
        let mut connection = dialer.connect().await.unwrap();
        println!("noise that must not get into the stream");
        let mut line = [0; 5];
        connection.reader.read_exact(&mut line).await.unwrap();
        connection.writer.write_all(&line).await.unwrap();
        let error = dialer.connect().await.unwrap_err();
        connection.writer.write_all(error.to_string().as_bytes()).await.unwrap();
        return;
    }
    use std::process::Stdio;
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stdin_and_stdout_serve_one_connection", "--nocapture"])
        .env(PASSIVE_CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(b"ping\n").await.unwrap();
    let mut text = String::new();
    child.stdout.as_mut().unwrap().read_to_string(&mut text).await.unwrap();
    assert!(child.wait().await.unwrap().success());
    // The harness of the tests has said something before.
    let stream = text.split_once("ping\n").unwrap().1;
    assert_eq!(stream, "stdin and stdout were already used for a connection");
    assert!(!text.contains("noise"), "{text}");
}
