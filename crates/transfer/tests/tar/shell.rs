//! Shells for tests: this machine's, and ones that are not what they should be.

use std::process::Stdio;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use transfer::shell::Exit;
use transfer::tar::{Compress, Streaming};
use transfer::{Options, Progress, Running, Shell, ShellError, Silent};

/// `sh` of this machine, perhaps with other programs before its own.
pub struct LocalShell {
    /// Goes before `PATH`.
    pub programs: Option<std::path::PathBuf>,
    /// Runs in place of each command, where it is there.
    pub instead: Option<String>,
    /// That of the login.
    pub umask: Option<&'static str>,
}

impl LocalShell {
    pub fn plain() -> Arc<LocalShell> {
        Arc::new(LocalShell { programs: None, instead: None, umask: None })
    }

    /// With `script` in the place of `tar`; `$real` is the path of the true one.
    pub fn with_tar(programs: &std::path::Path, script: &str) -> Arc<LocalShell> {
        LocalShell::with_tar_of("/bin/tar", programs, script)
    }

    /// As [`LocalShell::with_tar`], where libarchive's tar is the true one; `None` if there is none.
    pub fn with_bsdtar(programs: &std::path::Path, script: &str) -> Option<Arc<LocalShell>> {
        let real = "/usr/bin/bsdtar";
        let exists = std::path::Path::new(real).exists();
        exists.then(|| LocalShell::with_tar_of(real, programs, script))
    }

    fn with_tar_of(real: &str, programs: &std::path::Path, script: &str) -> Arc<LocalShell> {
        let fake = programs.join("tar");
        let text = format!(
            "#!/bin/sh\nreal={real}\n[ \"$1\" != --version ] || exec $real \"$@\"\n{script}\n"
        );
        sandbox::write_program(&fake, text).unwrap();
        Arc::new(LocalShell { programs: Some(programs.to_owned()), instead: None, umask: None })
    }

    pub fn with_umask(umask: &'static str) -> Arc<LocalShell> {
        Arc::new(LocalShell { programs: None, instead: None, umask: Some(umask) })
    }

    /// Whatever is asked for, this is what runs.
    pub fn instead(script: &str) -> Arc<LocalShell> {
        Arc::new(LocalShell { programs: None, instead: Some(script.to_owned()), umask: None })
    }
}

#[async_trait]
impl Shell for LocalShell {
    async fn start(&self, command: &[u8]) -> Result<Running, ShellError> {
        use std::os::unix::ffi::OsStrExt;
        let script = match &self.instead {
            Some(script) => script.as_ref(),
            None => std::ffi::OsStr::from_bytes(command),
        };
        let mut child = Command::new("sh");
        let umask = self.umask.map_or(String::new(), |umask| format!("umask {umask}; "));
        let script = [std::ffi::OsStr::new(&umask), script].join(std::ffi::OsStr::new(""));
        child.arg("-c").arg(script).kill_on_drop(true);
        if let Some(programs) = &self.programs {
            let path = std::env::var("PATH").unwrap();
            child.env("PATH", format!("{}:{path}", programs.display()));
        }
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().map_err(|error| ShellError::Refused(error.to_string()))?;
        let stdin = Box::new(child.stdin.take().unwrap());
        let stdout = Box::new(child.stdout.take().unwrap());
        let mut errors = child.stderr.take().unwrap();
        let exit = Box::pin(async move {
            let mut stderr = Vec::new();
            let _ = errors.read_to_end(&mut stderr).await;
            let status = child.wait().await.map_err(|error| ShellError::Lost(error.to_string()))?;
            Ok(Exit { status: status.code(), stderr })
        });
        Ok(Running { stdin, stdout, exit })
    }
}

/// A stream through that shell.
pub fn streaming(shell: Arc<LocalShell>, options: Options) -> Streaming {
    Streaming {
        shell,
        options,
        compress: Compress::Never,
        only_if_fast: false,
        progress: Arc::new(Progress::default()),
        events: Arc::new(Silent),
        reusable_login: None,
        greeted: Arc::default(),
    }
}
