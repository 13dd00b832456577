//! Files that symmc writes: each appears completely or not at all.
//!
//! The bytes go to a new file with a random name in the folder of the destination (`create_new`, so no link
//! and no file of another user is ever opened), which is then renamed. A symbolic link at the destination is
//! replaced, as compilers and linkers do, and its target is unchanged. The bytes are on the disk before the
//! rename, so even after a crash of the machine the file is either complete or the older one. A device, a
//! pipe or a descriptor (`/dev/stdout`) receives the bytes directly.
//! they come.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use tempfile::{Builder, NamedTempFile};

/// The mode of a new file, before the umask.
const NEW_FILE_MODE: u32 = 0o666;

/// The kind of entry at the path of an output file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// Nothing, a file, or a symbolic link: it is replaced by a new file.
    File,
    Folder,
    /// A device, a pipe, a socket, or a name of an open descriptor, such as `/dev/stdout`.
    Stream,
}

impl Destination {
    /// Finds the kind of entry at a path. Fails if the path cannot be searched, for example because one of its folders
    /// is a file.
    pub fn detect(path: &Path) -> io::Result<Destination> {
        let kind = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata.file_type(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Destination::File),
            Err(error) => return Err(error),
        };
        Ok(match kind {
            kind if kind.is_dir() => Destination::Folder,
            kind if kind.is_symlink() && !is_system_link(path) => Destination::File,
            kind if kind.is_symlink() || is_stream(kind) => Destination::Stream,
            _ => Destination::File,
        })
    }
}

fn is_stream(kind: fs::FileType) -> bool {
    kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket()
}

/// Writes a file, or sends the bytes to the stream at `path`. Fails if it cannot be written. An existing file
/// is then unchanged.
pub fn write_output(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match Destination::detect(path)? {
        Destination::Stream => open_stream(path)?.write_all(bytes),
        Destination::File | Destination::Folder => {
            let mut pending = PendingFile::create(path)?;
            pending.file().write_all(bytes)?;
            pending.commit()
        }
    }
}

/// Checks that a file can be written at `path`, without changing an existing file. Fails if `path` is a folder, or no
/// file can be created in its folder.
pub fn check_writable(path: &Path) -> io::Result<()> {
    reject_folder(path)?;
    tempfile::tempfile_in(parent_folder(path)).map(drop)
}

/// A file under a random name next to its destination. It is removed if it is dropped before
/// [`commit`](Self::commit).
#[derive(Debug)]
pub struct PendingFile {
    file: NamedTempFile,
    destination: PathBuf,
}

impl PendingFile {
    /// Creates the file that will replace `destination`. It gets the permissions of the replaced file if that
    /// belongs to this user, and otherwise those of the umask. Fails if `destination` is a folder, or no file
    /// can be created in its folder.
    pub fn create(destination: &Path) -> io::Result<PendingFile> {
        reject_folder(destination)?;
        let mut builder = Builder::new();
        builder.prefix(".symmc-").suffix(".part").rand_bytes(12);
        builder.permissions(Permissions::from_mode(NEW_FILE_MODE));
        let file = builder.tempfile_in(parent_folder(destination))?;
        if let Some(mode) = replaced_mode(destination) {
            file.as_file().set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(PendingFile { file, destination: destination.to_path_buf() })
    }

    /// The file to write to.
    pub fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Flushes the bytes to the disk, then renames the file to its destination, replacing an existing file.
    pub fn commit(self) -> io::Result<()> {
        sync_to_disk(self.file.as_file())?;
        self.file.persist(&self.destination).map(drop).map_err(|error| error.error)?;
        // A crash of the machine may undo the rename itself, which restores the older file.
        let _ = File::open(parent_folder(&self.destination)).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// Flushes the contents of a file to the disk, if the file system supports it.
fn sync_to_disk(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

/// The permissions of the regular file at `path`, if it belongs to this user: a file of another user must not
/// decide who may write the new one.
fn replaced_mode(path: &Path) -> Option<u32> {
    let metadata = fs::symlink_metadata(path).ok()?;
    let belongs_to_user = metadata.is_file() && metadata.uid() == geteuid().as_raw();
    belongs_to_user.then(|| metadata.permissions().mode() & 0o777)
}

fn reject_folder(path: &Path) -> io::Result<()> {
    let is_folder = matches!(Destination::detect(path)?, Destination::Folder) || path.file_name().is_none();
    if is_folder { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(()) }
}

fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens the stream at `path`. Only links of the system are followed.
fn open_stream(path: &Path) -> io::Result<File> {
    if !is_system_link(path) {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        return match file.metadata()?.file_type() {
            kind if is_stream(kind) => Ok(file),
            _ => Err(io::Error::other("it was replaced by a file while being opened")),
        };
    }
    match descriptor_number(path) {
        Some(1) => duplicate_descriptor(io::stdout().as_fd()),
        Some(2) => duplicate_descriptor(io::stderr().as_fd()),
        // A file that is opened again has a separate position.
        _ => OpenOptions::new().append(true).open(path),
    }
}

fn duplicate_descriptor(fd: BorrowedFd<'_>) -> io::Result<File> {
    fd.try_clone_to_owned().map(File::from)
}

/// Whether a path is a name that the system gives to a device or to a descriptor of this process: a link
/// directly in `/dev` or in the folder of its descriptors.
fn is_system_link(path: &Path) -> bool {
    let Ok(folder) = fs::canonicalize(parent_folder(path)) else { return false };
    let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_symlink());
    is_link && (folder == Path::new("/dev") || is_descriptor_folder(&folder))
}

fn is_descriptor_folder(folder: &Path) -> bool {
    fs::canonicalize("/proc/self/fd").is_ok_and(|own| own == folder)
}

/// The number of the descriptor that a link of the system names.
fn descriptor_number(path: &Path) -> Option<u32> {
    let target = fs::read_link(path).ok()?;
    let named = match target.strip_prefix("/proc/self/fd") {
        Ok(name) => name.to_path_buf(),
        Err(_) => PathBuf::from(path.file_name()?),
    };
    named.to_str()?.parse().ok()
}

/// The file that a path leads to, through links and under any of its names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The regular file that `path` leads to, if there is one.
    pub fn from_path(path: &Path) -> Option<FileId> {
        fs::metadata(path).ok().filter(Metadata::is_file).map(|metadata| FileId::from_metadata(&metadata))
    }

    fn from_metadata(found: &Metadata) -> FileId {
        FileId { device: found.dev(), inode: found.ino() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// Every kind of entry that may exist at the destination.
    #[test]
    fn a_link_is_replaced_and_its_target_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        fs::write(path_of("target"), "keep").unwrap();
        symlink(path_of("target"), path_of("to file")).unwrap();
        symlink("target", path_of("relative")).unwrap();
        symlink(path_of("missing"), path_of("dangling")).unwrap();
        symlink("/dev/null", path_of("to device")).unwrap();
        symlink(path_of("loop"), path_of("loop")).unwrap();
        symlink(folder.path(), path_of("to folder")).unwrap();
        fs::hard_link(path_of("target"), path_of("hard link")).unwrap();
        let links = ["to file", "relative", "dangling", "to device", "loop", "to folder", "hard link", "new"];
        for name in links {
            check_writable(&path_of(name)).unwrap();
            write_output(&path_of(name), b"plan").unwrap();
            assert!(fs::symlink_metadata(path_of(name)).unwrap().is_file(), "{name}");
            assert_eq!(fs::read(path_of(name)).unwrap(), b"plan", "{name}");
            assert_eq!(fs::read(path_of("target")).unwrap(), b"keep", "{name}");
        }
        assert!(!path_of("missing").exists());
        let mut expected: Vec<&str> = links.into_iter().chain(["target"]).collect();
        expected.sort_unstable();
        assert_eq!(names(folder.path()), expected, "nothing else is left");
    }

    #[test]
    fn links_at_every_name_that_is_tried_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        fs::write(&secret, "keep").unwrap();
        let out = folder.path().join("plan.json");
        // The temporary names that were used before: of this process, and of those that follow.
        for id in std::process::id()..std::process::id() + 50 {
            symlink(&secret, folder.path().join(format!(".plan.json.{id}.part"))).unwrap();
        }
        check_writable(&out).unwrap();
        write_output(&out, b"plan").unwrap();
        assert_eq!((fs::read(&secret).unwrap(), fs::read(&out).unwrap()), (b"keep".into(), b"plan".into()));
    }

    #[test]
    fn the_own_file_that_is_replaced_gives_the_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        write_output(&path, b"1").unwrap();
        let umask = nix::sys::stat::umask(nix::sys::stat::Mode::empty());
        nix::sys::stat::umask(umask);
        assert_eq!(mode(&path), NEW_FILE_MODE & !umask.bits());
        for kept in [0o600, 0o640, 0o444] {
            fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
            write_output(&path, b"2").unwrap();
            assert_eq!(mode(&path), kept);
        }
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
            write_output(&path, b"3").unwrap();
            assert_eq!(mode(&path), NEW_FILE_MODE & !umask.bits(), "another user's file decides nothing");
        }
    }

    #[test]
    fn nothing_is_left_of_a_file_that_is_not_committed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        fs::write(&path, "old").unwrap();
        let mut pending = PendingFile::create(&path).unwrap();
        pending.file().write_all(b"half").unwrap();
        drop(pending);
        assert_eq!(
            (names(folder.path()), fs::read(&path).unwrap()),
            (vec!["plan.json".into()], b"old".into())
        );
    }

    #[test]
    fn streams_take_the_bytes_and_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        write_output(Path::new("/dev/null"), b"plan").unwrap();
        assert_eq!(
            write_output(Path::new("/dev/full"), b"plan").unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
        let _listener = UnixListener::bind(path_of("socket")).unwrap();
        write_output(&path_of("socket"), b"plan").unwrap_err();
        assert_eq!(Destination::detect(&path_of("socket")).unwrap(), Destination::Stream);
        nix::unistd::mkfifo(&path_of("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = std::thread::spawn({
            let pipe = path_of("pipe");
            move || fs::read(pipe).unwrap()
        });
        write_output(&path_of("pipe"), b"plan").unwrap();
        assert_eq!(reader.join().unwrap(), b"plan");
        assert_eq!(Destination::detect(&path_of("pipe")).unwrap(), Destination::Stream, "it stays");
        for refused in [folder.path(), Path::new("/"), Path::new("..")] {
            let kinds = [write_output(refused, b""), check_writable(refused)].map(|e| e.unwrap_err().kind());
            assert_eq!(kinds, [io::ErrorKind::IsADirectory; 2], "{}", refused.display());
        }
        for missing in [path_of("none/plan.json"), path_of("pipe/plan.json")] {
            write_output(&missing, b"plan").unwrap_err();
            check_writable(&missing).unwrap_err();
        }
    }

    #[test]
    fn descriptors_are_streams_by_all_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("log")).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        for name in [format!("/dev/fd/{number}"), format!("/proc/self/fd/{number}")] {
            assert_eq!(Destination::detect(Path::new(&name)).unwrap(), Destination::Stream, "{name}");
            write_output(Path::new(&name), b"plan").unwrap();
        }
        assert_eq!(fs::read(folder.path().join("log")).unwrap(), b"planplan");
        for (name, number) in [("/dev/stdout", 1), ("/dev/stderr", 2), ("/proc/self/fd/1", 1)] {
            assert_eq!(Destination::detect(Path::new(name)).unwrap(), Destination::Stream, "{name}");
            assert_eq!(descriptor_number(Path::new(name)), Some(number), "{name}");
        }
    }

    #[test]
    fn a_file_is_the_same_by_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        fs::write(path_of("a"), "x").unwrap();
        fs::write(path_of("b"), "x").unwrap();
        fs::hard_link(path_of("a"), path_of("hard")).unwrap();
        symlink("a", path_of("soft")).unwrap();
        symlink(folder.path(), path_of("folder")).unwrap();
        let a = FileId::from_path(&path_of("a"));
        assert!(a.is_some());
        for same in ["hard", "soft", "folder/a", "folder/soft", "./a"] {
            assert_eq!(FileId::from_path(&path_of(same)), a, "{same}");
        }
        assert_ne!(FileId::from_path(&path_of("b")), a);
        assert_eq!(
            [
                FileId::from_path(&path_of("none")),
                FileId::from_path(folder.path()),
                FileId::from_path(Path::new("/dev/null"))
            ],
            [None; 3]
        );
    }
}
