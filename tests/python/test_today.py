"""DDP as scripts use it today: torch.compile, static graphs, autocast, scalers, activation
checkpointing, no_sync. join() is refused."""

import unittest

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import dgc
from versions import HAS_COMPILE, HAS_CPU_SCALER, WITHOUT_COMPILE, WITHOUT_CPU_SCALER
from workers import Training, caught, flat, run, same_parts

STEPS = 8
EXACT = {"ratio": 1.0, "values": "fp32"}


class Network(torch.nn.Module):
    """Two blocks of which activations may be recomputed, and a layer for the classes."""

    def __init__(self, recompute=None):
        super().__init__()
        torch.manual_seed(1)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.Tanh(), torch.nn.Linear(48, 24))
            for _ in range(2)
        )
        self.unused = torch.nn.Linear(24, 5)
        self.last = torch.nn.Linear(24, 5)
        self._recompute = recompute

    def forward(self, x):
        for block in self.blocks:
            if self._recompute is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self._recompute == "reentrant")
        return self.last(x)


def batch(rank, step):
    chance = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(8, 24, generator=chance)
    # Without it, use_reentrant=True computes no gradients of the first block.
    return inputs.requires_grad_(), torch.randint(5, (8,), generator=chance)


def network(recompute=None, unused=False):
    model = Network(recompute)
    if not unused:
        model.unused.requires_grad_(False)
    return model


def loss_of(model, rank, step, autocast):
    inputs, targets = batch(rank, step)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        return torch.nn.functional.cross_entropy(model(inputs), targets)


def momentum_sgd(rank, autocast=False):
    """The oracle: DDP without a hook. At ratio 1 dgc.hook gives the same."""
    ddp = DDP(network())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, rank, step, autocast).backward()
        optimizer.step()
    return flat(ddp)


def train(rank, options, ddp=None, recompute=None, unused=False, autocast=False, halves=False):
    training = Training(network(recompute, unused), ddp=ddp, set_to_none=True, **options)
    for step in range(STEPS):
        training.optimizer.zero_grad(set_to_none=True)
        if halves:
            # Halves are exact, so that their sum is.
            with training.ddp.no_sync():
                (loss_of(training.ddp, rank, step, autocast) / 2).backward()
            (loss_of(training.ddp, rank, step, autocast) / 2).backward()
        else:
            loss_of(training.ddp, rank, step, autocast).backward()
        assert (training.model.unused.weight.grad is None) or not unused
        training.optimizer.step()
    assert training.state.step == STEPS
    return flat(training.model), training.state.state_dict()


def compiled(rank, where, backend, options, bucket_cap_mb=None):
    """torch.compile of the model that DDP wraps, or of the DDP module. How often a graph was
    compiled, too."""
    graphs = []

    def eager(graph, inputs):
        graphs.append(len(inputs))
        return graph.forward

    torch._dynamo.reset()
    use = eager if backend == "eager" else backend
    model = network()
    inner = torch.compile(model, backend=use) if where == "model" else model
    ddp = DDP(inner, bucket_cap_mb=bucket_cap_mb)
    outer = torch.compile(ddp, backend=use) if where == "ddp" else ddp
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.05)
    state = dgc.DGCState(outer, optimizer=optimizer, dense=["blocks.0.2.weight"], **options)
    outer.register_comm_hook(state, dgc.hook)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss_of(outer, rank, step, False).backward()
        optimizer.step()
    return flat(model), state.state_dict(), len(graphs)


def scaled(rank, bad_step):
    """A scaler with an Inf on one rank."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    training = Training(network(), set_to_none=True, scaler=scaler, **EXACT)
    scales, skips = [], []
    for step in range(STEPS + (bad_step is not None)):
        training.optimizer.zero_grad(set_to_none=True)
        number = step if bad_step is None or step < bad_step else step - 1
        loss = scaler.scale(loss_of(training.ddp, rank, number, False))
        if step == bad_step and rank == 1:
            loss = loss * float("inf")
        loss.backward()
        scaler.step(training.optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        skips.append(training.state.skipped)
    return flat(training.model), scales, skips


def joined(rank, inputs, of_ddp):
    """Under DDP.join(), where ranks have different numbers of inputs."""
    model = network()
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    state = dgc.DGCState(ddp if of_ddp else model, optimizer=optimizer, ratio=0.1)
    ddp.register_comm_hook(state, dgc.hook)
    steps = []

    def work():
        with ddp.join():
            for step in range(inputs[rank]):
                optimizer.zero_grad()
                loss_of(ddp, rank, step, False).backward()
                optimizer.step()
                steps.append(step)

    return caught(work), len(steps), state.step


def python_reducer(rank):
    """What DDP gives to hooks when torch.compile replaces its reducer: no bucket."""
    training = Training()
    parameter = training.model.first
    return caught(lambda: dgc.hook(training.state, (torch.zeros_like(parameter), parameter)))


class Today(unittest.TestCase):
    def same(self, one, other):
        for rank, (a, b) in enumerate(zip(one, other)):
            self.assertTrue(torch.equal(a[0], b[0]), f"parameters of rank {rank}")
            self.assertTrue(same_parts(a[1], b[1]), f"u or v of rank {rank}")
            self.assertTrue(torch.equal(a[0], one[0][0]), f"rank {rank} and rank 0")

    def close(self, results, expected):
        for parameters, *_ in results:
            self.assertTrue(torch.equal(parameters, results[0][0]))
            torch.testing.assert_close(parameters, expected, rtol=1e-5, atol=1e-5)

    def test_it_is_momentum_sgd(self):
        self.close(run(train, EXACT, ranks=2), run(momentum_sgd, ranks=2)[0])

    def test_options_of_ddp_change_nothing(self):
        plain = run(train, {"ratio": 0.05}, ranks=2)
        for ddp in (
            {"static_graph": True},
            {"gradient_as_bucket_view": True},
            {"gradient_as_bucket_view": True, "static_graph": True, "bucket_cap_mb": 0.001},
            {"find_unused_parameters": True},
        ):
            with self.subTest(**ddp):
                self.same(run(train, {"ratio": 0.05}, ddp, ranks=2), plain)

    def test_unused_parameters_stay(self):
        start = flat(network())
        for ddp in ({"find_unused_parameters": True}, {"static_graph": True}):
            for options in (ddp, {**ddp, "gradient_as_bucket_view": True}):
                with self.subTest(**options):
                    results = run(train, EXACT, options, None, True, ranks=2)
                    self.close(results, run(momentum_sgd, ranks=2)[0])
                    self.assertEqual(
                        float(results[0][1]["velocity"]["unused.weight"].abs().sum()), 0.0
                    )
        self.assertFalse(torch.equal(results[0][0], start))

    def test_no_sync(self):
        plain = run(train, {"ratio": 0.05}, ranks=2)
        self.same(run(train, {"ratio": 0.05}, None, None, False, False, True, ranks=2), plain)

    def test_activation_checkpointing(self):
        plain = run(train, {"ratio": 0.05}, ranks=2)
        for recompute in ("saved", "reentrant"):
            for ddp in ({}, {"static_graph": True}, {"bucket_cap_mb": 0.001}):
                with self.subTest(recompute=recompute, **ddp):
                    self.same(run(train, {"ratio": 0.05}, ddp, recompute, ranks=2), plain)

    def test_bf16_autocast(self):
        expected = run(momentum_sgd, True, ranks=2)[0]
        for parameters, _ in run(train, EXACT, None, None, False, True, ranks=2):
            # A last bit of a parameter may move a product to the next number of 8 bits.
            torch.testing.assert_close(parameters, expected, rtol=1e-3, atol=1e-3)
        results = run(train, {"ratio": 0.05}, None, None, False, True, ranks=2)
        self.same(results, results)

    @unittest.skipUnless(HAS_CPU_SCALER, WITHOUT_CPU_SCALER)
    def test_scaler(self):
        expected = run(momentum_sgd, ranks=2)[0]
        self.close(run(scaled, None, ranks=2), expected)
        results = run(scaled, 3, ranks=2)
        self.close(results, expected)
        for _, scales, skips in results:
            self.assertEqual(scales, [1024.0] * 3 + [512.0] * (STEPS - 2))
            self.assertEqual([step for step, skipped in enumerate(skips) if skipped], [3])

    @unittest.skipUnless(HAS_COMPILE, WITHOUT_COMPILE)
    def test_compile(self):
        """With graphs that are run as they are captured, results are the same bit for bit. DDP's
        optimizer of graphs splits them at the borders of buckets."""
        dense = {"ratio": 0.05, "dense": ["blocks.0.2.weight"]}
        plain = run(train, dense, {"bucket_cap_mb": 0.001}, ranks=2)
        for where, graphs in (("model", 1), ("ddp", 4)):
            with self.subTest(where=where):
                results = run(compiled, where, "eager", {"ratio": 0.05}, 0.003, ranks=2)
                self.same(results, plain)
                self.assertEqual([r[2] >= graphs for r in results], [True, True], results[0][2])

    @unittest.skipUnless(HAS_COMPILE, WITHOUT_COMPILE)
    def test_compiled_code(self):
        expected = run(momentum_sgd, ranks=2)[0]
        for where, backend in (("model", "inductor"), ("ddp", "aot_eager")):
            with self.subTest(where=where, backend=backend):
                self.close(run(compiled, where, backend, EXACT, ranks=2), expected)

    def test_join_is_refused(self):
        """At the first step, also where a rank has no inputs from the start."""
        for inputs in ((3, 5), (5, 3), (0, 4), (4, 4)):
            with self.subTest(inputs=inputs):
                for error, steps, step in run(joined, inputs, True, ranks=2):
                    self.assertIn("hook: join(), step 0: dgc.hook cannot train while ranks", error)
                    self.assertIn("DistributedSampler", error)
                    self.assertEqual((steps, step), (0, 0))

    def test_join_is_refused_when_a_rank_runs_out(self):
        """The state does not know DDP: it was made of the bare model."""
        for inputs, at in (((2, 5), 2), ((5, 2), 2), ((0, 3), 0)):
            with self.subTest(inputs=inputs):
                for error, steps, step in run(joined, inputs, False, ranks=2):
                    self.assertIn(f"hook: join(), step {at}: dgc.hook cannot train", error)
                    self.assertEqual((steps, step), (at, at))

    def test_the_reducer_in_python_is_refused(self):
        for error in run(python_reducer, ranks=2):
            self.assertIn("hook: bucket: is a tuple", error)
            self.assertIn("optimize_ddp", error)


if __name__ == "__main__":
    unittest.main()
