"""FSDP2 within a replica, dgc.ShardedState between replicas: four ranks as a 2 x 2 mesh."""

import os
import pickle
import tempfile
import unittest

import torch

import dgc
from versions import HAS_FSDP2, WITHOUT_FSDP2
from workers import caught, run, same_parts

STEPS = 12
NAMES = ("replicate", "shard")


def network():
    """The last layer has 3 rows, for 2 shards; its bias too."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 30),
        torch.nn.Tanh(),
        torch.nn.Linear(30, 8),
        torch.nn.Tanh(),
        torch.nn.Linear(8, 3),
    )


def batch(rank, step):
    chance = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(6, 20, generator=chance), torch.randint(3, (6,), generator=chance)


def mesh_of(shape):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=NAMES)


def shard(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def whole(model):
    """All parameters, of all shards, on every rank."""
    return torch.cat([p.detach().full_tensor().flatten() for p in model.parameters()])


class Sharded:
    """A model on a mesh with dgc between its replicas."""

    def __init__(self, shape=(2, 2), optimizer=None, **options):
        self.mesh = mesh_of(shape)
        self.model = shard(network(), self.mesh["shard"])
        make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        self.optimizer = make(self.model.parameters())
        self.state = dgc.ShardedState(
            self.model, self.mesh["replicate"], optimizer=self.optimizer, **options
        )

    def backward(self, rank, step):
        self.optimizer.zero_grad()
        inputs, targets = batch(rank, step)
        torch.nn.functional.cross_entropy(self.model(inputs), targets).backward()

    def step(self, rank, step):
        self.backward(rank, step)
        self.optimizer.step()


def decaying(parameters):
    return dgc.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-2)


def hybrid(rank, decay):
    """HSDP as PyTorch has it, with momentum SGD: both reductions dense."""
    model = shard(network(), mesh_of((2, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=decay)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = batch(rank, step)
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return whole(model)


def compressed(rank, options, decay=0.0):
    training = Sharded(optimizer=decaying if decay else None, **options)
    factors = []
    for step in range(STEPS):
        training.step(rank, step)
        factors.append(training.state.stats.clip_factor)
    return whole(training.model), training.state.stats, factors, training.state.report()


def with_ddp(rank, clip):
    """Each of two ranks has the batches of a replica: the same gradients, not sharded."""
    model = network()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"ratio": 1.0, "values": "fp32", "clip_norm": clip}
    state = dgc.DGCState(ddp, optimizer=optimizer, **options)
    ddp.register_comm_hook(state, dgc.hook)
    factors = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = (
            torch.cat(b) for b in zip(batch(2 * rank, step), batch(2 * rank + 1, step))
        )
        torch.nn.functional.cross_entropy(ddp(inputs), targets).backward()
        optimizer.step()
        factors.append(state.stats.clip_factor)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), factors


def accumulated(rank, parts):
    training = Sharded(ratio=0.1)
    for step in range(STEPS):
        training.optimizer.zero_grad()
        inputs, targets = batch(rank, step)
        for part in range(parts):
            # The reduction within the replica waits for the last part.
            training.model.set_requires_gradient_sync(part == parts - 1)
            loss = torch.nn.functional.cross_entropy(training.model(inputs), targets)
            (loss / parts).backward()
        training.optimizer.step()
    assert training.state.step == STEPS
    return whole(training.model)


def nonfinite(rank, options):
    """A NaN in a shard that rank 3 has, at step 1."""
    training = Sharded(ratio=0.1, **options)
    training.step(rank, 0)
    before, saved = whole(training.model), training.state.state_dict()
    training.backward(rank, 1)
    if rank == 3:
        training.model[2].weight.grad.to_local()[1, 2] = float("nan")
    error = caught(training.optimizer.step)
    second = caught(training.optimizer.step) if error else None
    same = torch.equal(whole(training.model), before)
    parts = training.state.state_dict()
    finite = all(
        torch.isfinite(t).all() for p in ("velocity", "residual") for t in parts[p].values()
    )
    accumulated = not same_parts(parts, saved)
    # What the error says helps.
    training.state.load_state_dict(saved)
    training.step(rank, 2)
    ended = (training.state.step, training.state.skipped)
    return error, second, same and finite, accumulated, ended


def killed(rank):
    """Rank 3 leaves between backward and step."""
    training = Sharded(ratio=0.1)
    training.step(rank, 0)
    training.backward(rank, 1)
    if rank == 3:
        os._exit(0)
    error = caught(training.optimizer.step)
    return error, training.state.step


class Branches(torch.nn.Module):
    """The second layer is used where it is asked for."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = torch.nn.Linear(20, 4), torch.nn.Linear(20, 4)

    def forward(self, inputs, both):
        return self.first(inputs) + (self.second(inputs) if both else 0.0)


def partly_unused(rank):
    """The second layer is used by replica 0 at even steps, by none at odd ones."""
    from torch.distributed.fsdp import fully_shard

    mesh = mesh_of((2, 2))
    model = Branches()
    for layer in (model.first, model.second, model):
        fully_shard(layer, mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"ratio": 1.0, "values": "fp32"}
    dgc.ShardedState(model, mesh["replicate"], optimizer=optimizer, **options)
    none = []
    for step in range(6):
        optimizer.zero_grad()
        model(batch(rank, step)[0], step % 2 == 0 and rank < 2).sum().backward()
        optimizer.step()
        none.append(model.second.weight.grad is None)
    return whole(model), none


def partly_unused_oracle():
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        optimizer.zero_grad(set_to_none=True)
        for rank in range(4):
            (model(batch(rank, step)[0], step % 2 == 0 and rank < 2).sum() / 4).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def refused(rank):
    mesh = mesh_of((2, 2))
    model = shard(network(), mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain, both = network(), shard(network(), mesh)

    def state(model=model, replicas=mesh["replicate"], optimizer=optimizer, **options):
        return dgc.ShardedState(model, replicas, optimizer=optimizer, **options)

    good = state()
    return {
        "ddp": caught(lambda: dgc.DGCState(model, optimizer=optimizer)),
        "plain": caught(lambda: state(plain, optimizer=torch.optim.SGD(plain.parameters(), lr=1))),
        "both": caught(lambda: state(both, optimizer=torch.optim.SGD(both.parameters(), lr=1))),
        "mesh": caught(lambda: state(replicas=mesh)),
        "scaler": caught(lambda: state(scaler=object())),
        "none": caught(lambda: state(optimizer=None)),
        "momentum": caught(
            lambda: state(optimizer=torch.optim.SGD(model.parameters(), lr=1, momentum=0.9))
        ),
        "adam": caught(lambda: state(optimizer=torch.optim.AdamW(model.parameters()))),
        "closure": caught(lambda: optimizer.step(lambda: 0.0)),
        "pickle": caught(lambda: pickle.dumps(good)),
    }


def replaced(rank):
    """A second state for an optimizer, then a second optimizer for the state: a step exchanges
    once."""
    training = Sharded(ratio=0.1)
    first = training.state
    training.state = dgc.ShardedState(
        training.model, training.mesh["replicate"], optimizer=training.optimizer, ratio=0.1
    )
    training.step(rank, 0)
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)
    training.state.attach(training.model, optimizer=training.optimizer)
    training.step(rank, 1)
    return first.step, training.state.step, whole(training.model)


def saved_whole(training):
    """u and v of all shards of this replica. A rank that has no row of a tensor has nothing saved."""
    values = training.state.to_dcp().state_dict()
    by_name = {name.split("/", 1)[1]: value for name, value in values.items()}
    return {
        f"{part}/{name}": by_name.get(f"{part}/{name}", torch.zeros_like(p)).full_tensor()
        for part in ("velocity", "residual")
        for name, p in training.model.named_parameters()
    }


def through_dcp(rank, folder, split):
    """Trains, and goes on from a checkpoint at step `split`."""
    import torch.distributed.checkpoint as dcp

    training = Sharded(ratio=0.1)
    for step in range(STEPS):
        if step == split:
            parts = {"model": training.model.state_dict(), "dgc": training.state.to_dcp()}
            dcp.save(parts, checkpoint_id=folder)
            training = Sharded(ratio=0.1)
            parts = {"model": training.model.state_dict(), "dgc": training.state.from_dcp(folder)}
            dcp.load(parts, checkpoint_id=folder)
            training.model.load_state_dict(parts["model"])
        training.step(rank, step)
    return whole(training.model), saved_whole(training), rank // 2


def other_mesh(rank, folder, shape):
    import torch.distributed.checkpoint as dcp

    training = Sharded(shape, ratio=0.1)
    dcp.load({"dgc": training.state.from_dcp(folder)}, checkpoint_id=folder)
    loaded, step = saved_whole(training), training.state.step
    training.step(rank, STEPS)
    return loaded, step, training.mesh.get_coordinate()[0]


def save(rank, folder):
    import torch.distributed.checkpoint as dcp

    training = Sharded(ratio=0.1)
    for step in range(3):
        training.step(rank, step)
    dcp.save({"dgc": training.state.to_dcp()}, checkpoint_id=folder)
    return saved_whole(training), rank // 2


@unittest.skipUnless(HAS_FSDP2, WITHOUT_FSDP2)
class WithFsdp(unittest.TestCase):
    def same_everywhere(self, results):
        for rank, result in enumerate(results):
            self.assertTrue(torch.equal(result, results[0]), f"rank {rank}")

    def test_at_ratio_1_it_is_hybrid_sharding_with_momentum(self):
        for decay in (0.0, 1e-2):
            expected = run(hybrid, decay)[0]
            for path in ("core", "torch"):
                options = {"ratio": 1.0, "values": "fp32", "path": path}
                with self.subTest(decay=decay, path=path):
                    results = [r[0] for r in run(compressed, options, decay)]
                    self.same_everywhere(results)
                    torch.testing.assert_close(results[0], expected, rtol=1e-5, atol=1e-5)

    def test_replicas_are_the_same_at_any_ratio(self):
        results = run(compressed, {"ratio": 0.05, "check_parameters_every": 1})
        self.same_everywhere([r[0] for r in results])
        stats, report = results[0][1], results[0][3]
        # 5 % of 15 x 20, of 4 x 30 and of 2 x 8, and 15 + 4 + 2 of biases.
        self.assertEqual(stats.entries, 15 + 6 + 1 + 21)
        self.assertIn("0.weight  15x20  sparse", report)
        self.assertIn("overlap with backward: off: optimizer.step() exchanges", report)

    def test_clipping_is_of_the_whole_gradient(self):
        options = {"ratio": 1.0, "values": "fp32", "clip_norm": 0.3}
        parameters, _, factors, _ = run(compressed, options)[0]
        expected, expected_factors = run(with_ddp, 0.3, ranks=2)[0]
        self.assertLess(min(factors), 0.9)
        torch.testing.assert_close(torch.tensor(factors), torch.tensor(expected_factors))
        torch.testing.assert_close(parameters, expected, rtol=1e-5, atol=1e-5)

    def test_accumulation(self):
        # Halves are exact, so that their sum is.
        self.assertTrue(torch.equal(run(accumulated, 2)[0], run(accumulated, 1)[0]))

    def test_an_error_is_raised_by_all_ranks_of_the_mesh(self):
        says = "compress: '2.weight': nan at index 32, step 1, rank 1"
        for options in (
            {},
            {"path": "torch"},
            {"clip_norm": 1e9},
            {"clip_norm": 1e9, "path": "torch"},
        ):
            with self.subTest(**options):
                results = run(nonfinite, options)
                for error, second, good, _, ended in results:
                    self.assertIn(says, error)
                    self.assertIn("failed before", second)
                    self.assertTrue(good)
                    self.assertEqual(ended, (2, False))
                # What a rank computed stays accumulated; not so, where the gradient of rank 3's
                # replica cannot be clipped, what rank 2 has of it.
                accumulated = [accumulated for _, _, _, accumulated, _ in results]
                self.assertEqual(accumulated[:3], [True, True, "clip_norm" not in options])

    def test_a_step_is_skipped_on_all_ranks_of_the_mesh(self):
        for error, _, good, accumulated, ended in run(nonfinite, {"nonfinite": "skip"}):
            self.assertIsNone(error)
            self.assertTrue(good)
            self.assertFalse(accumulated)
            self.assertEqual(ended, (2, False))

    def test_a_rank_that_dies(self):
        results = run(killed, dying=[3])
        for error, step in results[:3]:
            self.assertIn("Error", error)
            self.assertEqual(step, 1)

    def test_parameters_that_some_replicas_do_not_use(self):
        expected = partly_unused_oracle()
        for parameters, none in run(partly_unused):
            self.assertEqual(none, [False, True] * 3)
            torch.testing.assert_close(parameters, expected, rtol=1e-5, atol=1e-5)

    def test_what_is_refused(self):
        says = {
            "ddp": "parameter '0.weight': is a DTensor, of which this rank has a part (with FSDP2 "
            "use dgc.ShardedState)",
            "plain": "parameter '0.weight': is not sharded (call fully_shard before",
            "both": 'fully_shard(model, mesh=mesh["shard"])',
            "mesh": "a mesh of 2 dimensions",
            "scaler": "use bfloat16",
            "none": "optimizer: is None, but has to be an optimizer of PyTorch",
            "momentum": "SGD has momentum of its own",
            "adam": "AdamW has momentum of its own",
            "closure": "step() without a closure",
            "pickle": "state.to_dcp()",
        }
        for errors in run(refused):
            for what, text in says.items():
                self.assertIn(text, errors[what], what)

    def test_a_second_state_takes_the_place_of_the_first(self):
        results = run(replaced)
        self.assertEqual([(first, second) for first, second, _ in results], [(0, 2)] * 4)
        self.same_everywhere([parameters for _, _, parameters in results])

    def test_distributed_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            for one, other in zip(run(through_dcp, folder, 5), run(through_dcp, folder, None)):
                self.assertTrue(torch.equal(one[0], other[0]))
                for name in one[1]:
                    self.assertTrue(torch.equal(one[1][name], other[1][name]), name)

    def test_distributed_checkpoint_on_another_mesh(self):
        """u and v are shared out anew, and their sums over the replicas stay."""
        with tempfile.TemporaryDirectory() as folder:
            old = {replica: parts for parts, replica in run(save, folder)}
            for shape in ((1, 2), (1, 4), (4, 1), (2, 1)):
                with self.subTest(shape=shape):
                    results = run(other_mesh, folder, shape, ranks=shape[0] * shape[1])
                    self.assertEqual([step for _, step, _ in results], [3] * len(results))
                    new = {replica: parts for parts, _, replica in results}
                    self.assertEqual(len(new), shape[0])
                    for name in old[0]:
                        torch.testing.assert_close(
                            sum(parts[name] for parts in new.values()), old[0][name] + old[1][name]
                        )


@unittest.skipIf(HAS_FSDP2, "this PyTorch has FSDP2")
class WithoutFsdp(unittest.TestCase):
    def test_it_says_so(self):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        error = caught(lambda: dgc.ShardedState(model, None, optimizer=optimizer))
        self.assertIn("FSDP2: needs PyTorch 2.6 or newer, this is", error)
        self.assertIn("use DDP and dgc.hook", error)


if __name__ == "__main__":
    unittest.main()
