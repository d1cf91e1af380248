"""At ratio 1 the hook with plain SGD is DDP with torch.optim.SGD's momentum."""

import functools
import math
import unittest

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import dgc
from workers import Recorded, Training, flat, gradients_of, run

STEPS = 100


def with_dgc(rank, momentum, nesterov, decay, clip, path, correction="local"):
    sgd = functools.partial(
        torch.optim.SGD if correction == "off" else dgc.SGD,
        lr=0.05,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=decay,
    )
    training = Training(
        optimizer=sgd,
        momentum=momentum,
        nesterov=nesterov,
        ratio=1.0,
        clip_norm=clip,
        momentum_correction=correction,
        values="fp32",
        path=path,
    )
    clipped = 0
    for step in range(STEPS):
        training.step(gradients_of(rank, step))
        clipped += training.state.stats.clip_factor < 1.0
    assert training.state.step == STEPS
    return flat(training.model), clipped


class Copies(torch.nn.ModuleList):
    """Models that get the same gradients."""

    def forward(self, gradients):
        return sum(model(gradients) for model in self)


def with_ddp(rank, settings):
    """DDP with torch.optim.SGD for each (momentum, nesterov, decay), in one run."""
    copies = Copies(Recorded() for _ in settings)
    ddp = DDP(copies)
    optimizer = torch.optim.SGD(
        [
            dict(params=copy.parameters(), momentum=momentum, nesterov=nesterov, weight_decay=decay)
            for copy, (momentum, nesterov, decay) in zip(copies, settings)
        ],
        lr=0.05,
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        ddp(gradients_of(rank, step)).backward()
        optimizer.step()
    return {setting: flat(copy) for setting, copy in zip(settings, copies)}


@functools.lru_cache(maxsize=None)
def ddp_results(ranks):
    # Four ranks on two cores take five times as long as two: with four, heavy-ball alone.
    settings = [(0.9, False, 0.0)]
    if ranks == 2:
        settings += [(0.9, True, 0.0), (0.9, False, 1e-2), (0.9, True, 1e-2), (0.0, False, 1e-2)]
    return run(with_ddp, settings, ranks=ranks)[0]


def clipped_oracle(momentum, clip, ranks):
    """SGD on the mean of gradients that were clipped per shard."""
    model = Recorded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    fired = 0
    for step in range(STEPS):
        mean = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for rank in range(ranks):
            gradients = gradients_of(rank, step)
            norm = (
                math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values())) / ranks
            )
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
        for rank in range(1, len(ours)):
            self.assertTrue(torch.equal(ours[0], ours[rank]), f"rank {rank} differs from rank 0")
        torch.testing.assert_close(ours[0], theirs, rtol=1e-5, atol=1e-5)

    def compare(
        self, momentum=0.9, nesterov=False, decay=0.0, path="core", ranks=2, correction="local"
    ):
        results = run(with_dgc, momentum, nesterov, decay, None, path, correction, ranks=ranks)
        self.check(
            [parameters for parameters, _ in results], ddp_results(ranks)[momentum, nesterov, decay]
        )

    def test_heavy_ball(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                self.compare(ranks=ranks)

    def test_nesterov(self):
        self.compare(nesterov=True)

    def test_no_momentum_with_decay(self):
        self.compare(momentum=0.0, decay=1e-2)

    def test_weight_decay(self):
        for nesterov in (False, True):
            with self.subTest(nesterov=nesterov):
                self.compare(nesterov=nesterov, decay=1e-2)

    def test_in_torch_operations(self):
        for nesterov in (False, True):
            with self.subTest(nesterov=nesterov):
                self.compare(nesterov=nesterov, path="torch")

    def test_global_momentum(self):
        for path, nesterov, decay in (
            ("core", False, 0.0),
            ("core", True, 1e-2),
            ("torch", False, 1e-2),
            ("torch", True, 0.0),
        ):
            with self.subTest(path=path, nesterov=nesterov, decay=decay):
                self.compare(path=path, nesterov=nesterov, decay=decay, correction="global")

    def test_momentum_of_the_optimizer(self):
        self.compare(nesterov=True, decay=1e-2, correction="off")
        self.compare(path="torch", correction="off")

    def test_clipping(self):
        for path, ranks in (("core", 4), ("core", 2), ("torch", 2)):
            with self.subTest(path=path, ranks=ranks):
                clip = 176.0 / math.sqrt(
                    ranks
                )  # so that some gradients are clipped, and some are not
                expected, fired = clipped_oracle(0.9, clip, ranks)
                self.assertTrue(0 < fired < STEPS, fired)
                results = run(with_dgc, 0.9, False, 0.0, clip, path, ranks=ranks)
                self.check([p for p, _ in results], expected)
                self.assertEqual(sum(c for _, c in results) / ranks, fired)

    def test_end_to_end(self):
        self.check(run(end_to_end, True), run(end_to_end, False)[0])


if __name__ == "__main__":
    unittest.main()
