//! A mapped file as a buffer for the decoder.
//!
//! If another process truncates a mapped file, touching the lost pages raises SIGBUS. The format is therefore
//! read by position, in blocks. The data of large tensors is not read here: it becomes a range of the
//! mapping, and its readers also read by position.

use std::io;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use symmc_support::{Backing, MappedFile};

/// The number of bytes that are read at once.
const WINDOW: usize = 64 << 10;

/// The length from which on a run of bytes is not read.
const LARGE: usize = 4 << 10;

/// The bytes of a mapped file from a position on. After a read error they are zeros, which no decoder accepts
/// as a message.
pub(crate) struct FileBuf {
    file: Arc<MappedFile>,
    /// The mapping. Its pages are not touched.
    mapping: Bytes,
    at: usize,
    /// The bytes from `start` on. They include the byte at `at`, unless that is the end.
    window: Vec<u8>,
    start: usize,
    failed: Option<io::Error>,
}

impl FileBuf {
    /// A buffer of the whole file. `mapping` is its contents.
    pub fn new(file: Arc<MappedFile>, mapping: Bytes) -> FileBuf {
        let mut buf = FileBuf { file, mapping, at: 0, window: Vec::new(), start: 0, failed: None };
        buf.refill();
        buf
    }

    /// Whether every read succeeded, so that the decoded bytes are those of the file as it was opened.
    pub fn check_unchanged(self) -> io::Result<()> {
        self.failed.map_or(Ok(()), Err)
    }

    fn refill(&mut self) {
        self.start = self.at;
        self.window.resize(WINDOW.min(self.remaining()), 0);
        if self.failed.is_none() && !self.window.is_empty() {
            self.failed = self.file.read(self.at, &mut self.window).err();
        }
        if self.failed.is_some() {
            self.window.fill(0);
        }
    }
}

impl Buf for FileBuf {
    fn remaining(&self) -> usize {
        self.mapping.len() - self.at
    }

    fn chunk(&self) -> &[u8] {
        self.window.get(self.at - self.start..).unwrap_or_default()
    }

    fn advance(&mut self, count: usize) {
        self.at += count.min(self.remaining());
        if self.at - self.start >= self.window.len() {
            self.refill();
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        let count = count.min(self.remaining());
        if count >= LARGE {
            let slice = self.mapping.slice(self.at..self.at + count);
            self.advance(count);
            return slice;
        }
        let mut copy = vec![0; count];
        self.copy_to_slice(&mut copy);
        copy.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Contents(Arc<MappedFile>);

    impl AsRef<[u8]> for Contents {
        fn as_ref(&self) -> &[u8] {
            self.0.bytes()
        }
    }

    fn opened(path: &std::path::Path) -> FileBuf {
        let file = Arc::new(MappedFile::open(path).unwrap());
        FileBuf::new(file.clone(), Bytes::from_owner(Contents(file)))
    }

    #[test]
    fn bytes_are_those_of_the_file_however_they_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let contents: Vec<u8> = (0..3 * WINDOW + 17).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &contents).unwrap();
        for step in [1, 7, LARGE - 1, LARGE, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, contents.len()] {
            let mut buf = opened(&path);
            let mut read = Vec::new();
            while buf.has_remaining() {
                let next = step.min(buf.remaining());
                match read.len() % 3 {
                    0 => read.extend_from_slice(&buf.copy_to_bytes(next)),
                    _ => {
                        let mut copy = vec![0; next];
                        buf.copy_to_slice(&mut copy);
                        read.extend(copy);
                    }
                }
            }
            assert!(read == contents, "in steps of {step}");
            buf.check_unchanged().unwrap();
        }
        let mut skipped = opened(&path);
        skipped.advance(2 * WINDOW + 5);
        assert_eq!(skipped.get_u8(), contents[2 * WINDOW + 5]);
    }

    #[test]
    fn a_file_that_was_shortened_gives_zeros_and_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 3 * WINDOW]).unwrap();
        let mut buf = opened(&path);
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(10).unwrap();
        buf.advance(WINDOW);
        assert_eq!(buf.get_u8(), 0);
        assert!(buf.check_unchanged().unwrap_err().to_string().contains("changed while it was in use"));
    }
}
