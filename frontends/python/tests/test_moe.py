"""``symmc.moe`` on ranks that are threads or processes, compared with mixtures that one rank computes alone."""

import unittest
from concurrent.futures import ThreadPoolExecutor

from with_torch import HAS_TORCH, on_ranks

if HAS_TORCH:
    import torch

    import symmc
    from symmc.moe import ExpertExchange

    def of_ranks(ranks, function):
        """What a function of a group gives on each rank, which are threads."""
        with ThreadPoolExecutor(ranks) as threads:
            return list(threads.map(function, symmc.Group.threads(ranks)))

    class Case:
        """Tokens, choices and weights of all ranks. Some slots have no expert."""

        def __init__(self, ranks, experts, slots, tokens, hidden, dtype=torch.float32, seed=0, only=None):
            torch.manual_seed(seed)
            self.x = [torch.randn(tokens, hidden).to(dtype) for _ in range(ranks)]
            choose = lambda: torch.stack([torch.randperm(experts)[:slots] for _ in range(tokens)])  # noqa: E731
            self.ids = [choose() if only is None else torch.full((tokens, slots), only) for _ in range(ranks)]
            self.ids[0][0, 0] = -1
            self.weights = [torch.rand(tokens, slots) for _ in range(ranks)]
            self.config = dict(experts=experts, slots=slots, hidden=hidden, tokens=tokens, dtype=dtype)

        def dense(self, rank, x, weights, factors):
            """Each expert multiplies tokens with its factors."""
            out = torch.zeros_like(x)
            for j in range(weights.shape[1]):
                ids = self.ids[rank][:, j]
                picked = factors[ids.clamp(min=0)] * (ids >= 0).unsqueeze(1)
                out = out + (x * picked * weights[:, j : j + 1]).to(x.dtype)
            return out

    def by_experts(exchange, rows, routing, factors):
        """The rows of each local expert times its factors."""
        parts, start = [], 0
        for local, end in enumerate(routing.ends.tolist()):
            if exchange.layout == "batched":
                start = local * (exchange.capacity // exchange.sections)
                following = start + exchange.capacity // exchange.sections
            else:
                following = end
            parts.append(rows[start:following] * factors[local])
            start = following
        return torch.cat([*parts, rows[start:]])

    def processes(rank):
        case = Case(2, 4, 2, 5, 8)
        with ExpertExchange(torch.distributed.group.WORLD, **case.config) as exchange:
            routing = exchange.route(case.ids[rank])
            rows = exchange.dispatch(case.x[rank], routing)
            y = exchange.combine(rows, routing, case.weights[rank])
        expected = case.dense(rank, case.x[rank], case.weights[rank], torch.ones(4, 8))
        torch.testing.assert_close(y, expected)


@unittest.skipUnless(HAS_TORCH, "needs PyTorch")
class Moe(unittest.TestCase):
    def test_gives_what_one_rank_computes(self):
        for ranks, layout, dtype, only in [
            (1, "expert", torch.float32, None),
            (2, "expert", torch.float32, None),
            (2, "batched", torch.bfloat16, None),
            (4, "expert", torch.bfloat16, 3),
            (4, "batched", torch.float64, None),
        ]:
            with self.subTest(ranks=ranks, layout=layout, dtype=dtype):
                case = Case(ranks, 8, 2, 6, 16, dtype, only=only)
                factors = torch.arange(1.0, 9.0).repeat(16, 1).t().to(dtype)

                def run(group, case=case, factors=factors, layout=layout):
                    rank = group.rank
                    local = 8 // group.ranks
                    with ExpertExchange(group, **case.config, layout=layout, align=1) as exchange:
                        routing = exchange.route(case.ids[rank])
                        rows = exchange.dispatch(case.x[rank], routing)
                        rows = by_experts(exchange, rows, routing, factors[rank * local : (rank + 1) * local])
                        return exchange.combine(rows, routing, case.weights[rank])

                for rank, found in enumerate(of_ranks(ranks, run)):
                    expected = case.dense(rank, case.x[rank], case.weights[rank], factors)
                    torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-1 if dtype is torch.bfloat16 else 1e-5)

    def test_sends_each_token_once_to_each_rank_in_the_layout_of_ranks(self):
        case = Case(2, 4, 3, 5, 4)

        def run(group):
            with ExpertExchange(group, **case.config, layout="rank") as exchange:
                routing = exchange.route(case.ids[group.rank])
                rows = exchange.dispatch(case.x[group.rank], routing)
                return routing.counts, exchange.combine(rows, routing)

        found = of_ranks(2, run)
        for rank, (counts, y) in enumerate(found):
            on = [((ids >= 0) & (ids // 2 == rank)).any(1).sum() for ids in case.ids]
            self.assertEqual(counts.tolist(), [int(n) for n in on])
            ids = case.ids[rank]
            ranks = torch.stack([((ids >= 0) & (ids // 2 == r)).any(1) for r in range(2)]).sum(0)
            torch.testing.assert_close(y, case.x[rank] * ranks.unsqueeze(1))

    def test_returns_sums_where_they_are_estimated_to_be_faster(self):
        case = Case(2, 16, 8, 1024, 512, torch.bfloat16)

        def run(group, by_rows):
            rank = group.rank
            with ExpertExchange(group, **case.config) as exchange:
                if by_rows:
                    exchange._returns_sums = lambda *_: False
                routing = exchange.route(case.ids[rank])
                rows = exchange.dispatch(case.x[rank], routing)
                y = exchange.combine(rows, routing, case.weights[rank])
                unweighted = exchange.combine(rows, routing)
                return y, unweighted, {key[0] for key in exchange._sessions}

        by_rows = of_ranks(2, lambda group: run(group, by_rows=True))
        by_sums = of_ranks(2, lambda group: run(group, by_rows=False))
        for (y, unweighted, forms), (same, same_unweighted, same_forms) in zip(by_rows, by_sums, strict=True):
            self.assertEqual((forms, same_forms), ({"route", "dispatch", "combine"}, {"route", "dispatch", "sums"}))
            self.assertTrue(torch.equal(y, same) and torch.equal(unweighted, same_unweighted))

    def test_returns_the_sums_of_128_tokens_on_two_gpus_without_a_gather_of_rows(self):
        def run(group):
            forms = []
            config = dict(experts=16, slots=8, hidden=7168, tokens=128, machine="h200x2")
            with ExpertExchange(group, **config, name="layers.3") as exchange:
                rows = torch.ones(exchange.capacity, 7168, dtype=torch.bfloat16)
                for tokens in (16, 128):
                    routing = exchange.route(torch.arange(tokens * 8).reshape(tokens, 8) % 16)
                    y = exchange.combine(rows, routing, torch.ones(tokens, 8))
                    self.assertTrue((y == 8).all())
                    forms.append({key[0] for key in exchange._sessions})
                [sums] = [plan for key, plan in exchange._plans.items() if key[0] == "sums"]
                return forms, {choice.collective for choice in sums.choices()}

        expected = [{"route", "combine"}, {"route", "combine", "sums"}], {"all_weights", "y"}
        self.assertEqual(of_ranks(2, run), [expected] * 2)

    def test_returns_rows_in_the_layout_of_ranks(self):
        case = Case(2, 16, 8, 1024, 512, torch.bfloat16)

        def run(group):
            with ExpertExchange(group, **case.config, layout="rank") as exchange:
                routing = exchange.route(case.ids[group.rank])
                exchange.combine(exchange.dispatch(case.x[group.rank], routing), routing)
                return {key[0] for key in exchange._sessions}

        self.assertEqual(of_ranks(2, run), [{"route", "dispatch", "combine"}] * 2)

    def test_differentiates_as_one_rank_does(self):
        case = Case(2, 4, 2, 5, 8)
        factors = torch.rand(4, 8)

        def run(group, by_sums):
            rank = group.rank
            with ExpertExchange(group, **case.config) as exchange:
                exchange._returns_sums = lambda *_: by_sums
                x = case.x[rank].clone().requires_grad_()
                weights = case.weights[rank].clone().requires_grad_()
                routing = exchange.route(case.ids[rank])
                rows = by_experts(exchange, exchange.dispatch(x, routing), routing, factors[2 * rank : 2 * rank + 2])
                y = exchange.combine(rows, routing, weights)
                (y * y).sum().backward()
                return x.grad, weights.grad

        by_rows = of_ranks(2, lambda group: run(group, by_sums=False))
        by_sums = of_ranks(2, lambda group: run(group, by_sums=True))
        for rank, (rows_gradients, sums_gradients) in enumerate(zip(by_rows, by_sums, strict=True)):
            x = case.x[rank].clone().requires_grad_()
            weights = case.weights[rank].clone().requires_grad_()
            y = case.dense(rank, x, weights, factors)
            (y * y).sum().backward()
            for of_x, of_weights in (rows_gradients, sums_gradients):
                torch.testing.assert_close(of_x, x.grad)
                torch.testing.assert_close(of_weights, weights.grad)

    def test_has_second_derivatives(self):
        case = Case(2, 4, 2, 5, 8, torch.float64)
        factors = torch.rand(4, 8, dtype=torch.float64)

        def second(x, weights, y):
            first = torch.autograd.grad((y * y).sum(), (x, weights), create_graph=True)
            return torch.autograd.grad((first[0] ** 2).sum() + (first[1] ** 2).sum(), (x, weights))

        def leaves(rank):
            return case.x[rank].clone().requires_grad_(), case.weights[rank].double().requires_grad_()

        def run(group):
            rank = group.rank
            with ExpertExchange(group, **case.config) as exchange:
                x, weights = leaves(rank)
                routing = exchange.route(case.ids[rank])
                rows = by_experts(exchange, exchange.dispatch(x, routing), routing, factors[2 * rank : 2 * rank + 2])
                return second(x, weights, exchange.combine(rows**2, routing, weights))

        for rank, found in enumerate(of_ranks(2, run)):
            x, weights = leaves(rank)
            y = case.dense(rank, x**2, weights, factors**2)
            for one, other in zip(found, second(x, weights, y)):
                torch.testing.assert_close(one, other)

    def test_refuses_gradients_that_it_does_not_have(self):
        def run(group):
            with ExpertExchange(group, experts=2, slots=1, hidden=4, tokens=3, dtype=torch.float32) as exchange:
                routing = exchange.route(torch.zeros(3, 1, dtype=torch.int64))
                x, weights = torch.ones(3, 4, requires_grad=True), torch.ones(3, 1, requires_grad=True)
                out = torch.empty(exchange.capacity, 4)
                with self.assertRaisesRegex(symmc.InputError, "out: expected None, because x requires a gradient"):
                    exchange.dispatch(x, routing, out=out)
                with torch.no_grad():
                    exchange.dispatch(x, routing, out=out)
                with self.assertRaisesRegex(symmc.InputError, "out: expected None, because weights requires a gradient"):
                    exchange.combine(out, routing, weights, out=torch.empty(3, 4))

        of_ranks(1, run)

    def test_moves_fp8_and_scales_as_they_are(self):
        case = Case(2, 4, 2, 6, 32)
        tokens = [x.to(torch.float8_e4m3fn) for x in case.x]
        scales = [torch.rand(6, 4) for _ in range(2)]

        def run(group):
            rank = group.rank
            with ExpertExchange(group, **case.config) as exchange:
                routing = exchange.route(case.ids[rank])
                sent = exchange.dispatch(tokens[rank], routing)
                return sent, exchange.dispatch(scales[rank], routing), exchange.row_weights(case.weights[rank], routing), routing.slots

        for sent, of_rows, weights, slots in of_ranks(2, run):
            self.assertEqual(sent.dtype, torch.float8_e4m3fn)
            for row, slot in enumerate(slots.tolist()):
                if slot < 0:
                    self.assertFalse(sent[row].view(torch.uint8).any())
                    continue
                rank, token, j = slot // 12, slot % 12 // 2, slot % 2
                self.assertTrue(torch.equal(sent[row].view(torch.uint8), tokens[rank][token].view(torch.uint8)))
                self.assertTrue(torch.equal(of_rows[row], scales[rank][token]))
                self.assertEqual(weights[row], case.weights[rank][token, j])

    def test_reads_symmetric_buffers_in_place(self):
        case = Case(2, 4, 2, 6, 16)

        def run(group):
            rank = group.rank
            with ExpertExchange(group, **case.config) as exchange:
                [tokens], [rows] = exchange.tokens_buffers(), exchange.rows_buffers()
                for _ in range(3):
                    tokens.copy_(case.x[rank])
                    routing = exchange.route(case.ids[rank])
                    exchange.dispatch(tokens, routing, out=rows)
                    y = exchange.combine(rows, routing, case.weights[rank])
                self.assertTrue(exchange.poll())
                return y

        for rank, y in enumerate(of_ranks(2, run)):
            torch.testing.assert_close(y, case.dense(rank, case.x[rank], case.weights[rank], torch.ones(4, 16)))

    def test_takes_no_tokens_and_refuses_too_many(self):
        def nothing(group):
            with ExpertExchange(group, experts=2, slots=1, hidden=4, tokens=3, dtype=torch.float32) as exchange:
                routing = exchange.route(torch.full((3, 1), -1))
                rows = exchange.dispatch(torch.ones(3, 4), routing)
                return routing.counts.sum(), rows.any(), exchange.combine(rows, routing).any()

        for found in of_ranks(2, nothing):
            self.assertEqual([int(x) for x in found], [0, 0, 0])

        def overfull(group):
            with ExpertExchange(group, experts=2, slots=1, hidden=4, tokens=3, dtype=torch.float32, capacity=5) as exchange:
                exchange.route(torch.zeros(3, 1, dtype=torch.int64))

        for failed in of_ranks(2, lambda group: self.assertRaises(symmc.DataError, overfull, group) or group.rank):
            self.assertIn(failed, (0, 1))
        for name, shown in ((None, "route %rows"), ("layers.3", r"route %layers\.3\.rows")):
            with self.assertRaisesRegex(symmc.InputError, f"{shown}.*receives 3 rows: expected at most 2"):
                of_ranks(1, lambda group, name=name: ExpertExchange(
                    group, experts=2, slots=1, hidden=4, tokens=3, dtype=torch.float32, capacity=2, name=name
                ).route(torch.zeros(3, 1, dtype=torch.int64)))

    def test_names_what_it_refuses(self):
        def run(group):
            with ExpertExchange(group, experts=2, slots=2, hidden=4, tokens=3, dtype=torch.float32) as exchange:
                with self.assertRaisesRegex(symmc.InputError, r"ids: expected the shape \[any, 2\], found \[3, 1\]"):
                    exchange.route(torch.zeros(3, 1, dtype=torch.int64))
                with self.assertRaisesRegex(symmc.InputError, "ids: expected torch.int64 or torch.int32, found torch.float32"):
                    exchange.route(torch.zeros(3, 2))
                for tokens in (0, 4):
                    with self.assertRaisesRegex(symmc.InputError, f"ids: expected 1 to 3 tokens, found {tokens}"):
                        exchange.route(torch.zeros(tokens, 2, dtype=torch.int64))
                routing = exchange.route(torch.zeros(3, 2, dtype=torch.int32))
                with self.assertRaisesRegex(symmc.InputError, r"x: expected the shape \[3, any\], found \[2, 4\]"):
                    exchange.dispatch(torch.zeros(2, 4), routing)

                for name, call in [
                    ("ids", lambda: exchange.route([[0, 1]] * 3)),
                    ("x", lambda: exchange.dispatch([[0.0] * 4] * 3, routing)),
                    ("rows", lambda: exchange.combine([[0.0] * 4] * 6, routing)),
                ]:
                    with self.assertRaisesRegex(symmc.InputError, f"{name}: expected a torch.Tensor, found list"):
                        call()

        of_ranks(1, run)
        with self.assertRaisesRegex(symmc.InputError, "group: expected a symmc.Group or a process group with this rank, found -100"):
            ExpertExchange(-100, experts=2, slots=1, hidden=4, tokens=3)
        for wrong, found in [
            ({"experts": True}, "experts: expected a positive integer, found True"),
            ({"capacity": True}, "capacity: expected a positive integer, found True"),
            ({"name": 3}, "name: expected letters, digits, .* found 3"),
            ({"name": "3rd"}, "name: expected letters, digits, .* found '3rd'"),
            ({"name": ""}, "name: expected letters, digits, .* found ''"),
            ({"layout": "batched", "capacity": 7}, "capacity: expected a multiple of 2 local experts, found 7"),
        ]:
            config = {**dict(experts=2, slots=1, hidden=4, tokens=3), **wrong}
            with self.assertRaisesRegex(symmc.InputError, found):
                of_ranks(1, lambda group, config=config: ExpertExchange(group, **config))
        with self.assertRaisesRegex(symmc.InputError, "experts: expected a multiple of 1 ranks|experts: expected a positive"):
            of_ranks(1, lambda group: ExpertExchange(group, experts=0, slots=1, hidden=4, tokens=3))
        with self.assertRaisesRegex(symmc.InputError, "layout: expected one of expert, batched, rank, found 'flat'"):
            of_ranks(1, lambda group: ExpertExchange(group, experts=2, slots=1, hidden=4, tokens=3, layout="flat"))

    def test_names_the_rank_that_passes_a_bad_id(self):
        def run(group, culprit, bad):
            ids = torch.tensor([[0, -1], [3, 7]])
            if group.rank == culprit:
                ids[1, 0] = bad
            try:
                with ExpertExchange(group, experts=8, slots=2, hidden=4, tokens=2, layout=layout) as exchange:
                    exchange.route(ids)
            except symmc.IndexRangeError as error:
                return error
            return None

        for layout in ("expert", "batched", "rank"):
            for culprit in range(4):
                for bad in (8, -2, 2**62, -(2**63)):
                    with self.subTest(layout=layout, culprit=culprit, bad=bad):
                        for error in of_ranks(4, lambda group, culprit=culprit, bad=bad: run(group, culprit, bad)):
                            self.assertEqual(error.culprit, culprit)
                            text = f"the id {bad} of a token of rank {culprit}: expected an expert from 0 to 7, or -1 for none"
                            self.assertIn(text, str(error))
            self.assertEqual(of_ranks(4, lambda group: run(group, None, 0)), [None] * 4)

    def test_runs_on_a_process_group(self):
        on_ranks(processes)


if __name__ == "__main__":
    unittest.main()
