//! `sshoal status`: the state of mounts, as their daemons report it.
//!
//! The mounts are read from the kernel's mount table; each daemon is queried over its
//! [control socket](control). No mounted file system is accessed, so this also reports a mount that
//! hangs, or whose daemon is dead.

pub mod gather;
mod text;

pub use text::branch_list;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use cli::{Document, EXIT_FAILURE, EXIT_OK, OrProblem};
use control::seen::{Daemon, SeenMount, all, all_at, look};

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The mount point, also after unmounting until the daemon has ended; if omitted, all mounts of
    /// the user (as root, of all users).
    mountpoint: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the state of the mounts. The exit code is 1 if a daemon did not answer.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mounts = match &arguments.mountpoint {
        Some(mountpoint) => all_at(mountpoint)?,
        None => all().or_problem("mount table")?,
    };
    let seen = look(&mounts);
    let answers = seen.iter().all(|mount| mount.daemon == Daemon::Answers);
    if seen.is_empty() && !arguments.json {
        eprintln!("sshoal: nothing is mounted");
    } else {
        cli::print_as(arguments.json, &document(&seen), || text::render(&seen))?;
    }
    Ok(ExitCode::from(if answers { EXIT_OK } else { EXIT_FAILURE }))
}

/// What `--json` prints.
fn document(mounts: &[SeenMount]) -> Document<BTreeMap<&str, &[SeenMount]>> {
    Document { schema: 1, content: BTreeMap::from([("mounts", mounts)]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::status::{DiskStatus, HostStatus, MountStatus, SourceStatus};

    fn seen() -> SeenMount {
        let hosts = vec![HostStatus { host: "\u{9b}".into(), ..HostStatus::default() }];
        let source = SourceStatus { source: "a:/x".into(), hosts, ..SourceStatus::default() };
        SeenMount {
            mountpoint: "/mnt".into(),
            source: "a:/x".into(),
            owner: Some(7),
            daemon: Daemon::Answers,
            pid: Some(1),
            unmounted: None,
            why: None,
            status: Some(Box::new(MountStatus {
                sources: vec![source],
                disk: Some(DiskStatus::default()),
                ..MountStatus::default()
            })),
        }
    }

    /// Other programs read this: a change of these fields needs a new schema number.
    #[test]
    fn the_json_has_the_fields_that_it_had() {
        let told: serde_json::Value =
            serde_json::from_str(&cli::json(&document(&[seen()])).unwrap()).unwrap();
        let keys = |value: &serde_json::Value| -> Vec<String> {
            value.as_object().unwrap().keys().cloned().collect()
        };
        let sorted = |text: &str| {
            let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            words.sort();
            words
        };
        assert_eq!(told["schema"], 1);
        let mount = &told["mounts"][0];
        assert_eq!(keys(mount), sorted("mountpoint source owner daemon pid unmounted why status"));
        assert_eq!(mount["daemon"], "answers");
        let status = &mount["status"];
        assert_eq!(
            keys(status),
            sorted("version pid up_ms union sources unwritten lost open cache disk")
        );
        assert_eq!(keys(&status["unwritten"]), sorted("bytes limit_bytes files changes"));
        assert_eq!(keys(&status["open"]), sorted("files directories"));
        let cache = sorted("inodes listed_names listed_bytes fetched_bytes watched");
        assert_eq!(keys(&status["cache"]), cache);
        let disk = "dir on why used_bytes limit_bytes hits misses read_here_bytes read_there_bytes \
            completed changed_meanwhile left_out_bytes too_large damaged missed_offline opened_through";
        assert_eq!(keys(&status["disk"]), sorted(disk));
        let source = &status["sources"][0];
        let fields = sorted(
            "source place mode presence state state_ms why waiting_calls unacknowledged_bytes \
             unsynced_files pool hosts",
        );
        assert_eq!(keys(source), fields);
        assert_eq!(source["state"], "idle");
        let fields = sorted(
            "host state state_ms why round_trip_us latency_us max_sessions password direct \
             not_direct sessions",
        );
        assert_eq!(keys(&source["hosts"][0]), fields);
    }

    #[test]
    fn no_control_character_comes_out_of_it() {
        let text = cli::json(&document(&[seen()])).unwrap();
        assert!(text.contains("\"\\u009b\""), "{text}");
        assert!(text.chars().all(|char| !char.is_control() || char == '\n'));
    }
}
