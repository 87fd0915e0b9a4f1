//! Where a server is, for programs that bring an ssh of their own.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::executor::Executor;
use crate::failure::Failure;

/// It only reads files.
const LIMIT: Duration = Duration::from_secs(30);

/// Where the server is, for programs that bring an ssh of their own (rclone).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Address or name to connect to.
    pub address: String,
    /// Of TCP; of the link, where there is one.
    pub port: u16,
    /// Who logs in.
    pub user: String,
    /// Private keys that exist.
    pub keys: Vec<PathBuf>,
    /// Files of known hosts that exist.
    pub known_hosts: Vec<PathBuf>,
    /// The name under which those know the host.
    pub known_as: String,
}

/// What ssh would do.
pub(super) fn ask(
    options: Vec<OsString>,
    destination: &str,
    executor: &Executor,
) -> Result<Endpoint, Failure> {
    let mut command = Command::new("ssh");
    command.arg("-G").args(options).arg(destination);
    let said = executor.succeed(command, LIMIT)?.output.stdout;
    let mut endpoint = parse(&String::from_utf8_lossy(&said), std::env::var_os("HOME"))
        .ok_or_else(|| Failure::failed("what ssh -G says is not understood"))?;
    endpoint.keys.retain(|path| path.exists());
    endpoint.known_hosts.retain(|path| path.exists());
    Ok(endpoint)
}

/// Lines `keyword value`, keywords in small letters (ssh(1), -G).
fn parse(text: &str, home: Option<OsString>) -> Option<Endpoint> {
    let path = |text: &str| match (text.strip_prefix("~/"), &home) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(text),
    };
    let mut endpoint = Endpoint::default();
    let mut alias = None;
    for (keyword, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        match keyword {
            "hostname" => value.clone_into(&mut endpoint.address),
            "port" => endpoint.port = value.parse().ok()?,
            "user" => value.clone_into(&mut endpoint.user),
            "identityfile" => endpoint.keys.push(path(value)),
            "userknownhostsfile" | "globalknownhostsfile" => {
                endpoint.known_hosts.extend(value.split(' ').map(path));
            }
            "hostkeyalias" => alias = Some(value.to_owned()),
            _ => (),
        }
    }
    endpoint.known_as = alias.unwrap_or_else(|| endpoint.address.clone());
    let known = !endpoint.address.is_empty() && endpoint.port != 0 && !endpoint.user.is_empty();
    known.then_some(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ssh_says_is_read() {
        let text = "user me\nhostname 10.0.0.1\nport 2222\nidentityfile ~/.ssh/id\n\
            identityfile /k e y\nuserknownhostsfile ~/.ssh/known_hosts /two\n";
        let endpoint = parse(text, Some("/home/me".into())).unwrap();
        assert_eq!((endpoint.address.as_str(), endpoint.port), ("10.0.0.1", 2222));
        assert_eq!((endpoint.user.as_str(), endpoint.known_as.as_str()), ("me", "10.0.0.1"));
        assert_eq!(endpoint.keys, [PathBuf::from("/home/me/.ssh/id"), "/k e y".into()]);
        assert_eq!(
            endpoint.known_hosts,
            [PathBuf::from("/home/me/.ssh/known_hosts"), "/two".into()]
        );
        let other = parse(&format!("{text}hostkeyalias name\n"), None).unwrap();
        assert_eq!(other.known_as, "name");
        assert_eq!(parse("user me\nport 22\n", None), None);
    }
}
