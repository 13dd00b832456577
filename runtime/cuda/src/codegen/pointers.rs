//! Pointers to ports that kernels resolve on the device.
//!
//! A recording holds a pointer to a port in two ways. *Direct*: the words of kernel parameters are addresses. *Indirect*: a
//! word is the address of an entry in a [`PointerTable`], tagged by bit 63, and the kernel loads the address from there when
//! it starts. Other bases then need other entries, and no other parameters. The first nodes of an indirect recording write
//! the entries; their parameters hold them ([`PointerTable::uploads`]).
//!
//! No kernel can forget to resolve a pointer: [`Source::function`](super::compile::Source::function) resolves every parameter
//! that a kernel declares as a pointer (`resolve_parameters`), and a [`KernelPtr`](crate::device::launch::KernelPtr) in a struct
//! of parameters is a `symmc::Pointer` there, which is resolved wherever it is read. Kernels with other pointers to ports, in
//! structs or tensor maps, get addresses from the host in both ways ([`Kernel::resolves_ports`]).
//!
//! A table belongs to one recording, so modules may be shared. Kernels read it through the read-only cache, also before
//! they wait for the kernel in front of them (PDL). That is right because the kernel after the uploads is no dependent
//! launch, so every kernel of the graph starts after they have ended, and because replays of one graph never overlap.

use indexmap::IndexSet;

use crate::device::launch::{CudaStruct, Kernel, Param, plain};
use crate::device::pointer::{Address, DevicePtr};

/// Resolves words.
pub(super) const POINTERS: &str = include_str!("pointers.cu");
const UPLOAD: &str = include_str!("upload.cu");
pub const UPLOAD_ENTRY: &str = "symmc_upload";

/// The most entries that one kernel writes: its parameters have 4 KiB.
const MOST_ENTRIES: usize = 510;

plain! {
    /// The parameter of the kernel that writes entries.
    struct PointerUpload {
        /// Where the first entry goes.
        to: u64,
        /// How many there are.
        count: u64,
        of: [DevicePtr; MOST_ENTRIES],
    }
}

/// The kernel that writes entries, with its parameter.
pub(super) fn upload_text() -> String {
    format!("namespace symmc {{\n{}}}\n{UPLOAD}", PointerUpload::declaration())
}

/// A kernel whose text, with `@` for its name, resolves the parameters that it declares as pointers before all else.
///
/// # Panics
/// The text has no list of parameters.
pub(super) fn resolve_parameters(text: &str) -> String {
    let list = text.split_once("@(").and_then(|(_, rest)| rest.split_once(") {\n"));
    let (params, body) = list.expect("a kernel has a list of parameters");
    let head = &text[..text.len() - body.len()];
    let names = params.split(',').filter_map(|param| param.rsplit_once('*')).map(|(_, name)| name.trim());
    let resolved = names.map(|name| format!("    {name} = symmc::resolve({name});\n")).collect::<String>();
    format!("{head}{resolved}{body}")
}

/// The distinct pointers to ports of some kernels, each with an entry in device memory.
#[derive(Default, Debug)]
pub struct PointerTable(IndexSet<DevicePtr>);

impl PointerTable {
    pub fn new<'k>(kernels: impl IntoIterator<Item = &'k Kernel>) -> PointerTable {
        PointerTable(kernels.into_iter().flat_map(Kernel::ports).collect())
    }

    /// The bytes of its entries; 0 if there is none.
    pub fn bytes(&self) -> usize {
        self.0.len() * size_of::<Address>()
    }

    /// The kernel with entries of the table, which begins at `table`, in the place of its pointers to ports.
    pub fn indirect(&self, kernel: &Kernel, table: Address) -> Kernel {
        kernel.with_ports(|pointer| {
            let entry = self.0.get_index_of(&pointer).unwrap_or_default();
            DevicePtr::entry(table + (entry * size_of::<Address>()) as u64)
        })
    }

    /// The launches that write the entries of a table that begins at `table`. Their parameters hold the pointers.
    pub fn uploads(&self, table: Address) -> Vec<Kernel> {
        let all: Vec<DevicePtr> = self.0.iter().copied().collect();
        let upload = |(part, entries): (usize, &[DevicePtr])| {
            let first = part * MOST_ENTRIES * size_of::<Address>();
            let mut of = [DevicePtr::NULL; MOST_ENTRIES];
            of[..entries.len()].copy_from_slice(entries);
            let params = PointerUpload { to: table + first as u64, count: entries.len() as u64, of };
            Kernel::flat(UPLOAD_ENTRY.into(), 1, entries.len().next_multiple_of(32), vec![Param::of(&params)])
        };
        all.chunks(MOST_ENTRIES).enumerate().map(upload).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::launch::PortBases;

    #[test]
    fn parameters_that_are_pointers_are_resolved_before_the_body() {
        let text = "struct @_L {};\n__global__ void @(const void *a, unsigned n, const S s, void *b) {\n    body\n}\n";
        let expected = "struct @_L {};\n__global__ void @(const void *a, unsigned n, const S s, void *b) {\n    \
                        a = symmc::resolve(a);\n    b = symmc::resolve(b);\n    body\n}\n";
        assert_eq!(resolve_parameters(text), expected);
    }

    #[test]
    fn each_distinct_pointer_has_an_entry_that_an_upload_writes() {
        let port = |number, offset| DevicePtr::port(number).expect("a port") + offset;
        let of = |pointers: &[DevicePtr]| {
            Kernel::flat("k".into(), 1, 32, pointers.iter().map(|&pointer| pointer.into()).collect())
        };
        let all: Vec<DevicePtr> = (0..600).map(|number| port(number, 8)).collect();
        let kernels = [of(&[port(0, 8), port(0, 24), 0x500.into()]), of(&all)];
        let table = PointerTable::new(&kernels);
        assert_eq!(table.bytes(), 601 * 8);
        let words = |kernel: &Kernel| -> Vec<u64> {
            let word = |param: &Param| if let Param::Value(plain) = param { plain.words()[0] } else { 0 };
            kernel.params.iter().map(word).collect()
        };
        let tag = 1 << 63;
        let indirect = table.indirect(&kernels[0], 0x1000);
        assert_eq!(words(&indirect), [0x1000 | tag, 0x1008 | tag, 0x500]);
        assert_eq!(indirect.ports().count(), 0);
        let bases: Vec<Address> = (0..600).map(|number| 0x10_0000 + number * 64).collect();
        let uploads = table.uploads(0x1000);
        let written: Vec<u64> = uploads
            .iter()
            .flat_map(|upload| match &upload.resolved(PortBases(&bases)).params[0] {
                Param::Value(plain) => plain.words()[2..2 + plain.words()[1] as usize].to_vec(),
                Param::Map(_) => vec![],
            })
            .collect();
        assert_eq!(uploads.len(), 2);
        assert_eq!(written[..3], [bases[0] + 8, bases[0] + 24, bases[1] + 8]);
        assert_eq!(written.len(), 601);
        // The host resolves what uploads hold.
        assert!(kernels.iter().all(Kernel::resolves_ports) && !uploads[0].resolves_ports());
    }
}
