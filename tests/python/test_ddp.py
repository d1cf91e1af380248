"""What DDP scripts do: accumulation, parameters without gradient, static graphs, new buckets,
layouts, saving."""

import copy
import io
import pickle
import unittest

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import dgc
from versions import HALF_TYPES
from workers import Recorded, Training, caught, flat, gradients_of, run, same_parts

STEPS = 12


def train(rank, ddp_options, state_options, buckets=None):
    training = Training(ddp=ddp_options, **{"ratio": 0.05, **state_options})
    for step in range(STEPS):
        training.step(gradients_of(rank, step))
    # A message for each bucket. The first step had one bucket.
    stats = training.state.stats
    assert buckets is None or stats.messages == buckets, stats
    return flat(training.model), training.state.state_dict()


def accumulate(rank, halves):
    training = Training(ratio=0.05)
    for step in range(STEPS):
        training.optimizer.zero_grad(set_to_none=True)
        gradients = gradients_of(rank, step)
        if halves:
            # Halves are exact, so that their sum is.
            half = {name: g / 2 for name, g in gradients.items()}
            with training.ddp.no_sync():
                training.ddp(half).backward()
            training.ddp(half).backward()
        else:
            training.ddp(gradients).backward()
        training.optimizer.step()
    assert training.state.step == STEPS
    return flat(training.model), training.state.state_dict()


def partly_unused(rank, path, ddp_options):
    """'bias' and 'second' get no gradient anywhere at odd steps; 'first' none on rank 1, ever."""
    training = Training(ddp=ddp_options, set_to_none=True, path=path, ratio=1.0, values="fp32")
    model, frozen = training.model, []
    for step in range(STEPS):
        before = training.state.state_dict()
        gradients = gradients_of(rank, step)
        if step % 2 == 1:
            del gradients["bias"], gradients["second"]
        if rank == 1:
            del gradients["first"]
        training.backward(gradients)
        after = training.state.state_dict()
        if step % 2 == 1:
            unused = {
                part: {n: before[part][n] for n in ("bias", "second")}
                for part in ("velocity", "residual")
            }
            frozen.append(
                model.bias.grad is None and model.second.grad is None and same_parts(unused, after)
            )
        assert model.first.grad is not None
        training.optimizer.step()
    return flat(model), frozen


def partly_unused_oracle():
    model = Recorded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        for name, p in model.named_parameters():
            if step % 2 == 1 and name in ("bias", "second"):
                continue
            p.grad = (
                sum(
                    gradients_of(rank, step)[name]
                    for rank in range(4)
                    if (rank, name) != (1, "first")
                )
                / 4
            )
        optimizer.step()
    return flat(model)


def never_used(rank):
    """A static graph with a parameter that is never used."""
    training = Training(
        ddp={"static_graph": True, "bucket_cap_mb": 0.001}, set_to_none=True, ratio=0.05
    )
    start = training.model.second.detach().clone()
    for step in range(STEPS):
        gradients = gradients_of(rank, step)
        del gradients["second"]
        training.step(gradients)
    assert torch.equal(training.model.second, start)
    assert training.state.state_dict()["residual"]["second"].abs().sum() == 0
    assert training.state.step == STEPS
    return flat(training.model)


def half_precision(rank, dtype):
    shapes = {"weight": (50, 40), "bias": (50,)}
    training = Training(Recorded(shapes=shapes).to(dtype), set_to_none=True, ratio=0.05)
    for step in range(3):
        training.backward({n: g.to(dtype) for n, g in gradients_of(rank, step, shapes).items()})
    gradient = training.model.weight.grad
    assert gradient.dtype == dtype and gradient.abs().sum() > 0
    return gradient.float()


def channels_last(rank, last):
    torch.manual_seed(1)
    model = torch.nn.Conv2d(6, 10, 3, bias=False)
    if last:
        model = model.to(memory_format=torch.channels_last)
    training = Training(model, ratio=0.1, values="fp32")
    chance = torch.Generator().manual_seed(rank)
    for _ in range(4):
        training.ddp.zero_grad(set_to_none=True)
        weighted = torch.randn(10, 6, 3, 3, generator=chance)
        x = torch.eye(54).reshape(54, 6, 3, 3)  # makes the gradient of the weight what is given
        (training.ddp(x).flatten(1) * weighted.reshape(10, 54).t()).sum().backward()
    return model.weight.grad.contiguous().clone()


def resume(rank, split):
    options = {"ratio": 0.05, "warmup": ([0.5, 0.2], 4)}
    training = Training(ddp={"bucket_cap_mb": 0.001}, **options)
    for step in range(STEPS):
        if step == split:
            file = io.BytesIO()
            torch.save(
                {"model": training.model.state_dict(), "dgc": training.state.state_dict()}, file
            )
            file.seek(0)
            saved = torch.load(file)
            training = Training(**options)
            training.model.load_state_dict(saved["model"])
            training.state.load_state_dict(saved["dgc"])
        training.step(gradients_of(rank, step))
    return flat(training.model), training.state.state_dict()


def with_pickle(rank, split, options):
    training = Training(**{"ratio": 0.05, **options})
    for step in range(STEPS):
        if step == split:
            state = pickle.loads(pickle.dumps(training.state))
            assert f"step {step}" in repr(state), state
            ddp = DDP(copy.deepcopy(training.model))
            ddp.register_comm_hook(state, dgc.hook)
            error = caught(lambda: ddp(gradients_of(rank, step)).backward())
            assert "attach" in error, error
            training.model = copy.deepcopy(training.model)
            training.ddp = DDP(training.model)
            training.optimizer = torch.optim.SGD(training.ddp.parameters(), lr=0.05)
            training.state = state
            state.attach(training.model, optimizer=training.optimizer)
            training.ddp.register_comm_hook(state, dgc.hook)
        training.step(gradients_of(rank, step))
    return flat(training.model), training.state.state_dict()


def fewer_workers(rank, saved):
    state = Training().state
    state.load_state_dict(saved)
    return state.state_dict()


class UnderDdp(unittest.TestCase):
    def same(self, one, other):
        for rank, ((p, a), (q, b)) in enumerate(zip(one, other)):
            self.assertTrue(torch.equal(p, q), f"parameters of rank {rank}")
            self.assertTrue(same_parts(a, b), f"u or v of rank {rank}")

    def test_buckets_change_nothing(self):
        """Buckets are made anew after the first step: results are those of one bucket."""
        whole = run(train, {"bucket_cap_mb": 100}, {})
        for options in (
            {"bucket_cap_mb": 0.001},
            {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True},
            {"bucket_cap_mb": 0.001, "static_graph": True},
            {"bucket_cap_mb": 0.001, "find_unused_parameters": True},
        ):
            with self.subTest(**options):
                self.same(run(train, options, {}, 3), whole)

    def test_deferred_changes_nothing(self):
        """A clip that never fires, and steps that could be skipped, wait for the last bucket and
        give the same."""
        whole = run(train, {}, {})
        for options in ({"clip_norm": 1e9}, {"nonfinite": "skip"}):
            with self.subTest(**options):
                self.same(run(train, {"bucket_cap_mb": 0.001}, options), whole)

    def test_accumulation(self):
        self.same(run(accumulate, True), run(accumulate, False))

    def test_parameters_without_gradient(self):
        expected = partly_unused_oracle()
        for path in ("core", "torch"):
            for options in (
                {"find_unused_parameters": True, "bucket_cap_mb": 0.001},
                {"find_unused_parameters": True, "gradient_as_bucket_view": True},
            ):
                with self.subTest(path=path, **options):
                    results = run(partly_unused, path, options)
                    for parameters, frozen in results:
                        self.assertEqual(frozen, [True] * (STEPS // 2))
                        torch.testing.assert_close(parameters, expected, rtol=1e-5, atol=1e-5)

    def test_static_graph_with_an_unused_parameter(self):
        results = run(never_used)
        self.assertTrue(all(torch.equal(r, results[0]) for r in results))

    def test_half_precision(self):
        for dtype in HALF_TYPES:
            with self.subTest(dtype=dtype):
                results = run(half_precision, dtype, ranks=2)
                self.assertTrue(torch.equal(results[0], results[1]))

    def test_channels_last(self):
        for one, other in zip(
            run(channels_last, False, ranks=2), run(channels_last, True, ranks=2)
        ):
            torch.testing.assert_close(one, other)

    def test_resume(self):
        self.same(run(resume, 5), run(resume, None))

    def test_pickle(self):
        for options in (
            {"warmup": 8},
            {"warmup": None, "ratio": 0.001, "schedule": "exp:0.5,0.05:9"},
        ):
            with self.subTest(**options):
                self.same(run(with_pickle, 6, options), run(with_pickle, None, options))

    def test_another_number_of_workers(self):
        old = [state for _, state in run(train, {}, {})]
        new = run(fewer_workers, old, ranks=3)
        for part in ("velocity", "residual"):
            for name in old[0][part]:
                torch.testing.assert_close(
                    sum(s[part][name] for s in new), sum(s[part][name] for s in old)
                )
        self.assertTrue(torch.equal(new[1]["residual"]["first"], old[1]["residual"]["first"]))
        self.assertEqual(new[0]["step"], STEPS)


if __name__ == "__main__":
    unittest.main()
