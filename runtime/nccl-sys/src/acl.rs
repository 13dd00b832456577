//! POSIX access control lists: which users and groups a list gives write permission, beyond the mode.
//!
//! Linux stores a list as an extended attribute: a version, then entries of a tag, permissions and an id. The
//! mask limits the entries of groups and of named users. In the mode of a file with a list, the bits of the
//! group are the mask. A folder can have a second list, which is given to the entries that are created in it
//! (the umask does not apply then).
//! Deliberately absent: other kinds of lists (NFSv4).

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AclKind {
    /// The access to the folder or file itself.
    Access,
    /// The list that entries created in the folder get.
    Default,
}

impl AclKind {
    fn attribute_name(self) -> &'static CStr {
        match self {
            AclKind::Access => c"system.posix_acl_access",
            AclKind::Default => c"system.posix_acl_default",
        }
    }
}

/// A party that a list gives write permission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AclWriter {
    /// A user, by uid.
    User(u32),
    /// The group that the file belongs to.
    OwningGroup,
    /// Another group, by gid.
    Group(u32),
    Others,
}

const VERSION: u32 = 2;
const WRITE: u16 = 2;
/// The size of an entry, and of the version before the entries.
const ENTRY: usize = 8;
const HEAD: usize = 4;
/// Tags of entries.
const TAG_USER: u16 = 0x02;
const TAG_OWNING_GROUP: u16 = 0x04;
const TAG_GROUP: u16 = 0x08;
const TAG_MASK: u16 = 0x10;
const TAG_OTHERS: u16 = 0x20;

/// The parties other than the owner that a list of a path lets write; `None` without a list.
pub(crate) fn acl_writers(path: &Path, kind: AclKind) -> io::Result<Option<Vec<AclWriter>>> {
    read_attribute(path, kind.attribute_name())?.map(|list| parse_writers(&list)).transpose()
}

/// The parties other than the owner that a list lets write.
fn parse_writers(list: &[u8]) -> io::Result<Vec<AclWriter>> {
    let (head, entries) = list.split_at_checked(HEAD).ok_or_else(unknown_format)?;
    if head != VERSION.to_le_bytes() || !entries.len().is_multiple_of(ENTRY) {
        return Err(unknown_format());
    }
    let entries: Vec<(u16, u16, u32)> = entries
        .chunks_exact(ENTRY)
        .map(|e| {
            let [a, b, c, d, id @ ..] = e else { return (0, 0, 0) };
            let id = id.iter().rev().fold(0, |id, byte| id << 8 | u32::from(*byte));
            (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]), id)
        })
        .collect();
    let mask = entries.iter().find(|(tag, ..)| *tag == TAG_MASK).map_or(WRITE, |(_, bits, _)| *bits);
    let writers = entries.iter().filter_map(|&(tag, bits, id)| {
        let writes = bits & WRITE != 0;
        let is_limited = bits & mask & WRITE != 0;
        match tag {
            TAG_USER if is_limited => Some(AclWriter::User(id)),
            TAG_OWNING_GROUP if is_limited => Some(AclWriter::OwningGroup),
            TAG_GROUP if is_limited => Some(AclWriter::Group(id)),
            TAG_OTHERS if writes => Some(AclWriter::Others),
            _ => None,
        }
    });
    Ok(writers.collect())
}

fn unknown_format() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an access control list in an unknown format")
}

/// The value of an extended attribute; `None` if it does not exist, or the file system does not support such
/// attributes.
fn read_attribute(path: &Path, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // The kernel's limit for the size of a value.
    let mut value = vec![0u8; 64 << 10];
    // SAFETY: both texts end with a zero, and the buffer has the given length.
    let size =
        unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    match usize::try_from(size) {
        Ok(size) => {
            value.truncate(size);
            Ok(Some(value))
        }
        Err(_) => match io::Error::last_os_error() {
            error
                if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP | libc::ENOSYS)) =>
            {
                Ok(None)
            }
            error => Err(error),
        },
    }
}

/// Lists in the kernel's format, for tests.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Permissions of the owner, of the owning group, of others, and the mask.
    pub const OWN: (u16, u16, u32) = (0x01, 7, u32::MAX);
    pub const fn owning_group(bits: u16) -> (u16, u16, u32) {
        (TAG_OWNING_GROUP, bits, u32::MAX)
    }
    pub const fn others(bits: u16) -> (u16, u16, u32) {
        (TAG_OTHERS, bits, u32::MAX)
    }
    pub const fn mask(bits: u16) -> (u16, u16, u32) {
        (TAG_MASK, bits, u32::MAX)
    }
    pub const fn user(bits: u16, uid: u32) -> (u16, u16, u32) {
        (TAG_USER, bits, uid)
    }
    pub const fn group(bits: u16, gid: u32) -> (u16, u16, u32) {
        (TAG_GROUP, bits, gid)
    }

    /// A list of entries, which are in the order of their tags.
    pub fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entry = |(tag, bits, id): &(u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        [VERSION.to_le_bytes().to_vec()].into_iter().chain(entries.iter().map(entry)).flatten().collect()
    }

    /// Sets the list of a path; returns whether the file system supports lists.
    pub fn set(path: &Path, kind: AclKind, list: &[u8]) -> bool {
        let path = CString::new(path.as_os_str().as_bytes()).expect("no zero");
        let name = kind.attribute_name();
        // SAFETY: both texts end with a zero, and the list has the given length.
        let set =
            unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), list.as_ptr().cast(), list.len(), 0) };
        let error = io::Error::last_os_error();
        assert!(set == 0 || error.raw_os_error() == Some(libc::EOPNOTSUPP), "{error}");
        set == 0
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{OWN, group, list, mask, others, owning_group, user};
    use super::*;

    /// Every permission of every entry, under every mask and without one.
    #[test]
    fn writers_are_those_whose_permission_the_mask_leaves() {
        for bits in 0..8 {
            for limit in (0..8).map(Some).chain([None]) {
                let mut entries = vec![OWN, user(bits, 7), owning_group(bits), group(bits, 9)];
                entries.extend(limit.map(mask));
                entries.push(others(bits));
                let mut expected = Vec::new();
                if bits & 2 != 0 {
                    if limit.is_none_or(|limit| limit & 2 != 0) {
                        expected.extend([AclWriter::User(7), AclWriter::OwningGroup, AclWriter::Group(9)]);
                    }
                    expected.push(AclWriter::Others);
                }
                assert_eq!(
                    parse_writers(&list(&entries)).expect("it is a list"),
                    expected,
                    "{bits} {limit:?}"
                );
            }
        }
        let whole = list(&[OWN, user(7, 7)]);
        for length in (0..whole.len()).filter(|length| !matches!(length, 4 | 12)) {
            parse_writers(&whole[..length]).expect_err("it is cut");
        }
        parse_writers(&[&3u32.to_le_bytes()[..], &whole[4..]].concat()).expect_err("another version");
    }
}
