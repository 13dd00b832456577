//! Inputs and outputs by number, and the storage of each.

/// An input or an output of the program, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Port {
    Input(usize),
    Output(usize),
}

/// Bytes at an address of the session's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceRange {
    pub address: u64,
    pub bytes: usize,
}

impl DeviceRange {
    /// The address after the last byte.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes as u64)
    }

    pub fn overlaps(&self, other: &DeviceRange) -> bool {
        self.bytes > 0 && other.bytes > 0 && self.address < other.end() && other.address < self.end()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PortStorage {
    /// In memory that the caller bound, at this address.
    Caller(u64),
    /// In the program: a constant that the caller did not bind. The plan may hold it in the symmetric arena,
    /// at this offset in bytes.
    Program(Option<usize>),
    /// In the symmetric arena of the session, which peers access, at this offset in bytes.
    Symmetric(usize),
    /// In other memory of the session.
    Session,
}

/// The memory of an input or output at the current sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortMemory {
    pub range: DeviceRange,
    pub storage: PortStorage,
}
