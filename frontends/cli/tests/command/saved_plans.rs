//! Plans that are read again: `symmc plan` and `--explain` of a saved plan, names of values, and sizes in bytes.

use crate::common::{failure, output, programs, stdout, sum_program, symmc, write};

#[test]
fn a_saved_plan_has_the_report_of_its_program() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("p.json").display().to_string();
    for program in [
        "megatron_tp4_f32.pt2",
        "megatron_tp4_bf16.pt2 --machine h200x4 --bucket tokens=2,64,4096",
        "moe_ep4.pt2 --machine h200x4 --bind all",
        "hf_llama_tp2.pt2 --machine h200x2 --numerics reassociate",
    ] {
        stdout(&format!("plan {program} -o {file}"));
        for format in ["text", "html", "json", "summary"] {
            let expected = stdout(&format!("plan {program} --format {format}"));
            assert_eq!(stdout(&format!("plan {file} --format {format}")), expected, "{program}, {format}");
        }
    }
    assert!(stdout(&format!("plan {file}")).contains("estimated time of a run: "));
    assert!(stdout(&format!("plan {file} --format html")).contains("<p>estimated time of a run: "));
    for name in ["%all_reduce", "model.embed_tokens.weight"] {
        let expected = output(&mut symmc(&format!(
            "plan hf_llama_tp2.pt2 --machine h200x2 --numerics reassociate --explain {name}"
        )));
        let actual = output(&mut symmc(&format!("plan {file} --explain {name}")));
        // A saved plan has no record of the search.
        let expected_text = String::from_utf8(expected.stdout).expect("text");
        let mut is_search = false;
        let without_search = expected_text.lines().filter(|line| {
            is_search = line.contains("whole plans tried") || is_search && line.starts_with("    ");
            !is_search
        });
        let actual_text = String::from_utf8(actual.stdout).expect("text");
        assert_eq!(actual.status.code(), expected.status.code(), "{name}");
        assert!(actual_text.lines().eq(without_search), "{name}: {actual_text} for {expected_text}");
    }
}

#[test]
fn options_inapplicable_to_saved_plans_are_rejected() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = sum_program(dir.path(), "sums", 2, "symbol n in 1..=1024\n", "n");
    let file = dir.path().join("p.json").display().to_string();
    stdout(&format!("plan {program} --machine h200x2 -o {file}"));
    for option in
        ["--bucket n=4", "--dim n=1..4", "--orders", "--timing", "--output q.json", "--numerics narrow"]
    {
        let text = failure(&mut symmc(&format!("plan {file} {option}")), 2);
        let name = option.split(' ').next().unwrap_or_default();
        assert!(text.contains(&format!("this is a plan; {name} is for programs")), "{text}");
    }
    let text = failure(&mut symmc(&format!("plan {file} --ranks 4")), 2);
    assert!(text.contains("the plan is for 2 ranks, found --ranks 4"), "{text}");
    let text = failure(&mut symmc(&format!("plan {file} --machine host")), 2);
    assert!(text.contains("the plan is for the machine h200x2") && text.contains("host"), "{text}");
    assert_eq!(stdout(&format!("plan {file} --machine h200x2")), stdout(&format!("plan {file}")));
}

#[test]
fn saved_plan_needs_the_profile_of_its_tuned_machine() {
    let dir = tempfile::tempdir().expect("a folder");
    let profile = programs().join("../../ir/src/machine/h200x2.json");
    let profile = std::fs::read_to_string(profile).expect("a profile");
    let profile = profile.replacen("\"h200x2\"", "\"tuned\"", 1);
    let profile = write(dir.path(), "tuned.json", profile.as_bytes());
    let program = sum_program(dir.path(), "sums", 2, "", "64");
    let file = dir.path().join("p.json").display().to_string();
    let expected = stdout(&format!("plan {program} --machine {profile}"));
    stdout(&format!("plan {program} --machine {profile} -o {file}"));
    let out = output(&mut symmc(&format!("plan {file}")));
    let text = String::from_utf8_lossy(&out.stdout);
    let notes = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && notes.contains("name its file with --machine"), "{notes}");
    assert!(text.contains("machine tuned") && !text.contains("estimated time of a run"), "{text}");
    let error = failure(&mut symmc(&format!("plan {file} --format summary")), 2);
    assert!(error.contains("need the profile of tuned"), "{error}");
    assert_eq!(stdout(&format!("plan {file} --machine {profile}")), expected);
}

#[test]
fn weights_and_several_values_are_explained() {
    let plan = "plan megatron_tp4_f32.pt2 --explain";
    let weight = stdout(&format!("{plan} e.weight"));
    assert!(weight.contains("%p_e_weight: f32[") && weight.contains("  stored as e.weight\n"), "{weight}");
    assert_eq!(stdout(&format!("{plan} %p_e_weight")), weight);
    let [input, sum] = ["ids", "%all_reduce"].map(|name| stdout(&format!("{plan} {name}")));
    assert_eq!(stdout(&format!("{plan} e.weight,ids,%all_reduce")), format!("{weight}\n{input}\n{sum}"));
    let text = failure(&mut symmc(&format!("{plan} e.weight,no.weight")), 2);
    assert!(text.contains("the program has no value, weight or input no.weight"), "{text}");
}

#[test]
fn sizes_in_bytes_have_units() {
    let limited = |limit: &str| stdout(&format!("plan moe_ep4.pt2 --symm-limit {limit}"));
    let expected = limited("16384");
    assert!(expected.contains("4 kept"), "{expected}");
    for limit in ["16KiB", "16kib", "16384B", "0.015625MiB"] {
        assert_eq!(limited(limit), expected, "{limit}");
    }
    let forms = ["65536, 512KiB, 64MiB or 1GiB", "1GB", "found \"1QB\""];
    for line in
        ["plan moe_ep4.pt2 --symm-limit 1QB", "pack t.csv --capacity 1QB", "tune --ranks 2 --bytes 1QB -o x"]
    {
        let text = failure(&mut symmc(line), 2);
        assert!(forms.iter().all(|form| text.contains(form)), "{text}");
    }
    let table = "../packing/minimalloc/A.1048576.csv";
    let packed = |capacity: &str| {
        let text = stdout(&format!("pack {table} --format json --capacity {capacity}"));
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["capacity"].clone()
    };
    assert_eq!(packed("1MiB"), packed("1048576"));
    // A negative number is a value, not an option.
    let text = failure(&mut symmc("plan moe_ep4.pt2 --slack -5"), 2);
    assert!(text.contains("expected a number of 0 or more, found \"-5\""), "{text}");
}
