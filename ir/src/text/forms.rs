//! The table of the ops in the text form: name, operands, attributes, meaning and an example of each.
//!
//! Reading, writing, [`op_dims`], [`operand_counts`](crate::infer::operand_counts), [`op_names`] and
//! [`reference()`](super::reference()) are generated from it, as `table.rs` explains. Every example is part of
//! the program [`EXAMPLE_PRELUDE`], and printing it gives the same text.
//!
//! The types of operands and results are in [`crate::infer`].

use smallvec::SmallVec;

use super::attributes::{AttributeReader, TextAttribute};
use super::cursor::ParseResult;
use super::table::{counts, ops};
use super::writer::TextWriter;
use crate::attention;
use crate::collective::CollectiveKind;
use crate::dim::Dim;
use crate::op::{ArgOp, Op, ProductResult};

#[derive(Clone, Copy, Debug)]
pub struct OpForm {
    pub name: &'static str,
    /// The operands in order. `name?` is optional, `name…` may be repeated.
    pub operands: &'static str,
    /// The result, with the meaning of each attribute.
    pub meaning: &'static str,
    /// Lines that use the op, in the program of [`EXAMPLE_PRELUDE`].
    pub example: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub struct OpSection {
    pub title: &'static str,
    /// The properties that all ops of the section share.
    pub about: &'static str,
    pub forms: &'static [OpForm],
}

/// The program whose statements the examples follow.
pub const EXAMPLE_PRELUDE: &str = r#"program "examples" ranks 4
symbol t in 1..=64
group @all world
group @pairs [[0, 1], [2, 3]]
custom "my::gate" symmetric operands [] results []

arg %x: f32[t, 64]
arg %y: f32[t, 64]
arg %mask: bool[t, 64]
arg %ids: i64[t]
arg %chosen: i64[4*t, 2]
arg %heads: f32[8, t, 16]
arg %angles: f32[t, 8]
arg %rows: i64[4]
arg %lengths: i64[8, 1, 1]
param %w: f32[128, 64] source "model.weight"
param %scale: f32[64] source "norm.weight"
param %sinks: f32[8, 1, 1] source "sinks"
"#;

ops! {
    section "Values from nothing"
    "The result type says how many elements there are." {
        "full" ("") op Full { @0 value }:
            "Every element is `value`."
            => "%full: bf16[t, 8] = full value=0.5";
        "iota" ("") op Iota { start, step }:
            "`start + i * step` along the only axis."
            => "%iota: i64[t] = iota start=0 step=1";
    }

    section "Element by element, one operand"
    "The result has the shape of the operand, and its dtype where nothing else is said. Functions of floats \
     compute in f32, or in f64 for f64, and round once." {
        "neg" ("x"): "`-x`, for numbers." => "%neg: f32[t, 64] = neg %x";
        "abs" ("x"): "The magnitude, for numbers." => "%abs: f32[t, 64] = abs %x";
        "sign" ("x"): "-1, 0 or 1, for numbers." => "%sign: f32[t, 64] = sign %x";
        "not" ("x"): "Logical on bool, bitwise on integers." => "%not: bool[t, 64] = not %mask";
        "exp" ("x"): "The exponential, for floats." => "%exp: f32[t, 64] = exp %x";
        "log" ("x"): "The natural logarithm, for floats." => "%log: f32[t, 64] = log %x";
        "sqrt" ("x"): "The square root, for floats." => "%sqrt: f32[t, 64] = sqrt %x";
        "rsqrt" ("x"): "`1 / sqrt(x)`, for floats." => "%rsqrt: f32[t, 64] = rsqrt %x";
        "reciprocal" ("x"): "`1 / x`, for floats." => "%reciprocal: f32[t, 64] = reciprocal %x";
        "sin" ("x"): "The sine, for floats." => "%sin: f32[t, 64] = sin %x";
        "cos" ("x"): "The cosine, for floats." => "%cos: f32[t, 64] = cos %x";
        "tanh" ("x"): "The hyperbolic tangent, for floats." => "%tanh: f32[t, 64] = tanh %x";
        "erf" ("x"): "The error function, for floats." => "%erf: f32[t, 64] = erf %x";
        "floor" ("x"):
            "The largest integer that is not above, for floats."
            => "%floor: f32[t, 64] = floor %x";
        "ceil" ("x"): "The smallest integer that is not below, for floats." => "%ceil: f32[t, 64] = ceil %x";
        "round" ("x"): "The nearest integer, ties to even, for floats." => "%round: f32[t, 64] = round %x";
        "trunc" ("x"): "The nearest integer towards 0, for floats." => "%trunc: f32[t, 64] = trunc %x";
        "relu" ("x"): "0 if `x` is below 0, else `x`, for numbers." => "%relu: f32[t, 64] = relu %x";
        "sigmoid" ("x"): "`1 / (1 + exp(-x))`, for floats." => "%sigmoid: f32[t, 64] = sigmoid %x";
        "silu" ("x"): "`x * sigmoid(x)`, for floats." => "%silu: f32[t, 64] = silu %x";
        "gelu" ("x"): "`x * (1 + erf(x / sqrt(2))) / 2`, for floats." => "%gelu: f32[t, 64] = gelu %x";
        "gelu_tanh" ("x"):
            "The approximation of `gelu` with the hyperbolic tangent, for floats."
            => "%gelu_tanh: f32[t, 64] = gelu_tanh %x";
        "is_nan" ("x"): "Whether it is NaN, for floats; gives bool." => "%is_nan: bool[t, 64] = is_nan %x";
        "is_finite" ("x"):
            "Whether it is neither NaN nor infinite, for floats; gives bool."
            => "%is_finite: bool[t, 64] = is_finite %x";
    }

    section "Element by element, two operands or more"
    "Operands have one dtype and broadcast as NumPy's do. Either of two operands may be a scalar." {
        "add" ("x, y"): "The sum, for numbers." => "%add: f32[t, 64] = add %x, %scale";
        "sub" ("x, y"): "The difference, for numbers." => "%sub: f32[t, 64] = sub 1.0, %x";
        "mul" ("x, y"): "The product, for numbers." => "%mul: f32[t, 64] = mul %x, 2.0";
        "div" ("x, y"): "The quotient, for floats." => "%div: f32[t, 64] = div %x, %y";
        "floor_div" ("x, y"):
            "The largest integer that is not above the quotient, for numbers."
            => "%floor_div: i64[t] = floor_div %ids, 2";
        "rem" ("x, y"):
            "The remainder of `floor_div`, with the sign of the divisor, for numbers."
            => "%rem: i64[t] = rem %ids, 2";
        "pow" ("x, y"): "`x` to the power of `y`, for numbers." => "%pow: f32[t, 64] = pow %x, 2.0";
        "atan2" ("x, y"):
            "The angle of the point `(y, x)`, from -π to π: the arc tangent of `x / y` where `y` is positive, for floats."
            => "%atan2: f32[t, 64] = atan2 %x, %y";
        "max" ("x, y"): "The larger." => "%max: f32[t, 64] = max %x, %y";
        "min" ("x, y"): "The smaller." => "%min: f32[t, 64] = min %x, %y";
        "and" ("x, y"): "Logical on bool, bitwise on integers." => "%and: bool[t, 64] = and %mask, %mask";
        "or" ("x, y"): "Logical on bool, bitwise on integers." => "%or: bool[t, 64] = or %mask, true";
        "xor" ("x, y"): "Logical on bool, bitwise on integers." => "%xor: i64[t] = xor %ids, 1";
        "shl" ("x, y"):
            "The bits of `x` shifted left by `y`, for integers; 0 if `y` is negative or not below the number of bits."
            => "%shl: i64[t] = shl %ids, 4";
        "shr" ("x, y"):
            "`x` shifted right by `y` with its sign, for integers: -1 or 0 if `y` is negative or not below the number of \
             bits."
            => "%shr: i64[t] = shr %ids, 4";
        "eq" ("x, y"): "Whether they are equal; gives bool." => "%eq: bool[t, 64] = eq %x, %y";
        "ne" ("x, y"): "Whether they differ; gives bool." => "%ne: bool[t, 64] = ne %x, %y";
        "lt" ("x, y"): "Whether `x` is below `y`; gives bool." => "%lt: bool[t, 64] = lt %x, 0.0";
        "le" ("x, y"): "Whether `x` is not above `y`; gives bool." => "%le: bool[t, 64] = le %x, 0.0";
        "gt" ("x, y"): "Whether `x` is above `y`; gives bool." => "%gt: bool[t, 64] = gt %x, 0.0";
        "ge" ("x, y"): "Whether `x` is not below `y`; gives bool." => "%ge: bool[t, 64] = ge %x, 0.0";
        "select" ("cond, x, y") op Select {}:
            "`x` where `cond` (bool) is true, `y` elsewhere."
            => "%select: f32[t, 64] = select %mask, %x, %y";
        "cast" ("x") op Cast {}:
            "`x` in the dtype of the result: floats round to nearest even, float to integer truncates, to bool is \
             `x != 0`."
            => "%cast: bf16[t, 64] = cast %x";
        "bitcast" ("x") op Bitcast {}:
            "The bits of `x` as another dtype of the same size. Neither dtype is bool."
            => "%bitcast: u32[t, 64] = bitcast %x";
    }

    section "Products, reductions and norms"
    "Floats accumulate in f32, or in f64 for f64, and round once." {
        "matmul" ("x, y") op MatMul {; result = ProductResult::Rounded }:
            "`x @ y` over the last two axes; leading axes broadcast. Next to `x` of f16 or bf16, `y` may have numbers of 8 \
             bits that the dtype of `x` represents."
            => "%turned: f32[64, 128] = permute %w perm=[1, 0]\n%matmul: f32[t, 128] = matmul %x, %turned";
        "matmul_unrounded" ("x, y") op MatMul {; result = ProductResult::Unrounded }:
            "The sums of `matmul` for operands of f16 or bf16, in f32: a bias or a factor can be applied before \
             the result is rounded."
            => "%xb: bf16[t, 64] = cast %x\n%turnedb: bf16[64, 128] = cast %turned\n\
                %matmul_unrounded: f32[t, 128] = matmul_unrounded %xb, %turnedb";
        "grouped_matmul" ("x, y, ends") op GroupedMatMul {}:
            "Products of groups of the rows of `x` (`[rows, k]`), each with its own matrix of `y` (`[groups, \
             k, n]`). Group `g` has the rows from `ends[g - 1]`, or 0 for the first, up to `ends[g]` \
             (`[groups]`, i32 or i64). Groups may be empty, and rows after the last end are zero. An end \
             below the one before it or beyond the rows ends the run with an error. With `x` `[m, k]` and `y` \
             `[k, n]` the groups divide K, and the result `[groups, m, n]` has the product of each: the \
             gradient of the matrices."
            => "%experts: f32[4, 64, 32] = reshape %w\n\
                %grouped_matmul: f32[t, 32] = grouped_matmul %x, %experts, %rows\n\
                %by_terms: f32[64, t] = permute %x perm=[1, 0]\n\
                %gradients: f32[4, 64, 32] = grouped_matmul %by_terms, %grouped_matmul, %rows";
        "reduce" ("x") op Reduce { op, axes, keep }:
            "Combines the elements along `axes` (ascending) by `op`: sum, mean, prod, max, min, any or all; `keep` \
             leaves the axes with extent 1. Sums and products of integers and bool give i64, `any` and `all` bool."
            => "%reduce: f32[t, 1] = reduce %x op=sum axes=[1] keep=true";
        "argmax" ("x") op ArgReduce { axis, keep; op = ArgOp::Max }:
            "The index (i64) of the largest element along `axis`, the first of equals."
            => "%argmax: i64[t] = argmax %x axis=1 keep=false";
        "argmin" ("x") op ArgReduce { axis, keep; op = ArgOp::Min }:
            "The index (i64) of the smallest element along `axis`, the first of equals."
            => "%argmin: i64[t] = argmin %x axis=1 keep=false";
        "cumsum" ("x") op CumSum { axis }:
            "The inclusive cumulative sum along `axis`; of integers and bool in i64."
            => "%cumsum: i64[t] = cumsum %ids axis=0";
        "softmax" ("x") op Softmax { axis, log }:
            "Softmax along `axis`; its logarithm when `log`."
            => "%softmax: f32[t, 64] = softmax %x axis=1 log=false";
        "rms_norm" ("x, weight?") op RmsNorm { axes, eps, round_first }:
            "`x / sqrt(mean(x²) + eps)` over the last `axes` axes, times the weight. With `round_first` the \
             normalised value is rounded to the dtype before the weight multiplies it, else after."
            => "%rms_norm: f32[t, 64] = rms_norm %x, %scale axes=1 eps=1e-6 round_first=false";
        "layer_norm" ("x, weight?, bias?") op LayerNorm { axes, eps }:
            "`(x - mean) / sqrt(var + eps)` over the last `axes` axes, times the weight, plus the bias."
            => "%layer_norm: f32[t, 64] = layer_norm %x, %scale, %scale axes=1 eps=1e-5";
        "attention" ("q, k, v, mask?, position?, sink?"):
            "Scaled dot-product attention of `q [.., h, l, e]`, `k [.., g, s, e]` and `v [.., g, s, f]`, \
             where `g` divides `h`. The mask broadcasts to `[.., h, l, s]`: bool (true attends) or a float \
             that is added to the scores, which are first `cap * tanh(scores / cap)` if a `cap` is given. \
             `causal` lets row `i` see columns up to `i`. Other `bounds` replace it: a row sees the columns \
             that all bounds admit, each the columns `below` a limit, or `from` a limit on. The limit is the \
             sum that follows: the index of the `row`, the `operand` of this bound, and a dim. Only the dim \
             is required. `chunk n of` divides positions into chunks of `n`, from 0 on; the limit is then the \
             end (below) or the beginning (from) of the chunk that contains the sum. Operands of bounds are \
             i32 or i64, broadcast to `[.., h, l, 1]`, and follow the others in the order of their bounds. \
             With `sink=true` the last operand, which broadcasts to `[.., h, l, 1]`, is one more score of \
             each row, neither scaled nor masked, whose value is zero. A row that sees no column is zero. The \
             result is `[.., h, l, f]`. With a `perm`, axis `i` of the result is axis `perm[i]` of that. With \
             `log_sum_exp=true` a second result `[.., h, l]`, f32 (f64 for f64), is the natural logarithm of \
             the sum of the exponentials of the scores that a row sees, or minus infinity if it sees no \
             column."
            => "%attention: f32[8, t, 16] = attention %heads, %heads, %heads causal=true scale=0.25\n\
                %attention.window: f32[8, t, 16] = attention %heads, %heads, %heads bounds=[below row + (1), from row + (-3)] \
                scale=0.25 cap=30.0\n\
                %attention.chunks: f32[8, t, 16] = attention %heads, %heads, %heads, %lengths bounds=[below operand + (0), \
                from chunk 16 of row + (0)] scale=0.25\n\
                %attention.sink: f32[8, t, 16] = attention %heads, %heads, %heads, %lengths, %sinks bounds=[below operand + (0)] \
                scale=0.25 sink=true\n\
                %attention.rows: f32[t, 8, 16] = attention %heads, %heads, %heads causal=true scale=0.25 perm=[1, 0, 2]\n\
                %attention.result: f32[8, t, 16], %attention.sums: f32[8, t] = attention %heads, %heads, %heads causal=true \
                scale=0.25 log_sum_exp=true";
        "attention_gradient" ("gradient, result, log_sum_exp, q, k, v, mask?, position?"):
            "The gradients of `q`, `k` and `v` of an `attention` without cap and sink: three results of their \
             types. `gradient` is the gradient of its first result; `result` and `log_sum_exp` are its \
             results; the other operands, `causal` or `bounds`, and `scale` are those of the `attention`. The \
             weights are `p = exp(scores - log_sum_exp)`, 0 where a row does not see the column, and `d = p * \
             (gradient @ vᵀ - sum(gradient * result))`. The results are `scale * d @ k`, `scale * dᵀ @ q` and \
             `pᵀ @ gradient`, the latter two summed over the query heads that share a head of keys. With a \
             `perm`, axis `i` of each result is axis `perm[i]` of these. Operands that are not finite may \
             make all gradients of their heads NaN."
            => "%gradient.q: f32[8, t, 16], %gradient.k: f32[8, t, 16], %gradient.v: f32[8, t, 16] = attention_gradient \
                %attention.result, %attention.result, %attention.sums, %heads, %heads, %heads causal=true scale=0.25\n\
                %some.q: f32[t, 8, 16], %some.k: f32[t, 8, 16], %some.v: f32[t, 8, 16] = attention_gradient \
                %attention.result, %attention.result, %attention.sums, %heads, %heads, %heads, %lengths \
                bounds=[below operand + (0)] scale=0.25 perm=[1, 0, 2]";
        "rotary_embedding" ("x, cos, sin") op RotaryEmbedding { width, interleaved }:
            "Pairs of the first `width` elements of each row of `x`, rotated: `(a, b)` becomes `(a * cos - b \
             * sin, b * cos + a * sin)`. Pair `i` is the elements `i` and `i + width / 2`, or `2i` and `2i + \
             1` if `interleaved`. `cos` and `sin` have `width` numbers in a row, or one for each pair; their \
             other axes broadcast to those of `x`. Products and sums are rounded to their dtype, which is \
             that of `x` or a wider one."
            => "%rotary_embedding: f32[8, t, 16] = rotary_embedding %heads, %angles, %angles width=16 interleaved=false";
    }

    section "Indices"
    "Indices are i64, i32 or u8. A negative index or one beyond its axis ends the run with an error. Slices, and indices that are known from the program and the sizes, are checked before the run begins." {
        "take" ("x, index") op Take { axis }:
            "`x` indexed along `axis`; the axes of the index replace that axis."
            => "%take: f32[t, 64] = take %w, %ids axis=0";
        "index" ("x, index…") op Index { axis }:
            "`x` indexed by several tensors that broadcast together, at `axis`, `axis + 1`, …; their broadcast axes \
             replace those."
            => "%index: f32[t] = index %w, %ids, %ids axis=0";
        "gather_elements" ("x, index") op GatherElements { axis }:
            "`result[i…] = x[i…]` with the coordinate of `axis` replaced by `index[i…]`."
            => "%column: i64[t, 1] = reshape %ids\n%gather_elements: f32[t, 1] = gather_elements %x, %column axis=1";
        "scatter_elements" ("x, index, src") op ScatterElements { axis, combine }:
            "`x` with `src[i…]` at `i…` with the coordinate of `axis` replaced by `index[i…]`: stored with \
             `combine=none`, where the last in row-major order wins, or combined by sum, mean, prod, max, min."
            => "%scatter_elements: f32[t, 64] = scatter_elements %x, %column, %gather_elements axis=1 combine=sum";
        "index_add" ("x, index, src") op IndexAdd { axis }:
            "`x` with `src` added at the rows `index` (one axis) along `axis`."
            => "%index_add: f32[128, 64] = index_add %w, %ids, %x axis=0";
        "index_put" ("x, src, index…") op IndexPut { axis, accumulate }:
            "`x` with `src` stored, or added when `accumulate`, at the positions that `index` reads."
            => "%index_put: f32[128, 64] = index_put %w, %x, %ids axis=0 accumulate=false";
    }

    section "Order"
    "Two results: the elements, and their positions (i64) along `axis`. Equal elements keep their order." {
        "topk" ("x") op TopK { axis, largest }:
            "The first elements in sorted order, as many as the results have along `axis`."
            => "%topk: f32[t, 2], %topk.at: i64[t, 2] = topk %x axis=1 largest=true";
        "sort" ("x") op Sort { axis, descending }:
            "All elements in sorted order."
            => "%sort: i64[t], %sort.at: i64[t] = sort %ids axis=0 descending=false";
    }

    section "Experts"
    "`n` ranks share `experts` experts. Rank `p` has the experts from `p * experts / n` on. A *global row* is `p * c + r` \
     for row `r` of rank `p`, if each rank receives up to `c` rows; a *global slot* is `(p * t + token) * k + slot` for a \
     token of rank `p`." {
        "route" ("ids"):
            "Computes where the tokens of all ranks go. `ids` (`[n*t, k]`, i64 or i32) has the experts of all tokens in \
             order of rank; -1 stands for none. Five results, all i64: the global rows of this rank's slots \
             (`[t, k]`, -1 for none), those of all ranks (`[n*t, k]`), the global slots of this rank's rows (`[c]`, -1 \
             for none; the result type gives the capacity `c`), the number of rows of each section, and the end of \
             each section. With `layout=expert` each slot has a row, sections are this rank's experts, and rows within \
             a section are in order of rank, token and slot. With `layout=batched` \
             each section has an equal share of the capacity instead, and ends after its last row. With `layout=rank` each token has one row on each rank \
             that has an expert of it, for the first such slot, and sections are the source ranks. Sections begin at \
             multiples of `align`, and `grouped_matmul` takes their ends. More rows than the capacity, and any \
             other id, end the run with an error. There is no communication. Without `group`, `n` is 1."
            => "%mine: i64[t, 2], %everyone: i64[4*t, 2], %slots: i64[8*t], %counts: i64[2], %ends: i64[2] = route %chosen \
                experts=8 align=1 layout=expert group=@all";
    }

    section "Shape"
    "`reshape`, `permute`, `slice` and `expand` are views: they cost nothing where the layout allows it. The \
     result type says the extents." {
        "concat" ("x…") op Concat { axis }:
            "All operands one after another along `axis`."
            => "%concat: f32[2*t, 64] = concat %x, %y axis=0";
        "pad" ("x") op Pad { low, value }:
            "`x` with `low[i]` elements of `value` before axis `i`, and as many after it as the result needs. \
             A negative `low` crops."
            => "%pad: f32[t + 1, 64] = pad %x low=[1, 0] value=0.0";
        "shard" ("x"):
            "This rank's piece of `x`: `axis` is divided into as many equal pieces as a cell of `group` has \
             ranks, and the result is the piece at the rank's position in its cell, in its own memory. There \
             is no communication."
            => "%shard: f32[t, 16] = shard %x axis=1 group=@all";
        "reshape" ("x") op Reshape {}:
            "The same elements in row-major order."
            => "%reshape: f32[t, 4, 16] = reshape %x";
        "permute" ("x") op Permute { perm }:
            "Axis `i` of the result is axis `perm[i]` of `x`."
            => "%permute: f32[4, t, 16] = permute %reshape perm=[1, 0, 2]";
        "slice" ("x") op Slice { axis, start, step }:
            "`x[start], x[start + step], …` along `axis`; `start` is a dim. A position outside of the axis is an error \
             before the run begins."
            => "%slice: f32[1, 64] = slice %x axis=0 start=t - 1 step=1";
        "expand" ("x") op Expand {}:
            "`x` broadcast to the result; new axes are in front."
            => "%expand: f32[t, 64] = expand %scale";
        "copy" ("x") op Copy {}:
            "The same value in its own memory."
            => "%copy: f32[1, 64] = copy %slice";
    }

    section "Collectives"
    "`group` says which ranks communicate; numbers of ranks are positions within a cell of it. `n` is the \
     size of a cell. `via=` after the group is the variant, once one is chosen (docs/concepts.md). Floats \
     accumulate in f32, or in f64 for f64, in ascending order of rank and round once." {
        "all_reduce" ("x") kind AllReduce { @0 op }:
            "The reduction of `x` over the ranks by `op`: sum, avg, max, min or prod."
            => "%all_reduce: f32[t, 64] = all_reduce %x op=sum group=@all";
        "all_gather" ("x") kind AllGather {}:
            "`[d, …]` gives `[n*d, …]`: the operands of the ranks one after another."
            => "%all_gather: f32[2*t, 64] = all_gather %x group=@pairs via=push";
        "reduce_scatter" ("x") kind ReduceScatter { @0 op }:
            "`[n*d, …]` gives `[d, …]`: this rank's piece of the reduction."
            => "%reduce_scatter: f32[32, 64] = reduce_scatter %w op=sum group=@all";
        "all_to_all" ("x, rows?") kind AllToAll { @0 splits }:
            "Piece `p` of `x` goes to rank `p`, where it becomes the piece with the number of this rank. With \
             `splits=even` pieces are equal. With `splits=device` the second operand (`[n]`, i64) has the \
             number of rows for each rank; the results are the received rows, packed in order of rank and \
             followed by zeros, and the number of rows from each rank."
            => "%all_to_all: f32[128, 64] = all_to_all %w splits=even group=@all\n%packed: f32[t, 64], %received: \
                i64[4] = all_to_all %x, %rows splits=device group=@all";
        "dispatch_rows" ("x, slots, all_rows") kind DispatchRows {}:
            "Sends tokens to the ranks of their experts. `x` is `[t, d]`; `slots` and `all_rows` are results of one `route`. Row \
             `r` of the result `[c, d]` is the token of the global slot `slots[r]`, or zero if that is negative."
            => "%sent: f32[8*t, 64] = dispatch_rows %x, %slots, %everyone group=@all";
        "combine_rows" ("x, rows, weights?") kind CombineRows {}:
            "Returns results to the ranks of the tokens. `x` is `[c, d]`; `rows` is the first result of `route`. Row `i` of the \
             result `[t, d]` is the sum over slots `j` of the global row `rows[i, j]` times `weights[i, j]`. Negative rows are left \
             out. The rows of one rank are added first, in ascending order of slot, then the sums of the ranks in ascending order."
            => "%combined: f32[t, 64] = combine_rows %sent, %mine group=@all";
        "reduce_rows" ("x, all_rows, all_weights?") kind ReduceRows {}:
            "Returns results to the ranks of the tokens as sums. `x` is `[c, d]`; `all_rows` is the second result of `route`, and \
             `all_weights` are the weights of all ranks in their order; both are equal on all ranks of the group. The first \
             result `[t, d]` is that of `combine_rows`, but each rank adds its own rows and sends the sums. The second result \
             `[(n-1)*t, d]`, f32 (f64 for f64), has the sums of the other ranks, beginning with the next one. The optimiser \
             makes it from `combine_rows` where it is faster."
            => "%reduced: f32[t, 64], %sums: f32[3*t, 64] = reduce_rows %sent, %everyone group=@all";
        "broadcast" ("x") kind Broadcast { root }:
            "The operand of rank `root`."
            => "%broadcast: f32[t, 64] = broadcast %x root=0 group=@all";
        "permute_ranks" ("x") kind Permute { pairs }:
            "For each pair `from->to` the result on `to` is the operand of `from`; the result of a rank \
             without a sender is zero."
            => "%permute_ranks: f32[t, 64] = permute_ranks %x pairs=[0->1, 1->2, 2->3, 3->0] group=@all";
    }

    section "Ops from outside"
    "The program declares the result types." {
        "opaque" ("x?…"):
            "An op that the importer does not support, by its name. It can be planned, but not run. `attributes` is a text with the other \
             arguments."
            => "%opaque: f32[t] = opaque \"aten::mystery.default\" %x, %ids attributes=\"dim=1\"";
        "custom" ("x?…"):
            "An op of yours, which a `custom` statement declares."
            => "%custom: f32[t, 64] = custom \"my::gate\" %x";
    }
}

pub fn forms() -> impl Iterator<Item = &'static OpForm> {
    OP_SECTIONS.iter().flat_map(|s| s.forms)
}

pub fn op_names() -> impl Iterator<Item = &'static str> {
    forms().map(|form| form.name)
}

pub fn op_name(op: &Op) -> &'static str {
    head(op).0
}
