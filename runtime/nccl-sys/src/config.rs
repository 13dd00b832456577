//! The configuration of a communicator (`ncclConfig_t`).
//!
//! The struct of `nccl.h` grows at its end: 72 bytes in 2.27, 80 in 2.28, 88 in 2.29, 120 in 2.32, and no
//! field has moved. NCCL reads as many bytes as the struct states, at most as many as it knows, and gives
//! every field that is newer than the struct's version its default. One declaration, of 2.27, that states its
//! own size and version therefore serves every accepted library.
//!
//! Deliberately absent: the fields of later versions, and the network's name.

use std::ffi::{c_char, c_int, c_uint};

/// The value of an integer that NCCL chooses.
const UNSET_INT: c_int = c_int::MIN;

/// The configuration of a communicator. NCCL chooses every value that is not set.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct NcclConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    /// 0: calls on the communicator may return "in progress". 1: they block.
    pub blocking: c_int,
    /// Thread blocks per cluster.
    pub cga_cluster_size: c_int,
    /// The least number of thread blocks that a kernel uses. NCCL refuses it without `max_ctas`.
    pub min_ctas: c_int,
    /// The largest number of thread blocks that a kernel uses.
    pub max_ctas: c_int,
    net_name: *const c_char,
    /// 1: a communicator split off shares resources with its parent.
    pub split_share: c_int,
    /// The traffic class of network connections.
    pub traffic_class: c_int,
    comm_name: *const c_char,
    /// 1: collectives inside the network are used if there are any.
    pub collnet_enable: c_int,
    /// See [`cta_policy`](crate::cta_policy).
    pub cta_policy: c_int,
    /// 1: a communicator shrunk from another shares its resources.
    pub shrink_share: c_int,
    /// Thread blocks for NVLink multicast.
    pub nvls_ctas: c_int,
}

impl NcclConfig {
    /// Marks a struct as initialised.
    const CONFIG_MAGIC: c_uint = 0xcafe_beef;
    /// The version whose fields the struct has: 2.27.0.
    const LAYOUT_VERSION: c_uint = 22_700;
}

impl Default for NcclConfig {
    fn default() -> NcclConfig {
        NcclConfig {
            size: size_of::<NcclConfig>(),
            magic: NcclConfig::CONFIG_MAGIC,
            version: NcclConfig::LAYOUT_VERSION,
            blocking: UNSET_INT,
            cga_cluster_size: UNSET_INT,
            min_ctas: UNSET_INT,
            max_ctas: UNSET_INT,
            net_name: std::ptr::null(),
            split_share: UNSET_INT,
            traffic_class: UNSET_INT,
            comm_name: std::ptr::null(),
            collnet_enable: UNSET_INT,
            cta_policy: UNSET_INT,
            shrink_share: UNSET_INT,
            nvls_ctas: UNSET_INT,
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
            ("size", offset_of!(NcclConfig, size), 0),
            ("magic", offset_of!(NcclConfig, magic), 8),
            ("version", offset_of!(NcclConfig, version), 12),
            ("blocking", offset_of!(NcclConfig, blocking), 16),
            ("cgaClusterSize", offset_of!(NcclConfig, cga_cluster_size), 20),
            ("minCTAs", offset_of!(NcclConfig, min_ctas), 24),
            ("maxCTAs", offset_of!(NcclConfig, max_ctas), 28),
            ("netName", offset_of!(NcclConfig, net_name), 32),
            ("splitShare", offset_of!(NcclConfig, split_share), 40),
            ("trafficClass", offset_of!(NcclConfig, traffic_class), 44),
            ("commName", offset_of!(NcclConfig, comm_name), 48),
            ("collnetEnable", offset_of!(NcclConfig, collnet_enable), 56),
            ("CTAPolicy", offset_of!(NcclConfig, cta_policy), 60),
            ("shrinkShare", offset_of!(NcclConfig, shrink_share), 64),
            ("nvlsCTAs", offset_of!(NcclConfig, nvls_ctas), 68),
        ];
        for (name, ours, header) in fields {
            assert_eq!(ours, header, "{name}");
        }
        assert_eq!(size_of::<NcclConfig>(), 72);
        let config = NcclConfig::default();
        assert_eq!((config.size, config.magic, config.version), (72, 0xcafebeef, 22_700));
    }
}
