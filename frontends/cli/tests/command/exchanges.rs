//! Exchanges of the archives of all ranks give what PyTorch gave.

use crate::common::stdout;

#[test]
fn sends_and_receives_run_as_puts() {
    for (program, ranks) in [("ring2", 2), ("ring4", 4)] {
        let archives: String = (0..ranks).map(|rank| format!(" experts/{program}.rank{rank}.pt2")).collect();
        let tensors = format!("--tensors experts/{program}.safetensors");
        let base = format!("--machine h200x{ranks} --variants put");
        for (options, variant) in [
            (base.clone(), "put"),
            (format!("{base} --backend threads"), "put"),
            ("--variants plain".into(), "plain"),
        ] {
            let text = stdout(&format!("run{archives} {tensors} {options}"));
            let exchanges = format!("permute_ranks of 192 B as {variant},");
            assert!(text.contains(&exchanges), "{exchanges}:\n{text}");
            for rank in 0..ranks {
                assert!(
                    text.contains(&format!("rank {rank} output 0: equal")),
                    "{program} {options}:\n{text}"
                );
            }
        }
    }
}
