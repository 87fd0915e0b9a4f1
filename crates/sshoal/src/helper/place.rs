//! Where the helper is on servers, and the command that starts it there.

use std::sync::LazyLock;

/// The version of this program, and so of the helper that it installs.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The directory below which `sshoal helper install` puts helpers, relative to the home.
pub const DIRECTORY: &str = ".cache/sshoal/helper";

/// The name of the program.
pub const NAME: &str = "sshoal";

/// The directory of this version's helper.
pub fn own_directory() -> String {
    format!("{DIRECTORY}/{VERSION}")
}

/// Where the helper is looked for, in order of preference.
pub fn all() -> &'static [String] {
    static PLACES: LazyLock<Vec<String>> = LazyLock::new(|| {
        let others = [".local/bin", "/usr/local/bin", "/usr/bin"].map(str::to_owned);
        let directories = std::iter::once(own_directory()).chain(others);
        directories.map(|directory| format!("{directory}/{NAME}")).collect()
    });
    &PLACES
}

/// The command that starts the program at `path` as helper, from any login shell. `None` for a path
/// that cannot be quoted for every login shell.
pub fn command(path: &str) -> Option<String> {
    let word = String::from_utf8(base::shell::word(path.as_bytes())?).ok()?;
    Some(format!("{word} helper"))
}

/// The path in the value of the option `helper`; `None` if it is none.
pub fn from_option(value: &str) -> Option<String> {
    // Sessions begin in the home directory, and no shell expands the path.
    let path = value.strip_prefix("~/").unwrap_or(value);
    let is_path = value.contains('/') && !path.is_empty() && !path.ends_with('/');
    (is_path && command(path).is_some()).then(|| match path.contains('/') {
        true => path.to_owned(),
        // A word without a slash would be searched in `PATH`.
        false => format!("./{path}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_a_path_that_needs_no_quotes() {
        for place in all() {
            assert_eq!(command(place).unwrap(), format!("{place} helper"));
            assert_eq!(from_option(place).as_deref(), Some(place.as_str()));
        }
    }

    #[test]
    fn a_path_is_one_word_for_every_shell() {
        assert_eq!(command("/opt/it's/sshoal").as_deref(), Some("'/opt/it'\\''s/sshoal' helper"));
        assert_eq!(command("/opt/a\nb"), None);
        assert_eq!(from_option("~/bin/sshoal").as_deref(), Some("bin/sshoal"));
        assert_eq!(from_option("~/sshoal").as_deref(), Some("./sshoal"));
        for value in ["atuo", "", "~/", "bin/", "/a\nb"] {
            assert_eq!(from_option(value), None, "{value}");
        }
    }
}
