//! How a communicator is made (`ncclConfig_t`).
//!
//! The struct of `nccl.h` grows at its end: 72 bytes in 2.27, 80 in 2.28, 88 in 2.29, 120 in 2.32, and no field
//! has moved. NCCL reads as many bytes as the struct says it has, at most as many as it knows, and gives every
//! field that is newer than the struct's version its default. So one declaration, of 2.27, that states its own
//! size and version serves every library that is accepted.
//!
//! Deliberately not here: the fields of later versions, and the network's name.

use std::ffi::{c_char, c_int, c_uint};

/// The value of an integer that is left to NCCL.
const UNSET: c_int = c_int::MIN;

/// How a communicator is made. Everything is left to NCCL unless it is set.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    /// 0: calls on the communicator may answer "in progress". 1: they wait.
    pub blocking: c_int,
    /// Thread blocks per cluster.
    pub cga_cluster_size: c_int,
    /// The least number of thread blocks a kernel takes. NCCL refuses it without `max_ctas`.
    pub min_ctas: c_int,
    /// The largest number of thread blocks a kernel takes.
    pub max_ctas: c_int,
    net_name: *const c_char,
    /// 1: a communicator split off shares resources with its parent.
    pub split_share: c_int,
    /// The traffic class of network connections.
    pub traffic_class: c_int,
    comm_name: *const c_char,
    /// 1: collectives inside the network are used where there are any.
    pub collnet_enable: c_int,
    /// See [`cta_policy`](crate::cta_policy).
    pub cta_policy: c_int,
    /// 1: a communicator shrunk from another shares its resources.
    pub shrink_share: c_int,
    /// Thread blocks for NVLink multicast.
    pub nvls_ctas: c_int,
}

impl Config {
    /// Marks a struct that was filled on purpose.
    const MAGIC: c_uint = 0xcafe_beef;
    /// The version whose fields the struct has: 2.27.0.
    const LAYOUT: c_uint = 22_700;
}

impl Default for Config {
    fn default() -> Config {
        Config {
            size: size_of::<Config>(),
            magic: Config::MAGIC,
            version: Config::LAYOUT,
            blocking: UNSET,
            cga_cluster_size: UNSET,
            min_ctas: UNSET,
            max_ctas: UNSET,
            net_name: std::ptr::null(),
            split_share: UNSET,
            traffic_class: UNSET,
            comm_name: std::ptr::null(),
            collnet_enable: UNSET,
            cta_policy: UNSET,
            shrink_share: UNSET,
            nvls_ctas: UNSET,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// The numbers are `offsetof` and `sizeof` of `ncclConfig_t` in the header of 2.27.7; the headers of 2.28.9,
    /// 2.29.7 and 2.32.3 give the same offsets.
    #[test]
    fn layout_is_that_of_the_header() {
        let fields = [
            ("size", offset_of!(Config, size), 0),
            ("magic", offset_of!(Config, magic), 8),
            ("version", offset_of!(Config, version), 12),
            ("blocking", offset_of!(Config, blocking), 16),
            ("cgaClusterSize", offset_of!(Config, cga_cluster_size), 20),
            ("minCTAs", offset_of!(Config, min_ctas), 24),
            ("maxCTAs", offset_of!(Config, max_ctas), 28),
            ("netName", offset_of!(Config, net_name), 32),
            ("splitShare", offset_of!(Config, split_share), 40),
            ("trafficClass", offset_of!(Config, traffic_class), 44),
            ("commName", offset_of!(Config, comm_name), 48),
            ("collnetEnable", offset_of!(Config, collnet_enable), 56),
            ("CTAPolicy", offset_of!(Config, cta_policy), 60),
            ("shrinkShare", offset_of!(Config, shrink_share), 64),
            ("nvlsCTAs", offset_of!(Config, nvls_ctas), 68),
        ];
        for (name, ours, header) in fields {
            assert_eq!(ours, header, "{name}");
        }
        assert_eq!(size_of::<Config>(), 72);
        let config = Config::default();
        assert_eq!((config.size, config.magic, config.version), (72, 0xcafebeef, 22_700));
    }
}
