//! Device pointers in commands: known addresses, and locations whose address is known only when a run is
//! recorded.
//!
//! Steps are lowered once per set of sizes. The arenas, the workspaces and the memory of peers have fixed
//! addresses then. Inputs and outputs may be elsewhere in each run. Each of them is a *port*, and commands
//! hold its number and an offset ([`PtrTarget::Port`]). A pointer is resolved with the [`PortBases`] of a run
//! when a launch is recorded, updated or enqueued. The launches that depend on a base can therefore be read
//! off the commands.
//!
//! A [`DevicePtr`] is packed into 64 bits, so that structs of kernel parameters can hold it in place of the
//! address that the kernel receives. The types of a parameter's fields determine which of its words are
//! pointers (`Plain` in `launch.rs`); the value of a word never does.
//!
//! Ports begin at multiples of [`PORT_ALIGNMENT`] bytes. Sessions require this of the memory that callers
//! bind. No kernel or algorithm is chosen for a larger alignment.

use std::ops::Add;

/// An address in the device memory of a context.
pub type Address = u64;

/// The alignment of the base of each port, in bytes.
pub const PORT_ALIGNMENT: u64 = 16;

/// Marks a pointer to a port. Addresses of devices and of processes leave this bit clear.
const PORT_TAG: u64 = 1 << 63;
/// Bits of the offset within a port: 16 TiB.
const OFFSET_BITS: u32 = 44;
/// The largest number of ports of a program.
pub const MAX_PORTS: usize = 1 << (63 - OFFSET_BITS);

#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DevicePtr(u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PtrTarget {
    Fixed(Address),
    Port {
        port: u32,
        /// Bytes from its base.
        offset: u64,
    },
}

impl DevicePtr {
    pub const NULL: DevicePtr = DevicePtr(0);

    /// The first byte of a port; `None` if the number exceeds the limit.
    pub fn port(port: usize) -> Option<DevicePtr> {
        (port < MAX_PORTS).then_some(DevicePtr(PORT_TAG | (port as u64) << OFFSET_BITS))
    }

    pub fn target(self) -> PtrTarget {
        if self.0 & PORT_TAG == 0 {
            return PtrTarget::Fixed(self.0);
        }
        let bits = self.0 & !PORT_TAG;
        PtrTarget::Port { port: (bits >> OFFSET_BITS) as u32, offset: bits & ((1 << OFFSET_BITS) - 1) }
    }

    pub fn port_number(self) -> Option<u32> {
        match self.target() {
            PtrTarget::Fixed(_) => None,
            PtrTarget::Port { port, .. } => Some(port),
        }
    }

    /// Whether the address is a multiple of `bytes` for every base of its port.
    pub fn is_multiple_of(self, bytes: u64) -> bool {
        match self.target() {
            PtrTarget::Fixed(address) => address.is_multiple_of(bytes),
            PtrTarget::Port { offset, .. } => {
                PORT_ALIGNMENT.is_multiple_of(bytes) && offset.is_multiple_of(bytes)
            }
        }
    }

    /// The largest power of two, up to `max_bytes`, that is known to divide the address.
    pub fn alignment(self, max_bytes: u64) -> u64 {
        let mut bytes = max_bytes;
        while !self.is_multiple_of(bytes) {
            bytes /= 2;
        }
        bytes
    }

    /// Bytes from `other` to `self`; `None` if they are in different memories, whose distance is unknown.
    pub fn distance_from(self, other: DevicePtr) -> Option<i64> {
        match (self.target(), other.target()) {
            (PtrTarget::Fixed(a), PtrTarget::Fixed(b)) => Some(a.wrapping_sub(b) as i64),
            (PtrTarget::Port { port: p, offset: a }, PtrTarget::Port { port: q, offset: b }) if p == q => {
                Some(a.wrapping_sub(b) as i64)
            }
            _ => None,
        }
    }

    /// The pointer this many bytes away, in the same memory.
    #[must_use]
    pub fn offset_by(self, bytes: i64) -> DevicePtr {
        DevicePtr(self.0.wrapping_add_signed(bytes))
    }

    /// The address in a run with these port bases.
    pub fn resolve(self, bases: PortBases<'_>) -> Address {
        match self.target() {
            PtrTarget::Fixed(address) => address,
            PtrTarget::Port { port, offset } => bases.base(port).wrapping_add(offset),
        }
    }
}

impl From<Address> for DevicePtr {
    fn from(address: Address) -> DevicePtr {
        debug_assert!(address & PORT_TAG == 0, "{address:#x} is not a device address");
        DevicePtr(address & !PORT_TAG)
    }
}

impl Add<Address> for DevicePtr {
    type Output = DevicePtr;

    fn add(self, bytes: u64) -> DevicePtr {
        DevicePtr(self.0.wrapping_add(bytes))
    }
}

impl std::fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.target() {
            PtrTarget::Fixed(address) => write!(f, "{address:#x}"),
            PtrTarget::Port { port, offset } => write!(f, "port {port} + {offset}"),
        }
    }
}

/// Whether all of these are multiples of `bytes`.
pub fn all_multiples_of(pointers: impl IntoIterator<Item = DevicePtr>, bytes: u64) -> bool {
    pointers.into_iter().all(|pointer| pointer.is_multiple_of(bytes))
}

/// The bases of the ports of a program in a run: inputs first, then outputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortBases<'a>(pub &'a [Address]);

impl<'b> PortBases<'b> {
    /// For commands without pointers to ports.
    pub const NONE: PortBases<'static> = PortBases(&[]);

    pub fn changed_ports(self, other: PortBases<'b>) -> impl Iterator<Item = usize> + use<'b> {
        let pairs = self.0.iter().zip(other.0).enumerate();
        pairs.filter(|(_, (one, other))| one != other).map(|(port, _)| port)
    }

    /// The base of a port. A port that the program does not have is at address 0, which no kernel can use.
    fn base(self, port: u32) -> Address {
        self.0.get(port as usize).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_to_ports_resolve_to_their_base_and_offset() {
        let bases = [0x7000, 0x7f12_3456_7890];
        let pointer = DevicePtr::port(1).expect("a port") + 12;
        assert_eq!(pointer.resolve(PortBases(&bases)), bases[1] + 12);
        assert_eq!(pointer.offset_by(-8).resolve(PortBases(&bases)), bases[1] + 4);
        assert_eq!(DevicePtr::from(0x1234).resolve(PortBases(&bases)), 0x1234);
        assert_eq!(pointer.target(), PtrTarget::Port { port: 1, offset: 12 });
        let highest = DevicePtr::port(MAX_PORTS - 1).expect("a port") + ((1 << OFFSET_BITS) - 1);
        assert_eq!(highest.port_number(), Some(MAX_PORTS as u32 - 1));
        assert_eq!(DevicePtr::port(MAX_PORTS), None);
    }

    #[test]
    fn ports_are_aligned_to_16_bytes_and_no_more() {
        let port = DevicePtr::port(3).expect("a port");
        assert!(port.is_multiple_of(16) && (port + 32).is_multiple_of(16) && !port.is_multiple_of(32));
        assert!((port + 4).is_multiple_of(4) && !(port + 4).is_multiple_of(8));
        assert_eq!([port + 4, port + 16, DevicePtr::from(0x300)].map(|p| p.alignment(16)), [4, 16, 16]);
    }

    #[test]
    fn distances_are_known_within_one_memory() {
        let [a, b] = [0, 1].map(|port| DevicePtr::port(port).expect("a port"));
        assert_eq!((a + 8).distance_from(a + 24), Some(-16));
        assert_eq!(a.distance_from(b), None);
        assert_eq!(DevicePtr::from(8).distance_from(a), None);
        assert_eq!(DevicePtr::from(64).distance_from(DevicePtr::from(16)), Some(48));
    }
}
