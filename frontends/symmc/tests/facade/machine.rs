//! Profiles of machines with numbers that no machine has.

use std::collections::BTreeMap;

use serde_json::{Value, json};
#[cfg(feature = "cuda")]
use symmc::ErrorKind;
use symmc::unstable::support::random::SplitMix;
use symmc::{CompileConfig, MachineProfile, Program};

const PROGRAM: &str = "program \"p\" ranks 2\ngroup @g world\narg %x: f32[64, 64]\n%a: f32[64, 64] = all_reduce %x op=sum group=@g\n\
                       %b: f32[128, 64] = all_gather %a group=@g\n%c: f32[64, 64] = matmul %a, %x\n\
                       %d: f32[64, 64] = all_reduce %c op=sum group=@g\nreturn %b, %d\n";

/// The numbers of a value by their paths; of those that differ in an index alone, the first, the second and the last.
fn numbers(value: &Value) -> Vec<String> {
    fn walk(value: &Value, path: String, out: &mut Vec<String>) {
        match value {
            Value::Number(_) => out.push(path),
            Value::Array(all) => {
                all.iter().enumerate().for_each(|(i, v)| walk(v, format!("{path}/{i}"), out))
            }
            Value::Object(all) => all.iter().for_each(|(k, v)| walk(v, format!("{path}/{k}"), out)),
            _ => {}
        }
    }
    let mut paths = Vec::new();
    walk(value, String::new(), &mut paths);
    let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in paths {
        // A point is a pair of unlike numbers.
        let (place, last) = path.rsplit_once('/').unwrap_or_default();
        let kind = place
            .split('/')
            .map(|p| if p.parse::<u32>().is_ok() { "#" } else { p })
            .collect::<Vec<_>>()
            .join("/");
        kinds.entry(format!("{kind}/{last}")).or_default().push(path);
    }
    kinds
        .into_values()
        .flat_map(|paths| [paths[0].clone(), paths[paths.len() / 2].clone(), paths[paths.len() - 1].clone()])
        .collect()
}

#[test]
fn impossible_profile_numbers_are_rejected_or_harmless() {
    let program = Program::from_text(PROGRAM).expect("a program");
    let strange = [
        json!(1e308),
        json!(f64::MAX),
        json!(1e-308),
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(1e20),
        json!(1u64 << 62),
    ];
    let mut refused = 0;
    for name in ["host", "h200x2"] {
        let profile_text = MachineProfile::builtin(name).expect("a profile").to_json();
        let profile: Value = serde_json::from_str(&profile_text).expect("JSON");
        for path in numbers(&profile) {
            for number in &strange {
                let mut changed = profile.clone();
                *changed.pointer_mut(&path).expect("a number") = number.clone();
                match MachineProfile::from_json(&changed.to_string()) {
                    Err(_) => refused += 1,
                    Ok(profile) => {
                        let planned =
                            symmc::compile(&program, &CompileConfig::default().with_profile(profile));
                        let error = planned.err().filter(|e| !e.is_bad_input());
                        assert!(
                            error.is_none(),
                            "{name} {path} {number}: {}",
                            error.map(|e| e.to_string()).unwrap_or_default()
                        );
                    }
                }
            }
        }
    }
    assert!(refused > 50, "{refused}");
}

/// One time of a curve is an outlier: each curve's first, which scaling to other numbers of ranks uses, and times at random.
#[test]
fn profiles_with_an_outlier_give_plans() {
    let programs = [2, 4, 8].map(|ranks| {
        let text = PROGRAM.replace("ranks 2", &format!("ranks {ranks}"));
        Program::from_text(&text.replace("f32[128, 64]", &format!("f32[{}, 64]", 64 * ranks)))
            .expect("a program")
    });
    let expect_plans = |profile: &MachineProfile, programs: &[Program], what: &str| {
        for program in programs {
            let config = CompileConfig::default().with_profile(profile.clone());
            let planned = symmc::compile(program, &config);
            assert!(planned.is_ok(), "{what}: {}", planned.map(drop).expect_err("an error"));
        }
    };
    let mut random = SplitMix(8);
    for name in ["host", "h200x2", "h200x4"] {
        let mut profile = MachineProfile::builtin(name).expect("a profile");
        for index in 0..profile.curves.len() {
            let label = format!("{name}, {}", profile.curves[index]);
            let measured = profile.curves[index].points.clone();
            profile.curves.edit(|curves| curves[index].points[0].1 *= 2.0);
            expect_plans(&profile, &programs[1..2], &label);
            let point = random.below(measured.len());
            let factor = 1.3 * (30.0f64 / 1.3).powf(random.below(1000) as f64 / 1000.0);
            let mut points = measured.clone();
            points[point].1 *= factor;
            profile.curves.edit(|curves| curves[index].points = points);
            expect_plans(&profile, &programs, &format!("{label}, point {point} × {factor}"));
            profile.curves.edit(|curves| curves[index].points = measured);
        }
    }
}

/// Rates whose quotients would be no times.
#[test]
fn rates_outside_of_the_allowed_numbers_are_named() {
    let profile_text = MachineProfile::builtin("h200x2").expect("a profile").to_json();
    for (path, part) in [
        ("/throughput/matmul_16bit", "throughput.matmul_16bit: expected 1e-6 to 1e12"),
        ("/throughput/gap_us", "throughput.gap_us: expected 1e-6 to 1e12"),
        ("/product_rates/1/matmul", "product_rates[1]: matmul: expected 1e-6 to 1e12"),
        ("/copy/points/0/1", "curve copy: "),
    ] {
        for number in [1e-300, 1e300] {
            let mut changed: Value = serde_json::from_str(&profile_text).expect("JSON");
            *changed.pointer_mut(path).expect("a number") = json!(number);
            let error =
                MachineProfile::from_json(&changed.to_string()).expect_err("it is refused").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

/// GPUs refuse this plan, which runs on any other backend, whatever the profile tells of its devices.
#[cfg(feature = "cuda")]
#[test]
fn only_cuda_plans_are_lowered_for_gpus() {
    let program = Program::from_text(
        "program \"p\" ranks 2\ngroup @g world\narg %x: i32[64]\n%y: i32[64] = all_reduce %x op=avg group=@g\nreturn %y\n",
    );
    let program = program.expect("a program");
    let gpus = MachineProfile::builtin("h200x2").expect("a profile");
    let host = gpus.to_json().replacen("\"backend\": \"cuda\"", "\"backend\": \"host\"", 1);
    let host = MachineProfile::from_json(&host).expect("a profile");
    assert!(host != gpus && host.multiprocessors == gpus.multiprocessors);
    let config = |profile| CompileConfig::default().with_profile(profile).with_variants(Some(vec![]));
    let error = symmc::compile(&program, &config(gpus)).expect_err("GPUs cannot run it");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let plan = symmc::compile(&program, &config(host)).expect("a plan for the host");
    assert!(plan.buckets.iter().all(|bucket| bucket.totals.workspace == 0));
}

#[test]
fn excessive_time_is_reported_with_its_curve() {
    let profile_text = MachineProfile::builtin("host").expect("a profile").to_json();
    let mut changed: Value = serde_json::from_str(&profile_text).expect("JSON");
    changed["curves"][0]["points"][2][1] = json!(1e308);
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("slow.json");
    std::fs::write(&path, changed.to_string()).expect("written");
    let error = symmc::machine_profile(&path.display().to_string()).expect_err("it is refused");
    let text = error.to_string();
    assert!(error.is_bad_input(), "{text}");
    for part in [
        "slow.json",
        "curve all_gather ll on 2 ranks",
        "µs at 4096 bytes",
        "1e308 µs",
        "expected 1e-6 to 1e12 µs",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
