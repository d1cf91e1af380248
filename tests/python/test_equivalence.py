"""At ratio 1 the hook with plain SGD is DDP with torch.optim.SGD's momentum."""

import math
import unittest

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import dgc
from workers import Recorded, flat, gradients_of, run

STEPS = 100


def with_dgc(rank, steps, momentum, nesterov, decay, clip, path):
    model = Recorded()
    ddp = DDP(model, bucket_cap_mb=0.001)
    optimizer = dgc.SGD(ddp.parameters(), lr=0.05, momentum=momentum, nesterov=nesterov, weight_decay=decay)
    state = dgc.DGCState(ddp, momentum=momentum, nesterov=nesterov, ratio=1.0, clip_norm=clip, values="fp32", path=path, optimizer=optimizer)
    ddp.register_comm_hook(state, dgc.hook)
    clipped = 0
    for step in range(steps):
        optimizer.zero_grad()
        ddp(gradients_of(rank, step)).backward()
        clipped += state.stats.clip_factor < 1.0
        optimizer.step()
    assert state.step == steps
    return flat(model), clipped


def with_ddp(rank, steps, momentum, nesterov, decay):
    model = Recorded()
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=momentum, nesterov=nesterov, weight_decay=decay)
    for step in range(steps):
        optimizer.zero_grad()
        ddp(gradients_of(rank, step)).backward()
        optimizer.step()
    return flat(model)


def clipped_oracle(momentum, clip, ranks=4):
    """SGD on the mean of gradients that were clipped per shard."""
    model = Recorded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    fired = 0
    for step in range(STEPS):
        mean = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for rank in range(ranks):
            gradients = gradients_of(rank, step)
            norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values())) / ranks
            # g/N is held to N^-1/2 of the threshold.
            factor = min(1.0, clip / math.sqrt(ranks) / norm)
            fired += factor < 1.0
            for name in mean:
                mean[name] += gradients[name] * factor / ranks
        for name, p in model.named_parameters():
            p.grad = mean[name]
        optimizer.step()
    return flat(model), fired / ranks


def end_to_end(rank, use_dgc):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Linear(40, 5))
    data = torch.randn(4, 20, 8, 20)
    labels = torch.randint(5, (4, 20, 8))
    ddp = DDP(model)
    if use_dgc:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        state = dgc.DGCState(ddp, momentum=0.9, ratio=1.0, values="fp32", optimizer=optimizer)
        ddp.register_comm_hook(state, dgc.hook)
    else:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for step in range(20):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(data[rank, step]), labels[rank, step]).backward()
        optimizer.step()
    return flat(model)


class Equivalence(unittest.TestCase):
    def check(self, ours, theirs):
        for rank in range(1, 4):
            self.assertTrue(torch.equal(ours[0], ours[rank]), f"rank {rank} differs from rank 0")
        torch.testing.assert_close(ours[0], theirs, rtol=1e-5, atol=1e-5)

    def test_heavy_ball(self):
        self.check([p for p, _ in run(with_dgc, STEPS, 0.9, False, 0.0, None, "core")], run(with_ddp, STEPS, 0.9, False, 0.0)[0])

    def test_nesterov(self):
        self.check([p for p, _ in run(with_dgc, STEPS, 0.9, True, 0.0, None, "core")], run(with_ddp, STEPS, 0.9, True, 0.0)[0])

    def test_no_momentum_with_decay(self):
        self.check([p for p, _ in run(with_dgc, STEPS, 0.0, False, 1e-2, None, "core")], run(with_ddp, STEPS, 0.0, False, 1e-2)[0])

    def test_weight_decay(self):
        for nesterov in (False, True):
            with self.subTest(nesterov=nesterov):
                self.check([p for p, _ in run(with_dgc, STEPS, 0.9, nesterov, 1e-2, None, "core")], run(with_ddp, STEPS, 0.9, nesterov, 1e-2)[0])

    def test_in_torch_operations(self):
        for nesterov in (False, True):
            with self.subTest(nesterov=nesterov):
                self.check([p for p, _ in run(with_dgc, STEPS, 0.9, nesterov, 0.0, None, "torch")], run(with_ddp, STEPS, 0.9, nesterov, 0.0)[0])

    def test_clipping(self):
        clip = 88.0  # about the norm of the mean gradient: some are clipped, some not
        expected, fired = clipped_oracle(0.9, clip)
        self.assertTrue(0 < fired < STEPS, fired)
        for path in ("core", "torch"):
            with self.subTest(path=path):
                results = run(with_dgc, STEPS, 0.9, False, 0.0, clip, path)
                self.check([p for p, _ in results], expected)
                self.assertEqual(sum(c for _, c in results) / 4, fired)

    def test_end_to_end(self):
        self.check(run(end_to_end, True), run(end_to_end, False)[0])


if __name__ == "__main__":
    unittest.main()
