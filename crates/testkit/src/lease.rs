//! A lease that another process has on a file (`fcntl(2)`), as Samba takes one.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Takes a lease, and keeps it until the process ends. `F_SETLEASE` is 1024, and `F_WRLCK` is 1.
const HOLDER: &str = r#"
    $| = 1;
    open my $file, "+<", $ARGV[0] or die;
    my $asked = 0;
    $SIG{IO} = sub { $asked = 1 };
    fcntl $file, 1024, 1 or exit print "none\n";
    print "leased\n";
    select undef, undef, undef, 0.01 until $asked;
    print "asked\n";
    <STDIN>;
"#;

/// A lease on a file. Dropping it releases it.
#[derive(Debug)]
pub struct Lease {
    holder: Child,
    said: BufReader<ChildStdout>,
}

impl Lease {
    /// `None` if the file system has no leases, such as overlayfs with a lower layer.
    ///
    /// # Panics
    ///
    /// If there is no `perl`, or the file cannot be opened.
    pub fn take(file: &Path) -> Option<Lease> {
        let mut holder = Command::new("perl");
        holder.args(["-e", HOLDER]).arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = holder.spawn().unwrap();
        let said = BufReader::new(holder.stdout.take().unwrap());
        let mut lease = Lease { holder, said };
        match lease.line().as_str() {
            "leased\n" => Some(lease),
            "none\n" => None,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the kernel has asked for the end of the lease: another process opens the file.
    ///
    /// # Panics
    ///
    /// If the holder has ended.
    pub fn wait_until_asked(&mut self) {
        assert_eq!(self.line(), "asked\n");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
