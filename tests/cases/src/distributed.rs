//! Random programs of the kinds that distributed training and inference have: layers with tensor parallelism, gradients of data
//! parallelism, sharded parameters and optimiser steps, sequence parallelism, independent collectives, and mixtures of these on a mesh.
//!
//! Unlike the other random programs, these are as large as real layers. They are planned and estimated, never run.

use symmc_ir::{Graph, text};
use symmc_support::random::SplitMix;

/// The text of a program while it is made.
struct ProgramBuilder {
    inputs: String,
    body: String,
    outputs: Vec<String>,
    names: usize,
    ranks: i64,
    tokens: i64,
    width: i64,
    dtype: &'static str,
}

impl ProgramBuilder {
    fn input(&mut self, keyword: &str, shape: &[i64]) -> String {
        self.names += 1;
        let name = format!("%p{}", self.names);
        let source = if keyword == "param" { format!(" source \"p{}\"", self.names) } else { String::new() };
        self.inputs += &format!("{keyword} {name}: {}{source}\n", self.ty(shape));
        name
    }

    fn ty(&self, shape: &[i64]) -> String {
        let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
        format!("{}[{}]", self.dtype, extents.join(", "))
    }

    /// Adds a node with one result of this shape.
    fn node(&mut self, shape: &[i64], expression: &str) -> String {
        self.names += 1;
        let name = format!("%v{}", self.names);
        self.body += &format!("{name}: {} = {expression}\n", self.ty(shape));
        name
    }

    fn norm(&mut self, x: &str, rows: i64) -> String {
        let weight = self.input("param", &[self.width]);
        self.node(&[rows, self.width], &format!("rms_norm {x}, {weight} axes=1 eps=1e-6 round_first=false"))
    }

    fn product(&mut self, x: &str, rows: i64, inner: i64, columns: i64) -> String {
        let weight = self.input("param", &[inner, columns]);
        self.node(&[rows, columns], &format!("matmul {x}, {weight}"))
    }

    /// A feed-forward layer of tensor parallelism whose second product is not reduced yet.
    fn partial_layer(&mut self, x: &str, rows: i64) -> String {
        let inner = 4 * self.width / self.ranks;
        let up = self.product(x, rows, self.width, inner);
        let up = self.node(&[rows, inner], &format!("silu {up}"));
        self.product(&up, rows, inner, self.width)
    }

    fn tensor_parallel_layer(&mut self, x: &str) -> String {
        let shape = [self.tokens, self.width];
        let normed = self.norm(x, self.tokens);
        let partial = self.partial_layer(&normed, self.tokens);
        let reduced = self.node(&shape, &format!("all_reduce {partial} op=sum group=@w"));
        self.node(&shape, &format!("add {x}, {reduced}"))
    }

    /// A layer between a gather and a scatter of rows. `x` holds the rows of this rank.
    fn sequence_parallel_layer(&mut self, x: &str) -> String {
        let rows = self.tokens / self.ranks;
        let normed = self.norm(x, rows);
        let gathered = self.node(&[self.tokens, self.width], &format!("all_gather {normed} group=@w"));
        let partial = self.partial_layer(&gathered, self.tokens);
        let scattered = self.node(&[rows, self.width], &format!("reduce_scatter {partial} op=sum group=@w"));
        self.node(&[rows, self.width], &format!("add {x}, {scattered}"))
    }

    /// The gradient of the weights of a product with the operand `x`.
    fn weight_gradient(&mut self, x: &str, gradient: &str) -> String {
        let turned = self.node(&[self.width, self.tokens], &format!("permute {x} perm=[1, 0]"));
        self.node(&[self.width, self.width], &format!("matmul {turned}, {gradient}"))
    }

    /// A step of data parallelism: reduced gradients of the weights, and of a bias where it is asked for.
    fn data_parallel_layer(&mut self, x: &str, with_bias: bool) -> String {
        let shape = [self.tokens, self.width];
        let activation = self.node(&shape, &format!("tanh {x}"));
        let gradient = self.weight_gradient(&activation, x);
        let reduced = self.node(&[self.width; 2], &format!("all_reduce {gradient} op=sum group=@w"));
        self.outputs.push(reduced);
        if with_bias {
            let bias = self.node(&[self.width], &format!("reduce {x} op=sum axes=[0] keep=false"));
            let reduced = self.node(&[self.width], &format!("all_reduce {bias} op=sum group=@w"));
            self.outputs.push(reduced);
        }
        self.product(x, self.tokens, self.width, self.width)
    }

    /// A layer whose weights each rank holds a piece of.
    fn sharded_layer(&mut self, x: &str) -> String {
        let piece = self.input("param", &[self.width / self.ranks, self.width]);
        let weight = self.node(&[self.width; 2], &format!("all_gather {piece} group=@w"));
        let product = self.node(&[self.tokens, self.width], &format!("matmul {x}, {weight}"));
        self.node(&[self.tokens, self.width], &format!("silu {product}"))
    }

    /// A step of an optimiser whose state is sharded: the gradient is scattered, the piece of this rank updated and gathered.
    fn sharded_step(&mut self, x: &str) -> String {
        let piece = [self.width / self.ranks, self.width];
        let normed = self.norm(x, self.tokens);
        let gradient = self.weight_gradient(&normed, x);
        let scattered = self.node(&piece, &format!("reduce_scatter {gradient} op=sum group=@w"));
        let weight = self.input("param", &piece);
        let step = self.node(&piece, &format!("mul {scattered}, 0.01"));
        let updated = self.node(&piece, &format!("sub {weight}, {step}"));
        let gathered = self.node(&[self.width; 2], &format!("all_gather {updated} group=@w"));
        self.outputs.push(gathered);
        self.product(x, self.tokens, self.width, self.width)
    }

    /// Products whose sums over the ranks do not depend on each other.
    fn independent_collectives(&mut self, x: &str, count: usize) -> String {
        let shape = [self.tokens, self.width];
        let mut total: Option<String> = None;
        for _ in 0..count {
            let product = self.product(x, self.tokens, self.width, self.width);
            let reduced = self.node(&shape, &format!("all_reduce {product} op=sum group=@w"));
            let reduced = self.node(&shape, &format!("tanh {reduced}"));
            total = Some(match total {
                Some(total) => self.node(&shape, &format!("mul {total}, {reduced}")),
                None => reduced,
            });
        }
        total.unwrap_or_else(|| x.to_string())
    }

    /// A layer with its sum over the rows of a mesh, and a gradient with its sum over the columns.
    fn mesh_layer(&mut self, x: &str) -> String {
        let shape = [self.tokens, self.width];
        let product = self.product(x, self.tokens, self.width, self.width);
        let reduced = self.node(&shape, &format!("all_reduce {product} op=sum group=@row"));
        let gradient = self.weight_gradient(&reduced, x);
        let reduced_gradient =
            self.node(&[self.width; 2], &format!("all_reduce {gradient} op=sum group=@col"));
        self.outputs.push(reduced_gradient);
        self.node(&shape, &format!("add {x}, {reduced}"))
    }
}

/// The kinds of programs, for messages.
pub const KINDS: [&str; 7] =
    ["tensor parallel", "sequence parallel", "data parallel", "sharded", "sharded steps", "wide", "mesh"];

/// A random program for 2, 4 or 8 ranks, and its kind, an index into [`KINDS`].
pub fn program(seed: u64) -> (Graph, usize) {
    let mut random = SplitMix(seed ^ 0x0d15_721b);
    let ranks: i64 = random.pick(&[2, 4, 4, 8]);
    let kind = random.below(KINDS.len());
    let mut builder = ProgramBuilder {
        inputs: String::new(),
        body: String::new(),
        outputs: Vec::new(),
        names: 0,
        ranks,
        tokens: random.pick(&[8, 16, 64, 256, 512, 2048]),
        width: random.pick(&[512, 1024, 2048, 4096]),
        dtype: if random.one_in(5) { "f32" } else { "bf16" },
    };
    let rows = if kind == 1 { builder.tokens / ranks } else { builder.tokens };
    let mut x = builder.input("arg", &[rows, builder.width]);
    let with_bias = random.one_in(2);
    for _ in 0..=random.below(6) {
        x = match kind {
            0 => builder.tensor_parallel_layer(&x),
            1 => builder.sequence_parallel_layer(&x),
            2 => builder.data_parallel_layer(&x, with_bias),
            3 => builder.sharded_layer(&x),
            4 => builder.sharded_step(&x),
            5 => builder.independent_collectives(&x, 2 + random.below(4)),
            _ => match random.below(3) {
                0 => builder.tensor_parallel_layer(&x),
                1 => builder.data_parallel_layer(&x, with_bias),
                _ => builder.mesh_layer(&x),
            },
        };
    }
    builder.outputs.push(x);
    let half = ranks / 2;
    let cells = |cells: Vec<Vec<i64>>| format!("{cells:?}");
    let rows = cells((0..2).map(|r| (r * half..(r + 1) * half).collect()).collect());
    let columns = cells((0..half).map(|c| vec![c, c + half]).collect());
    let mut program = format!("program \"distributed_{seed}\" ranks {ranks}\ngroup @w world\n");
    if kind == 6 {
        program += &format!("group @row {rows}\ngroup @col {columns}\n");
    }
    program += &builder.inputs;
    program += &builder.body;
    builder.outputs.iter().for_each(|output| program += &format!("return {output}\n"));
    (text::parse(&program).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{program}")), kind)
}
