use std::os::unix::fs::MetadataExt;

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn said(command: Command) -> String {
    let ran = Executor::new().succeed(command, LIMIT).unwrap();
    String::from_utf8(ran.output.stdout).unwrap()
}

fn shell(server: &Server, script: &str) -> String {
    let mut command = server.ssh(None);
    command.arg(script);
    said(command)
}

#[test]
fn a_private_server_serves_its_directory_and_counts_its_cpu() {
    fn shared<T: Send + Sync>(it: T) -> T {
        it
    }
    let dir = tempfile::tempdir().unwrap();
    let server = shared(Server::private(&LinkSpec::loopback(), Vec::new(), dir.path()).unwrap());
    let file = dir.path().join("words");
    fs::write(&file, "words").unwrap();
    server.storage().put(&file, Path::new("a/b")).unwrap();
    let there = server.storage().root().join("a/b");
    assert_eq!(shell(&server, &format!("cat '{}'", there.display())), "words");
    // The same machine: the storage is the server's directory itself.
    let inode = fs::metadata(&there).unwrap().ino();
    assert_eq!(shell(&server, &format!("stat -c %i '{}'", there.display())), format!("{inode}\n"));
    let before = server.usage().unwrap();
    assert!(before.peak_memory_bytes > 1_000_000, "{before:?}");
    shell(&server, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done");
    let used = account::since(&before, &server.usage().unwrap());
    assert!(used.user_s > 0.02, "the shell of the login has ended and counts: {used:?}");
    let report = server.link_report();
    assert_eq!((report.name.as_str(), report.asked_rtt_us), ("loopback", None));
    assert!(report.measured_rtt_us.unwrap() > 0.0, "{report:?}");
    assert!(report.measured_bytes_per_s.unwrap() > 0.0, "{report:?}");
    assert_eq!(server.wire(), None, "nothing counts over loopback");
    drop(server);
    sandbox::leftover::assert_none(dir.path());
}

#[test]
fn ciphers_and_links_are_those_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let link: LinkSpec = "rtt=30ms".parse().unwrap();
    let server = Server::private(&link, Vec::new(), dir.path()).unwrap();
    let mut command = server.ssh(Some("aes256-ctr"));
    command.arg("true").env("LC_ALL", "C");
    // `-v` may stand behind the options as well as before them, but not behind the host.
    let mut verbose = Command::new("ssh");
    verbose.arg("-v").args(command.get_args());
    let ran = Executor::new().succeed(verbose, LIMIT).unwrap();
    let words = String::from_utf8(ran.output.stderr).unwrap();
    assert!(words.contains("cipher: aes256-ctr"), "{words}");
    // A login is more than three round trips.
    assert!(ran.seconds > 0.09, "{}", ran.seconds);
    let report = server.link_report();
    assert_eq!(report.asked_rtt_us, Some(30_000.0));
    let measured = report.measured_rtt_us.unwrap();
    assert!((30_000.0..60_000.0).contains(&measured), "{measured}");
    let endpoint = server.endpoint(&Executor::new()).unwrap();
    assert_eq!((endpoint.address.as_str(), endpoint.known_as.as_str()), ("127.0.0.1", ALIAS));
    assert_eq!((endpoint.keys.len(), endpoint.known_hosts.len()), (1, 2));
    // It is the link's port, which answers as the server does, but later.
    let config = fs::read_to_string(dir.path().join("ssh_config")).unwrap();
    assert!(config.contains(&format!("Port {}\n", endpoint.port)), "{config}");
}

#[test]
fn all_ciphers_of_this_machine_are_offered_when_they_are_wanted() {
    const CBC: &str = "aes128-cbc";
    let executor = Executor::new();
    let all = all_ciphers(&executor).unwrap();
    if !all.contains(CBC) {
        return;
    }
    let login = |settings| {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::private(&LinkSpec::loopback(), settings, dir.path()).unwrap();
        let mut command = server.ssh(Some(CBC));
        command.arg("true");
        let usual = Handshake::of(server.ssh(None), &executor).unwrap().cipher;
        (Executor::new().succeed(command, LIMIT).map(drop), usual)
    };
    let (refused, usual) = login(Vec::new());
    assert!(refused.unwrap_err().to_string().contains("no matching cipher"));
    // The client's own choice is the same with more on offer.
    assert_eq!(login(vec![all]), (Ok(()), usual));
}

/// What a login by the ssh of a subject sees.
fn tuned_shell(tuned: &Tuned, script: &str) -> String {
    let mut command = Command::new(tuned.ssh_command());
    command.args(tuned.ssh_options(None)).args([ALIAS, script]);
    said(command)
}

#[test]
fn other_tcp_settings_are_those_of_both_ends() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    const READ: &str = "cat /proc/sys/net/ipv4/tcp_rmem";
    let dir = tempfile::tempdir().unwrap();
    let (link, executor) = ("rtt=30ms".parse::<LinkSpec>().unwrap(), Executor::new());
    let server = Server::private(&link, Vec::new(), dir.path()).unwrap();
    let Ok(tuned) = server.tuned("sshfs:opt2") else {
        // In a container root may not make network namespaces.
        return;
    };
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(tuned_shell(tuned, READ)), "4096 1048576 67108864");
    assert_ne!(words(shell(&server, READ)), "4096 1048576 67108864");
    // Nothing but the namespace leads to it, so that the client is in it, too.
    let mut outside = Command::new("ssh");
    outside.args(tuned.ssh_options(None)).args([ALIAS, "true"]);
    let refused = executor.succeed(outside, LIMIT).unwrap_err().to_string();
    assert!(refused.contains("Connection refused"), "{refused}");
    // The same storage.
    server.storage().make_dir(Path::new("here")).unwrap();
    let listed = tuned_shell(tuned, &format!("ls '{}'", server.storage().root().display()));
    assert_eq!(listed, "here\n");
    // The link lies between both: a login is more than three round trips.
    let begin = std::time::Instant::now();
    tuned_shell(tuned, "true");
    assert!(begin.elapsed() > Duration::from_millis(90), "{:?}", begin.elapsed());
    // Its CPU counts.
    let before = server.usage().unwrap();
    tuned_shell(tuned, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done");
    let used = account::since(&before, &server.usage().unwrap());
    assert!(used.user_s > 0.02, "{used:?}");
    drop(server);
    sandbox::leftover::assert_none(dir.path());
}

#[test]
fn a_host_keeps_its_tcp_settings() {
    let dir = tempfile::tempdir().unwrap();
    let real = Server::private(&LinkSpec::loopback(), Vec::new(), dir.path()).unwrap();
    let config = dir.path().join("ssh_config");
    let executor = Executor::new();
    let host = Server::host(ALIAS, dir.path().to_str(), Some(&config), None, &executor).unwrap();
    let left_out = host.tuned("sshfs:opt2").err().unwrap();
    assert_eq!(left_out.name, "sshfs:opt2");
    assert!(left_out.why.contains("host") && left_out.remedy.is_some(), "{left_out:?}");
    drop((host, real));
}

#[test]
fn the_second_way_leads_to_the_same_machine_over_another_link() {
    let dir = tempfile::tempdir().unwrap();
    let link: LinkSpec = "rtt=2ms".parse().unwrap();
    let server = Server::private(&link, Vec::new(), dir.path()).unwrap();
    let second = server.second_destination().unwrap();
    let ways = [server.destination(), second].map(|way| {
        let mut command = Command::new("ssh");
        command.args(server.ssh_options(None)).arg(way).arg("echo $PPID; echo $SSH_CONNECTION");
        let mut query = Command::new("ssh");
        query.arg("-G").args(server.ssh_options(None)).arg(way);
        let port = parse(&said(query), None).unwrap().port;
        (said(command).lines().count(), port)
    });
    assert_eq!((ways[0].0, ways[1].0), (2, 2));
    assert_ne!(ways[0].1, ways[1].1);
    let before = server.wire().expect("both links count");
    for way in [server.destination(), second] {
        let mut command = Command::new("ssh");
        command.args(server.ssh_options(None)).arg(way).arg("head -c 100000 /dev/zero");
        said(command);
    }
    let moved = server.wire().unwrap().since(before);
    assert!((200_000..300_000).contains(&moved.from_server_bytes), "{moved:?}");
    assert!((1_000..100_000).contains(&moved.to_server_bytes), "{moved:?}");
    let address = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let ports = ways.map(|(_, port)| port);
    drop(server);
    for port in ports {
        assert!(std::net::TcpStream::connect(address(port)).is_err(), "{port}");
    }
}

#[test]
fn a_host_gets_a_directory_that_is_gone_afterwards() {
    // A private server stands for a host of the user's.
    let dir = tempfile::tempdir().unwrap();
    let real = Server::private(&LinkSpec::loopback(), Vec::new(), dir.path()).unwrap();
    let (config, parent) = (dir.path().join("ssh_config"), dir.path().join("o'th er"));
    fs::create_dir(&parent).unwrap();
    let executor = Executor::new();
    let parent_text = parent.to_str();
    let server = Server::host(ALIAS, parent_text, Some(&config), None, &executor).unwrap();
    assert!(server.storage().root().starts_with(&parent) && server.storage().root().is_dir());
    assert_eq!(server.storage().local(), None);
    assert_eq!((server.usage(), server.wire()), (None, None));
    let report = server.link_report();
    assert_eq!(report.name, format!("host {ALIAS}"));
    assert!(report.measured_rtt_us.unwrap() > 0.0 && report.measured_bytes_per_s.unwrap() > 0.0);
    fs::write(dir.path().join("words"), "words").unwrap();
    let storage = server.storage();
    storage.put(&dir.path().join("words"), Path::new("a/b")).unwrap();
    assert_eq!(fs::read(storage.root().join("a/b")).unwrap(), b"words");
    // As `printf words | sha256sum` has it, and as it is made here.
    let digest = crate::corpus::digest_file(&dir.path().join("words")).unwrap();
    assert_eq!(storage.digest(Path::new("a/b")).unwrap(), digest);
    let tree = crate::corpus::digest(&storage.root().join("a")).unwrap();
    assert_eq!(storage.digest(Path::new("a")).unwrap(), tree);
    executor.interrupt();
    drop(server);
    assert_eq!(fs::read_dir(&parent).unwrap().count(), 0, "it is removed after an interrupt too");
    drop(real);
}

#[test]
fn a_host_that_cannot_be_reached_is_told_in_sshs_words() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config");
    fs::write(&config, "Host nowhere\nHostName 127.0.0.1\nPort 1\n").unwrap();
    let host = |name: &str, directory| {
        Server::host(name, directory, Some(&config), None, &Executor::new())
    };
    let failure = host("nowhere", None).err().unwrap().to_string();
    assert!(failure.contains("Connection refused"), "{failure}");
    let failure = host("-oProxyCommand=x", None).err().unwrap().to_string();
    assert!(failure.contains("is no host"), "{failure}");
}

#[test]
fn errands_to_a_private_server_end_with_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let executor = Executor::new();
    let server = Server::private(&LinkSpec::loopback(), Vec::new(), dir.path()).unwrap();
    let server = server.with_executor(&executor);
    server.storage().make_dir(Path::new("a")).unwrap();
    executor.interrupt();
    assert_eq!(server.storage().make_dir(Path::new("b")), Err(Failure::Interrupted));
    assert_eq!(server.storage().warm(Path::new("a")), Err(Failure::Interrupted));
}

#[test]
fn a_port_goes_before_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let real = Server::private(&LinkSpec::loopback(), Vec::new(), dir.path()).unwrap();
    let config = dir.path().join("config");
    let own = fs::read_to_string(dir.path().join("ssh_config")).unwrap();
    fs::write(&config, format!("Host {ALIAS}\nPort 1\n{own}")).unwrap();
    let port = real.endpoint(&Executor::new()).unwrap().port;
    let at = dir.path().to_str();
    let host = |port| Server::host(ALIAS, at, Some(&config), port, &Executor::new());
    assert!(host(None).is_err(), "nothing listens there");
    assert_eq!(host(Some(port)).unwrap().endpoint(&Executor::new()).unwrap().port, port);
}

#[test]
fn what_ssh_says_is_read() {
    let text = "user me\nhostname 10.0.0.1\nport 2222\nidentityfile ~/.ssh/id\n\
        identityfile /k e y\nuserknownhostsfile ~/.ssh/known_hosts /two\n";
    let endpoint = parse(text, Some("/home/me".into())).unwrap();
    assert_eq!((endpoint.address.as_str(), endpoint.port), ("10.0.0.1", 2222));
    assert_eq!((endpoint.user.as_str(), endpoint.known_as.as_str()), ("me", "10.0.0.1"));
    assert_eq!(endpoint.keys, [PathBuf::from("/home/me/.ssh/id"), "/k e y".into()]);
    assert_eq!(endpoint.known_hosts, [PathBuf::from("/home/me/.ssh/known_hosts"), "/two".into()]);
    let other = parse(&format!("{text}hostkeyalias name\n"), None).unwrap();
    assert_eq!(other.known_as, "name");
    assert_eq!(parse("user me\nport 22\n", None), None);
}
