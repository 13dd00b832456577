//! Outputs with unspecified elements: along an axis, only the first ones are results of the program ([`OutputKind::Length`]).

use crate::graph::{Graph, OutputKind};
use crate::tensor::Tensor;

impl Graph {
    /// The axes of an output whose number of elements is another output, each with the position of that output.
    pub fn output_lengths(&self, output: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.outputs.iter().enumerate().filter_map(move |(position, length)| match length.kind {
            OutputKind::Length { output: counted, axis } if counted == output => Some((axis, position)),
            _ => None,
        })
    }

    /// Whether the extents of an output depend on the data of a run.
    pub fn has_output_lengths(&self) -> bool {
        self.outputs.iter().any(|output| matches!(output.kind, OutputKind::Length { .. }))
    }

    /// All outputs of a run, in order, without the elements that are unspecified.
    pub fn cut_outputs(&self, outputs: Vec<Tensor>) -> Vec<Tensor> {
        if !self.has_output_lengths() {
            return outputs;
        }
        let number_of = |position: usize| outputs.get(position).map_or(0, |length| length.get_i64(0));
        let lengths: Vec<Vec<(usize, i64)>> = (0..outputs.len())
            .map(|k| self.output_lengths(k).map(|(axis, position)| (axis, number_of(position))).collect())
            .collect();
        let cut_output = |(output, lengths): (Tensor, Vec<(usize, i64)>)| {
            lengths.into_iter().fold(output, |output, (axis, length)| {
                output.first_along(axis, usize::try_from(length).unwrap_or(0))
            })
        };
        outputs.into_iter().zip(lengths).map(cut_output).collect()
    }
}

impl Tensor {
    /// The first elements along an axis: as many as `length`, or all if there are fewer.
    pub fn first_along(self, axis: usize, length: usize) -> Tensor {
        let Some(&extent) = self.shape().get(axis) else { return self };
        if length >= extent {
            return self;
        }
        let row_bytes = self.shape()[axis + 1..].iter().product::<usize>() * self.dtype().size();
        let blocks = self.data().chunks_exact((extent * row_bytes).max(1));
        let data = blocks.flat_map(|block| &block[..length * row_bytes]).copied().collect();
        let mut shape = self.shape().to_vec();
        shape[axis] = length;
        Tensor::new(self.dtype(), shape, data).unwrap_or(self)
    }
}
