//! Mount options, and their form for mount(2) and fusermount3.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::mount::MountFlags;

/// The users that may access the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Visibility {
    /// Only the user who mounted it; not even root.
    #[default]
    Owner,
    /// That user and root (`allow_root`). Not known to the kernel, which admits all users; the
    /// session rejects the others. They see names and attributes in the kernel's cache.
    OwnerAndRoot,
    /// All users (`allow_other`).
    Everybody,
}

/// How the kernel maintains access times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTime {
    /// The kernel's default.
    #[default]
    Default,
    /// `atime`
    On,
    /// `noatime`
    Off,
}

/// Options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// The device in `/proc/mounts`.
    pub fsname: OsString,
    /// The part of the type after `fuse.` in `/proc/mounts`; empty for `fuse` alone.
    pub subtype: OsString,
    /// The users that may access the mount.
    pub visibility: Visibility,
    /// The kernel checks permissions by the attributes.
    pub default_permissions: bool,
    /// `ro`
    pub read_only: bool,
    /// Honours set-user-ID and set-group-ID bits. Only root can enable this.
    pub suid: bool,
    /// Honours device nodes. Only root can enable this.
    pub dev: bool,
    /// Programs can be executed.
    pub exec: bool,
    /// Handling of access times.
    pub atime: AccessTime,
    /// Writes are synchronous.
    pub sync: bool,
    /// Changes of directories are synchronous.
    pub dirsync: bool,
    /// Another process unmounts when this one ends for any reason.
    pub auto_unmount: bool,
    /// SELinux options (`context=…`, `fscontext=…`, `defcontext=…`, `rootcontext=…`), verbatim.
    /// Only root can use them.
    pub contexts: Vec<OsString>,
    /// Largest READ in bytes, if smaller than the negotiated one.
    pub max_read: Option<u32>,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            fsname: OsString::from("fuse"),
            subtype: OsString::new(),
            visibility: Visibility::default(),
            default_permissions: false,
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            atime: AccessTime::default(),
            sync: false,
            dirsync: false,
            auto_unmount: false,
            contexts: Vec::new(),
            max_read: None,
        }
    }
}

impl MountOptions {
    /// Flags of mount(2).
    pub(super) fn flags(&self) -> MountFlags {
        [
            (self.read_only, MountFlags::RDONLY),
            (!self.suid, MountFlags::NOSUID),
            (!self.dev, MountFlags::NODEV),
            (!self.exec, MountFlags::NOEXEC),
            (self.atime == AccessTime::Off, MountFlags::NOATIME),
            (self.sync, MountFlags::SYNCHRONOUS),
            (self.dirsync, MountFlags::DIRSYNC),
        ]
        .into_iter()
        .filter(|(set, _)| *set)
        .fold(MountFlags::empty(), |flags, (_, flag)| flags | flag)
    }

    /// File system type of mount(2).
    pub(super) fn fs_type(&self) -> OsString {
        let mut fs_type = OsString::from("fuse");
        if !self.subtype.is_empty() {
            fs_type.push(".");
            fs_type.push(&self.subtype);
        }
        fs_type
    }

    /// Options for the kernel's FUSE, common to mount(2) and fusermount3.
    fn common(&self, out: &mut List) {
        if self.visibility != Visibility::Owner {
            out.push("allow_other");
        }
        if self.default_permissions {
            out.push("default_permissions");
        }
        if let Some(max_read) = self.max_read {
            out.push(format!("max_read={max_read}"));
        }
        for context in &self.contexts {
            out.push(quoted(context));
        }
    }

    /// Data of mount(2). `root_mode` is the mode of the mount point.
    pub(super) fn data(&self, fd: i32, root_mode: u32, uid: u32, gid: u32) -> OsString {
        let mut data = List::default();
        data.push(format!("fd={fd},rootmode={root_mode:o},user_id={uid},group_id={gid}"));
        self.common(&mut data);
        data.0
    }

    /// The argument of `fusermount3 -o`.
    pub(super) fn for_fusermount(&self) -> OsString {
        let mut list = List::default();
        list.push(with_escapes("fsname=", &self.fsname));
        if !self.subtype.is_empty() {
            list.push(with_escapes("subtype=", &self.subtype));
        }
        list.push(if self.read_only { "ro" } else { "rw" });
        // Without these options fusermount3 adds nosuid and nodev.
        for (set, option) in [
            (self.suid, "suid"),
            (self.dev, "dev"),
            (!self.exec, "noexec"),
            (self.atime == AccessTime::On, "atime"),
            (self.atime == AccessTime::Off, "noatime"),
            (self.sync, "sync"),
            (self.dirsync, "dirsync"),
        ] {
            if set {
                list.push(option);
            }
        }
        self.common(&mut list);
        list.0
    }
}

/// Options joined by commas.
#[derive(Default)]
struct List(OsString);

impl List {
    fn push(&mut self, option: impl AsRef<OsStr>) {
        if !self.0.is_empty() {
            self.0.push(",");
        }
        self.0.push(option);
    }
}

/// An option with commas and backslashes escaped by backslashes, as in libfuse; fusermount3
/// unescapes `fsname` and `subtype`.
fn with_escapes(option: &str, value: &OsStr) -> OsString {
    let mut bytes = option.as_bytes().to_vec();
    for &byte in value.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            bytes.push(b'\\');
        }
        bytes.push(byte);
    }
    OsString::from_vec(bytes)
}

/// A security context, quoted if it contains commas, as the kernel's SELinux expects.
fn quoted(option: &OsStr) -> OsString {
    let bytes = option.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) if bytes.contains(&b',') && bytes.get(at + 1) != Some(&b'"') => {
            OsString::from_vec([&bytes[..=at], b"\"", &bytes[at + 1..], b"\""].concat())
        }
        _ => option.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_safe() {
        let options = MountOptions::default();
        assert_eq!(options.flags(), MountFlags::NOSUID | MountFlags::NODEV);
        assert_eq!(options.for_fusermount(), "fsname=fuse,rw");
        assert_eq!(options.data(7, 0o40000, 1, 2), "fd=7,rootmode=40000,user_id=1,group_id=2");
        assert_eq!(options.fs_type(), "fuse");
    }

    #[test]
    fn all_options_are_passed() {
        let options = MountOptions {
            fsname: "host:/a,b\\c".into(),
            subtype: "x,y".into(),
            visibility: Visibility::OwnerAndRoot,
            default_permissions: true,
            read_only: true,
            suid: true,
            dev: true,
            exec: false,
            atime: AccessTime::Off,
            sync: true,
            dirsync: true,
            auto_unmount: true,
            contexts: vec!["context=u:r:t:s0:c1,c2".into()],
            max_read: Some(4096),
        };
        assert_eq!(
            options.for_fusermount(),
            "fsname=host:/a\\,b\\\\c,subtype=x\\,y,ro,suid,dev,noexec,noatime,sync,dirsync,\
             allow_other,default_permissions,max_read=4096,\
             context=\"u:r:t:s0:c1,c2\""
        );
        assert_eq!(
            options.data(3, 0o40000, 0, 0),
            "fd=3,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,\
             max_read=4096,context=\"u:r:t:s0:c1,c2\""
        );
        let all = MountFlags::RDONLY
            | MountFlags::NOEXEC
            | MountFlags::NOATIME
            | MountFlags::SYNCHRONOUS
            | MountFlags::DIRSYNC;
        assert_eq!(options.flags(), all);
        assert_eq!(options.fs_type(), "fuse.x,y");
    }
}
