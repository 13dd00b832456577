//! The memory of one rank during a run.

/// Bytes somewhere; empty when the pointer is null.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first byte.
    pub ptr: *mut u8,
    /// The number of bytes.
    pub len: usize,
}

impl Span {
    /// No memory.
    pub const NONE: Span = Span { ptr: std::ptr::null_mut(), len: 0 };

    /// The bytes of a slice, to be written.
    pub fn of(bytes: &mut [u8]) -> Self {
        Span { ptr: bytes.as_mut_ptr(), len: bytes.len() }
    }

    /// The bytes of a slice, which are only read.
    pub fn of_const(bytes: &[u8]) -> Self {
        Span { ptr: bytes.as_ptr().cast_mut(), len: bytes.len() }
    }
}

/// The memory of one rank: its arenas, and what the caller passes.
#[derive(Clone, Debug)]
pub struct RankMemory {
    /// This rank's ordinary arena, aligned to 64 bytes.
    pub ordinary: Span,
    /// This rank's symmetric arena as this rank maps it, aligned to 64 bytes.
    pub symmetric: Span,
    /// The data of each input, aligned to its dtype; it is only read, but for an input that an output
    /// mutates. An input without memory is a constant of the program, or one that the plan holds in fixed
    /// memory and whose caller wrote it there.
    pub inputs: Vec<Span>,
    /// The memory of each output, aligned to its dtype.
    pub outputs: Vec<Span>,
}
