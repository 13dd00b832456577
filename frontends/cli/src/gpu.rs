//! The part of the commands that concerns GPUs and their libraries. In a build without the feature `cuda` these functions find
//! nothing, or fail with the reason.

#[cfg(feature = "cuda")]
pub use with_cuda::{dependent_launch, has, libraries, note_attention, note_cache, present};
#[cfg(not(feature = "cuda"))]
pub use without_cuda::{absent, dependent_launch, has, libraries, note_attention, note_cache, present};

#[cfg(feature = "cuda")]
mod with_cuda {
    use anyhow::Result;
    use symmc::unstable::cuda::report::libraries::UnusableLibrary;
    use symmc::unstable::cuda::{self, cudnn, nccl};
    use symmc::{CollectiveVariant, Plan};

    pub use nccl::has;

    /// Whether this build can run on GPUs at all.
    pub fn present() -> Result<()> {
        Ok(())
    }

    /// The libraries that runs on GPUs use, one line each.
    pub fn libraries() -> String {
        cuda::report::libraries::libraries().map(|library| format!("\n{library}")).concat()
    }

    /// Notes that symmc's own kernels compute attention, if a plan has attention and cuDNN is missing.
    pub fn note_attention(plan: &Plan) {
        let has_attention = plan.programs.iter().any(|text| text.contains(" = attention "));
        if has_attention && let Err(error) = cudnn::version() {
            crate::messages::note(&format!("symmc's own kernels compute attention, because {error}"));
        }
    }

    /// Notes that the kernel cache is not used because another user can write its folder.
    pub fn note_cache() {
        if let Some(refusal) = cuda::report::libraries::cache_refusal() {
            let UnusableLibrary { found, remedy } = refusal;
            crate::messages::note(&format!("the kernel cache is not used: {found}; {remedy}"));
        }
    }

    /// A note on versions of NCCL that launch the kernels of windows by programmatic dependent launch, without a wait. Empty for
    /// plans without windows.
    pub fn dependent_launch(plan: &Plan) -> String {
        let window = CollectiveVariant::NcclWindow.name();
        let [first, fixed] = nccl::PDL_WITHOUT_WAIT;
        let mut decisions = plan.buckets.iter().flat_map(|b| &b.decisions);
        if !decisions.any(|d| d.chosen.split(" + ").any(|choice| choice == window)) {
            return String::new();
        }
        format!(
            "\nnote: NCCL versions from {first} up to, but not including, {fixed} launch the kernels of {window} by \
             programmatic dependent launch, without waiting for the kernel before; with these versions a run puts a \
             store between the two\n"
        )
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
        let message = "this build of symmc does not support GPUs: it was built without the feature `cuda`";
        Error::new(ErrorKind::Unsupported, message).into()
    }

    pub fn has(_: CollectiveVariant) -> bool {
        false
    }

    pub fn libraries() -> String {
        "\nbuilt without support for GPUs (the feature `cuda`)".to_string()
    }

    pub fn note_attention(_: &Plan) {}

    pub fn note_cache() {}

    pub fn dependent_launch(_: &Plan) -> String {
        String::new()
    }
}
