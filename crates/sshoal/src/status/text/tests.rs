use super::*;
use control::status::{
    CacheStatus, DiskStatus, OpenStatus, SessionState, SessionStatus, UnionStatus, WatchedStatus,
};

fn up(slot: u64) -> SessionStatus {
    SessionStatus { slot, state: SessionState::Up, up_ms: Some(5000), ..SessionStatus::default() }
}

fn connected(name: &str, sessions: u64) -> HostStatus {
    HostStatus {
        host: name.into(),
        state: State::Connected,
        state_ms: Some(5000),
        round_trip_us: Some(510),
        max_sessions: 8,
        sessions: (0..sessions).map(up).collect(),
        ..HostStatus::default()
    }
}

fn source(name: &str, hosts: Vec<HostStatus>) -> SourceStatus {
    SourceStatus {
        source: name.into(),
        mode: "rw".into(),
        presence: "required".into(),
        state: State::Connected,
        hosts,
        ..SourceStatus::default()
    }
}

fn answering(status: MountStatus) -> SeenMount {
    SeenMount {
        mountpoint: "/mnt/d".into(),
        source: "alpha:/d".into(),
        owner: Some(1000),
        daemon: Daemon::Answers,
        pid: Some(77),
        unmounted: None,
        why: None,
        status: Some(Box::new(status)),
    }
}

fn mounted(sources: Vec<SourceStatus>) -> MountStatus {
    MountStatus {
        version: "0.1.0".into(),
        pid: 77,
        up_ms: 7_500_000,
        sources,
        unwritten: Unwritten { limit_bytes: 128 << 20, ..Unwritten::default() },
        open: OpenStatus { files: 5, directories: 1 },
        cache: CacheStatus {
            inodes: 1234,
            listed_names: 5678,
            listed_bytes: 1_258_291,
            fetched_bytes: 65_536,
            watched: None,
        },
        ..MountStatus::default()
    }
}

#[test]
fn a_plain_mount_takes_a_few_lines() {
    let mut status = mounted(vec![source("alpha:/d", vec![connected("alpha", 2)])]);
    let problem = Some("the server cannot watch more directories".to_owned());
    status.cache.watched = Some(WatchedStatus { directories: 16_384, losses: 1, problem });
    let expected = "\
/mnt/d
  process    77, sshoal 0.1.0, for 2 h 5 min
  source     alpha:/d  connected
      alpha: 2 of 8 sessions, round trip 0.51 ms
  unwritten  nothing
  open       5 files, 1 directory
  cached     1,234 inodes; 5,678 listed names (1.2 MiB); 64 KiB of file data prefetched
  watched    16,384 directories; reports were lost 1 time; the server cannot watch more directories
";
    assert_eq!(render(&[answering(status)]), expected);
}

/// A change of attributes is lost with the daemon, as data is.
#[test]
fn nothing_is_unwritten_only_without_changes_of_attributes() {
    let said = |bytes, changes| {
        let files = u64::from(bytes > 0);
        unwritten(&Unwritten { bytes, files, changes, limit_bytes: 128 << 20 })
    };
    assert_eq!(said(0, 0), "nothing");
    assert_eq!(said(0, 1), "1 attribute change");
    assert_eq!(said(5, 2), "5 B in 1 file (limit 128 MiB), 2 attribute changes");
}

#[test]
fn branches_are_a_table_and_failures_are_shown() {
    let mut alpha = source("alpha:/data", vec![connected("alpha", 3)]);
    alpha.hosts[0].sessions[0].in_flight = 3;
    alpha.hosts[0].sessions[0].silent_ms = 12_300;
    alpha.hosts[0].sessions[2].state = SessionState::Failed;
    alpha.hosts[0].sessions[2].why = Some("too many sessions".into());
    let mut pool = source("gw1,gw2:/p", vec![connected("gw1", 1), connected("gw2", 0)]);
    pool.pool = Some("balance".into());
    pool.hosts[0].latency_us = Some(12_345);
    pool.hosts[1].state = State::LeftOut;
    pool.hosts[1].state_ms = Some(12_000);
    pool.hosts[1].why = Some("no answer for 5.0 s".into());
    pool.hosts[1].round_trip_us = None;
    let mut beta = source("P=beta:/srv/b", vec![]);
    (beta.mode, beta.presence) = ("ro".into(), "optional".into());
    beta.state = State::Reconnecting;
    beta.state_ms = Some(61_000);
    beta.why = Some("connection refused".into());
    beta.waiting_calls = 1;
    beta.unacknowledged_bytes = 1 << 20;
    let mut status = mounted(vec![alpha, pool, beta]);
    status.union = Some(UnionStatus { create: "epff".into(), action: "first".into() });
    status.unwritten = Unwritten { bytes: 13 << 20, limit_bytes: 128 << 20, files: 1, changes: 0 };
    let expected = "\
/mnt/d
  process    77, sshoal 0.1.0, for 2 h 5 min
  branches   create epff, action first
    alpha:/data    rw  required  connected
      alpha: 2 of 8 sessions, round trip 0.51 ms, 3 requests in flight, silent for 12 s
        session 2: too many sessions
    gw1,gw2:/p     rw  required  connected (pool, balance)
      gw1: 1 of 8 sessions, round trip 0.51 ms, latency 12.3 ms
      gw2: 0 of 8 sessions, left out for 12 s: no answer for 5.0 s
    P=beta:/srv/b  ro  optional  reconnecting for 1 min 1 s: connection refused
  unwritten  13 MiB in 1 file (limit 128 MiB)
  waiting    1 call and 1 MiB of writes for P=beta:/srv/b
  open       5 files, 1 directory
  cached     1,234 inodes; 5,678 listed names (1.2 MiB); 64 KiB of file data prefetched
";
    assert_eq!(render(&[answering(status)]), expected);
}

#[test]
fn a_daemon_that_does_not_answer_has_its_mount_shown() {
    let silent = |daemon, pid, why: &str| SeenMount {
        daemon,
        pid,
        unmounted: None,
        why: Some(why.into()),
        status: None,
        ..answering(MountStatus::default())
    };
    let mounts = [
        silent(Daemon::Hangs, Some(77), "nothing within 2 s"),
        silent(Daemon::Dead, None, "it was killed"),
    ];
    let expected = "\
/mnt/d
  source     alpha:/d
  process    77, not responding: nothing within 2 s

/mnt/d
  source     alpha:/d
  process    dead: it was killed
";
    assert_eq!(render(&mounts), expected);
}

#[test]
fn nothing_of_a_daemon_reaches_the_terminal_raw() {
    let odd = || "\u{1b}[2J\u{9b}\n\u{7f}".to_owned();
    let host = HostStatus {
        host: odd(),
        state: State::LeftOut,
        why: Some(odd()),
        sessions: vec![up(0), SessionStatus { why: Some(odd()), ..up(1) }],
        ..HostStatus::default()
    };
    let source = SourceStatus {
        source: odd(),
        mode: odd(),
        presence: odd(),
        pool: Some(odd()),
        state: State::Reconnecting,
        why: Some(odd()),
        waiting_calls: 1,
        hosts: vec![host],
        ..SourceStatus::default()
    };
    let status = MountStatus {
        version: odd(),
        union: Some(UnionStatus { create: odd(), action: odd() }),
        sources: vec![source],
        ..MountStatus::default()
    };
    let plain = MountStatus { union: None, ..status.clone() };
    let mounts = [answering(status), answering(plain)];
    let mute = SeenMount {
        mountpoint: odd(),
        source: odd(),
        unmounted: None,
        why: Some(odd()),
        daemon: Daemon::Mute,
        status: None,
        ..answering(MountStatus::default())
    };
    let text = render(&[&mounts[..], &[mute]].concat());
    let raw: String = text.chars().filter(|it| it.is_control() && *it != '\n').collect();
    assert_eq!(raw, "");
    assert_eq!(text.matches("\\n").count(), 23, "{text}");
}

#[test]
fn a_disk_cache_shows_its_use() {
    let disk = DiskStatus {
        dir: "/c".into(),
        on: true,
        used_bytes: 5 << 20,
        limit_bytes: 20 << 30,
        hits: 7,
        misses: 1,
        read_here_bytes: 3 << 20,
        opened_through: 2,
        damaged: 1,
        ..DiskStatus::default()
    };
    let told = |disk: DiskStatus| {
        let status = MountStatus { disk: Some(disk), ..mounted(vec![source("a:/d", vec![])]) };
        let text = render(&[answering(status)]);
        text.lines().skip_while(|line| !line.starts_with("  disk")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(
        told(disk.clone()),
        "  disk       5 MiB of 20 GiB in /c\n             7 of 8 opens served from the disk cache; 3 MiB read from \
         the cache, 0 B from the server; 2 opens by kernel passthrough; 1 chunk damaged"
    );
    let why = Some("No space left on device".to_owned());
    let off = DiskStatus { on: false, why: why.clone(), ..disk };
    assert!(told(off).starts_with("  disk       read-only: No space left on device; 5 MiB"));
    let none = DiskStatus { why, ..DiskStatus::default() };
    assert_eq!(told(none), "  disk       off: No space left on device");
}

#[test]
fn a_connection_that_is_not_made_again_is_lost() {
    let host = HostStatus {
        host: "a".into(),
        state: State::Lost,
        why: Some("closed".into()),
        ..HostStatus::default()
    };
    let lost =
        SourceStatus { state: State::Lost, state_ms: Some(3000), ..source("a:/d", vec![host]) };
    let mut status = mounted(vec![lost]);
    status.unwritten = Unwritten { bytes: 1 << 20, limit_bytes: 2 << 20, ..Unwritten::default() };
    let text = render(&[answering(status)]);
    assert!(text.contains("a:/d  lost for 3.0 s; mount again\n"), "{text}");
    assert!(text.contains("lost: closed; mount again"), "{text}");
    assert!(text.contains("unwritten  1 MiB (limit 2 MiB)\n"), "{text}");
}
