"""At ratio 0.001: replicas stay bit-identical, nothing is lost, and both paths send the same bytes."""

import unittest

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import dgc
from workers import Recorded, flat, gradients_of, run

STEPS = 500
# One tensor of which 0.1 % is many entries, one of which it is one.
SHAPES = {"large": (200, 150), "bias": (200,), "small": (30, 20)}


def train(rank, steps, values, path="core", **options):
    model = Recorded(shapes=SHAPES)
    ddp = DDP(model, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    state = dgc.DGCState(ddp, momentum=0.9, values=values, path=path, optimizer=optimizer, **options)
    ddp.register_comm_hook(state, dgc.hook)
    applied = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
    for step in range(steps):
        optimizer.zero_grad()
        ddp(gradients_of(rank, step, SHAPES)).backward()
        for name, p in model.named_parameters():
            applied[name] += p.grad
        optimizer.step()
    return flat(model), state.state_dict(), applied, state.stats


class Replicas(unittest.TestCase):
    def test_bit_identical(self):
        for values in ("fp32", "fp16"):
            with self.subTest(values=values):
                results = run(train, STEPS, values)
                start = flat(Recorded(shapes=SHAPES))
                self.assertFalse(torch.equal(results[0][0], start))
                for rank in range(1, 4):
                    self.assertTrue(torch.equal(results[0][0], results[rank][0]), f"rank {rank} differs")
                    self.assertFalse(torch.equal(results[0][1]["residual"]["large"], results[rank][1]["residual"]["large"]))
                stats = results[0][3]
                self.assertEqual(stats.step, STEPS - 1)
                # 30 of 30,000, 1 of 600, and the bias.
                self.assertEqual(stats.entries, 30 + 1 + 200)
                self.assertLess(stats.message_bytes, stats.padded_bytes)

    def test_nothing_is_lost(self):
        """Without momentum, what was sent and what remains are all gradients. Rounding to fp16 loses nothing either."""
        for path in ("core", "torch"):
            with self.subTest(path=path):
                results = run(without_momentum, 60, path)
                for name in SHAPES:
                    gradients = sum(gradients_of(rank, step, SHAPES)[name].double() for rank in range(4) for step in range(60)) / 4
                    rest = sum(r[1]["residual"][name].double().view(SHAPES[name]) for r in results)
                    torch.testing.assert_close(results[0][2][name] + rest, gradients, rtol=0, atol=1e-4)

    def test_paths_agree(self):
        for options in (dict(values="fp32"), dict(values="fp16", nesterov=True), dict(values="int8", ratio=0.01), dict(values="sign", masking=False),
                        dict(values="bf16", warmup=20, ratio=0.002)):
            with self.subTest(**options):
                options = dict(options)
                values = options.pop("values")
                core, torch_path = (run(both_paths, 40, values, path, options, ranks=2) for path in ("core", "torch"))
                for ours, theirs in zip(core, torch_path):
                    self.assertTrue(torch.equal(ours[0], theirs[0]))
                    self.assertEqual(ours[3], theirs[3])
                    for part in ("velocity", "residual"):
                        for name in SHAPES:
                            self.assertTrue(torch.equal(ours[1][part][name], theirs[1][part][name]), (part, name))

    def test_ties_go_to_the_lower_index(self):
        core, torch_path = (run(ties, path, ranks=1)[0] for path in ("core", "torch"))
        self.assertEqual(core.nonzero().flatten().tolist(), list(range(10)))
        self.assertTrue(torch.equal(core, torch_path))


def without_momentum(rank, steps, path):
    model = Recorded(shapes=SHAPES)
    ddp = DDP(model)
    state = dgc.DGCState(ddp, momentum=0.0, values="fp16", path=path)
    ddp.register_comm_hook(state, dgc.hook)
    applied = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
    for step in range(steps):
        ddp.zero_grad(set_to_none=True)
        ddp(gradients_of(rank, step, SHAPES)).backward()
        for name, p in model.named_parameters():
            applied[name] += p.grad
    return None, state.state_dict(), applied


def both_paths(rank, steps, values, path, options):
    return train(rank, steps, values, path, **options)


def ties(rank, path):
    shapes = {"all": (100, 100)}
    ddp = DDP(Recorded(shapes=shapes))
    ddp.register_comm_hook(dgc.DGCState(ddp, values="fp32", path=path), dgc.hook)
    ddp({"all": torch.ones(100, 100)}).backward()
    return ddp.module.all.grad.flatten().clone()


if __name__ == "__main__":
    unittest.main()
