//! `sshoal login`: gives a password to a running mount, which keeps it for its next connections.
//!
//! This process reads the password from the terminal, and sends it over the control socket, whose
//! directory only the user can enter. The daemon logs in with it once, and keeps it if that
//! succeeds.

use std::path::PathBuf;

use cli::{OrProblem, Problem, printable};
use control::status::{HostStatus, MountStatus, State};
use control::{Wish, client, inside};

/// The words of the command line.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The mount point.
    mountpoint: PathBuf,
    /// The host, as `sshoal status` shows it, if several need a password.
    host: Option<String>,
}

/// Gives the password. Standard input may also be a file or a pipe with the password as its first
/// line.
pub fn run(arguments: &Arguments) -> Result<(), Problem> {
    let Arguments { mountpoint, host } = arguments;
    let mount = client::mount_at(mountpoint)?;
    let silent = |why| client::problem(mountpoint, why);
    client::only_own(&mount, "log in for it")
        .map_err(|why| Problem::new(inside::about(mountpoint), why))?;
    let found = client::find(&mount).map_err(silent)?;
    let status = client::status(&found).map_err(silent)?;
    let host = match host {
        Some(host) => named(&status, host)?,
        None => only_one(&status)?,
    };
    let password = password(&host)?;
    client::confide(mountpoint, &found, Wish::Login { host }, |mut to| password.send(&mut to))
}

/// The host of this name, before the user types a password for it.
fn named(status: &MountStatus, name: &str) -> Result<String, Problem> {
    let mut hosts = status.sources.iter().flat_map(|source| &source.hosts);
    let found = hosts.find(|host| host.host == name).map(|host| host.host.clone());
    found.ok_or_else(|| not_of_mount(name))
}

/// The problem of a name that the status of the mount does not show.
pub fn not_of_mount(name: &str) -> Problem {
    Problem::new(format!("host '{}'", printable(name)), "not of this mount")
        .hint("`sshoal status` shows the hosts")
}

/// The only host that needs a password.
fn only_one(status: &MountStatus) -> Result<String, Problem> {
    let hosts = || status.sources.iter().flat_map(|source| &source.hosts);
    let names = |wanted: &dyn Fn(&HostStatus) -> bool| {
        let mut names: Vec<&str> =
            hosts().filter(|host| wanted(host)).map(|host| &*host.host).collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    let mut needing = names(&|host| host.password.as_deref() == Some("needed"));
    if needing.is_empty() {
        // A login by a key, or by password_stdin, that is refused by now.
        needing = names(&|host| !matches!(host.state, State::Connected | State::Idle));
    }
    match needing[..] {
        [one] => Ok(one.to_owned()),
        [] => Err(Problem::new("login", "no host of this mount needs a password").hint(
            "`sshoal status` shows the hosts; `sshoal login MOUNTPOINT HOST` gives one anyway",
        )),
        [..] => {
            let all: Vec<String> = needing.iter().map(printable).collect();
            Err(Problem::new("login", "several hosts need a password")
                .hint(format!("name one: {}", all.join(", "))))
        }
    }
}

fn password(host: &str) -> Result<ssh::Password, Problem> {
    let prompt = format!("Password for {}: ", printable(host));
    let read = ssh::Password::read(std::io::stdin(), &prompt).or_problem("password")?;
    read.ok_or_else(|| Problem::new("password", "standard input is empty"))
}
