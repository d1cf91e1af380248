"""At ratio 0.001: replicas stay bit-identical, nothing is lost, and both paths send the same bytes."""

import unittest

import torch

from workers import Recorded, Training, flat, gradients_of, run, same_parts

# One tensor of which 0.1 % is many entries, one of which it is one.
SHAPES = {"large": (200, 150), "bias": (200,), "small": (30, 20)}


def train(rank, steps, options, gradients=gradients_of):
    """Parameters, state, the sum of all p.grad, and the last step's statistics."""
    model = Recorded(shapes=SHAPES)
    training = Training(model, **options)  # two buckets
    applied = {
        name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters()
    }
    for step in range(steps):
        training.step(gradients(rank, step, SHAPES))
        for name, p in model.named_parameters():
            applied[name] += p.grad
    return flat(model), training.state.state_dict(), applied, training.state.stats


def fading(rank, step, shapes):
    """Gradients of one step, then zeros: u decays through the denormals, and v is full of them."""
    tiny = {name: g * 2e-36 for name, g in gradients_of(rank, 0, shapes).items()}
    return tiny if step == 0 else {name: torch.zeros_like(g) for name, g in tiny.items()}


def ties(rank, path):
    training = Training(Recorded(shapes={"all": (100, 100)}), values="fp32", path=path)
    training.backward({"all": torch.ones(100, 100)})
    return training.model.all.grad.flatten().clone()


class Replicas(unittest.TestCase):
    def test_bit_identical(self):
        start = flat(Recorded(shapes=SHAPES))
        for values, steps, ranks in (("fp32", 100, 4), ("fp16", 100, 4), ("fp16", 500, 2)):
            with self.subTest(values=values, steps=steps, ranks=ranks):
                results = run(train, steps, {"values": values}, ranks=ranks)
                self.assertFalse(torch.equal(results[0][0], start))
                ours = results[0][1]["residual"]["large"]
                for rank in range(1, ranks):
                    self.assertTrue(
                        torch.equal(results[0][0], results[rank][0]), f"rank {rank} differs"
                    )
                    self.assertFalse(torch.equal(ours, results[rank][1]["residual"]["large"]))
                stats = results[0][3]
                self.assertEqual(stats.step, steps - 1)
                # 30 of 30,000, 1 of 600, and the bias.
                self.assertEqual(stats.entries, 30 + 1 + 200)
                self.assertEqual(stats.message_bytes, stats.padded_bytes)  # Gloo

    def test_nothing_is_lost(self):
        """Without momentum, what was sent and what remains are all gradients. Rounding to fp16
        loses nothing either."""
        options = {"momentum": 0.0, "values": "fp16"}
        for path, ranks in (("core", 4), ("torch", 2)):
            with self.subTest(path=path, ranks=ranks):
                results = run(train, 60, {**options, "path": path}, ranks=ranks)
                everything = [gradients_of(r, s, SHAPES) for r in range(ranks) for s in range(60)]
                for name, shape in SHAPES.items():
                    gradients = sum(g[name].double() for g in everything) / ranks
                    rest = sum(r[1]["residual"][name].double().view(shape) for r in results)
                    torch.testing.assert_close(
                        results[0][2][name] + rest, gradients, rtol=0, atol=1e-4
                    )

    def paths(self, steps, options, gradients=gradients_of):
        """Results of both paths, which have to be the same bit for bit."""
        results = [
            run(train, steps, {**options, "path": path}, gradients, ranks=2)
            for path in ("core", "torch")
        ]
        for ours, theirs in zip(*results):
            self.assertTrue(torch.equal(ours[0], theirs[0]))
            self.assertEqual(ours[3], theirs[3])
            self.assertTrue(same_parts(ours[1], theirs[1]))
        return results[1]

    def test_paths_agree(self):
        for options in (
            dict(values="fp32"),
            dict(values="fp16", nesterov=True),
            dict(values="int8", ratio=0.01),
            dict(values="sign", masking=False),
            dict(values="bf16", warmup=20, ratio=0.002),
            dict(values="fp32", momentum_correction="global"),
            dict(values="fp16", momentum_correction="global", nesterov=True),
        ):
            with self.subTest(**options):
                self.paths(40, options)

    def test_paths_agree_on_denormals(self):
        """A velocity that decays below the normal range is dropped on both paths."""
        for nesterov in (False, True):
            with self.subTest(nesterov=nesterov):
                middle = self.paths(20, {"values": "fp32", "nesterov": nesterov}, fading)[0][1][
                    "velocity"
                ]["large"]
                # Some are dropped by then, and some are not.
                self.assertTrue(0 < int((middle == 0).sum()) < middle.numel() - 1000)
                end = self.paths(50, {"values": "fp32", "nesterov": nesterov}, fading)[0][1][
                    "velocity"
                ]["large"]
                self.assertEqual(int((end != 0).sum()), 0)

    def test_ties_go_to_the_lower_index(self):
        core, torch_path = (run(ties, path, ranks=1)[0] for path in ("core", "torch"))
        self.assertEqual(core.nonzero().flatten().tolist(), list(range(10)))
        self.assertTrue(torch.equal(core, torch_path))


if __name__ == "__main__":
    unittest.main()
