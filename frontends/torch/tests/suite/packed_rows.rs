//! Rows whose number depends on data: programs give the results of the same programs with that number of rows.

use std::sync::Arc;

use symmc_ir::interp::run;
use symmc_ir::{DType, SymbolBindings, Tensor};
use symmc_torch::{ImportOptions, import};

use crate::common::Fake;

/// The nodes of programs over `rows [u0, 2]`, `flags i64[u0]` and `w [2, 4]`. Memory has 6 rows, and the first `u0`
/// of them count. The last node of each is its output.
const PROGRAMS: &[&str] = &[
    "y f32[u0,2] = aten.add.Tensor self=%rows other=%rows",
    "a f32[2] = aten.sum.dim_IntList self=%w dim=[1]\ny f32[u0,2] = aten.mul.Tensor self=%rows other=%a",
    "y f32[2] = aten.amax.default self=%rows dim=[0]",
    "y f32[1,2] = aten.amin.default self=%rows dim=[0] keepdim=true",
    "y f32[u0] = aten.amax.default self=%rows dim=[1]",
    "y f32[u0,1] = aten.sum.dim_IntList self=%rows dim=[1] keepdim=true",
    "y f32[2] = aten.prod.dim_int self=%rows dim=0",
    "y i64[2] = aten.argmax.default self=%rows dim=0",
    "y i64[2] = aten.argmin.default self=%rows dim=0",
    "y i64[u0] = aten.argmin.default self=%rows dim=1",
    "y f32[u0,2] = aten.cumsum.default self=%rows dim=0",
    "y f32[u0,2] = aten.cumsum.default self=%rows dim=1",
    "y f32[u0,2] = aten.softmax.int self=%rows dim=0",
    "y f32[u0,2] = aten.log_softmax.int self=%rows dim=1",
    "y f32[u0,2] = aten.layer_norm.default input=%rows normalized_shape=[2]",
    "y f32[u0,2], j i64[u0,2] = aten.sort.default self=%rows dim=0 descending=false",
    "z f32[u0,2], y i64[u0,2] = aten.sort.default self=%rows dim=0 descending=true",
    "y f32[u0,1], j i64[u0,1] = aten.topk.default self=%rows k=1 dim=1",
    "y f32[u0,4] = aten.mm.default self=%rows mat2=%w",
    "t f32[2,u0] = aten.permute.default self=%rows dims=[1,0]\ny f32[2,2] = aten.mm.default self=%t mat2=%rows",
    "t f32[2,u0] = aten.permute.default self=%rows dims=[1,0]\ny f32[2,u0] = aten.neg.default self=%t",
    "a f32[u0,1,2] = aten.unsqueeze.default self=%rows dim=1\nb f32[u0,2,1] = aten.unsqueeze.default self=%rows dim=2\n\
     y f32[u0,1,1] = aten.bmm.default self=%a mat2=%b",
    "y f32[2*u0] = aten.view.default self=%rows size=[-1]",
    "a f32[2*u0] = aten.view.default self=%rows size=[-1]\nb f32[2*u0] = aten.relu.default self=%a\n\
     y f32[u0,2] = aten.view.default self=%b size=[-1,2]",
    "a f32[u0,4] = aten.mm.default self=%rows mat2=%w\ny f32[u0,2,2] = aten.view.default self=%a size=[-1,2,2]",
    "y f32[u0,4] = aten.cat.default tensors=[%rows,%rows] dim=1",
    "y f32[2*u0,2] = aten.cat.default tensors=[%rows,%rows] dim=0",
    "y f32[u0,5] = aten.constant_pad_nd.default self=%rows pad=[1,2] value=7.0",
    "y f32[u0,1] = aten.slice.Tensor self=%rows dim=1 start=1 end=2",
    "y f32[u0,2] = aten.index_select.default self=%table dim=0 index=%flags",
    "y f32[u0,2] = aten.gather.default self=%table dim=0 index=%places",
    "y f32[u0,2] = aten.gather.default self=%rows dim=1 index=%places",
    "j i64[2] = aten.argmax.default self=%rows dim=0\ny f32[2,2] = aten.index_select.default self=%rows dim=0 index=%j",
    "j i64[1,2] = aten.argmin.default self=%rows dim=0 keepdim=true\n\
     y f32[1,2] = aten.gather.default self=%rows dim=0 index=%j",
    "y f32[6,2] = aten.index_add.default self=%table dim=0 index=%flags source=%rows",
    "y f32[2] = aten.mean.dim self=%rows dim=[0]",
    "q f32[1,u0,2] = aten.unsqueeze.default self=%rows dim=0\nk f32[1,6,2] = aten.unsqueeze.default self=%table dim=0\n\
     y f32[1,u0,2] = aten.scaled_dot_product_attention.default query=%q key=%k value=%k",
    "q f32[1,u0,2] = aten.unsqueeze.default self=%rows dim=0\nk f32[1,6,2] = aten.unsqueeze.default self=%table dim=0\n\
     y f32[1,u0,2] = aten.scaled_dot_product_attention.default query=%q key=%k value=%k is_causal=true",
    "y f32[u0,3,2] = aten.expand.default self=%middle size=[-1,3,2]",
];

/// A program over `count` rows, which may be the symbol `u0`.
fn program(body: &str, count: &str) -> Fake {
    let mut fake = Fake::new()
        .input("x", "f32[6,2]")
        .input("all_flags", "i64[6]")
        .input("all_places", "i64[6,2]")
        .input("table", "f32[6,2]")
        .input("w", "f32[2,4]")
        .input("n", "i64[]");
    let mut end = count.to_string();
    if count == "u0" {
        end = "$u0".into();
        fake = fake.sym_int("u0", "u0").range("u0", Some(0), Some(6)).int_node(
            "aten.item.default",
            "self=%n",
            "u0",
        );
    }
    let head = "rows f32[u0,2] = aten.slice.Tensor self=%x dim=0 start=0 end=END\n\
        flags i64[u0] = aten.slice.Tensor self=%all_flags dim=0 start=0 end=END\n\
        places i64[u0,2] = aten.slice.Tensor self=%all_places dim=0 start=0 end=END\n\
        middle f32[u0,1,2] = aten.unsqueeze.default self=%rows dim=1\n";
    let mut output = String::new();
    for line in head.lines().chain(body.lines()) {
        let line = line.replace("END", &end).replace("2*u0", "U").replace("u0", count);
        let doubled = if count == "u0" {
            "2*u0".into()
        } else {
            (2 * count.parse::<i64>().expect("a number")).to_string()
        };
        let line = line.replace('U', &doubled);
        let (results, call) = line.split_once(" = ").expect("a node");
        let (target, arguments) = call.split_once(' ').expect("arguments");
        let results: Vec<(&str, &str)> =
            results.split(", ").map(|result| result.split_once(' ').expect("a type")).collect();
        fake = fake.node(target, arguments, &results);
        let (name, ty) = results.iter().find(|(name, _)| *name == "y").unwrap_or(&results[0]);
        output = name.to_string();
        if *name == "y" && ty.contains("u0") {
            fake = fake.node("symmc.whole_rows.default", "x=%y", &[("whole", ty)]);
            output = "whole".into();
        }
    }
    fake.output(&output)
}

/// The shape of the result, and its elements.
fn result(fake: &Fake, count: i64) -> Result<(Vec<i64>, Vec<f64>), String> {
    let options = ImportOptions { ranks: Some(1), ..ImportOptions::default() };
    let imported = import(&fake.bytes(), &options).map_err(|e| e.to_string())?;
    let floats = |shape: &[usize], scale: f64| {
        let elements = (0..shape.iter().product::<usize>()).map(|i| ((i * 7) % 11) as f64 * scale - 2.0);
        Tensor::from_f64(DType::F32, shape, &elements.collect::<Vec<_>>())
    };
    let integers = |shape: &[usize], elements: &[i64]| Tensor::from_i64(DType::I64, shape, elements);
    let inputs = [
        floats(&[6, 2], 0.5),
        integers(&[6], &[4, 0, 5, 1, 2, 3]),
        integers(&[6, 2], &[1, 0, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1]),
        floats(&[6, 2], 0.25),
        floats(&[2, 4], 1.0),
        integers(&[], &[count]),
    ];
    let inputs = inputs.map(|tensor| Arc::new(tensor.expect("as many elements")));
    let graph = imported.graph;
    let shape = &graph.ty(graph.outputs[0].value).shape;
    let shape: Vec<i64> = shape.iter().map(|extent| extent.as_const().expect("a fixed extent")).collect();
    let found = run(&graph, &SymbolBindings::new(), &[inputs.to_vec()]).map_err(|e| e.to_string())?;
    Ok((shape, found[0][0].to_f64()))
}

/// The elements of a tensor at the positions of a smaller shape.
fn leading_part(shape: &[i64], elements: &[f64], part: &[i64]) -> Vec<f64> {
    let positions = 0..part.iter().product();
    let place = |position: i64| {
        let mut rest = position;
        let mut stride = 1;
        let mut place = 0;
        for (extent, whole) in part.iter().zip(shape).rev() {
            place += rest % extent * stride;
            rest /= extent;
            stride *= whole;
        }
        elements[place as usize]
    };
    positions.map(place).collect()
}

#[test]
fn packed_rows_are_those_of_fixed_programs() {
    let mut compared = 0;
    for body in PROGRAMS {
        for count in [0, 1, 3, 6] {
            let (shape, elements) =
                result(&program(body, "u0"), count).unwrap_or_else(|e| panic!("{body}: {e}"));
            let (part, expected) = match result(&program(body, &count.to_string()), count) {
                Ok(fixed) => fixed,
                // Reductions of no rows.
                Err(_) if count == 0 => continue,
                Err(e) => panic!("{body}, {count} rows: {e}"),
            };
            let found = leading_part(&shape, &elements, &part);
            let is_near = |(a, b): (&f64, &f64)| a == b || (a - b).abs() < 1e-5 || a.is_nan() && b.is_nan();
            assert!(found.iter().zip(&expected).all(is_near), "{body}, {count} rows: {found:?} {expected:?}");
            compared += 1;
        }
    }
    assert!(compared > 3 * PROGRAMS.len(), "{compared}");
}
