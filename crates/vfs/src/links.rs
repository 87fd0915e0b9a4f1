//! Which targets of symbolic links the kernel may see.
//!
//! The kernel resolves a target on this machine. A target from a hostile server may therefore point
//! to any local file, for reading or for writing (CVE-2026-47187 of sshfs).
//!
//! [`Links::Inside`] proves by its text alone that a target stays inside the mount: leading `..`
//! climb through real directories, as many as the link is deep; every name after them is looked up
//! below the mount, and if it is a link itself it has passed this check too. A `..` after a name
//! proves nothing, since that name may be a link to a directory elsewhere, so it is refused.

use base::{Errno, RemotePath, Result};

use crate::config::{Config, Links};

/// Longest target that the kernel accepts, in bytes (`PATH_MAX` without its NUL).
const MAX_TARGET: usize = 4095;

/// The result of `readlink` for a link in the directory `dir` with the target `target`.
pub(crate) fn present(config: &Config, dir: &RemotePath, target: Vec<u8>) -> Result<Vec<u8>> {
    if target.is_empty() || target.len() > MAX_TARGET || target.contains(&0) {
        return Err(Errno::EIO);
    }
    let is_inside = config.links == Links::Inside;
    let remote_roots = config.remote_roots.iter().filter_map(|root| root.get());
    let remote_roots = remote_roots.filter(|_| is_inside || config.transform_links);
    let mount_points = config.mount_points.iter().filter(|_| is_inside);
    // A home directory may have the same path on both machines, and contain the mount point.
    let found = remote_roots.chain(mount_points).filter_map(|root| below(root, &target));
    let target = match found.min_by_key(|rest| rest.len()) {
        Some(rest) => relative(dir, rest),
        None => target,
    };
    let allowed = match config.links {
        Links::Any => true,
        Links::Strict => !target.starts_with(b"/") && parts(&target).all(|part| part != b".."),
        Links::Inside => stays_inside(&target, dir.names().count()),
    };
    if allowed { Ok(target) } else { Err(Errno::EPERM) }
}

fn parts(target: &[u8]) -> impl Iterator<Item = &[u8]> {
    target.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// The path of an absolute `target` below `root` (absolute, without links in it) as seen from the
/// directory `dir` below that root; `None` for any other target. [`Config::links`] still decides
/// whether it is shown.
pub fn relative_target(root: &[u8], dir: &RemotePath, target: &[u8]) -> Option<Vec<u8>> {
    Some(relative(dir, below(root, target)?))
}

/// The part of an absolute target below `root`, which has no slash at its end unless it is `/`.
fn below<'a>(root: &[u8], target: &'a [u8]) -> Option<&'a [u8]> {
    if !target.starts_with(b"/") {
        return None;
    }
    let rest = target.strip_prefix(if root == b"/" { &b""[..] } else { root })?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

/// The path `rest` below the root as seen from the directory `dir`.
fn relative(dir: &RemotePath, rest: &[u8]) -> Vec<u8> {
    let up = dir.names().map(|_| &b".."[..]);
    let path = up.chain(parts(rest)).collect::<Vec<_>>().join(&b'/');
    if path.is_empty() { b".".to_vec() } else { path }
}

/// Whether `target`, of a link `depth` directories below the root, cannot leave the root.
fn stays_inside(target: &[u8], depth: usize) -> bool {
    if target.starts_with(b"/") {
        return false;
    }
    let climbs = parts(target).take_while(|part| *part == b"..").count();
    climbs <= depth && parts(target).skip(climbs).all(|part| part != b"..")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};

    use super::*;
    use crate::config::RemoteRoot;

    fn shown(config: &Config, dir: &str, target: &str) -> Result<String> {
        let dir = RemotePath::parse(dir.as_bytes()).unwrap();
        present(config, &dir, target.as_bytes().to_vec()).map(|t| String::from_utf8(t).unwrap())
    }

    fn known(root: &[u8]) -> Vec<RemoteRoot> {
        vec![Arc::new(OnceLock::from(root.to_vec()))]
    }

    fn config(links: Links) -> Config {
        Config { links, remote_roots: known(b"/srv/data"), ..Config::default() }
    }

    #[test]
    fn by_default_links_inside_the_mount_work_and_others_do_not() {
        let inside = config(Links::Inside);
        for (dir, target, expected) in [
            ("", "sub/target", Ok("sub/target")),
            ("", "./sub/target", Ok("./sub/target")),
            ("a/b", "../c", Ok("../c")),
            ("a/b", "../../c", Ok("../../c")),
            ("a/b", "./.././/../c", Ok("./.././/../c")),
            ("a/b", "../../../etc/passwd", Err(Errno::EPERM)),
            ("", "..", Err(Errno::EPERM)),
            ("a", "..", Ok("..")),
            ("a", "x/../../..", Err(Errno::EPERM)),
            ("a", "x/..", Err(Errno::EPERM)),
            ("", "/etc/passwd", Err(Errno::EPERM)),
            ("", "/srv/database", Err(Errno::EPERM)),
            ("", "/srv/data", Ok(".")),
            ("", "/srv/data/x", Ok("x")),
            ("a/b", "/srv/data//x/./y", Ok("../../x/y")),
            ("a/b", "/srv/data", Ok("../..")),
            ("a", "/srv/data/../x", Err(Errno::EPERM)),
        ] {
            assert_eq!(shown(&inside, dir, target), expected.map(str::to_owned), "{dir}: {target}");
        }
    }

    #[test]
    fn a_link_to_a_path_below_the_mount_point_is_inside() {
        let mount_points = vec![b"/data/me/mnt".to_vec(), b"/home/me/mnt".to_vec()];
        let inside = Config { mount_points, ..config(Links::Inside) };
        for (dir, target, expected) in [
            ("", "/home/me/mnt/x", Ok("x")),
            ("a/b", "/home/me/mnt/c/d", Ok("../../c/d")),
            ("", "/home/me/mnt", Ok(".")),
            ("", "/data/me/mnt/x", Ok("x")),
            ("", "/home/me/mnt/../x", Err(Errno::EPERM)),
            ("", "/home/me/mnt2", Err(Errno::EPERM)),
            ("", "/home/me", Err(Errno::EPERM)),
            ("", "/srv/data/x", Ok("x")),
        ] {
            assert_eq!(shown(&inside, dir, target), expected.map(str::to_owned), "{dir}: {target}");
        }
        let same_home = Config { remote_roots: known(b"/home/me"), ..inside.clone() };
        assert_eq!(shown(&same_home, "", "/home/me/mnt/x").unwrap(), "x");
        assert_eq!(shown(&same_home, "", "/home/me/x").unwrap(), "x");
        for links in [Links::Strict, Links::Any] {
            let others = Config { links, transform_links: true, ..inside.clone() };
            let as_it_is = match links {
                Links::Any => Ok("/home/me/mnt/x".to_owned()),
                _ => Err(Errno::EPERM),
            };
            assert_eq!(shown(&others, "", "/home/me/mnt/x"), as_it_is);
        }
    }

    #[test]
    fn strict_is_what_sshfs_does() {
        let strict = config(Links::Strict);
        assert_eq!(shown(&strict, "", "sub/target").unwrap(), "sub/target");
        assert_eq!(shown(&strict, "", "..a/b..").unwrap(), "..a/b..");
        for target in ["../x", "a/..", "/srv/data/x", "/"] {
            assert_eq!(shown(&strict, "a", target), Err(Errno::EPERM), "{target}");
        }
        let transformed = Config { transform_links: true, ..strict };
        assert_eq!(shown(&transformed, "", "/srv/data/x").unwrap(), "x");
        assert_eq!(shown(&transformed, "a", "/srv/data/x"), Err(Errno::EPERM));
        assert_eq!(shown(&transformed, "", "/etc"), Err(Errno::EPERM));
    }

    #[test]
    fn any_leaves_targets_alone_unless_they_are_to_be_transformed() {
        let any = config(Links::Any);
        assert_eq!(shown(&any, "", "/srv/data/x").unwrap(), "/srv/data/x");
        assert_eq!(shown(&any, "", "../..").unwrap(), "../..");
        let transformed = Config { transform_links: true, ..any };
        assert_eq!(shown(&transformed, "a/b", "/srv/data/x").unwrap(), "../../x");
        assert_eq!(shown(&transformed, "a/b", "/etc").unwrap(), "/etc");
    }

    #[test]
    fn when_the_whole_remote_is_mounted_every_absolute_target_is_inside() {
        let root = Config { remote_roots: known(b"/"), ..Config::default() };
        assert_eq!(shown(&root, "a", "/etc/passwd").unwrap(), "../etc/passwd");
    }

    /// The servers may be connected later.
    #[test]
    fn an_absolute_target_is_inside_once_the_root_is_known() {
        let remote_roots = vec![RemoteRoot::default(), RemoteRoot::default()];
        let config = Config { remote_roots: remote_roots.clone(), ..Config::default() };
        assert_eq!(shown(&config, "a", "/srv/data/x"), Err(Errno::EPERM));
        remote_roots[1].set(b"/srv/data".to_vec()).unwrap();
        assert_eq!(shown(&config, "a", "/srv/data/x").unwrap(), "../x");
        remote_roots[0].set(b"/export/data".to_vec()).unwrap();
        assert_eq!(shown(&config, "a", "/export/data/x").unwrap(), "../x");
    }

    #[test]
    fn a_root_may_also_be_given_with_each_target() {
        let dir = RemotePath::parse(b"a/b").unwrap();
        let seen = |root: &str, target: &str| {
            let target = relative_target(root.as_bytes(), &dir, target.as_bytes());
            target.map(|target| String::from_utf8(target).unwrap())
        };
        assert_eq!(seen("/srv", "/srv/x").as_deref(), Some("../../x"));
        assert_eq!(seen("/", "/srv/x").as_deref(), Some("../../srv/x"));
        assert_eq!(seen("/srv", "/srv2/x"), None);
        assert_eq!(seen("/srv", "x"), None);
    }

    #[test]
    fn targets_that_no_link_can_have_are_an_error_of_the_server() {
        let any = config(Links::Any);
        for target in [String::new(), "a\0b".into(), "x".repeat(4096)] {
            assert_eq!(shown(&any, "", &target), Err(Errno::EIO));
        }
    }
}
