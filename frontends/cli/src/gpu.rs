//! What the commands ask of GPUs. A build without the feature `cuda` has none, and says so where one is asked for.

#[cfg(feature = "cuda")]
pub use with_cuda::{dependent_launch, has, libraries, note_attention, note_cache, present};
#[cfg(not(feature = "cuda"))]
pub use without_cuda::{absent, dependent_launch, has, libraries, note_attention, note_cache, present};

#[cfg(feature = "cuda")]
mod with_cuda {
    use anyhow::Result;
    use symmc::unstable::cuda::device::libraries::UnusableLibrary;
    use symmc::unstable::cuda::{self, cudnn, nccl};
    use symmc::{CollectiveVariant, Plan};

    pub use nccl::has;

    /// Whether this build can run on GPUs at all.
    pub fn present() -> Result<()> {
        Ok(())
    }

    /// The libraries that runs take, a line each.
    pub fn libraries() -> String {
        cuda::device::libraries::libraries().map(|library| format!("\n{library}")).concat()
    }

    /// Says who computes attention on GPUs, if a plan has some and cuDNN is not there.
    pub fn note_attention(plan: &Plan) {
        let attends = plan.programs.iter().any(|text| text.contains(" = attention "));
        if attends && let Err(error) = cudnn::version() {
            crate::messages::note(&format!("attention is computed by symmc's own kernels, as {error}"));
        }
    }

    /// Notes that the kernel cache is not used because another user can write its folder.
    pub fn note_cache() {
        if let Some(refusal) = cuda::device::libraries::cache_refusal() {
            let UnusableLibrary { found, remedy } = refusal;
            crate::messages::note(&format!("the kernel cache is not used: {found}; {remedy}"));
        }
    }

    /// What is to know of versions of the library that launch kernels of windows by PDL without a wait; empty where a plan has none.
    pub fn dependent_launch(plan: &Plan) -> String {
        let window = CollectiveVariant::NcclWindow.name();
        let [first, mended] = nccl::PDL_WITHOUT_WAIT;
        let mut decisions = plan.buckets.iter().flat_map(|b| &b.decisions);
        match decisions.any(|d| d.chosen.split(" + ").any(|part| part == window)) {
            true => format!(
                "\nnote: NCCL from {first} on, before {mended}, launches the kernels of {window} by programmatic dependent \
                 launch, and does not wait within; a run with such a version puts a store between\n"
            ),
            false => String::new(),
        }
    }
}

#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use anyhow::Result;
    use symmc::{CollectiveVariant, Error, ErrorKind, Plan};

    /// Whether this build can run on GPUs at all.
    pub fn present() -> Result<()> {
        Err(absent())
    }

    pub fn absent() -> anyhow::Error {
        let message = "this build of symmc has no GPUs: it was made without the feature `cuda`";
        Error::new(ErrorKind::Unsupported, message).into()
    }

    pub fn has(_: CollectiveVariant) -> bool {
        false
    }

    pub fn libraries() -> String {
        "\nwithout GPUs (the feature `cuda`)".to_string()
    }

    pub fn note_attention(_: &Plan) {}

    pub fn note_cache() {}

    pub fn dependent_launch(_: &Plan) -> String {
        String::new()
    }
}
