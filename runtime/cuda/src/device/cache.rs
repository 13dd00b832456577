//! Files with results that are computed once per machine: machine code, chosen algorithms.
//!
//! A file begins with the SHA-256 of its name and of the data. A file that is damaged, or cannot be read or
//! written, counts as absent: its content is computed again. Files are written under a random name and then
//! renamed, so that no process, also on other hosts with the same home directory, ever reads a partial file.
//! Drafts of processes that ended early are removed later. Files are accessible to the user only.
//!
//! A user who can write a file here decides which code runs on the GPU. Therefore a folder that another user
//! can write or replace is not used ([`nccl_sys::trust`]), and neither is a file that another user can write.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nccl_sys::trust::{self, UntrustedPath};
use sha2::{Digest, Sha256};
use symmc_control::random_secret;

/// The size of the hash at the start of a file.
const HASH: usize = 32;

/// An older draft was abandoned.
const DRAFT_MAX_AGE: Duration = Duration::from_secs(3600);

/// A folder of cache files, if the environment names one.
#[derive(Clone, Debug)]
pub(crate) struct FileCache {
    folder: Option<PathBuf>,
}

impl FileCache {
    /// `$XDG_CACHE_HOME/symmc`, else `~/.cache/symmc`.
    pub fn for_user() -> FileCache {
        let base = absolute_path_in("XDG_CACHE_HOME")
            .or_else(|| absolute_path_in("HOME").map(|home| home.join(".cache")));
        FileCache { folder: base.map(|base| base.join("symmc")) }
    }

    /// The folder, which need not exist yet.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The reason why the folder is not used: another user can change its contents.
    pub fn refusal(&self) -> Option<UntrustedPath> {
        trust::check_folder(self.folder.as_ref()?).err()
    }

    /// The data that was written under this name, if it is undamaged.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let path = trust::resolve_file(&self.folder.as_ref()?.join(name)).ok()?;
        let mut file = fs::read(path).ok()?;
        if file.len() < HASH {
            return None;
        }
        let data = file.split_off(HASH);
        (file == hash(name, &data)).then_some(data)
    }

    /// Stores `data` under this name. Write errors are ignored.
    pub fn write(&self, name: &str, data: &[u8]) {
        let _ = self.try_write(name, data);
    }

    fn try_write(&self, name: &str, data: &[u8]) -> std::io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        trust::check_folder(folder).map_err(untrusted_error)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Another user may have created it in the meantime.
        trust::check_folder(folder).map_err(untrusted_error)?;
        remove_drafts(folder, DRAFT_MAX_AGE);
        let random = u128::from_le_bytes(random_secret().map_err(std::io::Error::other)?);
        let draft = folder.join(format!("{random:032x}.draft"));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&draft)?;
        let written = file.write_all(&hash(name, data)).and_then(|()| file.write_all(data));
        let renamed = written.and_then(|()| fs::rename(&draft, folder.join(name)));
        if renamed.is_err() {
            let _ = fs::remove_file(&draft);
        }
        renamed
    }
}

fn remove_drafts(folder: &Path, age: Duration) {
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        if file.path().extension().is_none_or(|e| e != "draft") {
            continue;
        }
        let modified = file.metadata().and_then(|metadata| metadata.modified()).ok();
        if modified.and_then(|time| time.elapsed().ok()).is_some_and(|old| old >= age) {
            let _ = fs::remove_file(file.path());
        }
    }
}

fn absolute_path_in(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn untrusted_error(e: UntrustedPath) -> std::io::Error {
    std::io::Error::other(e.to_string())
}

/// The hash of a file with this name and data.
fn hash(name: &str, data: &[u8]) -> [u8; HASH] {
    let mut hash = Sha256::new();
    hash.update((name.len() as u64).to_le_bytes());
    hash.update(name);
    hash.update(data);
    hash.finalize().into()
}

pub(crate) fn entry_name(parts: &[&str], extension: &str) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digits = hash.finalize().iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("{digits}.{extension}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_damaged_file_is_none_and_is_replaced() {
        let folder = std::env::temp_dir().join(format!("symmc-cache-{}", std::process::id()));
        let stored = folder.join("symmc");
        let cache = FileCache { folder: Some(stored.clone()) };
        let name = entry_name(&["a", "b"], "cubin");
        let file = stored.join(&name);
        assert_eq!(cache.read(&name), None);
        cache.write(&name, b"code");
        assert_eq!(cache.read(&name).as_deref(), Some(&b"code"[..]));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

        let contents = fs::read(&file).unwrap();
        let mut flipped = contents.clone();
        *flipped.last_mut().unwrap() ^= 1;
        for damaged in [&flipped[..], &contents[..contents.len() - 1], &contents[..HASH - 1], b""] {
            fs::write(&file, damaged).unwrap();
            assert_eq!(cache.read(&name), None, "{damaged:?}");
        }
        cache.write(&name, b"code");
        assert_eq!(cache.read(&name).as_deref(), Some(&b"code"[..]));

        // A file under another file's name, and a folder instead of a file.
        fs::copy(&file, stored.join("other.cubin")).unwrap();
        assert_eq!(cache.read("other.cubin"), None);
        fs::create_dir(stored.join("folder.cubin")).unwrap();
        cache.write("folder.cubin", b"code");
        assert_eq!(cache.read("folder.cubin"), None);
        let drafts = fs::read_dir(&stored).unwrap().flatten();
        assert_eq!(drafts.filter(|f| f.path().extension().is_some_and(|e| e == "draft")).count(), 0);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_write_is_neither_read_nor_written() {
        let folder = std::env::temp_dir().join(format!("symmc-shared-{}", std::process::id()));
        let cache = FileCache { folder: Some(folder.join("symmc")) };
        assert_eq!(cache.refusal(), None, "it is not there yet");
        cache.write("a.cubin", b"code");
        assert!(cache.read("a.cubin").is_some());
        for (path, open, closed) in [
            (folder.join("symmc"), 0o777, 0o700),
            (folder.clone(), 0o777, 0o700),
            (folder.join("symmc/a.cubin"), 0o666, 0o600),
        ] {
            set_mode(&path, open);
            assert!(cache.read("a.cubin").is_none(), "{}", path.display());
            if path.is_dir() {
                assert_eq!(cache.refusal().map(|r| r.path), Some(path.clone()));
                cache.write("b.cubin", b"code");
                assert!(!folder.join("symmc/b.cubin").exists(), "{}", path.display());
            }
            set_mode(&path, closed);
            assert!(cache.read("a.cubin").is_some());
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn drafts_that_were_left_are_removed() {
        let folder = std::env::temp_dir().join(format!("symmc-drafts-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in ["a.draft", "b.cubin"] {
            fs::write(folder.join(name), b"x").unwrap();
        }
        remove_drafts(&folder, DRAFT_MAX_AGE);
        assert!(folder.join("a.draft").exists());
        remove_drafts(&folder, Duration::ZERO);
        assert!(!folder.join("a.draft").exists() && folder.join("b.cubin").exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn keys_with_the_same_letters_differ() {
        assert_ne!(entry_name(&["ab", "c"], "x"), entry_name(&["a", "bc"], "x"));
    }
}
