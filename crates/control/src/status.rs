//! The status of a mount: the values that its daemon sends and `sshoal status --json` prints.
//!
//! Other programs read this. Fields may be added; none changes its name, meaning or unit, and an
//! unknown value is `null`. Text for the user is escaped. Times are durations, since the clocks of
//! two processes may differ.

use serde::{Deserialize, Serialize};

use crate::counters::{Counters, HostCounters};

/// One mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountStatus {
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Time since the mount was created, in milliseconds.
    pub up_ms: u64,
    /// The union's policies; `null` for a mount of a single source, to which no branch can be
    /// added.
    pub union: Option<UnionStatus>,
    /// The sources, in search order.
    pub sources: Vec<SourceStatus>,
    /// Data acknowledged to applications that the servers have not acknowledged yet.
    pub unwritten: Unwritten,
    /// Data acknowledged to applications that could not be written, if any, in words.
    pub lost: Option<String>,
    /// Open files and directories.
    pub open: OpenStatus,
    /// The cache in memory.
    pub cache: CacheStatus,
    /// The disk cache; `null` for a mount without one.
    pub disk: Option<DiskStatus>,
    /// The counters, if they were requested ([`Wish::Stats`](crate::Wish::Stats)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Box<Counters>>,
}

/// The policies of a union.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnionStatus {
    /// Where new files are created: `epff`, `ff`, `epmfs`, `mfs` or `rand`.
    pub create: String,
    /// To which branches a change applies: `first` or `all`.
    pub action: String,
}

/// One source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceStatus {
    /// As the user wrote it, escaped.
    pub source: String,
    /// Where in the mount the source appears, escaped; empty for the mount's root.
    pub place: String,
    /// `rw`, `ro` or `nc`.
    pub mode: String,
    /// `required` or `optional`.
    pub presence: String,
    /// The state of the connection.
    pub state: State,
    /// Time in this state, in milliseconds.
    pub state_ms: Option<u64>,
    /// The reason, if the state is a failure.
    pub why: Option<String>,
    /// Calls that wait for the connection.
    pub waiting_calls: u64,
    /// Bytes written that the server has not acknowledged; they are sent again after a reconnect.
    pub unacknowledged_bytes: u64,
    /// Files with writes that may not be on the server's disk yet.
    pub unsynced_files: u64,
    /// How the gateways of a pool share requests (`balance`, `hash` or `failover`); `null` without
    /// a pool.
    pub pool: Option<String>,
    /// The host, or the gateways; empty for a local directory.
    pub hosts: Vec<HostStatus>,
}

/// The state of a source or a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Connected, and the server answers.
    Connected,
    /// Unreachable; calls that need it wait or fail.
    Reconnecting,
    /// The connection was lost, and the mount makes no other one (`noreconnect`).
    Lost,
    /// Ejected: unreachable or not answering; requests go to the others.
    LeftOut,
    /// Readmitted: it answers again, and gets few requests for a while.
    Returning,
    /// Not connected, because no call has needed a connection yet.
    #[default]
    Idle,
}

/// One host, or one gateway of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostStatus {
    /// As the user wrote it, escaped.
    pub host: String,
    /// The state of its first session.
    pub state: State,
    /// Time in this state, in milliseconds.
    pub state_ms: Option<u64>,
    /// The reason, if the state is a failure.
    pub why: Option<String>,
    /// Minimum round-trip time, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Current latency of small requests, in microseconds; of gateways only.
    pub latency_us: Option<u64>,
    /// Maximum number of sessions.
    pub max_sessions: u64,
    /// Of a login with a password typed while mounting: `kept` for further logins, or `needed`
    /// again; else `None`.
    pub password: Option<String>,
    /// The address of direct connections, if they are used.
    pub direct: Option<String>,
    /// Why they are not used, if they are to be.
    pub not_direct: Option<String>,
    /// The sessions that exist or are being established.
    pub sessions: Vec<SessionStatus>,
    /// The counters, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<HostCounters>,
}

impl HostStatus {
    /// Number of sessions that are up.
    pub fn sessions_up(&self) -> u64 {
        self.sessions.iter().filter(|session| session.state == SessionState::Up).count() as u64
    }

    /// Requests in flight, over all sessions.
    pub fn in_flight(&self) -> u64 {
        self.sessions.iter().fold(0, |sum, session| sum.saturating_add(session.in_flight))
    }
}

/// One session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStatus {
    /// Index among the sessions of the host; session 0 carries metadata.
    pub slot: u64,
    /// The state.
    pub state: SessionState,
    /// Time since the login, in milliseconds.
    pub up_ms: Option<u64>,
    /// Requests in flight.
    pub in_flight: u64,
    /// Time since the last byte from the server while requests are in flight, in milliseconds.
    pub silent_ms: u64,
    /// The reason, if the session is not up.
    pub why: Option<String>,
    /// Whether it goes over a direct connection, not through ssh.
    pub is_direct: bool,
    /// Whether packets are compressed that shrink, by the helper and here; not by ssh.
    pub is_compressed: bool,
    /// What serves it: `sftp`, the SFTP server of sshd, or `helper`, sshoal's own; `null` unless it
    /// is up.
    pub server: Option<String>,
    /// Version of that program, if it reports one, escaped.
    pub server_version: Option<String>,
    /// The extensions of SFTP that it offers and that are known here.
    pub extensions: Vec<String>,
}

/// The state of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionState {
    /// Being established.
    #[default]
    Connecting,
    /// Established.
    Up,
    /// Ended.
    Lost,
    /// Could not be established.
    Failed,
}

/// Data acknowledged to applications that the servers have not acknowledged yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unwritten {
    /// Bytes.
    pub bytes: u64,
    /// Number of bytes at which writers wait.
    pub limit_bytes: u64,
    /// Files with such bytes.
    pub files: u64,
    /// Attribute changes.
    pub changes: u64,
}

/// Open files and directories.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenStatus {
    /// Files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
}

/// The cache in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheStatus {
    /// Inodes that the kernel remembers.
    pub inodes: u64,
    /// Names in cached listings.
    pub listed_names: u64,
    /// Memory used by the cached listings.
    pub listed_bytes: u64,
    /// Bytes of prefetched small files that were not read yet.
    pub fetched_bytes: u64,
    /// What the server watches; `null` without `consistency=watch`.
    pub watched: Option<WatchedStatus>,
}

/// The watches of `consistency=watch`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchedStatus {
    /// Watched directories.
    pub directories: u64,
    /// How often reports were lost, with a connection or because there were too many.
    pub losses: u64,
    /// Why the last directory could not be watched, if that happened.
    pub problem: Option<String>,
}

/// The disk cache. Counts are those of this mount since it was created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskStatus {
    /// The directory, escaped.
    pub dir: String,
    /// Whether the cache is in use and writable.
    pub on: bool,
    /// The reason, if it is not.
    pub why: Option<String>,
    /// Size of the cache, which several mounts may share.
    pub used_bytes: u64,
    /// Maximum size of the cache.
    pub limit_bytes: u64,
    /// Opens for reading that were served from the cache.
    pub hits: u64,
    /// Opens for reading that went to the server.
    pub misses: u64,
    /// Bytes read from the cache.
    pub read_here_bytes: u64,
    /// Bytes read from servers.
    pub read_there_bytes: u64,
    /// Contents that were cached completely.
    pub completed: u64,
    /// Files that changed while being fetched, and were not cached.
    pub changed_meanwhile: u64,
    /// Bytes not cached because the disk was too slow.
    pub left_out_bytes: u64,
    /// Opens of files that are too large for the cache.
    pub too_large: u64,
    /// Contents and records that were damaged, and removed.
    pub damaged: u64,
    /// Requests that could not be answered offline.
    pub missed_offline: u64,
    /// Opens with passthrough: the kernel reads the cached file directly.
    pub opened_through: u64,
}
