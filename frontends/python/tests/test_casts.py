"""Casts between all pairs of dtypes, with PyTorch's bits."""

import itertools
import unittest

from with_torch import HAS_TORCH, compiled

if HAS_TORCH:
    import torch

    FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float16, torch.bfloat16, torch.float32, torch.float64)
    INTEGERS = (torch.uint8, torch.uint16, torch.uint32, torch.int8, torch.int16, torch.int32, torch.int64)
    DTYPES = (torch.bool, *INTEGERS, *FLOATS)
    BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def specials(dtype):
    """Values at the edges of dtypes, of their roundings, and of their ranges."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype in INTEGERS:
        bounds = torch.iinfo(dtype)
        numbers = [0, 1, 2, 3, 17, 127, 128, 255, 256, 2049, 65504, 65535, 2**24 + 1, 2**31 - 1, 2**53 + 1, bounds.min, bounds.max]
        numbers += [-number for number in numbers]
        return torch.tensor([n for n in numbers if bounds.min <= n <= bounds.max], dtype=torch.int64).to(dtype)
    numbers = [0.0, 0.3, 0.5, 1.0, 1.0625, 1.5, 2.5, 3.0, 17.5, 447.0, 464.0, 465.0, 57344.0, 61440.0, 65504.0, 65520.0, 1e9, 3.4e38, 1e300]
    numbers += [2.0**e for e in (-150, -149, -133, -127, -126, -25, -24, -17, -16, -10, -9, -6)] + [1.5 * 2.0**e for e in (-127, -17, -10)]
    return torch.tensor([*numbers, *(-n for n in numbers), float("inf"), float("-inf"), float("nan")], dtype=torch.float64).to(dtype)


def is_defined(x, dtype):
    """Where PyTorch's kernels agree with each other: floats in the range of 32 bits, if the result is an integer."""
    if x.dtype in FLOATS and dtype in INTEGERS:
        wide = x.double()
        return wide.isfinite() & (wide.abs() < 2.0**31)
    return torch.ones(x.shape, dtype=torch.bool)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed")
class Casts(unittest.TestCase):
    def test_all_pairs_have_the_bits_of_pytorch(self):
        operands = [specials(dtype) for dtype in DTYPES]
        pairs = list(itertools.product(range(len(operands)), DTYPES))

        def casts(*operands):
            return [operands[i].to(dtype) for i, dtype in pairs]

        expected = casts(*operands)
        found = compiled(casts)(*operands)
        for (i, dtype), x, y in zip(pairs, found, expected, strict=True):
            with self.subTest(source=operands[i].dtype, to=dtype):
                self.assertEqual(x.dtype, dtype)
                is_compared = is_defined(operands[i], dtype)
                is_nan = y.float().isnan() if dtype in FLOATS else torch.zeros(y.shape, dtype=torch.bool)
                if dtype in FLOATS:
                    self.assertTrue(torch.equal(x.float().isnan(), is_nan))
                bits = BITS[y.element_size()]
                is_compared &= ~is_nan
                x, y = x.view(bits)[is_compared], y.view(bits)[is_compared]
                self.assertTrue(torch.equal(x, y), f"{operands[i][is_compared]}: found {x}, expected {y}")


if __name__ == "__main__":
    unittest.main()
