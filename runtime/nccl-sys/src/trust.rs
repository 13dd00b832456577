//! Trusted paths. Libraries and cached kernels are loaded only from places that nobody except the user and
//! root can write; otherwise another user of the machine could decide which code runs.
//!
//! All folders and symbolic links of a path are checked, because a user that can write a folder can replace its entries. In a
//! folder with the sticky bit, such as `/tmp`, only their owners can replace entries. Write permission of a group is ignored
//! if the group has no other members. Permissions are those of the mode and of access control lists.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::unistd::{Gid, Group, Uid, User, geteuid};

use crate::acl::{self, AclKind, AclWriter};

/// The maximum number of symbolic links that are followed on the way to one path, as in the kernel.
const MAX_LINKS: usize = 40;
/// Mode bits: write permission of group and others, and the sticky bit.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UntrustedPath {
    /// The folder, file or link.
    pub path: PathBuf,
    pub why: DistrustReason,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DistrustReason {
    /// The entry belongs to a user other than this one and root.
    Owner(u32),
    /// Others can write it; contains its mode.
    Writable(u32),
    /// An access control list lets others write it; contains their names.
    Listed(String),
    /// An access control list lets others write entries that are created in the folder; contains their names.
    Inherited(String),
    /// The permissions cannot be read.
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
            DistrustReason::Listed(_) => format!("setfacl -b {path}"),
            DistrustReason::Inherited(_) => format!("setfacl -k {path}"),
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
            DistrustReason::Listed(who) => write!(f, "the access control list of {path} lets {who} write it"),
            DistrustReason::Inherited(who) => {
                write!(f, "the default access control list of {path} lets {who} write new entries of it")
            }
            DistrustReason::Unknown(error) => write!(f, "{path}: {error}"),
        }
    }
}

/// The properties of a folder, a file or a link that the rules need.
#[derive(Clone, PartialEq, Eq, Debug)]
struct EntryPermissions {
    uid: u32,
    mode: u32,
    is_link: bool,
    /// Whether its group has other members, and may write where there is an access control list.
    group_is_shared: bool,
    /// A user or group that its access control list lets write.
    listed: Option<String>,
    /// A user or group that its default list lets write entries created in it.
    inherited: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PathPosition {
    /// A folder or link before the last entry. The next entry is checked as well.
    Intermediate,
    /// The entry that is used.
    Last,
}

/// The rules, for one folder, file or link.
fn find_distrust(facts: &EntryPermissions, position: PathPosition, owners: &[u32]) -> Option<DistrustReason> {
    if !owners.contains(&facts.uid) {
        return Some(DistrustReason::Owner(facts.uid));
    }
    if facts.is_link {
        // The permissions of a link have no effect.
        return None;
    }
    let shared = facts.mode & OTHERS_WRITE != 0 || facts.mode & GROUP_WRITES != 0 && facts.group_is_shared;
    let entries_are_safe = position == PathPosition::Intermediate && facts.mode & STICKY != 0;
    if shared && !entries_are_safe {
        return Some(DistrustReason::Writable(facts.mode));
    }
    if let Some(who) = facts.listed.as_ref().filter(|_| !entries_are_safe) {
        return Some(DistrustReason::Listed(who.clone()));
    }
    let inherited = facts.inherited.as_ref().filter(|_| position == PathPosition::Last);
    inherited.map(|who| DistrustReason::Inherited(who.clone()))
}

/// Checks that nobody except this user and root can change the contents of a folder.
pub fn check_folder(path: &Path) -> Result<(), UntrustedPath> {
    let (seen, missing) = path_entries(path)?;
    if let Some(error) = missing {
        return Err(UntrustedPath {
            path: path.to_path_buf(),
            why: DistrustReason::Unknown(error.to_string()),
        });
    }
    check_entries(&seen, PathPosition::Last)
}

/// Checks that nobody except this user and root can change or replace a file.
pub fn check_file(path: &Path) -> Result<(), UntrustedPath> {
    check_folder(path)?;
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).map_or(Ok(()), check_folder)
}

/// Checks a folder as [`check_folder`]. If the folder does not exist yet, checks that nobody else can replace
/// it after this user has created it.
pub fn check_new_folder(path: &Path) -> Result<(), UntrustedPath> {
    let (seen, missing) = path_entries(path)?;
    check_entries(&seen, if missing.is_some() { PathPosition::Intermediate } else { PathPosition::Last })
}

/// Checks a library before it is loaded: a file, or a bare name that the system's loader resolves. The names
/// of the library's files begin with `prefix`.
pub fn check_library(path: &Path, prefix: &str) -> Result<(), UntrustedPath> {
    let is_bare_name = path.components().count() == 1 && !path.is_absolute();
    if is_bare_name { check_loader_path(prefix) } else { check_file(path) }
}

/// Checks the folders from which the system's loader would load a library because the user names them
/// (`LD_LIBRARY_PATH`); the loader's own folders belong to root. The names of the library's files begin with
/// `prefix`. Fails if one of these folders has such a file, and another user can change the folder.
pub fn check_loader_path(prefix: &str) -> Result<(), UntrustedPath> {
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    check_loader_folders(&variable, prefix)
}

fn check_loader_folders(variable: &OsString, prefix: &str) -> Result<(), UntrustedPath> {
    if variable.is_empty() {
        return Ok(());
    }
    for folder in std::env::split_paths(variable) {
        // An empty entry is the current folder.
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        let has_library = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)));
        if has_library {
            check_folder(&folder)?;
        }
    }
    Ok(())
}

/// An entry on the way to a path.
struct PathEntry {
    path: PathBuf,
    permissions: EntryPermissions,
}

fn check_entries(seen: &[PathEntry], last: PathPosition) -> Result<(), UntrustedPath> {
    let owners = trusted_owners();
    for (index, PathEntry { path, permissions: facts }) in seen.iter().enumerate() {
        let position = if index + 1 == seen.len() { last } else { PathPosition::Intermediate };
        if let Some(why) = find_distrust(facts, position, &owners) {
            return Err(UntrustedPath { path: path.clone(), why });
        }
    }
    Ok(())
}

/// Root, this user, and the owner of the root folder. The owner is root, except in containers that do not map
/// the host's root.
fn trusted_owners() -> Vec<u32> {
    let root = fs::symlink_metadata("/").ok().map(|found| found.uid());
    [0, geteuid().as_raw()].into_iter().chain(root).collect()
}

/// All folders and links on the way to a path, in the order in which they are used, and the error of the
/// first one that does not exist.
fn path_entries(path: &Path) -> Result<(Vec<PathEntry>, Option<io::Error>), UntrustedPath> {
    let absolute = std::path::absolute(path).map_err(|e| unknown_path(path, e))?;
    let mut rest: VecDeque<OsString> = path_components(&absolute);
    let mut at = PathBuf::from("/");
    let root = fs::symlink_metadata(&at).map_err(|e| unknown_path(&at, e))?;
    let mut seen = vec![PathEntry {
        path: at.clone(),
        permissions: entry_permissions(&at, &root).map_err(|e| unknown_path(&at, e))?,
    }];
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        let found = match fs::symlink_metadata(&next) {
            Ok(found) => found,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok((seen, Some(error)));
            }
            Err(error) => return Err(unknown_path(&next, error)),
        };
        let facts = entry_permissions(&next, &found).map_err(|e| unknown_path(&next, e))?;
        seen.push(PathEntry { path: next.clone(), permissions: facts });
        if !found.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(unknown_path(path, "too many symbolic links"));
        }
        let target = fs::read_link(&next).map_err(|e| unknown_path(&next, e))?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        let mut ahead = path_components(&target);
        ahead.append(&mut rest);
        rest = ahead;
    }
    Ok((seen, None))
}

fn unknown_path(path: &Path, error: impl fmt::Display) -> UntrustedPath {
    UntrustedPath { path: path.to_path_buf(), why: DistrustReason::Unknown(error.to_string()) }
}

fn path_components(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    named.collect()
}

fn entry_permissions(path: &Path, found: &Metadata) -> io::Result<EntryPermissions> {
    let is_link = found.is_symlink();
    let access = if is_link { None } else { acl::acl_writers(path, AclKind::Access)? };
    let default = if found.is_dir() { acl::acl_writers(path, AclKind::Default)? } else { None };
    // With a list, the bits of the group in the mode are the mask of the list.
    let group_writes = match &access {
        Some(writers) => writers.contains(&AclWriter::OwningGroup),
        None => found.mode() & GROUP_WRITES != 0,
    };
    Ok(EntryPermissions {
        uid: found.uid(),
        mode: found.mode(),
        is_link,
        // Only a group with write permission is looked up.
        group_is_shared: group_writes && has_other_members(found.gid()),
        // The mode already has the permissions of the owning group and of others.
        listed: access.and_then(|writers| {
            let named = writers.into_iter().filter(|w| matches!(w, AclWriter::User(_) | AclWriter::Group(_)));
            find_other_writer(named, found.gid())
        }),
        inherited: default.and_then(|writers| find_other_writer(writers.into_iter(), found.gid())),
    })
}

/// The first writer other than this user and root. `gid` is that of the owning group.
fn find_other_writer(mut writers: impl Iterator<Item = AclWriter>, gid: u32) -> Option<String> {
    let owners = trusted_owners();
    writers.find_map(|writer| match writer {
        AclWriter::User(uid) => (!owners.contains(&uid)).then(|| format!("uid {uid}")),
        AclWriter::OwningGroup => has_other_members(gid).then(|| format!("gid {gid}")),
        AclWriter::Group(gid) => has_other_members(gid).then(|| format!("gid {gid}")),
        AclWriter::Others => Some("all users".into()),
    })
}

/// Whether a group has members other than this user and root, according to the system's files.
fn has_other_members(gid: u32) -> bool {
    let (Ok(Some(group)), Ok(Some(own))) = (Group::from_gid(Gid::from_raw(gid)), User::from_uid(geteuid()))
    else {
        return true;
    };
    let Ok(users) = fs::read_to_string("/etc/passwd") else { return true };
    let named = group.mem.iter().any(|name| *name != own.name && name != "root");
    // This file does not list the users of a directory service, nor their primary group.
    let of_service = own.gid.as_raw() == gid && group.name != own.name && !users_are_local();
    named || has_primary_members(&users, gid, own.uid) || of_service
}

/// Whether a user other than this one and root has a group as primary group, according to the lines of
/// `/etc/passwd`.
fn has_primary_members(users: &str, gid: u32, own: Uid) -> bool {
    users.lines().any(|line| {
        let mut fields = line.split(':').skip(2).map(|field| field.parse::<u32>().ok());
        let uid = fields.next().flatten();
        let primary = fields.next().flatten();
        primary == Some(gid) && uid.is_some_and(|uid| uid != 0 && uid != own.as_raw())
    })
}

/// Whether all users are in `/etc/passwd`.
fn users_are_local() -> bool {
    let Ok(text) = fs::read_to_string("/etc/nsswitch.conf") else { return true };
    let line = text.lines().find_map(|line| line.trim().strip_prefix("passwd:"));
    line.is_none_or(|sources| {
        sources.split_whitespace().all(|source| matches!(source, "files" | "compat" | "systemd" | "altfiles"))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// Every owner and mode, at both positions.
    #[test]
    fn only_the_user_and_root_may_write() {
        let owners = [0, 1000];
        for mode in 0..0o10000 {
            for (uid, group_is_shared, is_link) in [
                (0, true, false),
                (1000, true, false),
                (1000, false, false),
                (1001, false, false),
                (1000, true, true),
                (1001, true, true),
            ] {
                let facts =
                    EntryPermissions { uid, mode, is_link, group_is_shared, listed: None, inherited: None };
                let shared = mode & 0o002 != 0 || mode & 0o020 != 0 && group_is_shared;
                let foreign = DistrustReason::Owner(uid);
                let expected = |sticky_helps: bool| match (owners.contains(&uid), is_link) {
                    (false, _) => Some(foreign.clone()),
                    (true, true) => None,
                    _ if shared && !(sticky_helps && mode & 0o1000 != 0) => {
                        Some(DistrustReason::Writable(mode))
                    }
                    _ => None,
                };
                assert_eq!(find_distrust(&facts, PathPosition::Last, &owners), expected(false), "{facts:?}");
                assert_eq!(
                    find_distrust(&facts, PathPosition::Intermediate, &owners),
                    expected(true),
                    "{facts:?}"
                );
            }
        }
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn every_folder_on_the_way_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let (outer, inner, file) =
            (root.join("outer"), root.join("outer/inner"), root.join("outer/inner/lib.so"));
        fs::create_dir_all(&inner).unwrap();
        fs::write(&file, "").unwrap();
        for (path, mode) in [(&outer, 0o755), (&inner, 0o755), (&file, 0o644)] {
            set_mode(path, mode);
        }
        symlink(&inner, root.join("link")).unwrap();
        symlink("outer/inner/../inner/lib.so", root.join("lib.so")).unwrap();
        let all = || {
            let folders =
                [check_folder(&inner), check_new_folder(&inner), check_new_folder(&inner.join("new"))];
            let files = [&file, &root.join("link/lib.so"), &root.join("lib.so")].map(|path| check_file(path));
            folders.into_iter().chain(files).collect::<Vec<_>>()
        };
        assert!(all().iter().all(Result::is_ok), "{:?}", all());
        set_mode(&outer, 0o777);
        let expected = UntrustedPath { path: outer.clone(), why: DistrustReason::Writable(0o40777) };
        assert_eq!(expected.remedy(), format!("chmod go-w {}", outer.display()));
        let expected = Err(expected);
        assert!(all().iter().all(|found| *found == expected), "{:?}", all());
        // The sticky bit protects existing entries and their contents, but not new entries.
        set_mode(&outer, 0o1777);
        assert!(all().iter().all(Result::is_ok), "{:?}", all());
        check_folder(&outer).unwrap_err();
        check_new_folder(&outer.join("new")).unwrap();
        set_mode(&outer, 0o755);
        set_mode(&file, 0o666);
        check_file(&file).unwrap_err();
        assert!(check_folder(&root.join("missing")).unwrap_err().to_string().contains("No such file"));
        symlink("loop", root.join("loop")).unwrap();
        assert!(check_folder(&root.join("loop")).unwrap_err().to_string().contains("too many"));
    }

    /// Lists of a folder and of its parent, with every kind of entry, as stored by the file system.
    #[test]
    fn an_access_control_list_that_lets_others_write_is_not_trusted() {
        use crate::acl::testing::{OWN, group, list, mask, others, owning_group, set, user};
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let (outer, inner) = (root.join("outer"), root.join("outer/inner"));
        fs::create_dir_all(&inner).unwrap();
        let own = geteuid().as_raw();
        let with = |entry, limit| vec![OWN, entry, owning_group(5), mask(limit), others(5)];
        let with_group = |entry, limit| vec![OWN, owning_group(5), entry, mask(limit), others(5)];
        // A gid that no file of the system lists counts as shared.
        let cases = [
            (with(user(7, 54321), 7), Some("uid 54321")),
            (with(user(2, 54321), 2), Some("uid 54321")),
            (with(user(7, 54321), 5), None),
            (with(user(5, 54321), 7), None),
            (with(user(7, own), 7), None),
            (with(user(7, 0), 7), None),
            (with_group(group(7, 54321), 7), Some("gid 54321")),
            (with_group(group(7, 54321), 4), None),
            (with_group(group(5, 54321), 7), None),
        ];
        for (entries, who) in &cases {
            let plain = list(&[OWN, owning_group(5), others(5)]);
            for kind in [AclKind::Access, AclKind::Default] {
                for folder in [&outer, &inner] {
                    if !set(folder, kind, &list(entries)) {
                        symmc_cases::skip_test(&format!("{} has no access control lists", root.display()));
                        return;
                    }
                    // A default list counts only in the folder where something is created.
                    let counts = kind == AclKind::Access || folder == &inner;
                    let expected = who.filter(|_| counts).map(|who| match kind {
                        AclKind::Access => (folder.clone(), DistrustReason::Listed(who.into())),
                        AclKind::Default => (folder.clone(), DistrustReason::Inherited(who.into())),
                    });
                    let found = check_folder(&inner).err().map(|untrusted| (untrusted.path, untrusted.why));
                    assert_eq!(found, expected, "{entries:?} {kind:?}");
                    assert!(set(folder, kind, &plain));
                }
            }
        }
        // Others are never trusted, however the list names them; the mode shows them as well.
        let all = list(&[OWN, owning_group(5), others(7)]);
        assert!(set(&inner, AclKind::Default, &all));
        assert_eq!(check_folder(&inner).unwrap_err().why, DistrustReason::Inherited("all users".into()));
        assert!(set(&inner, AclKind::Access, &all));
        assert!(matches!(check_folder(&inner).unwrap_err().why, DistrustReason::Writable(_)));
    }

    #[test]
    fn what_another_user_owns_is_not_trusted() {
        if !geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let (folder, link) = (root.join("folder"), root.join("link"));
        fs::create_dir_all(folder.join("inner")).unwrap();
        symlink(&folder, &link).unwrap();
        check_folder(&link.join("inner")).unwrap();
        let owned =
            |path: &Path| Err(UntrustedPath { path: path.to_path_buf(), why: DistrustReason::Owner(12345) });
        std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
        assert_eq!(check_folder(&link.join("inner")), owned(&link));
        check_folder(&folder.join("inner")).unwrap();
        chown(&folder, Some(12345), None).unwrap();
        assert_eq!(check_folder(&folder.join("inner")), owned(&folder));
    }

    #[test]
    fn a_group_is_shared_where_it_has_another_member() {
        let users = "root:x:0:0::/:/bin/sh\nann:x:1000:1000::/:\nbob:x:1001:100::/:\nbroken\n";
        let shared = |gid, own| has_primary_members(users, gid, Uid::from_raw(own));
        assert!(!shared(1000, 1000) && shared(1000, 1001), "the group of ann alone");
        assert!(!shared(0, 1000) && !shared(50, 1000) && shared(100, 1000));
        assert!(has_other_members(u32::MAX - 7), "a group that nobody knows");
    }

    #[test]
    fn folders_of_the_loader_count_where_they_have_the_library() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        set_mode(&root, 0o755);
        for (name, mode) in [("good", 0o755), ("open", 0o777)] {
            fs::create_dir(root.join(name)).unwrap();
            fs::write(root.join(name).join("libx.so.2"), "").unwrap();
            set_mode(&root.join(name), mode);
        }
        let check = |names: &[&str], prefix| {
            let folders = names.iter().map(|name| root.join(name));
            check_loader_folders(&std::env::join_paths(folders).unwrap(), prefix)
        };
        check(&[], "libx.so").unwrap();
        check(&["good", "missing"], "libx.so").unwrap();
        check(&["good", "open"], "liby.so").unwrap();
        assert_eq!(check(&["good", "open"], "libx.so").unwrap_err().path, root.join("open"));
    }
}
