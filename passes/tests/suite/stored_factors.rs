//! Products of few rows read weights of 8 bits as they are stored, with the same bits.

use symmc_ir::machine::MachineProfile;
use symmc_ir::{DType, Graph, Op, text, verify};
use symmc_passes::LowerConfig;
use symmc_passes::lower::choose_forms;

use crate::common::{bindings, difference};

/// A product with a cast weight, whose transpose is `permuted`.
struct Product {
    left: DType,
    stored: DType,
    rows: &'static str,
    k: usize,
    permuted: bool,
}

const USUAL: Product = Product { left: DType::BF16, stored: DType::I8, rows: "1", k: 64, permuted: true };

impl Product {
    fn program(&self) -> Graph {
        let Product { left, stored, rows, k, permuted } = *self;
        let mut source = String::from("program \"p\" ranks 1\nsymbol t in 1..=64\nsymbol many in 1..=65\n");
        source += &format!("arg %x: {left}[2, {rows}, {k}]\n");
        source += &if permuted {
            format!(
                "param %w: {stored}[32, {k}] source \"w\"\n%c: {left}[32, {k}] = cast %w\n\
                 %f: {left}[{k}, 32] = permute %c perm=[1, 0]\n"
            )
        } else {
            format!("param %w: {stored}[{k}, 32] source \"w\"\n%f: {left}[{k}, 32] = cast %w\n")
        };
        source += &format!("%y: {left}[2, {rows}, 32] = matmul %x, %f\nreturn %y\n");
        text::parse(&source).unwrap_or_else(|e| panic!("{e}\n{source}"))
    }

    /// Whether the product reads the stored weight on this machine. Its bits must stay.
    fn reads_stored(&self, machine: &str) -> bool {
        self.reads_stored_on(MachineProfile::builtin(machine).unwrap())
    }

    fn reads_stored_on(&self, profile: MachineProfile) -> bool {
        let graph = self.program();
        let config = LowerConfig::new(profile);
        let (form, _) = choose_forms(&graph, &config).unwrap();
        verify::verify(&form).unwrap_or_else(|e| panic!("{}", e[0]));
        for which in [0, 3, 64] {
            assert_eq!(difference(&graph, &form, &bindings(&graph, which), 7), 0.0);
        }
        let casts = form.nodes.values().filter(|node| node.op == Op::Cast).count();
        assert!(casts <= 1, "{}", text::print(&form));
        casts == 0
    }
}

#[test]
fn products_read_numbers_of_8_bits_as_stored() {
    for left in [DType::BF16, DType::F16, DType::F32] {
        for &stored in DType::ALL.iter().filter(|&&stored| stored != left) {
            let is_read = Product { left, stored, ..USUAL }.reads_stored("h200x2");
            let expected = stored.is_stored_factor(left);
            assert_eq!(is_read, expected, "{stored} next to {left}");
        }
    }
    assert!(DType::I8.is_stored_factor(DType::BF16) && DType::F8E4M3.is_stored_factor(DType::F16));
    assert!(!DType::F8E5M2.is_stored_factor(DType::BF16) && !DType::I8.is_stored_factor(DType::F32));
}

#[test]
fn products_keep_casts_where_machines_lack_kernels() {
    assert!(!USUAL.reads_stored("host"));
    assert!(Product { rows: "32", ..USUAL }.reads_stored("h200x2"));
    assert!(!Product { rows: "33", ..USUAL }.reads_stored("h200x2"), "66 rows");
    assert!(!Product { rows: "t", ..USUAL }.reads_stored("h200x2"), "up to 128 rows");
    assert!(!Product { rows: "many", ..USUAL }.reads_stored("h200x2"));
    assert!(!Product { k: 72, ..USUAL }.reads_stored("h200x2"), "lines of 72 bytes");
    assert!(!Product { permuted: false, ..USUAL }.reads_stored("h200x2"), "lines along the columns");
}

#[test]
fn limits_of_rows_are_those_of_the_profile() {
    for (max_rows, expected) in [(Some(4), false), (Some(8), true), (None, false)] {
        let mut profile = MachineProfile::builtin("h200x2").unwrap();
        profile.dispatches.product.as_mut().unwrap().stored_rows = max_rows;
        let product = Product { rows: "4", ..USUAL };
        assert_eq!(product.reads_stored_on(profile), expected, "8 rows, at most {max_rows:?}");
    }
}
