//! The instruction of warp-group MMA (WGMMA).

use symmc_ir::DType;

use super::text::stored_type;

/// Which elements of an operand are adjacent in shared memory: the terms of a line (a row of the left matrix
/// or a column of the right one), or the lines of a term.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OperandMajor {
    Terms,
    Lines,
}

/// Declares the instruction for 64 rows, this many columns and two operands. It names every register.
pub(super) fn declare_instruction(dtype: DType, columns: usize, majors: [OperandMajor; 2]) -> String {
    let sums = columns / 2;
    let ty = if dtype == DType::BF16 { "bf16" } else { "f16" };
    let registers: Vec<String> = (0..sums).map(|i| format!("%{i}")).collect();
    let outputs: Vec<String> = (0..sums).map(|i| format!("\"+f\"(c[{}][{}])", i / 4, i % 4)).collect();
    let [left, right] = majors.map(|major| u8::from(major == OperandMajor::Lines));
    format!(
        "SC_WGMMA({}, {columns}, \"{{ .reg .pred p; setp.ne.b32 p, %{}, 0; \
         wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{ty}.{ty} {{{}}}, %{sums}, %{}, p, 1, 1, {left}, {right}; }}\", {})\n",
        stored_type(dtype),
        sums + 2,
        registers.join(", "),
        sums + 1,
        outputs.join(", "),
    )
}
