//! What the commands ask of GPUs. A build without the feature `cuda` has none, and says so where one is asked for.

#[cfg(feature = "cuda")]
pub use with_cuda::{
    bench_collectives, bench_program, early, engine, has, libraries, note_attention, present, tune,
};
#[cfg(not(feature = "cuda"))]
pub use without_cuda::{
    bench_collectives, bench_program, early, engine, has, libraries, note_attention, present, tune,
};

#[cfg(feature = "cuda")]
mod with_cuda {
    use anyhow::Result;
    use symmc::unstable::cuda::{self, cudnn, nccl};
    use symmc::{ArenaSource, CudaConfig, EngineChoice, Plan, Products, Variant};

    use crate::args::{ArenaArg, ProductsArg, RunArgs};

    pub use crate::commands::bench::{collectives as bench_collectives, program as bench_program, tune};
    pub use nccl::has;

    /// Whether this build can run on GPUs at all.
    pub fn present() -> Result<()> {
        Ok(())
    }

    /// What runs a plan on GPUs.
    pub fn engine(args: &RunArgs) -> EngineChoice {
        let arena = match args.arena {
            Some(ArenaArg::Nccl) => ArenaSource::Nccl,
            Some(ArenaArg::Vmm) | None => ArenaSource::Vmm,
        };
        let gpus = CudaConfig::default().with_gpus(args.gpus.clone()).with_arena(arena);
        let products = args.products.map(Products::from).unwrap_or_default();
        gpus.with_products(products).with_trace(args.profile_trace.clone()).choice()
    }

    impl From<ProductsArg> for Products {
        fn from(arg: ProductsArg) -> Products {
            match arg {
                ProductsArg::Measured => Products::Measured,
                ProductsArg::Heuristic => Products::Heuristic,
            }
        }
    }

    /// The libraries that runs take, a line each.
    pub fn libraries() -> String {
        cuda::libraries::libraries().map(|library| format!("\n{library}")).concat()
    }

    /// Says who computes attention on GPUs, if a plan has some and cuDNN is not there.
    pub fn note_attention(plan: &Plan) {
        let attends = plan.programs.iter().any(|text| text.contains(" = attention "));
        if attends && let Err(error) = cudnn::version() {
            eprintln!("note: attention is computed by symmc's own kernels, as {error}");
        }
    }

    /// What is to know of versions of the library that launch kernels of windows early; empty where a plan has none.
    pub fn early(plan: &Plan) -> String {
        let window = Variant::NcclWindow.name();
        let [first, mended] = nccl::EARLY;
        let mut decisions = plan.buckets.iter().flat_map(|b| &b.decisions);
        match decisions.any(|d| d.chosen.split(" + ").any(|part| part == window)) {
            true => format!(
                "\nnote: NCCL from {first} on, before {mended}, launches the kernels of {window} before those in front of them \
                 have ended, and does not wait within; a run with such a version puts a store between\n"
            ),
            false => String::new(),
        }
    }
}

#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use std::process::ExitCode;

    use anyhow::Result;
    use symmc::{EngineChoice, Error, ErrorKind, Plan, Variant};

    use crate::Own;
    use crate::args::{BenchArgs, BenchProgramArgs, RunArgs, TuneArgs};

    /// Whether this build can run on GPUs at all.
    pub fn present() -> Result<()> {
        Err(absent())
    }

    fn absent() -> anyhow::Error {
        let message = "this build of symmc has no GPUs: it was made without the feature `cuda`";
        Error::new(ErrorKind::Unsupported, message).into()
    }

    /// None is left that would ask.
    pub fn engine(_: &RunArgs) -> EngineChoice {
        EngineChoice::Host
    }

    pub fn has(_: Variant) -> bool {
        false
    }

    pub fn libraries() -> String {
        "\nwithout GPUs (the feature `cuda`)".to_string()
    }

    pub fn note_attention(_: &Plan) {}

    pub fn early(_: &Plan) -> String {
        String::new()
    }

    pub fn bench_collectives(_: &BenchArgs, _: &Own) -> Result<ExitCode> {
        Err(absent())
    }

    pub fn bench_program(_: &BenchProgramArgs, _: &Own) -> Result<ExitCode> {
        Err(absent())
    }

    pub fn tune(_: &TuneArgs, _: &Own) -> Result<ExitCode> {
        Err(absent())
    }
}
