//! The daemon's side of the commands about a mount ([`Wish`]): reports its state, changes its
//! branches and options, and keeps passwords that are given later.
//!
//! When a branch was added or removed, everything cached above the union is invalidated, in the
//! kernel too ([`Adapter::refresh`]), before the reply is sent: the caller sees the change.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base::Mutex;
use cli::{OrProblem, Problem, printable};
use control::job::Tally;
use control::profile::{MAX_SECONDS, Profile};
use control::server::{Asked, Login};
use control::status::MountStatus;
use control::{Change, Reply, Wish, Word};
use tokio::io::AsyncRead;
use tokio::sync::watch;
use union::{Mode, Presence, Union};
use vfs::Vfs;

use crate::adapter::Adapter;
use crate::cache_command::job;
use crate::log;
use crate::mount::request::MountRequest;
use crate::mount::settings;
use crate::sources;
use crate::stack::Stack;
use crate::stats::interval::Interval;
use crate::status::gather;

/// How long a command may take to send a password that it has read.
const SECRET_LIMIT: Duration = Duration::from_secs(5);

/// A mount that the control socket reports and changes.
pub struct Controlled {
    stack: Arc<Stack>,
    vfs: Arc<Vfs>,
    adapter: Arc<Adapter>,
    requests: Arc<fuse::Counters>,
    since: Instant,
    /// The options as they are now.
    request: Mutex<MountRequest>,
    /// Held during a change, so that there is only one at a time.
    changing: tokio::sync::Mutex<()>,
}

impl Controlled {
    /// A mount that shows `stack` through `vfs` and `adapter`; its uptime starts now. `requests`
    /// are those of the kernel.
    pub fn new(
        stack: Arc<Stack>,
        vfs: Arc<Vfs>,
        adapter: Arc<Adapter>,
        requests: Arc<fuse::Counters>,
    ) -> Controlled {
        let request = Mutex::new(stack.request().clone());
        let (since, changing) = (Instant::now(), tokio::sync::Mutex::default());
        Controlled { stack, vfs, adapter, requests, since, request, changing }
    }
}

#[async_trait]
impl Asked for Controlled {
    async fn answer(&self, wish: Wish, told: watch::Sender<Tally>) -> Result<Reply, Problem> {
        match wish {
            Wish::Status => return Ok(Reply::Status(Box::new(self.status(None)))),
            Wish::Stats => return Ok(Reply::Status(Box::new(self.stats()))),
            Wish::Profile { seconds } => {
                return Ok(Reply::Profile(Box::new(self.profile(seconds).await?)));
            }
            Wish::Cache(job) => return Ok(Reply::Tally(job::run(&self.stack, job, &told).await?)),
            Wish::Place { path } => {
                return Ok(Reply::Place(Box::new(self.stack.place(&path.0).await?)));
            }
            Wish::Connections => return Ok(Reply::Connections(self.stack.connections())),
            Wish::Settings => return Ok(Reply::Settings(settings::present(&self.request.lock()))),
            Wish::Branch(change) => self.change(change).await?,
            Wish::Flush => self.vfs.flush_all().await,
            Wish::Refresh => self.adapter.refresh().await,
            Wish::Set { options, is_remount } => {
                if self.change_options(&options, is_remount)? {
                    self.adapter.refresh().await;
                }
            }
            // A password follows it: the server calls `log_in`.
            Wish::Login { .. } => return Err(Problem::new("login", "no password was sent")),
        }
        Ok(Reply::Done)
    }

    async fn log_in(
        &self,
        host: String,
        secret: &mut (dyn AsyncRead + Send + Unpin),
    ) -> Result<Login<'_>, Problem> {
        let received = tokio::time::timeout(SECRET_LIMIT, ssh::Password::receive(secret)).await;
        let password = received
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .or_problem("password")?;
        Ok(Box::pin(async move { self.stack.log_in(&host, password).await }))
    }
}

impl Controlled {
    /// The status with the counters. Waits for nothing.
    pub fn stats(&self) -> MountStatus {
        self.status(Some(&self.requests))
    }

    fn status(&self, requests: Option<&fuse::Counters>) -> MountStatus {
        gather::status(&self.stack, &self.vfs, &self.adapter, self.since, requests)
    }

    async fn profile(&self, seconds: u32) -> Result<Profile, Problem> {
        let recording = self.adapter.recorder().start().ok_or_else(|| {
            Problem::new("profile", "another profile of this mount is being recorded")
                .hint("try again when it has ended")
        })?;
        let before = self.stats();
        tokio::time::sleep(Duration::from_secs(seconds.min(MAX_SECONDS).into())).await;
        let now = self.stats();
        let profile = recording.finish();
        let interval = Interval::new(Some(&before), &now, 0.0);
        let (all, ..) = interval.traffic();
        let background_requests = all.saturating_sub(profile.total.requests);
        let (caches, disk) = (Some(interval.caches), interval.disk);
        Ok(Profile { background_requests, caches, disk, ..profile })
    }

    async fn change(&self, change: Change) -> Result<(), Problem> {
        let _alone = self.changing.try_lock().map_err(|_| {
            Problem::new("branches", "another change is in progress")
                .hint("try again when it has finished")
        })?;
        match change {
            Change::Add { source } => {
                self.stack.add(sources::parse(OsStr::new(&source))?).await?;
                self.stack.configure(&self.request.lock());
            }
            Change::Remove { source } => {
                // All that is cached is invalidated below, including what this touches.
                let _ = self.union(&source)?.remove(&source).map_err(refusal(&source))?;
                self.stack.forget(&source);
            }
            Change::Set { source, word } => {
                let union = self.union(&source)?;
                let set = match word {
                    Word::Rw => union.set_mode(&source, Mode::Rw),
                    Word::Ro => union.set_mode(&source, Mode::Ro),
                    Word::Nc => union.set_mode(&source, Mode::NoCreate),
                    Word::Optional => union.set_presence(&source, Presence::Optional),
                    Word::Required => union.set_presence(&source, Presence::Required),
                };
                set.map_err(refusal(&source))?;
            }
        }
        self.adapter.refresh().await;
        Ok(())
    }

    /// Changes options. Returns whether what is cached may be valid for longer than it is to be
    /// now.
    fn change_options(&self, options: &[String], is_remount: bool) -> Result<bool, Problem> {
        let mut request = self.request.lock();
        let changed = settings::changed(&request, options, is_remount)?;
        // From here on nothing fails.
        log::set_level(changed.run.log_level());
        self.vfs.configure(&changed.vfs);
        self.stack.configure(&changed);
        let times_changed = settings::times_differ(&request, &changed);
        *request = changed;
        Ok(times_changed)
    }

    fn union(&self, source: &str) -> Result<&Union, Problem> {
        self.stack.union.as_deref().ok_or_else(|| {
            let what = format!("branch '{}'", printable(source));
            Problem::new(what, "this mount has a single source and no branches")
        })
    }
}

fn refusal(source: &str) -> impl Fn(union::Error) -> Problem + use<> {
    let what = format!("branch '{}'", printable(source));
    move |error| match error {
        union::Error::Unknown(_) => Problem::new(&what, "no such branch")
            .hint("`sshoal branch list MOUNTPOINT` shows the names of the branches"),
        union::Error::NoBranch => Problem::new(&what, "it is the last branch of the mount")
            .hint("`sshoal umount` ends the mount"),
        error => Problem::new(&what, error.to_string()),
    }
}
