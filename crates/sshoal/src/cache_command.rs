//! `sshoal cache`: shows and changes the disk cache, also while mounts use it.
//!
//! Commands about the store as a whole are carried out in this process. Commands about files of a
//! mount are carried out by its daemon ([`job`]), which knows their sources.

pub mod job;
pub mod places;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use cache::{Store, StoreConfig};
use cli::{EXIT_FAILURE, EXIT_OK, OrProblem, Problem, printable};
use control::job::{self as protocol, CacheJob, Tally};

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
        /// The pinned paths, as they were given to `pin`. They need not exist any more.
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
            let store = place.open()?;
            let told = text::Told::of(&store);
            cli::print_as(json, &told, || text::status(&told))
        }
        What::Ls(place) => {
            let store = place.open()?;
            let mut listed: Vec<text::Content> =
                store.list().into_iter().map(text::Content::from).collect();
            listed.sort_by(|one, other| {
                (one.used_secs, &one.digest).cmp(&(other.used_secs, &other.digest))
            });
            cli::print_as(json, &listed, || text::contents(&listed))
        }
        What::Verify(place) => {
            let store = place.open()?;
            let verified = store.verify(|_| {});
            cli::print_as(json, &verified, || text::verified(&verified))?;
            Ok(ExitCode::from(if verified.is_clean() { EXIT_OK } else { EXIT_FAILURE }))
        }
        What::Gc { place, size, free } => {
            let size_bytes = size.as_deref().map(|text| bound("--size", text)).transpose()?;
            let free_bytes = free.as_deref().map(|text| bound("--free", text)).transpose()?;
            let usual = place.config()?;
            let store = open(StoreConfig {
                size_bytes: size_bytes.or(usual.size_bytes),
                free_bytes: free_bytes.or(usual.free_bytes),
                ..usual
            })?;
            let before = store.status().used_bytes;
            store.gc_when_free().or_problem("cache")?;
            let told = text::Told::of(&store);
            let freed = before.saturating_sub(told.used_bytes);
            cli::print_as(json, &told, || text::cleaned(&told, freed))
        }
        What::Clear(place) => {
            let store = place.open()?;
            store.clear().or_problem("cache")?;
            let told = text::Told::of(&store);
            cli::print_as(json, &told, || text::status(&told))
        }
        What::Pin { paths } => {
            let pin = |paths| CacheJob::Pin { paths };
            run_job(json, &paths, places::existing, pin, |_| String::new())
        }
        What::Unpin { paths } => {
            let unpin = |paths| CacheJob::Unpin { paths };
            run_job(json, &paths, places::perhaps_removed, unpin, |_| String::new())
        }
        What::Check { paths } => {
            let check = |paths| CacheJob::Check { paths };
            run_job(json, &paths, places::existing, check, text::presence)
        }
    }
}

/// Runs a job, and prints its result and what has failed. The exit code is 1 if anything has.
fn run_job(
    json: bool,
    paths: &[PathBuf],
    resolve: places::Resolve,
    job: impl Fn(Vec<protocol::Path>) -> CacheJob,
    text: fn(&Tally) -> String,
) -> anyhow::Result<ExitCode> {
    let tally = places::ask(paths, resolve, job, &mut |_| {})?;
    cli::print_as(json, &tally, || text(&tally))?;
    for problem in &tally.problems {
        eprintln!("sshoal: {}", printable(problem));
    }
    Ok(ExitCode::from(if tally.failed == 0 { EXIT_OK } else { EXIT_FAILURE }))
}

fn bound(what: &str, text: &str) -> Result<u64, Problem> {
    crate::quantity::parse_bytes(text).or_problem(what)
}

impl Place {
    /// The configuration of the store, which must exist, with the limits of the mount that used it
    /// last.
    fn config(&self) -> Result<StoreConfig, Problem> {
        let dir = self.dir.clone().map_or_else(default_dir, Ok)?;
        let what = || format!("cache '{}'", printable(&dir));
        if !dir.is_dir() {
            if dir.exists() {
                return Err(Problem::new(what(), "not a directory"));
            }
            return Err(Problem::new(what(), "does not exist")
                .hint("mounting with cache=disk creates it; --dir DIR names another one"));
        }
        // Opening it would create a store there, and take directories of such names for its own.
        if !Store::exists(&dir).or_problem(what())? {
            return Err(Problem::new(what(), "not a cache of sshoal")
                .hint("mounting with cache=disk creates one; --dir DIR names its directory"));
        }
        let (size_bytes, free_bytes) = Store::bounds(&dir);
        Ok(StoreConfig { size_bytes, free_bytes, ..StoreConfig::new(dir) })
    }

    fn open(&self) -> Result<Store, Problem> {
        open(self.config()?)
    }
}

fn open(config: StoreConfig) -> Result<Store, Problem> {
    Store::open(config).or_problem("cache")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_command_takes_another_directory_for_a_cache() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("v1/objects/ab");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "precious").unwrap();
        let place = || Place { dir: Some(dir.path().to_owned()) };
        let gc = What::Gc { place: place(), size: None, free: None };
        let others = [What::Status, What::Ls, What::Verify, What::Clear].map(|what| what(place()));
        for what in others.into_iter().chain([gc]) {
            let refused = run(Arguments { what, json: false }).unwrap_err().to_string();
            assert!(refused.contains("not a cache of sshoal"), "{refused}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        let names = std::fs::read_dir(dir.path().join("v1")).unwrap();
        assert_eq!(names.count(), 1);
        Store::open(StoreConfig::new(dir.path())).unwrap();
        assert!(place().open().is_ok());
    }
}
