//! Logins at a private server, counted in its log.

use std::time::Instant;

use base::{Errno, Remote, RemotePath};
use host::{Config, Host, SessionState};
use sandbox::sshd::{Options, Sshd};

use super::*;

fn connector(sshd: &Sshd, password: Option<&str>) -> SshConnector {
    let destination = ssh::Destination::new(None, sshd.alias(), None).unwrap();
    let args = vec!["-F".into(), sshd.config_path().into()];
    let password = password.map(ssh::Password::new);
    SshConnector::new(ssh::Config { args, password, ..ssh::Config::new(destination) }).unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A password that was typed is not known any more when the server comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_login_by_a_typed_password_is_not_hammered_at_the_server() {
    if !is_root() {
        eprintln!("left out: only root may start a server that takes passwords");
        return;
    }
    let options = Options { takes_password: true, ..Options::default() };
    let mut sshd = Sshd::start(options).unwrap();
    // The first login is as if a user had typed.
    let begun = Begun::default();
    let typing = connector(&sshd, Some(sshd.password()));
    let (typed, _) = typing.dial(&typing.dialer, Role::Metadata).await.unwrap();
    begun.set_first(typed);
    let connector = Arc::new(connector(&sshd, None).beginning_with(begun));
    let host = Host::connect(connector, Config::default()).await.unwrap();
    let root = RemotePath::root();
    host.lstat(&root).await.unwrap();
    let before = sshd.log();
    tokio::task::block_in_place(|| sshd.restart()).unwrap();

    // Callers that never stop asking.
    let asked = Instant::now();
    let refused = |host: &Host| match &host.status().sessions[0].state {
        SessionState::Down { why, .. } => why.contains("Permission denied"),
        _ => false,
    };
    while !refused(&host) || asked.elapsed() < Duration::from_secs(5) {
        assert!(asked.elapsed() < Duration::from_secs(60), "{:?}", host.status());
        assert_eq!(host.lstat(&root).await, Err(Errno::EHOSTDOWN));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let log = sshd.log();
    let after = log.strip_prefix(before.as_str()).unwrap_or(&log);
    let attempts = after.matches("Connection closed by authenticating user").count();
    assert_eq!((attempts, after.matches("Failed ").count()), (1, 0), "{after}");
}

/// `MaxStartups` of the server lets few in at a time.
#[tokio::test(flavor = "multi_thread")]
async fn logins_that_are_turned_away_at_first_all_succeed() {
    let settings = vec!["MaxStartups 2:50:5".to_owned()];
    let sshd = Sshd::start(Options { settings, ..Options::default() }).unwrap();
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let mut config = connector(&sshd, None).dialer.config().clone();
        // As long as a busy machine may need.
        config.args.push("-oConnectTimeout=100".into());
        let connector = Arc::new(SshConnector::new(config).unwrap());
        running.spawn(async move { Host::connect(connector, Config::default()).await });
    }
    let mut hosts = Vec::new();
    while let Some(connected) = running.join_next().await {
        match connected.unwrap() {
            Ok(host) => hosts.push(host),
            Err(error) => panic!("{} are in, then: {error}\n{}", hosts.len(), sshd.log()),
        }
    }
    assert_eq!(sshd.session_pids().len(), 20);
    assert!(sshd.log().contains("MaxStartups"), "nobody was turned away: {}", sshd.log());
}

#[test]
fn refused_logins_are_told_from_a_server_that_is_busy() {
    for (cause, meaning) in [
        (ssh::Cause::PermissionDenied, host::Cause::Refused),
        (ssh::Cause::TooManyFailures, host::Cause::Refused),
        (ssh::Cause::ClosedEarly, host::Cause::TurnedAway),
        (ssh::Cause::HostKeyChanged, host::Cause::Permanent),
        (ssh::Cause::Refused, host::Cause::Transient),
        (ssh::Cause::Lost, host::Cause::Transient),
    ] {
        assert_eq!(for_the_next_attempt(cause), meaning, "{cause:?}");
    }
}
