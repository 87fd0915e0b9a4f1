//! Network namespaces with TCP settings of their own.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Makes the settings, each a path below `/proc/sys` and a value, and lives until its standard
/// input ends, which it does when the process that has started it dies.
const SCRIPT: &str = r#"
ip link set lo up || exit
while [ $# -gt 0 ]; do
    echo "$2" > "/proc/sys/$1" || exit
    shift 2
done
echo ready
exec cat
"#;

/// A network namespace in which there is the loopback interface and nothing else. It ends when this
/// is dropped and no process is in it any more.
#[derive(Debug)]
pub struct Network {
    keeper: Child,
    path: PathBuf,
}

impl Network {
    /// Makes a namespace and its settings: names as `net/ipv4/tcp_rmem`, and values.
    ///
    /// # Errors
    /// When this is not root or may not make namespaces, `unshare` or `ip` is missing, or the
    /// kernel does not take a setting.
    pub fn start(settings: &[(&str, &str)]) -> io::Result<Network> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", SCRIPT, "sh"]);
        command.args(settings.iter().flat_map(|(name, value)| [name, value]));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut keeper = command.spawn()?;
        let path = PathBuf::from(format!("/proc/{}/ns/net", keeper.id()));
        let said = keeper.stdout.take().map(BufReader::new);
        let words = keeper.stderr.take();
        // From here on the keeper is ended.
        let network = Network { keeper, path };
        let mut line = String::new();
        said.ok_or(io::ErrorKind::BrokenPipe)?.read_line(&mut line)?;
        if line.trim() == "ready" {
            return Ok(network);
        }
        let mut why = String::new();
        words.ok_or(io::ErrorKind::BrokenPipe)?.read_to_string(&mut why)?;
        Err(io::Error::other(why.trim().to_owned()))
    }

    /// The namespace, for `nsenter --net=`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The words before a command with which it runs in the namespace.
    pub fn words(&self) -> Vec<OsString> {
        let mut namespace = OsString::from("--net=");
        namespace.push(&self.path);
        vec!["nsenter".into(), namespace, "--".into()]
    }

    /// Calls `f` on a thread that is in the namespace, as are the threads and sockets that it
    /// makes.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn within<T: Send>(&self, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        let namespace = File::open(&self.path)?;
        thread::scope(|scope| {
            let inside = scope.spawn(move || {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind)?;
                Ok(f())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // At the end of its input it ends.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn a_namespace_has_settings_of_its_own_and_ends_with_its_value() {
        const RMEM: &str = "net/ipv4/tcp_rmem";
        let outside = || fs::read_to_string(Path::new("/proc/sys").join(RMEM)).unwrap();
        let before = outside();
        let started = Network::start(&[(RMEM, "4096 65536 7654321")]);
        if !is_root() {
            assert!(started.is_err());
            return;
        }
        let network = started.unwrap();
        let words = network.words();
        let mut command = Command::new(&words[0]);
        let said = command.args(&words[1..]).args(["cat", "/proc/sys/net/ipv4/tcp_rmem"]).output();
        let said = String::from_utf8(said.unwrap().stdout).unwrap();
        assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["4096", "65536", "7654321"]);
        assert_eq!(outside(), before);

        // A socket of the namespace is reached from inside alone.
        let listener =
            network.within(|| std::net::TcpListener::bind("127.0.0.1:0")).unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        assert!(std::net::TcpStream::connect(address).is_err());
        network.within(|| std::net::TcpStream::connect(address)).unwrap().unwrap();
        let path = network.path().to_owned();
        drop(network);
        assert!(!path.exists());
    }

    #[test]
    fn a_setting_that_the_kernel_does_not_take_is_named() {
        let error = Network::start(&[("net/ipv4/no_such_setting", "1")]).unwrap_err().to_string();
        assert!(!is_root() || error.contains("no_such_setting"), "{error}");
    }
}
