//! The configuration file: named mounts, with their sources and options.
//!
//! There are two: `/etc/sshoal/config.toml` for all users and `~/.config/sshoal/config.toml`. If
//! both define a mount, the user's definition replaces the other as a whole. The defaults of both
//! apply to every mount; the user's take precedence. A mount of a file becomes a [`SavedMount`], to
//! which the options of the command line are added.
//!
//! A file can run commands as the user (`ProxyCommand`, `ssh_command`). So it must be owned by the
//! user or root and not be writable by others, as ssh requires of its own files.
//!
//! All errors are collected, each with its position in the file. An error in one mount does not
//! prevent the others from being mounted.

mod access;
mod document;
mod entry;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz_tests;
mod show;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cli::{EXIT_FAILURE, EXIT_OK, Problem, printable};

use crate::mount::command_line::{Layer, SavedMount, option_named};
use crate::mount::suggestion;
use crate::quantity::count;
use document::{Document, Fault};
use entry::{Entry, Setting};
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzz_tests::fuzz;

/// Below the directories of the configuration.
const NAME: &str = "sshoal/config.toml";

/// The file for all users of this machine.
const SYSTEM: &str = "/etc/sshoal/config.toml";

/// The paths of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The system's.
    pub system: PathBuf,
    /// The user's, if there is a home directory.
    pub user: Option<PathBuf>,
    /// The directory for `~`.
    pub home: Option<PathBuf>,
}

impl Places {
    /// The paths from the environment: `XDG_CONFIG_HOME`, or `.config` in `HOME`.
    pub fn of_environment() -> Places {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        let absolute = |name| variable(name).filter(|path| path.is_absolute());
        let home = absolute("HOME");
        let directory =
            absolute("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
        Places { system: SYSTEM.into(), user: directory.map(|it| it.join(NAME)), home }
    }

    fn all(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.system.as_path()).chain(self.user.as_deref())
    }
}

/// The contents of the existing files.
#[derive(Debug)]
pub struct Configuration {
    /// The system's comes first.
    documents: Vec<Document>,
    places: Places,
}

impl Configuration {
    /// Reads the existing files. A file that cannot be read or must not be trusted is an error;
    /// errors in its contents are collected.
    pub fn load(places: &Places) -> Result<Configuration, Problem> {
        let mut documents = Vec::new();
        for path in places.all() {
            if let Some(text) = access::read(path)? {
                documents.push(document::read(path, &text, places.home.as_deref()));
            }
        }
        Ok(Configuration { documents, places: places.clone() })
    }

    /// The names of all mounts, in the order of the files.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for document in &self.documents {
            for entry in &document.entries {
                if !names.contains(&&*entry.name) {
                    names.push(&entry.name);
                }
            }
        }
        names
    }

    /// The [`names`](Self::names), if there is no error outside of the mounts: such an error concerns
    /// all mounts, and one of the syntax may hide some.
    pub fn all_names(&self) -> Result<Vec<&str>, Problem> {
        self.general_fault().map_or_else(|| Ok(self.names()), Err)
    }

    /// The mount with this name, if neither it nor the defaults contain an error.
    pub fn find(&self, name: &OsStr) -> Result<SavedMount, Problem> {
        let (document, entry) = self.entry(name)?;
        let own = document.faults_of(Some(&entry.name)).next();
        if let Some(problem) = self.general_fault().or(own.map(first_of_all)) {
            return Err(problem);
        }
        Ok(SavedMount {
            name: entry.name.clone(),
            sources: entry.sources.iter().map(|(source, _)| source.clone()).collect(),
            mountpoint: entry.mountpoint.as_ref().map(|(path, _)| path.clone()),
            layers: self.layers(document, entry),
        })
    }

    /// The mount point of the mount with this name, if it has one.
    pub fn mountpoint(&self, name: &str) -> Option<&Path> {
        let (_, entry) = self.entry(OsStr::new(name)).ok()?;
        entry.mountpoint.as_ref().map(|(path, _)| path.as_path())
    }

    /// Why the mount with this name cannot be mounted together with an earlier one: they have one
    /// mount point. Each of them alone is valid.
    pub fn clash(&self, name: &str) -> Option<Problem> {
        let mut clashes = self.clashes().into_iter();
        clashes.find_map(|(_, entry, problem)| (entry.name == name).then_some(problem))
    }

    /// All mounts with the mount point of an earlier one.
    fn clashes(&self) -> Vec<(&Document, &Entry, Problem)> {
        let mut first: HashMap<&Path, &str> = HashMap::new();
        let mut clashes = Vec::new();
        for name in self.names() {
            let Ok((document, entry)) = self.entry(OsStr::new(name)) else { continue };
            let Some((path, line)) = &entry.mountpoint else { continue };
            let other = *first.entry(path).or_insert(name);
            if other != name {
                let what = format!("{}:{line}", printable(&document.path));
                let (name, other) = (printable(name), printable(other));
                let problem = Problem::new(
                    what,
                    format!("mount '{name}' has the mount point of mount '{other}'"),
                );
                let problem = problem.hint("`sshoal mount --all` mounts only the first of them");
                clashes.push((document, entry, problem));
            }
        }
        clashes
    }

    /// The effective definition of a mount, and its file.
    fn entry(&self, name: &OsStr) -> Result<(&Document, &Entry), Problem> {
        let found = self.documents.iter().rev().find_map(|document| {
            Some((document, document.entries.iter().find(|entry| name == &*entry.name)?))
        });
        found.ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &OsStr) -> Problem {
        let shown = printable(name);
        let problem = Problem::new(format!("mount '{shown}'"), "not in the configuration");
        // A syntax error may hide all mounts after it.
        if let Some(problem) = self.general_fault() {
            return problem;
        }
        if let Some(meant) = suggestion::nearest(&shown, self.names()) {
            return problem.hint(format!("did you mean '{}'?", printable(meant)));
        }
        let files: Vec<String> = self.places.all().map(printable).collect();
        problem.hint(format!(
            "a host is written with a colon ({shown}:); searched {}",
            files.join(", ")
        ))
    }

    /// The first error outside of mounts.
    fn general_fault(&self) -> Option<Problem> {
        let mut general = self.documents.iter().flat_map(|document| document.faults_of(None));
        general.next().map(first_of_all)
    }

    /// The effective options of a mount with their origins, in order of increasing precedence.
    fn settings<'a>(
        &'a self,
        document: &'a Document,
        entry: &'a Entry,
    ) -> Vec<(&'a Document, &'a Setting, bool)> {
        let defaults = self.documents.iter().flat_map(|document| {
            document.defaults.iter().map(move |setting| (document, setting, true))
        });
        let own = entry.options.iter().map(|setting| (document, setting, false));
        let mut settings: Vec<(&Document, &Setting, bool)> = Vec::new();
        for (document, setting, is_default) in defaults.chain(own) {
            match setting.word {
                Some(_) => settings.push((document, setting, is_default)),
                // Removed by `NAME = false`.
                None => {
                    let removed = option_named(&setting.name);
                    settings.retain(|(_, before, _)| option_named(&before.name) != removed);
                }
            }
        }
        settings
    }

    fn layers(&self, document: &Document, entry: &Entry) -> Vec<Layer> {
        let settings = self.settings(document, entry);
        let layers = settings.chunk_by(|one, other| one.0.path == other.0.path && one.2 == other.2);
        let layer = |settings: &[(&Document, &Setting, bool)]| Layer {
            directory: settings[0].0.directory().to_owned(),
            words: settings.iter().filter_map(|(_, setting, _)| setting.word.clone()).collect(),
        };
        layers.map(layer).collect()
    }
}

fn first_of_all(fault: &Fault) -> Problem {
    fault.problem.clone().hint_too("`sshoal config check` lists all errors")
}

/// Prints all errors of the configuration files to standard error, and the number of mounts of each
/// file. The exit code is 1 if there is an error.
pub fn check() -> anyhow::Result<ExitCode> {
    let places = Places::of_environment();
    let configuration = Configuration::load(&places)?;
    if configuration.documents.is_empty() {
        return cli::print(&none(&places));
    }
    let clashes = configuration.clashes();
    let mut faults = 0;
    let mut text = String::new();
    for document in &configuration.documents {
        let clashes = clashes.iter().filter(|(of, ..)| of.path == document.path);
        let problems = document.faults.iter().map(|fault| &fault.problem);
        let problems: Vec<&Problem> =
            problems.chain(clashes.map(|(.., problem)| problem)).collect();
        for problem in &problems {
            eprintln!("sshoal: {problem}");
        }
        faults += problems.len();
        let mounts = count(document.entries.len() as u64, "mount");
        let found = match problems.len() {
            0 => "no errors".to_owned(),
            some => count(some as u64, "error"),
        };
        let _ = writeln!(text, "{}: {mounts}, {found}", printable(&document.path));
    }
    cli::print(&text)?;
    Ok(ExitCode::from(if faults == 0 { EXIT_OK } else { EXIT_FAILURE }))
}

/// Prints the resulting settings of one mount, or of all.
pub fn show(name: Option<&str>) -> anyhow::Result<ExitCode> {
    let places = Places::of_environment();
    let configuration = Configuration::load(&places)?;
    let names = match name {
        Some(name) => vec![name],
        None if configuration.documents.is_empty() => return cli::print(&none(&places)),
        None => configuration.all_names()?,
    };
    let mut text = String::new();
    for (index, name) in names.into_iter().enumerate() {
        // Fails for a mount with an error: the settings shown would not be those in effect.
        configuration.find(OsStr::new(name))?;
        let (document, entry) = configuration.entry(OsStr::new(name))?;
        text += if index > 0 { "\n" } else { "" };
        text += &show::mount(document, entry, &configuration.settings(document, entry));
    }
    cli::print(&text)
}

fn none(places: &Places) -> String {
    let paths: Vec<String> = places.all().map(printable).collect();
    format!("No configuration file; searched {}\n", paths.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogTarget;
    use recovery::RetryPolicy;

    use crate::mount::command_line::{Wish, parse};
    use crate::mount::request::IdMapKind;
    use crate::mount::request::MountRequest;
    use crate::program::Program;
    use std::ffi::OsString;
    use std::time::Duration;

    /// A system's and a user's file.
    struct Files {
        _dir: tempfile::TempDir,
        places: Places,
    }

    fn files(system: &str, user: &str) -> Files {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name).join("config.toml");
            std::fs::create_dir(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        let (system, user) = (write("etc", system), write("user", user));
        let places = Places { system, user: Some(user), home: Some("/home/ann".into()) };
        Files { _dir: dir, places }
    }

    fn load(files: &Files) -> Configuration {
        Configuration::load(&files.places).unwrap()
    }

    fn request(files: &Files, words: &[&str]) -> Result<MountRequest, String> {
        request_of(Program::SSHOAL, files, words)
    }

    fn request_of(program: Program, files: &Files, words: &[&str]) -> Result<MountRequest, String> {
        let configuration = load(files);
        let words = words.iter().map(OsString::from);
        let find = |name: &OsStr| configuration.find(name);
        match parse(program, words, "/cwd".into(), Some(&find)) {
            Ok(Wish::Mount(request, _)) => Ok(*request),
            Ok(other) => panic!("{other:?}"),
            Err(problem) => Err(problem.to_string()),
        }
    }

    #[test]
    fn an_error_outside_of_the_mounts_is_no_lack_of_mounts() {
        for text in ["[mount.a]\nsources = 'h:\n", "[mount.a]\n[mount.a]\n", "[defaults]\nx = 1\n"]
        {
            let files = files("", text);
            assert!(load(&files).all_names().is_err(), "{text}");
        }
        let files = files(SYSTEM_FILE, "");
        assert_eq!(load(&files).all_names(), Ok(vec!["work", "shared"]));
    }

    const SYSTEM_FILE: &str = r#"
        [defaults]
        options = ["idmap=user", "ServerAliveInterval=30"]
        [mount.work]
        mountpoint = "/mnt/system"
        sources = ["sys:/work"]
        [mount.shared]
        mountpoint = "/mnt/shared"
        sources = "sys:/shared"
    "#;

    const USER_FILE: &str = r#"
        [defaults.options]
        soft = 20
        ServerAliveInterval = 5
        log = "sshoal.log"
        [mount.work]
        mountpoint = "~/work"
        sources = [
            "alpha:/d=ro",
            { place = "FOO/bar", host = ["gw1", "ann@gw2"], path = "/project=ro", pool = "hash",
              presence = "optional", mode = "nc", ssh = { Port = 2222, IdentityFile = "key" } },
            { local = "/srv", place = "L" },
        ]
        [mount.work.options]
        soft = 30.5
        idmap = false
        allow_other = true
        Compression = true
    "#;

    #[test]
    fn the_users_mount_counts_and_the_defaults_of_both() {
        let files = files(SYSTEM_FILE, USER_FILE);
        assert_eq!(load(&files).names(), ["work", "shared"]);
        let work = request(&files, &["work"]).unwrap();
        assert_eq!(work.mountpoint, PathBuf::from("/home/ann/work"));
        assert_eq!(work.source, "work");
        let names: Vec<_> = work.sources.iter().map(|source| source.shown()).collect();
        assert_eq!(names, ["alpha:/d", "FOO/bar=gw1,ann@gw2:/project=ro", "L=local:/srv"]);
        let mut pool = crate::sources::source("FOO/bar=gw1,ann@gw2:/project=ro==optional,nc,hash");
        let key = files.places.user.as_ref().unwrap().with_file_name("key");
        pool.name = "FOO/bar=gw1,ann@gw2:/project=ro".into();
        let crate::sources::Origin::Hosts { directory, .. } = &mut pool.origin else { panic!() };
        *directory = b"/project=ro".to_vec();
        let mut identity = OsString::from("-oIdentityFile=");
        identity.push(key);
        pool.ssh_arguments = vec!["-oPort=2222".into(), identity];
        assert_eq!(work.sources[1], pool);
        assert_eq!(work.retry, RetryPolicy::Soft(Duration::from_millis(30500)));
        assert_eq!(work.idmap.kind, IdMapKind::None, "false takes a default back");
        assert_eq!(work.mount.visibility, fuse::Visibility::Everybody);
        // ssh takes the first of two, which has to be the one that counts most.
        assert_eq!(
            work.ssh.arguments,
            ["-oCompression=yes", "-oServerAliveInterval=5", "-oServerAliveInterval=30"]
        );
        assert_eq!(
            work.run.log,
            LogTarget::File(files.places.user.as_ref().unwrap().with_file_name("sshoal.log"))
        );
        let shared = request(&files, &["shared"]).unwrap();
        assert_eq!(shared.idmap.kind, IdMapKind::User);
        assert!(!shared.is_union());
    }

    #[test]
    fn an_option_is_taken_back_by_any_of_its_names() {
        let system = "[defaults]\noptions = ['cache_timeout=600', 'no_reconnect', 'ro']";
        let user = "[mount.a]\nsources = 'h:'\nmountpoint = '/m'\n\
            [mount.a.options]\ndcache_timeout = false\nnoreconnect = false";
        let mount = load(&files(system, user)).find(OsStr::new("a")).unwrap();
        let words: Vec<_> = mount.layers.iter().flat_map(|layer| &layer.words).collect();
        assert_eq!(words, ["ro"]);
    }

    #[test]
    fn a_helper_of_mount_8_takes_a_name_that_is_never_a_path() {
        let files = files(SYSTEM_FILE, "");
        let helper = Program { name: "sshoal", helper: true };
        for name in ["sshoal#work", "work"] {
            let work = request_of(helper, &files, &[name, "/m", "-o", "rw"]).unwrap();
            // As in fstab.
            assert_eq!(
                (work.source.to_str(), work.mount.fsname.to_str()),
                (Some(name), Some(name))
            );
            assert_eq!(work.sources[0].shown(), "sys:/work");
        }
        let said = request_of(helper, &files, &["/work", "/m"]).unwrap_err();
        assert!(said.ends_with("the mount of the configuration file is sshoal#work"), "{said}");
        let said = request(&files, &["sshoal#work", "/m"]).unwrap_err();
        assert!(said.contains("mount 'sshoal#work': not in the configuration"), "{said}");
    }

    #[test]
    fn the_command_line_counts_most() {
        let files = files("", USER_FILE);
        let words = ["work", "elsewhere", "-o", "soft=1,ServerAliveInterval=1", "-F", "conf"];
        let work = request(&files, &words).unwrap();
        assert_eq!(work.mountpoint, PathBuf::from("elsewhere"));
        assert_eq!(work.retry, RetryPolicy::Soft(Duration::from_secs(1)));
        assert_eq!(
            work.ssh.arguments,
            [
                "-oServerAliveInterval=1",
                "-F/cwd/conf",
                "-oCompression=yes",
                "-oServerAliveInterval=5"
            ]
        );
    }

    #[test]
    fn of_two_files_for_ssh_only_the_one_that_counts_most_is_given() {
        let text = "[mount.a]\nsources = 'h:'\nmountpoint = '/m'\noptions = ['ssh_config=conf']";
        let files = files("", text);
        let of_file = request(&files, &["a"]).unwrap().ssh.arguments;
        assert!(of_file[0].to_str().unwrap().ends_with("/user/conf"), "{of_file:?}");
        assert_eq!(request(&files, &["a", "-F", "x"]).unwrap().ssh.arguments, ["-F/cwd/x"]);
    }

    #[test]
    fn a_name_that_is_not_there_is_told_with_the_nearest() {
        let files = files(SYSTEM_FILE, "");
        let said = request(&files, &["wrok"]).unwrap_err();
        assert_eq!(said, "mount 'wrok': not in the configuration\n  did you mean 'work'?");
        let said = request(&files, &["nothing", "/mnt"]).unwrap_err();
        assert!(said.contains("a host is written with a colon (nothing:); searched "), "{said}");
    }

    #[test]
    fn a_mount_without_a_mount_point_needs_one_on_the_command_line() {
        let files = files("", "[mount.a]\nsources = 'h:'");
        assert!(request(&files, &["a", "/mnt"]).is_ok());
        let said = request(&files, &["a"]).unwrap_err();
        assert!(said.starts_with("mount 'a': has no mount point\n  add mountpoint"), "{said}");
    }

    #[test]
    fn a_mount_point_is_that_of_one_mount() {
        let user = "[mount.a]\nsources = 'h:'\nmountpoint = '/home/ann/m/'\n\
            [mount.b]\nsources = 'h:'\nmountpoint = '~/m'\n\
            [mount.c]\nsources = 'h:'\nmountpoint = '~/m/c'\n\
            [mount.d]\nsources = 'h:'\n[mount.e]\nsources = 'h:'\n\
            [mount.shared]\nsources = 'h:'\nmountpoint = '/mnt/system'";
        let files = files(SYSTEM_FILE, user);
        let configuration = load(&files);
        let clashes = configuration.clashes();
        let names: Vec<&str> = clashes.iter().map(|(_, entry, _)| &*entry.name).collect();
        // Of two definitions of a mount, only the user's is in effect.
        assert_eq!(names, ["shared", "b"]);
        let said = configuration.clash("b").unwrap().to_string();
        assert!(
            said.contains("config.toml:6: mount 'b' has the mount point of mount 'a'"),
            "{said}"
        );
        assert_eq!(configuration.clash("a"), None);
        // They may be mounted one at a time, and elsewhere.
        assert!(request(&files, &["b"]).is_ok());
    }

    #[test]
    fn a_mistake_in_one_mount_leaves_the_others_alone() {
        let text = "[mount.a]\nsources = 'h:'\n[mount.b]\nsources = 'nocolon'";
        let files = files(SYSTEM_FILE, text);
        assert!(request(&files, &["a", "/m"]).is_ok() && request(&files, &["shared"]).is_ok());
        let said = request(&files, &["b", "/m"]).unwrap_err();
        assert!(said.contains("config.toml:4:11: source 'nocolon': "), "{said}");
        assert!(said.contains("\n  sources = 'nocolon'\n            ^^^^^^^^^\n"), "{said}");
        // What is wrong in the defaults is wrong everywhere.
        let files = self::files("[defaults]\noptions = ['idmap=users']", text);
        assert!(request(&files, &["a", "/m"]).unwrap_err().contains("idmap=users"));
    }

    #[test]
    fn changed_files_are_read_or_refused() {
        let whole = "[defaults]\noptions = ['reconnect', 'soft=20']\n[mount.'work']\n\
            sources = ['h:/a=ro', {host = 'h', dir = '/x y'}]\nmountpoint = '~/w'\n\
            options = ['-F', 'conf', 'cache=disk']\n[mount.b]\nsources = \"gw1,u@gw2:~/d\"\n";
        let seeds = [SYSTEM_FILE.as_bytes(), whole.as_bytes(), b"[mount.\"\\u0007\"]\n\xff"];
        testkit::mutated::each(&seeds, Duration::from_secs(1), fuzz);
    }
}
