//! Reads a configuration file, if it may be trusted.

use std::path::Path;

use cli::{Problem, printable};
use rustix::process::getuid;

use crate::trusted_file;

/// Maximum size of a file in bytes. A file with a thousand mounts has some hundred kilobytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The text of a file, or `None` if it does not exist. A file that others could have written is an
/// error.
pub(super) fn read(path: &Path) -> Result<Option<String>, Problem> {
    let what = format!("configuration '{}'", printable(path));
    let content = trusted_file::read(path, &what, MAX_FILE_BYTES, |owner| {
        if owner == getuid().as_raw() || owner == 0 {
            return Ok(());
        }
        Err(Problem::new(&what, format!("owned by user {owner}, not by you or root"))
            .hint("its settings can run commands as you"))
    })?;
    let text = content.map(String::from_utf8).transpose();
    text.map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        Problem::new(what, format!("not valid UTF-8 in line {line}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn only_a_file_that_nobody_else_can_write_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        assert_eq!(read(&path), Ok(None));
        assert_eq!(read(&path.join("below")), Ok(None));
        fs::write(&path, "a").unwrap();
        assert_eq!(read(&path), Ok(Some("a".to_owned())));
        assert_eq!(read(&path.join("below")), Ok(None));
        for mode in [0o620, 0o602] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let said = read(&path).unwrap_err().to_string();
            assert!(said.contains("writable by others\n  chmod go-w '"), "{said}");
        }
        assert!(read(dir.path()).unwrap_err().to_string().ends_with("not a regular file"));
        let fifo = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        assert!(read(&fifo).unwrap_err().to_string().ends_with("not a regular file"));
    }

    #[test]
    fn a_file_of_somebody_else_is_refused_and_roots_is_not() {
        assert!(read(Path::new("/etc/passwd")).is_ok());
        if getuid().is_root() {
            let file = tempfile::NamedTempFile::new().unwrap();
            chown(file.path(), Some(1), None).unwrap();
            let said = read(file.path()).unwrap_err().to_string();
            assert!(said.contains("owned by user 1, not by you or root\n"), "{said}");
        }
    }

    #[test]
    fn what_is_no_text_or_too_much_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"a\nb\xff").unwrap();
        assert!(read(file.path()).unwrap_err().to_string().ends_with("not valid UTF-8 in line 2"));
        fs::write(file.path(), vec![b'#'; (1 << 20) + 1]).unwrap();
        assert!(read(file.path()).unwrap_err().to_string().contains("larger than 1048576 bytes"));
    }
}
