//! Collects the status of a mount from its layers. Waits for nothing.

use std::time::{Instant, SystemTime};

use base::{Errno, Remote};
use cli::printable;
use control::counters::{Caches, Counters, HostCounters, Latency, Operation};
use control::status::{
    CacheStatus, DiskStatus, HostStatus, MountStatus, OpenStatus, SessionState, SessionStatus,
    SourceStatus, State, UnionStatus, Unwritten, WatchedStatus,
};
use host::DirectUse;
use recovery::ConnectionState;
use replicas::GatewayStatus;
use vfs::Vfs;

use crate::adapter::Adapter;
use crate::mount::request::MountRequest;
use crate::quantity::{micros, millis};
use crate::sources::{BranchWord, name_of};
use crate::stack::disk::Disk;
use crate::stack::{Server, Source, Stack};

/// The status of the mount of `stack` through `vfs` and `adapter`, mounted at `mounted`. With
/// `requests`, those of the session with the kernel, it has all counters.
pub fn status(
    stack: &Stack,
    vfs: &Vfs,
    adapter: &Adapter,
    mounted: Instant,
    requests: Option<&fuse::Counters>,
) -> MountStatus {
    let (opened_through, lost) = (adapter.opened_through(), adapter.ending().lost(vfs));
    let figures = vfs.stats();
    let mut sources: Vec<SourceStatus> = stack
        .sources()
        .iter()
        .map(|one| source(one, stack.request(), requests.is_some()))
        .collect();
    let union = stack.union.as_ref().map(|union| {
        let told = union.status();
        for branch in &told.branches {
            // A source that is being added or removed may be in one list and not in the other.
            let of_branch = |source: &&mut SourceStatus| source.source == branch.location.source;
            if let Some(source) = sources.iter_mut().find(of_branch) {
                source.mode = branch.mode.to_string();
                source.presence = branch.presence.to_string();
                if branch.left_out {
                    source.state = State::LeftOut;
                }
            }
        }
        UnionStatus {
            create: told.policies.create.to_string(),
            action: told.policies.action.to_string(),
        }
    });
    MountStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        up_ms: millis(mounted.elapsed()),
        union,
        sources,
        unwritten: Unwritten {
            bytes: figures.dirty_bytes,
            limit_bytes: figures.dirty_limit_bytes,
            files: figures.dirty_files as u64,
            changes: figures.dirty_changes,
        },
        lost,
        open: OpenStatus {
            files: figures.open_files as u64,
            directories: figures.open_directories as u64,
        },
        cache: CacheStatus {
            inodes: figures.inodes as u64,
            listed_names: figures.listed_names as u64,
            listed_bytes: figures.listed_bytes as u64,
            fetched_bytes: figures.fetched_bytes,
            watched: watched(stack, vfs),
        },
        disk: stack.disk().map(|disk| DiskStatus { opened_through, ..self::disk(stack, disk) }),
        counters: requests.map(|requests| Box::new(counters(vfs, adapter, requests))),
    }
}

fn watched(stack: &Stack, vfs: &Vfs) -> Option<WatchedStatus> {
    if stack.request().vfs.consistency != vfs::Consistency::Watch {
        return None;
    }
    let told = vfs.watch_status();
    let is_offered = told.is_offered || stack.remote.watches().is_some();
    let problem = match told.refused {
        _ if !is_offered => Some("the server does not report changes".to_owned()),
        Some(Errno::EOPNOTSUPP) if stack.union.is_some() => {
            Some("a source does not report all changes".to_owned())
        }
        Some(Errno::EOPNOTSUPP) => {
            Some("a file system of the server does not report all changes".to_owned())
        }
        Some(Errno::ENOSPC) => Some("the server cannot watch more directories".to_owned()),
        refused => refused.map(|errno| errno.to_string()),
    };
    let (directories, losses) = (told.directories as u64, told.losses);
    Some(WatchedStatus { directories, losses, problem })
}

fn counters(vfs: &Vfs, adapter: &Adapter, requests: &fuse::Counters) -> Counters {
    let mut operations = std::collections::BTreeMap::<String, Operation>::new();
    for told in requests.operations() {
        // The kernel has two or three opcodes for some operations.
        let name = told.name.trim_end_matches("_64").trim_end_matches('2');
        let name = if name == "setlkw" { "setlk" } else { name };
        let operation = operations.entry(name.to_owned()).or_default();
        operation.errors += told.errors;
        operation.latency.add(&Latency { counts: told.latency, nanos: told.latency_nanos });
    }
    let told = vfs.counters();
    Counters {
        operations,
        in_flight: requests.in_flight(),
        read_bytes: requests.read_bytes.get(),
        written_bytes: requests.written_bytes.get(),
        caches: Caches {
            lookup_hits: told.lookups_cached.get(),
            lookup_absent_hits: told.lookups_cached_absent.get(),
            lookup_misses: told.lookups_requested.get(),
            attribute_hits: told.attributes_cached.get(),
            attribute_misses: told.attributes_requested.get(),
            open_hits: told.opens_deferred.get(),
            open_prefetched: told.opens_prefetched.get(),
            open_misses: told.opens_requested.get(),
            open_passthrough: adapter.opened_through(),
            no_open: adapter.has_no_open(),
            read_prefetched: told.reads_prefetched.get(),
            read_hits: told.reads_ahead.get(),
            read_waited: told.reads_waited.get(),
            read_misses: told.reads_requested.get(),
        },
    }
}

fn host_counters(host: &host::Host) -> HostCounters {
    let told = host.counters();
    HostCounters {
        requests: told.requests().map(|(name, count)| (name.to_owned(), count)).collect(),
        sent_bytes: told.sent_bytes.get(),
        received_bytes: told.received_bytes.get(),
        sent_saved_bytes: told.sent_saved_bytes.get(),
        received_saved_bytes: told.received_saved_bytes.get(),
        small_latency: Latency {
            counts: told.small_latency.counts(),
            nanos: told.small_latency.nanos(),
        },
    }
}

fn disk(stack: &Stack, disk: &Disk) -> DiskStatus {
    let store = match &disk.store {
        Ok(store) => store.status(),
        Err(why) => {
            let (dir, why) = (printable(&disk.dir), Some(in_one_line(why)));
            return DiskStatus { dir, why, ..DiskStatus::default() };
        }
    };
    let mut status = DiskStatus {
        dir: printable(&disk.dir),
        on: store.off.is_none(),
        why: store.off.as_deref().map(in_one_line),
        used_bytes: store.used_bytes,
        limit_bytes: store.limit_bytes,
        damaged: store.damaged,
        too_large: store.too_large,
        ..DiskStatus::default()
    };
    for source in stack.sources() {
        let Some(kept) = &source.cached else { continue };
        let told = kept.layer.status();
        status.hits += told.hits;
        status.misses += told.misses;
        status.read_here_bytes += told.read_here_bytes;
        status.read_there_bytes += told.read_there_bytes;
        status.completed += told.completed;
        status.changed_meanwhile += told.changed_meanwhile;
        status.left_out_bytes += told.left_out_bytes;
        status.missed_offline += told.missed_offline;
    }
    status
}

fn source(source: &Source, request: &MountRequest, is_counted: bool) -> SourceStatus {
    let place: Vec<String> =
        source.spec.place.iter().map(|name| base::printable(name.as_bytes())).collect();
    let mode = name_of(BranchWord::Pool(source.spec.pool.unwrap_or(request.pool)));
    let pool = source.replicas.as_ref().map(|pool| pool.status());
    let gateway = |name: &str| pool.as_ref()?.gateways.iter().find(|gateway| gateway.name == name);
    let host = |server: &Server| HostStatus {
        counters: is_counted.then(|| host_counters(&server.host)),
        ..self::host(server, gateway(&server.name), request.host.reconnect)
    };
    let hosts: Vec<HostStatus> = source.hosts.iter().map(host).collect();
    let told = source.recovering.as_ref().map(|recovering| recovering.status());
    let away = told.and_then(|told| match told.connection {
        ConnectionState::Connected => None,
        ConnectionState::Disconnected { since, error } => Some((since, error)),
    });
    let all_are = |state| !hosts.is_empty() && hosts.iter().all(|host| host.state == state);
    let state = match away {
        _ if all_are(State::Lost) => State::Lost,
        Some(_) => State::Reconnecting,
        // No call has met the loss yet.
        None if all_are(State::Reconnecting) => State::Reconnecting,
        None if all_are(State::Idle) => State::Idle,
        None => State::Connected,
    };
    // The reason reported by a host is more specific than an error number.
    let said = hosts.iter().find_map(|host| host.why.clone());
    SourceStatus {
        source: source.spec.shown(),
        place: place.join("/"),
        mode: "rw".to_owned(),
        presence: "required".to_owned(),
        state,
        state_ms: away.map(|(since, _)| elapsed(since)),
        why: match away {
            Some((_, why)) => Some(said.unwrap_or_else(|| why.to_string())),
            None => said.filter(|_| matches!(state, State::Reconnecting | State::Lost)),
        },
        waiting_calls: told.map_or(0, |told| told.calls_waiting as u64),
        unacknowledged_bytes: told.map_or(0, |told| told.bytes_unacknowledged),
        unsynced_files: told.map_or(0, |told| told.files_unsynced as u64),
        pool: pool.is_some().then(|| mode.to_owned()),
        hosts,
    }
}

fn host(server: &Server, gateway: Option<&GatewayStatus>, reconnects: bool) -> HostStatus {
    let told = server.host.status();
    let sessions: Vec<SessionStatus> = told.sessions.iter().map(session).collect();
    let first = sessions.iter().find(|session| session.slot == 0);
    let state = match first.map(|session| session.state) {
        None => State::Idle,
        Some(SessionState::Up) => State::Connected,
        Some(SessionState::Lost) if !reconnects => State::Lost,
        Some(SessionState::Connecting | SessionState::Lost | SessionState::Failed) => {
            State::Reconnecting
        }
    };
    // While an attempt is in progress, the reason of the last one.
    let why_none = || {
        let why = server.host.why_disconnected().filter(|_| state == State::Reconnecting);
        why.map(|why| in_one_line(&why))
    };
    let (direct, not_direct) = match told.direct {
        None => (None, None),
        Some(DirectUse::At(address)) => (Some(address.to_string()), None),
        Some(DirectUse::Unused(why)) => (None, Some(in_one_line(&why))),
    };
    let mut status = HostStatus {
        host: printable(&server.name),
        state,
        state_ms: first.and_then(|session| session.up_ms),
        why: first.and_then(|session| session.why.clone()).or_else(why_none),
        round_trip_us: told.round_trip.map(micros),
        latency_us: gateway.and_then(|gateway| gateway.latency).map(micros),
        max_sessions: told.max_sessions as u64,
        password: match server.password_state() {
            ssh::PasswordState::Unneeded => None,
            ssh::PasswordState::Kept => Some("kept".to_owned()),
            ssh::PasswordState::Needed => Some("needed".to_owned()),
        },
        direct,
        not_direct,
        sessions,
        counters: None,
    };
    if let Some(gateway) = gateway {
        as_gateway(&mut status, gateway);
    }
    status
}

/// Adds the pool's state of a gateway: whether it is used, and since when it is not.
fn as_gateway(status: &mut HostStatus, gateway: &GatewayStatus) {
    match &gateway.state {
        replicas::GatewayState::Healthy => return,
        replicas::GatewayState::Returning => status.state = State::Returning,
        replicas::GatewayState::LeftOut(why) => {
            status.state = State::LeftOut;
            // If ssh failed, its own message is kept.
            status.why.get_or_insert_with(|| why.to_string());
        }
    }
    status.state_ms = Some(elapsed(gateway.since));
}

fn session(told: &host::SessionStatus) -> SessionStatus {
    use host::SessionState as Told;
    let slot = told.slot as u64;
    let state = |state, why: &str| SessionStatus {
        slot,
        state,
        why: Some(in_one_line(why)),
        ..SessionStatus::default()
    };
    match &told.state {
        Told::Connecting => SessionStatus { slot, ..SessionStatus::default() },
        Told::Up { age, in_flight, silent, is_direct, compresses, served_by } => SessionStatus {
            slot,
            state: SessionState::Up,
            up_ms: Some(millis(*age)),
            in_flight: *in_flight as u64,
            silent_ms: millis(*silent),
            why: None,
            is_direct: *is_direct,
            is_compressed: *compresses,
            server: Some(if served_by.is_helper { "helper" } else { "sftp" }.to_owned()),
            server_version: served_by.version.as_deref().map(printable),
            extensions: served_by.extensions.iter().map(|&name| name.to_owned()).collect(),
        },
        Told::Lost { why } => state(SessionState::Lost, why),
        Told::Down { why, .. } => state(SessionState::Failed, why),
    }
}

/// The failure without the hints on the following lines.
fn in_one_line(why: &str) -> String {
    printable(why.lines().next().unwrap_or_default())
}

fn elapsed(since: SystemTime) -> u64 {
    // The clock may have been set back.
    millis(since.elapsed().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_session_is_missing_is_one_line_without_hints() {
        let why = "ssh: connection closed\n  see MaxStartups".to_owned();
        let told = host::SessionStatus { slot: 0, state: host::SessionState::Lost { why } };
        assert_eq!(session(&told).why.as_deref(), Some("ssh: connection closed"));
        assert_eq!(in_one_line(""), "");
    }
}
