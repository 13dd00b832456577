//! Inputs and outputs by number, and where one lies.

/// An input or an output of the program, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Port {
    /// An input.
    Input(usize),
    /// An output.
    Output(usize),
}

/// Bytes at an address of the session's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The first byte.
    pub address: u64,
    /// The number of bytes.
    pub bytes: usize,
}

impl Extent {
    /// Behind the last byte.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes as u64)
    }

    /// Whether they have a byte in common.
    pub fn overlaps(&self, other: &Extent) -> bool {
        self.bytes > 0 && other.bytes > 0 && self.address < other.end() && other.address < self.end()
    }
}

/// Whose memory an input or output lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Owner {
    /// The session's, that peers do not reach.
    Session,
    /// The session's symmetric arena.
    Symmetric,
    /// The caller's.
    Caller,
    /// The program's: a constant that nobody gave.
    Program,
}

/// Where an input or an output lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// Its bytes, at the sizes that are set.
    pub extent: Extent,
    /// Whose they are.
    pub owner: Owner,
}
