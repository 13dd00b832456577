//! Trusted files: libraries that symmc finds by its own variables, and files of its caches, are used only if nobody
//! except the user and root can change them. Otherwise another user of the machine could decide which code runs.
//!
//! A path is resolved once, and its real path is checked and then opened: the file, and all folders above it, belong to
//! this user or root, and others cannot write them. In a folder with the sticky bit, such as `/tmp`, others can create
//! entries but not replace them, which is enough for a folder further up.
//!
//! Deliberately absent: the system's loader and its environment (`LD_LIBRARY_PATH`), which decide about bare names and
//! about the libraries that a library needs. A program cannot check what they will do. Access control lists are absent
//! as well, since only owners can set them.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Group, User, geteuid};

/// Mode bits: write permission of group and others, and the sticky bit.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UntrustedPath {
    /// The file or folder, without links.
    pub path: PathBuf,
    pub why: DistrustReason,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DistrustReason {
    /// It belongs to a user other than this one and root.
    Owner(u32),
    /// Others can write it; contains its mode.
    Writable(u32),
    /// It cannot be resolved or examined.
    Unknown(String),
}

impl UntrustedPath {
    pub fn remedy(&self) -> String {
        let path = self.path.display();
        match &self.why {
            DistrustReason::Owner(_) => {
                format!("use a folder of your own or of root, or have root take {path} over (chown)")
            }
            DistrustReason::Writable(_) => format!("chmod go-w {path}"),
            DistrustReason::Unknown(_) => format!("make {path} readable"),
        }
    }
}

impl fmt::Display for UntrustedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.why {
            DistrustReason::Owner(uid) => write!(f, "{path} belongs to another user (uid {uid})"),
            DistrustReason::Writable(mode) => {
                write!(f, "others can write {path} (mode {:04o})", mode & 0o7777)
            }
            DistrustReason::Unknown(error) => write!(f, "{path}: {error}"),
        }
    }
}

/// The real path of a file that nobody except this user and root can change or replace. A library may load others from
/// its folder, so nobody else can add files there.
pub fn resolve_file(path: &Path) -> Result<PathBuf, UntrustedPath> {
    let real = resolve_links(path)?;
    check_ancestors(&real, 2)?;
    Ok(real)
}

/// The real path of a library as by [`resolve_file`]. A bare name is unchanged: the system's loader resolves it.
pub fn resolve_library(path: &Path) -> Result<PathBuf, UntrustedPath> {
    if path.is_absolute() { resolve_file(path) } else { Ok(path.to_path_buf()) }
}

/// Checks that nobody except this user and root can change the entries of a folder. If the folder does not exist yet,
/// checks that nobody else can replace it after this user has created it.
pub fn check_folder(path: &Path) -> Result<(), UntrustedPath> {
    let absolute = std::path::absolute(path).map_err(|e| unknown_path(path, e))?;
    let existing = absolute.ancestors().find(|folder| folder.symlink_metadata().is_ok());
    let existing = existing.unwrap_or(&absolute);
    check_ancestors(&resolve_links(existing)?, usize::from(existing == absolute))
}

fn resolve_links(path: &Path) -> Result<PathBuf, UntrustedPath> {
    fs::canonicalize(path).map_err(|e| unknown_path(path, e))
}

/// Checks an entry and all folders above it. The sticky bit does not help the first `exclusive` of them.
fn check_ancestors(real: &Path, exclusive: usize) -> Result<(), UntrustedPath> {
    for (height, entry) in real.ancestors().enumerate() {
        let metadata = fs::symlink_metadata(entry).map_err(|e| unknown_path(entry, e))?;
        let uid = metadata.uid();
        let mode = metadata.mode();
        let is_shared =
            mode & OTHERS_WRITE != 0 || mode & GROUP_WRITES != 0 && !is_private_group(metadata.gid());
        let entries_are_safe = height >= exclusive && mode & STICKY != 0;
        let why = if !is_trusted_owner(uid) {
            DistrustReason::Owner(uid)
        } else if is_shared && !entries_are_safe {
            DistrustReason::Writable(mode)
        } else {
            continue;
        };
        return Err(UntrustedPath { path: entry.to_path_buf(), why });
    }
    Ok(())
}

/// Whether this is root, this user, or the owner of the root folder, who is root except in containers that do not map
/// the host's root.
fn is_trusted_owner(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw() || fs::symlink_metadata("/").is_ok_and(|root| root.uid() == uid)
}

/// Whether a group is root's, or the one that many systems create for each user, with the user's name and no other
/// member.
fn is_private_group(gid: u32) -> bool {
    let own = User::from_uid(geteuid()).ok().flatten();
    let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
    gid == 0
        || own.zip(group).is_some_and(|(own, group)| {
            group.name == own.name && group.mem.iter().all(|member| *member == own.name)
        })
}

fn unknown_path(path: &Path, error: impl fmt::Display) -> UntrustedPath {
    UntrustedPath { path: path.to_path_buf(), why: DistrustReason::Unknown(error.to_string()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const STRANGER: u32 = 12345;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is there");
    }

    /// A file in two folders, which can be reached directly, by a link to its folder, by a link to the file, and by a
    /// relative link with `..`.
    struct Layout {
        _root: tempfile::TempDir,
        outer: PathBuf,
        inner: PathBuf,
        file: PathBuf,
        ways: Vec<PathBuf>,
    }

    fn layout() -> Layout {
        let root = tempfile::tempdir().expect("a folder");
        let base = fs::canonicalize(root.path()).expect("it is there");
        let outer = base.join("outer");
        let inner = outer.join("inner");
        let file = inner.join("lib.so");
        fs::create_dir_all(&inner).expect("new folders");
        fs::write(&file, "").expect("a new file");
        let links = [base.join("folder"), base.join("file.so"), base.join("relative.so")];
        for (link, target) in links.iter().zip([&*inner, &*file, Path::new("outer/inner/../inner/lib.so")]) {
            symlink(target, link).expect("a new link");
        }
        let ways = vec![file.clone(), links[0].join("lib.so"), links[1].clone(), links[2].clone()];
        for (path, mode) in [(&outer, 0o755), (&inner, 0o755), (&file, 0o644)] {
            set_mode(path, mode);
        }
        Layout { _root: root, outer, inner, file, ways }
    }

    impl Layout {
        /// Expects the same result by every way to the file.
        fn expect_all(&self, expected: &Result<(), UntrustedPath>) {
            for way in &self.ways {
                let actual = resolve_file(way).map(|real| assert_eq!(real, self.file));
                assert_eq!(actual, *expected, "{}", way.display());
            }
        }
    }

    /// Every entry of the way with every mode.
    #[test]
    fn entries_that_others_can_write_are_untrusted() {
        let layout = layout();
        layout.expect_all(&Ok(()));
        for (entry, usual, sticky_helps) in
            [(&layout.outer, 0o755, true), (&layout.inner, 0o755, false), (&layout.file, 0o644, false)]
        {
            for bits in [0o002, 0o1002] {
                let mode = usual | bits;
                set_mode(entry, mode);
                let kind = fs::metadata(entry).expect("it is there").mode() & !0o7777;
                let why = DistrustReason::Writable(kind | mode);
                let untrusted = UntrustedPath { path: entry.clone(), why };
                assert_eq!(untrusted.remedy(), format!("chmod go-w {}", entry.display()));
                let is_safe = sticky_helps && bits & STICKY != 0;
                layout.expect_all(&if is_safe { Ok(()) } else { Err(untrusted) });
            }
            set_mode(entry, usual);
        }
    }

    /// Every entry of the way belongs to another user. Links may: their targets are checked and opened.
    #[test]
    fn entries_of_other_users_are_untrusted() {
        if !geteuid().is_root() {
            symmc_cases::skip_test("only root can give files to other users");
            return;
        }
        let layout = layout();
        for entry in [&layout.outer, &layout.inner, &layout.file] {
            chown(entry, Some(STRANGER), None).expect("this is root");
            let why = DistrustReason::Owner(STRANGER);
            layout.expect_all(&Err(UntrustedPath { path: entry.clone(), why }));
            chown(entry, Some(0), None).expect("this is root");
        }
        for way in &layout.ways[2..] {
            std::os::unix::fs::lchown(way, Some(STRANGER), None).expect("this is root");
        }
        layout.expect_all(&Ok(()));
    }

    #[test]
    fn only_private_groups_may_write() {
        let layout = layout();
        if geteuid().is_root() {
            chown(&layout.inner, None, Some(STRANGER)).expect("this is root");
            set_mode(&layout.inner, 0o775);
            let why = DistrustReason::Writable(0o40775);
            layout.expect_all(&Err(UntrustedPath { path: layout.inner.clone(), why }));
            chown(&layout.inner, None, Some(0)).expect("this is root");
            layout.expect_all(&Ok(()));
        }
        assert!(is_private_group(0) && !is_private_group(u32::MAX - 7));
    }

    #[test]
    fn folders_are_checked_before_they_exist() {
        let layout = layout();
        let new = layout.inner.join("a/b");
        assert_eq!([&layout.inner, &new].map(|folder| check_folder(folder)), [Ok(()), Ok(())]);
        for (mode, existing, missing) in [(0o777, false, false), (0o1777, false, true)] {
            set_mode(&layout.inner, mode);
            assert_eq!(
                [&layout.inner, &new].map(|f| check_folder(f).is_ok()),
                [existing, missing],
                "{mode:o}"
            );
        }
        let dangling = layout.outer.join("dangling");
        symlink("nowhere", &dangling).expect("a new link");
        for missing in [&dangling, &layout.outer.join("missing")] {
            let error = resolve_file(missing).expect_err("it is missing").to_string();
            assert!(error.contains("No such file"), "{error}");
        }
        assert!(check_folder(&dangling).is_err());
    }
}
