//! What a mount tells about itself: the values that its daemon sends and `sshoal status --json`
//! prints.
//!
//! Others read this. Fields may be added; none changes its name, its meaning or its unit, and a
//! value that is not known is `null`. Words for the user are escaped. Times are how long something
//! has been so, since the clocks of two processes need not agree.

use serde::{Deserialize, Serialize};

/// One mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountStatus {
    /// The version of the daemon's program.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// How long it has been mounted, in milliseconds.
    pub up_ms: u64,
    /// How several sources are one tree; `null` for a plain mount of one, to which no branch can
    /// be added.
    pub union: Option<UnionStatus>,
    /// The sources, in the order of search.
    pub sources: Vec<SourceStatus>,
    /// What was acknowledged to applications and is not at the servers yet.
    pub unwritten: Unwritten,
    /// What was acknowledged to applications and will never be there, if there is something.
    pub lost: Option<String>,
    /// What is open.
    pub open: OpenStatus,
    /// What is kept in memory.
    pub cache: CacheStatus,
    /// What is kept on this machine's disk; `null` for a mount without such a cache.
    pub disk: Option<DiskStatus>,
}

/// How several sources are one tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnionStatus {
    /// Where something new is made: `epff`, `ff`, `epmfs`, `mfs` or `rand`.
    pub create: String,
    /// What a change is made to: `first` or `all`.
    pub action: String,
}

/// One source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceStatus {
    /// As the user wrote it, escaped.
    pub source: String,
    /// The directory of the mount in which it is shown, escaped; empty for the mount's root.
    pub place: String,
    /// `rw`, `ro` or `nc`.
    pub mode: String,
    /// `required` or `optional`.
    pub presence: String,
    /// How it is.
    pub state: State,
    /// For how long it has been so, in milliseconds.
    pub state_ms: Option<u64>,
    /// Why, where it is not as it should be.
    pub why: Option<String>,
    /// Calls that wait for it to come back.
    pub waiting_calls: u64,
    /// Bytes of writes that the server has not acknowledged, and that are sent again if need be.
    pub unacknowledged_bytes: u64,
    /// Files with writes that are not proven to be on the server's disk.
    pub unsynced_files: u64,
    /// How the gateways of a pool share the work (`balance`, `hash` or `failover`); `null` where
    /// there is no pool.
    pub pool: Option<String>,
    /// The host, or the gateways; none for a directory of this machine.
    pub hosts: Vec<HostStatus>,
}

/// How a source, or a host, is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It answers.
    Connected,
    /// It cannot be reached; calls that need it wait or fail.
    Reconnecting,
    /// It cannot be reached, or answers nothing, and the others do without it.
    LeftOut,
    /// It was left out, answers again, and gets few requests for a while.
    Returning,
    /// There is no connection, and nobody has needed one.
    #[default]
    Idle,
}

/// One host, or one gateway of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostStatus {
    /// As the user calls it, escaped.
    pub host: String,
    /// How it is.
    pub state: State,
    /// For how long it has been so, in milliseconds.
    pub state_ms: Option<u64>,
    /// Why, where it is not as it should be.
    pub why: Option<String>,
    /// What the way there and back takes at best, in microseconds.
    pub round_trip_us: Option<u64>,
    /// What small requests take at present, in microseconds; of gateways only.
    pub latency_us: Option<u64>,
    /// Sessions at most.
    pub max_sessions: u64,
    /// Those that there are, or that are being made.
    pub sessions: Vec<SessionStatus>,
}

/// One session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStatus {
    /// Its place among the sessions of the host; the first is for metadata.
    pub slot: u64,
    /// How it is.
    pub state: SessionState,
    /// For how long it has been up, in milliseconds.
    pub up_ms: Option<u64>,
    /// Requests without an answer.
    pub in_flight: u64,
    /// For how long there have been some without one byte from the server, in milliseconds.
    pub silent_ms: u64,
    /// Why it is not up.
    pub why: Option<String>,
}

/// How a session is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionState {
    /// It is being made.
    #[default]
    Connecting,
    /// It serves.
    Up,
    /// It has ended.
    Lost,
    /// It could not be made.
    Failed,
}

/// What was acknowledged to applications and is not at the servers yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unwritten {
    /// Bytes.
    pub bytes: u64,
    /// Bytes at most: then writers wait.
    pub limit_bytes: u64,
    /// Files that they belong to.
    pub files: u64,
    /// Changes of attributes.
    pub changes: u64,
}

/// What is open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenStatus {
    /// Files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
}

/// What is kept in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheStatus {
    /// Inodes that the kernel remembers.
    pub inodes: u64,
    /// Names in listings.
    pub listed_names: u64,
    /// Bytes that these take.
    pub listed_bytes: u64,
    /// Bytes of small files that nobody has read yet.
    pub fetched_bytes: u64,
}

/// The cache on this machine's disk. Counts are of this mount since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskStatus {
    /// Where it is, escaped.
    pub dir: String,
    /// It is used, and written to.
    pub on: bool,
    /// Why not.
    pub why: Option<String>,
    /// Bytes that it takes, of all mounts that share it.
    pub used_bytes: u64,
    /// Bytes that it may take.
    pub limit_bytes: u64,
    /// Opens to read whose content was here.
    pub hits: u64,
    /// Opens to read that went to the server.
    pub misses: u64,
    /// Bytes read from here.
    pub read_here_bytes: u64,
    /// Bytes read from servers.
    pub read_there_bytes: u64,
    /// Contents that were completed.
    pub completed: u64,
    /// Files that changed while they were fetched, and were not kept.
    pub changed_meanwhile: u64,
    /// Bytes that were not kept since the disk was too slow.
    pub left_out_bytes: u64,
    /// Opens of files that are too large to be kept.
    pub too_large: u64,
    /// Contents and records that were found damaged, and thrown away.
    pub damaged: u64,
    /// Questions that could not be answered offline.
    pub missed_offline: u64,
    /// Opens that were left to the kernel, which then reads by itself.
    pub opened_through: u64,
}

/// A mount as seen from outside, with or without an answer of its daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SeenMount {
    /// Where it is mounted, escaped.
    pub mountpoint: String,
    /// What the table of mounts says is mounted, escaped.
    pub source: String,
    /// The user who mounted it.
    pub owner: Option<u32>,
    /// What became of asking its daemon.
    pub daemon: Daemon,
    /// The daemon's process, as its record says.
    pub pid: Option<u32>,
    /// Why there is a daemon although it is not mounted here, escaped; not there if it is.
    pub unmounted: Option<String>,
    /// Words about `daemon`, where it has not answered.
    pub why: Option<String>,
    /// What it answered.
    pub status: Option<Box<MountStatus>>,
}

/// What became of asking a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Daemon {
    /// It has answered.
    Answers,
    /// It lives and does not answer.
    Hangs,
    /// It is gone, or cannot be found.
    Dead,
    /// It lives and cannot be asked: of a version that had no status, or of one that speaks
    /// otherwise.
    Mute,
    /// It is somebody else's.
    NotAllowed,
}

/// All that `sshoal status --json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The mounts.
    pub mounts: Vec<SeenMount>,
}

/// Changed when a field changes its name, its meaning or its unit.
pub const SCHEMA: u32 = 1;
