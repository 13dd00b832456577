//! The GPU of a session, and what its caller lends.

use symmc_control::Term;

use crate::codegen::compute::{Attentions, gemm};
use crate::device::arena::ArenaSource;
use crate::device::driver::{self, Device, LentStream};
use crate::error::Result;
use crate::nccl::Lent;
use crate::{Products, codegen::compile, cudnn};

/// What memory that is lent starts at a multiple of.
pub const ALIGN: usize = 16;

/// Whether ranks tell each other which of NCCL's collectives they are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Progress {
    /// They do: each of them is preceded by a store, which takes 1.5 to 3.5 µs.
    Told,
    /// They do not.
    #[default]
    Untold,
}

/// What a session takes from its caller instead of making it. By default nothing.
///
/// Runs then begin and end on the caller's stream: put there to run, or, while the caller captures the stream, recorded into the
/// caller's graph. Plain collectives run on the caller's communicator. Neither is ever ended here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Adopted {
    /// The stream where runs begin and end.
    pub stream: Option<LentStream>,
    /// A communicator for plain collectives.
    pub communicator: Option<Lent>,
}

/// The GPU of a session, and what its caller lends: by default the GPU whose number is that of the rank, and nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Gpu {
    /// The number of the GPU among those that the process sees; that of the rank without.
    pub ordinal: Option<u32>,
    /// The caller's stream and communicator.
    pub adopted: Adopted,
    /// Who allocates the symmetric arena.
    pub arena: ArenaSource,
    /// How algorithms of matrix products are chosen, and who computes attention.
    pub products: Products,
    /// How many recorded runs are kept, and for how many sizes the choices. One of the same sizes serves other memory too.
    pub kept: usize,
    /// Whether an error of a run that does not go on names the step, where that is one of NCCL's collectives.
    pub progress: Progress,
}

impl Default for Gpu {
    fn default() -> Self {
        Gpu {
            ordinal: None,
            adopted: Adopted::default(),
            arena: ArenaSource::default(),
            products: Products::default(),
            kept: 64,
            progress: Progress::default(),
        }
    }
}

impl Gpu {
    pub fn new(ordinal: u32) -> Gpu {
        Gpu { ordinal: Some(ordinal), ..Gpu::default() }
    }

    /// Runs that are given no stream are put on this one, a `cudaStream_t` (`CUstream`).
    ///
    /// # Safety
    /// It belongs to the primary context of the GPU, and exists until the session has ended.
    #[must_use]
    pub unsafe fn with_stream(mut self, stream: *mut std::ffi::c_void) -> Gpu {
        // SAFETY: by the caller.
        self.adopted.stream = Some(unsafe { LentStream::new(stream) });
        self
    }

    /// Plain collectives of exactly these ranks run on this `ncclComm_t`, whose ranks they are in its order.
    ///
    /// # Safety
    /// As [`Lent::new`].
    #[must_use]
    pub unsafe fn with_communicator(mut self, communicator: *mut std::ffi::c_void, ranks: Vec<u32>) -> Gpu {
        // SAFETY: by the caller.
        self.adopted.communicator = Some(unsafe { Lent::new(communicator, ranks) });
        self
    }

    #[must_use]
    pub fn with_arena(self, arena: ArenaSource) -> Gpu {
        Gpu { arena, ..self }
    }

    #[must_use]
    pub fn with_products(self, products: Products) -> Gpu {
        Gpu { products, ..self }
    }

    /// How many recorded runs are kept.
    #[must_use]
    pub fn with_kept(self, kept: usize) -> Gpu {
        Gpu { kept, ..self }
    }

    #[must_use]
    pub fn with_progress(self, progress: Progress) -> Gpu {
        Gpu { progress, ..self }
    }

    /// What must be alike on all ranks, by name.
    pub(super) fn terms(&self, device: &Device) -> Result<Vec<Term>> {
        let of = |version: [i32; 2]| format!("{}.{}", version[0], version[1]);
        let cuda = driver::version()?;
        let terms = [
            ("device", format!("GPU ({})", device.name())),
            ("CUDA", format!("{}.{}", cuda[0], cuda[1])),
            ("NVRTC", of(compile::version()?)),
            ("cuBLASLt", gemm::library().map_or_else(|_| "none".into(), |(version, _)| version)),
            ("cuDNN", cudnn::version().map_or_else(|_| "none".into(), |version| version.to_string())),
            ("arena", format!("{:?}", self.arena)),
            ("products", format!("{:?}", self.products)),
            ("kept runs", self.kept.to_string()),
            ("lent communicators", usize::from(self.adopted.communicator.is_some()).to_string()),
        ];
        Ok(terms.map(|(name, value)| Term::text(name, value)).into())
    }

    /// Who computes attention. cuDNN is one who measures may choose.
    pub(super) fn attention(&self) -> Attentions {
        match self.products {
            Products::Measured if cudnn::version().is_ok() => Attentions::Chosen,
            Products::Measured | Products::Heuristic => Attentions::Kernels,
        }
    }
}
