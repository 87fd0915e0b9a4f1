//! `sshoal cache`: shows and changes the disk cache, also while mounts use it.
//!
//! Commands about the store as a whole are carried out in this process. Commands about files of a
//! mount are carried out by its daemon ([`job()`]), which knows their sources.

pub mod job;
pub mod places;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use cache::{Store, StoreConfig};
use cli::{EXIT_FAILURE, EXIT_OK, Problem, printable};
use control::job::{self as protocol, CacheJob, Tally};
use serde::Serialize;

use crate::stack::disk::default_dir;

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Show the size and the limits of the cache, and what is pinned.
    Status(Place),
    /// List the cached contents, the most recently used last.
    Ls(Place),
    /// Read the whole cache, compare it with its checksums, and remove what is damaged.
    Verify(Place),
    /// Evict contents until the cache is within its limits, and remove leftovers.
    Gc {
        #[command(flatten)]
        place: Place,
        /// Limit to apply instead of the cache's own: bytes, or with K, M, G, T.
        #[arg(long, value_name = "SIZE")]
        size: Option<String>,
        /// Free space to leave on the disk instead of the cache's own setting.
        #[arg(long, value_name = "SIZE")]
        free: Option<String>,
    },
    /// Remove all contents. The list of pins stays; mounts fetch again what they need.
    Clear(Place),
    /// Protect files, or directories and all below them, from eviction.
    Pin {
        /// Files or directories in mounts with `cache=disk`.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Remove pins.
    Unpin {
        /// The pinned paths, as they were given to `pin`.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Show how much of files, or of directories and all below them, is cached.
    Check {
        /// Files or directories in mounts with `cache=disk`.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
}

/// Which cache.
#[derive(Debug, clap::Args)]
struct Place {
    /// The directory of the cache (default: that of a mount without cache_dir).
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let json = arguments.json;
    match arguments.what {
        What::Status(place) => {
            let store = place.open(as_mounts_have_it)?;
            let told = text::Told::of(&store);
            print(json, &told, text::status)
        }
        What::Ls(place) => {
            let store = place.open(as_mounts_have_it)?;
            let mut listed: Vec<text::Content> =
                store.list().into_iter().map(text::Content::from).collect();
            listed.sort_by(|one, other| {
                (one.used_secs, &one.digest).cmp(&(other.used_secs, &other.digest))
            });
            print(json, &listed, |listed| text::contents(listed))
        }
        What::Verify(place) => {
            let store = place.open(as_mounts_have_it)?;
            let verified = store.verify(|_| {});
            let clean = verified.is_clean();
            print(json, &verified, text::verified)?;
            Ok(ExitCode::from(if clean { EXIT_OK } else { EXIT_FAILURE }))
        }
        What::Gc { place, size, free } => {
            let size_bytes = size.as_deref().map(|text| bound("--size", text)).transpose()?;
            let free_bytes = free.as_deref().map(|text| bound("--free", text)).transpose()?;
            let store = place.open(|dir| {
                let usual = as_mounts_have_it(dir);
                StoreConfig {
                    size_bytes: size_bytes.or(usual.size_bytes),
                    free_bytes: free_bytes.or(usual.free_bytes),
                    ..usual
                }
            })?;
            let before = store.status().used_bytes;
            let _ = store.gc();
            let told = text::Told::of(&store);
            let freed = before.saturating_sub(told.used_bytes);
            print(json, &told, |told| text::cleaned(told, freed))
        }
        What::Clear(place) => {
            let store = place.open(as_mounts_have_it)?;
            store.clear().map_err(|error| Problem::new("cache", error.to_string()))?;
            print(json, &text::Told::of(&store), text::status)
        }
        What::Pin { paths } => {
            warn(&job(&paths, |paths| CacheJob::Pin { paths })?);
            Ok(done())
        }
        What::Unpin { paths } => job(&paths, |paths| CacheJob::Unpin { paths }).map(|_| done()),
        What::Check { paths } => {
            let tally = job(&paths, |paths| CacheJob::Check { paths })?;
            warn(&tally);
            print(json, &tally, text::presence)?;
            Ok(ExitCode::from(if tally.failed == 0 { EXIT_OK } else { EXIT_FAILURE }))
        }
    }
}

/// The store's configuration with the limits of the mount that used it last.
fn as_mounts_have_it(dir: PathBuf) -> StoreConfig {
    let (size_bytes, free_bytes) = Store::bounds(&dir);
    StoreConfig { size_bytes, free_bytes, ..StoreConfig::new(dir) }
}

fn warn(tally: &Tally) {
    for problem in &tally.problems {
        eprintln!("sshoal: {}", printable(problem));
    }
}

fn done() -> ExitCode {
    ExitCode::from(EXIT_OK)
}

fn bound(what: &str, text: &str) -> Result<u64, Problem> {
    crate::quantity::parse_bytes(text).map_err(|why| Problem::new(what.to_owned(), why))
}

fn job(paths: &[PathBuf], job: impl Fn(Vec<protocol::Path>) -> CacheJob) -> anyhow::Result<Tally> {
    Ok(places::ask(paths, job, &mut |_| {})?)
}

fn print<T: Serialize>(
    json: bool,
    told: &T,
    text: impl Fn(&T) -> String,
) -> anyhow::Result<ExitCode> {
    match json {
        true => cli::print(&cli::json(told)?),
        false => cli::print(&text(told)),
    }
}

impl Place {
    /// Opens the store, which must exist.
    fn open(&self, config: impl Fn(PathBuf) -> StoreConfig) -> Result<Store, Problem> {
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => default_dir()?,
        };
        if !dir.is_dir() {
            let what = format!("cache '{}'", printable(&dir));
            return Err(Problem::new(what, "does not exist")
                .hint("mounting with cache=disk creates it; --dir DIR names another one"));
        }
        Store::open(config(dir)).map_err(|error| Problem::new("cache", error.to_string()))
    }
}
