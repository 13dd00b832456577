//! The memory of one rank during a run.

use std::fmt;

use crate::error::{Result, RunError};

/// Bytes at an address; empty when the pointer is null.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteSpan {
    pub ptr: *mut u8,
    pub len: usize,
}

impl ByteSpan {
    pub const NONE: ByteSpan = ByteSpan { ptr: std::ptr::null_mut(), len: 0 };

    /// The bytes of a slice, to be written.
    pub fn from_mut_slice(bytes: &mut [u8]) -> Self {
        ByteSpan { ptr: bytes.as_mut_ptr(), len: bytes.len() }
    }

    /// The bytes of a slice, which are only read.
    pub fn from_slice(bytes: &[u8]) -> Self {
        ByteSpan { ptr: bytes.as_ptr().cast_mut(), len: bytes.len() }
    }
}

/// Data that a session copies to its device in pieces, without holding all of it in host memory. The data is
/// read, not mapped: if another process shortens or writes the file, reading fails, where touching a mapping
/// would end the process with SIGBUS.
pub trait InputSource: fmt::Debug + Send + Sync {
    fn size(&self) -> usize;

    /// Copies the bytes from `at` on, as many as `into` holds. Fails if they cannot be read, or have changed
    /// since the run was prepared.
    fn read(&self, at: usize, into: &mut [u8]) -> Result<()>;
}

#[derive(Clone, Copy, Debug)]
pub enum InputData<'a> {
    Memory(&'a [u8]),
    Source(&'a dyn InputSource),
}

impl InputData<'_> {
    pub fn size(self) -> usize {
        match self {
            InputData::Memory(bytes) => bytes.len(),
            InputData::Source(source) => source.size(),
        }
    }

    /// Copies the bytes from `at` on, as many as `into` holds. Fails if there are fewer, or as
    /// [`InputSource::read`].
    pub fn read(self, at: usize, into: &mut [u8]) -> Result<()> {
        match self {
            InputData::Memory(bytes) => {
                let end = at.checked_add(into.len());
                let slice = end.and_then(|end| bytes.get(at..end)).ok_or_else(|| {
                    RunError::system("reading an input", "it is shorter than its type requires")
                })?;
                into.copy_from_slice(slice);
                Ok(())
            }
            InputData::Source(source) => source.read(at, into),
        }
    }
}

#[derive(Clone, Debug)]
pub struct RankMemory {
    /// This rank's ordinary arena, aligned to 64 bytes.
    pub ordinary: ByteSpan,
    /// This rank's symmetric arena as this rank maps it, aligned to 64 bytes.
    pub symmetric: ByteSpan,
    /// The data of each input, aligned to its dtype. It is only read, except for an input that an output
    /// mutates. An input without memory is a constant of the program, or one that the plan holds in fixed
    /// memory and whose caller wrote it there.
    pub inputs: Vec<ByteSpan>,
    /// The memory of each output, aligned to its dtype.
    pub outputs: Vec<ByteSpan>,
}
