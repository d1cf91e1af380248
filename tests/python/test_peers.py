"""Messages from rank to rank over Gloo: how many, which way, and what they leave behind."""

import datetime
import gc
import subprocess
import sys
import tempfile
import threading
import unittest

import torch
import torch.distributed as dist

from dgc import _peers, _rounds
from dgc._transport import Plan, Round
from workers import Recorded, Training, caught, flat, gradients_of, run

SMALL_BUCKETS = {"bucket_cap_mb": 0.001}
ONE_BUCKET = {"bucket_cap_mb": 1024}


def group():
    return dist.distributed_c10d._get_default_group()


class Listener:
    """What leaves this rank: peer, tag and bytes of each message, or part of one."""

    def __enter__(self):
        self.sent, self._begin = [], _peers.Stream._begin

        def begin(stream, what, tensor, peer, tag):
            if what == "send":
                self.sent.append((peer, tag, tensor.numel()))
            return self._begin(stream, what, tensor, peer, tag)

        _peers.Stream._begin = begin
        return self

    def __exit__(self, *_):
        _peers.Stream._begin = self._begin


def training_with(ddp, **options):
    """ONE_BUCKET: it is really one, the first included."""
    first = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30 if ddp is ONE_BUCKET else first
    try:
        return Training(ddp=ddp, **options)
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = first


def counted(rank, one_bucket, options, steps=6):
    """Messages to each peer in each step, bytes to one of them, and what the state says."""
    training = training_with(ONE_BUCKET if one_bucket else SMALL_BUCKETS, **options)
    found = []
    for step in range(steps):
        with Listener() as listener:
            training.step(gradients_of(rank, step))
        peers = sorted(peer for peer, _, _ in listener.sent)
        each = {peer: peers.count(peer) for peer in range(dist.get_world_size()) if peer != rank}
        stats, first = training.state.stats, min(each)
        sent = sum(size for peer, _, size in listener.sent if peer == first)
        # Nothing of a step can be taken for something else of it.
        assert len({tag for peer, tag, _ in listener.sent if peer == first}) == each[first]
        found.append((each, stats.messages, sent, stats.message_bytes))
    return found


UNUSED = {**SMALL_BUCKETS, "find_unused_parameters": True}


def trained(rank, options, by_all_gather=False, ddp=UNUSED):
    is_gloo = _rounds.is_gloo
    if by_all_gather:
        _rounds.is_gloo = lambda group: False
    try:
        training = Training(ddp=ddp, set_to_none=True, **options)
        for step in range(8):
            gradients = gradients_of(rank, step)
            if step == 3:
                del gradients["conv"]  # of no rank
            if step == 5 and rank != 1:
                del gradients["second"]  # of some
            training.step(gradients)
        stats = training.state.stats
        assert (stats.padded_bytes > stats.message_bytes) == by_all_gather, stats
        assert (training.state._peers is None) == by_all_gather
        return flat(training.model), training.state.state_dict()
    finally:
        _rounds.is_gloo = is_gloo


def rounds(rank, sizes, bounds):
    """Messages of these sizes, with bounds that were not expected."""
    workers = dist.get_world_size()
    stream = _peers.open_peers(Training(), group(), rank, workers).first
    parts, arrived = [], []
    for step, (size, bound) in enumerate(zip(sizes, bounds)):
        message = torch.full((size,), 100 * (step % 2) + rank, dtype=torch.uint8)
        message[24:32] = torch.tensor(list(size.to_bytes(8, "little")), dtype=torch.uint8)
        with Listener() as listener:
            # What comes next is taken to be as large as this.
            swap = stream.swap(
                [message] * workers, Round("message", ()), step, True, lambda one, at: bound
            )
        parts.append(len(listener.sent) // (workers - 1))
        arrived.append([(m.numel(), int(m[40])) for m in swap.wait()])
        swap.done()
    return parts, arrived


def too_long(rank):
    training = Training()
    stream = _peers.open_peers(training.state, group(), rank, 2).first
    message = torch.zeros(40, dtype=torch.uint8)
    message[24:32] = torch.tensor(list((1 << 40).to_bytes(8, "little")), dtype=torch.uint8)
    swap = stream.swap([message] * 2, Round("message", ()), 0, True, lambda one, at: 600)
    error = caught(swap.wait)
    swap.done()
    return error


def damaged(rank, algorithm):
    """A bit of what rank 1 sends to rank 0 is turned over."""
    training = training_with(ONE_BUCKET, algorithm=algorithm)
    training.step(gradients_of(rank, 0))
    begin, first = _peers.Stream._begin, training.state._peers.first

    def damage(stream, what, tensor, peer, tag):
        if what == "send" and peer == 0 and stream is first:
            tensor = tensor.clone()
            tensor[-20] ^= 1
        return begin(stream, what, tensor, peer, tag)

    if rank == 1:
        _peers.Stream._begin = damage
    try:
        return caught(lambda: training.backward(gradients_of(rank, 1))), training.state.step
    finally:
        _peers.Stream._begin = begin


def amid_other_traffic(rank):
    """Everything that a script may do between steps, with receives posted."""
    workers = dist.get_world_size()
    one, other = Training(ratio=0.05), Training(ratio=0.05)  # two states of a group
    groups = [dist.new_group(list(range(workers))) for _ in range(2)]
    third = Training(ratio=0.05, ddp={"process_group": groups[0]}, process_group=groups[0])
    for step in range(4):
        one.step(gradients_of(rank, step))
        dist.barrier()
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total[0] == workers
        third.step(gradients_of(rank, step))
        arrived, left = torch.zeros(5), (rank - 1) % workers
        work = dist.irecv(arrived, src=left, tag=3)
        dist.send(torch.full((5,), float(rank)), dst=(rank + 1) % workers, tag=3)
        work.wait()
        assert arrived[0] == left
        other.step(gradients_of(rank, step))
        dist.barrier(group=groups[1])
    return flat(one.model), flat(other.model), flat(third.model)


def loaded_often(rank):
    """load_state_dict begins anew each time, and what was posted before goes."""
    training = Training(ratio=0.05)
    for step in range(4):
        training.step(gradients_of(rank, step))
        training.state.load_state_dict(training.state.state_dict())
        training.step(gradients_of(rank, step))
    gc.collect()
    channels = _peers._channels[group()]
    mine = [peers for peers in channels.used if peers.owner() is training.state]
    threads = [t for t in threading.enumerate() if t.name == "dgc-exchange"]
    return len(mine), len(channels.left), len(threads)


def dropped_states(rank):
    for step in range(3):
        training = Training(ratio=0.05)
        training.step(gradients_of(rank, step))
        training.step(gradients_of(rank, step + 1))
        del training
        gc.collect()
    training = Training(ratio=0.05)
    training.step(gradients_of(rank, 0))
    return len(_peers._channels[group()].used)


def received_bytes(rank):
    """What owners cost at many ranks, beside all-gather: bytes to each other rank in a step."""
    found = {}
    for algorithm in ("allgather", "owner"):
        shapes = {"weight": (400, 300)}
        training = training_with(
            ONE_BUCKET, model=Recorded(shapes=shapes), ratio=0.05, algorithm=algorithm
        )
        for step in range(4):
            training.step(gradients_of(rank, step, shapes))
        found[algorithm] = training.state.stats.padded_bytes
    return found


def owners_keep_everything(rank):
    """Without momentum, what was applied and what remains on all ranks are all gradients."""
    options = {"ratio": 0.05, "momentum": 0.0, "algorithm": "owner", "values": "fp16"}
    training = Training(ddp=SMALL_BUCKETS, optimizer=lambda p: torch.optim.SGD(p, 1.0), **options)
    start = flat(training.model)
    for step in range(20):
        training.step(gradients_of(rank, step))
    left = training.state.state_dict()["residual"]
    names = [name for name, _ in training.model.named_parameters()]
    return start - flat(training.model), torch.cat([left[name].flatten() for name in names])


def refused_owners(rank):
    errors = [caught(lambda: Training(algorithm="owner", path="torch"))]
    is_gloo = _rounds.is_gloo
    _rounds.is_gloo = lambda group: False
    try:
        training = Training(algorithm="owner")
        errors.append(caught(lambda: training.backward(gradients_of(rank, 0))))
    finally:
        _rounds.is_gloo = is_gloo
    return errors


def failed_owners(rank):
    """A gradient of rank 1 is bad, in the third of the buckets."""
    training = Training(ddp=SMALL_BUCKETS, set_to_none=True, ratio=0.05, algorithm="owner")
    training.step(gradients_of(rank, 0))
    before = flat(training.model)
    bad = gradients_of(rank, 1)
    if rank == 1:
        bad["first"][3, 4] = float("nan")
    error = caught(lambda: training.step(bad))
    same = torch.equal(before, flat(training.model))
    saved = training.state.state_dict()
    finite = all(torch.isfinite(values).all() for values in saved["residual"].values())
    training.state.load_state_dict(saved)  # and goes on
    fresh = Training(ddp=SMALL_BUCKETS, ratio=0.05, algorithm="owner")
    fresh.step(gradients_of(rank, 0))
    return error, training.state.step, same and finite


def one_life(rank, folder):
    """A group with posted receives is destroyed, another takes its place, and the process ends as
    always."""
    results, kept = [], []
    for life in range(2):
        store, timeout = f"file://{folder}/{life}", datetime.timedelta(seconds=60)
        dist.init_process_group("gloo", store, rank=rank, world_size=2, timeout=timeout)
        training = Training(ratio=0.05)
        for step in range(3):
            training.step(gradients_of(rank, step))
        results.append(flat(training.model))
        assert training.state._peers.first._posted
        kept.append(training)  # it outlives its group
        dist.destroy_process_group()
    assert torch.equal(*results)


class Peers(unittest.TestCase):
    def test_one_message_to_each_peer(self):
        for found in run(counted, True, {"ratio": 0.05}):
            for each, messages, sent, bytes_said in found:
                self.assertEqual((set(each.values()), messages), ({1}, 1))
                self.assertEqual(sent, bytes_said)

    def test_one_for_each_bucket_and_one_before_where_steps_may_be_skipped(self):
        for found in run(counted, False, {"ratio": 0.05}, ranks=2):
            # In the second step the buckets are others than were expected: a message may be longer
            # than its receive.
            self.assertTrue(all(each[peer] == 3 for each, *_ in found[2:] for peer in each), found)
        for found in run(counted, False, {"ratio": 0.05, "nonfinite": "skip"}, ranks=2):
            for each, messages, _, _ in found[1:]:
                self.assertEqual((set(each.values()), messages), ({2}, 2))

    def test_the_schedule_is_foreseen(self):
        """The bound grows and shrinks with the ratio, and still there is one message."""
        schedule = "0.5,0.01,0.3,0.002,0.1:2"
        for found in run(counted, True, {"schedule": schedule}, 10, ranks=2):
            sizes = [sent for _, _, sent, _ in found]
            self.assertTrue(sizes[0] > sizes[2] < sizes[4] > sizes[6] < sizes[8], sizes)
            for each, messages, *_ in found:
                self.assertEqual((set(each.values()), messages), ({1}, 1))

    def test_the_same_as_by_all_gather(self):
        for options in ({"ratio": 0.05}, {"ratio": 0.05, "clip_norm": 1.0, "nonfinite": "skip"}):
            with self.subTest(**options):
                ours, theirs = (run(trained, options, by) for by in (False, True))
                for (parameters, state), (others, other) in zip(ours, theirs):
                    self.assertTrue(torch.equal(parameters, others))
                    for part in ("velocity", "residual"):
                        for name in Recorded.SHAPES:
                            self.assertTrue(torch.equal(state[part][name], other[part][name]))

    def test_messages_that_are_longer_than_their_receives(self):
        sizes = [300, 300, 300, 5000, 5000, 5000, 200, 200, 200, 100000]
        bounds = [600, 600, 600, 6000, 6000, 6000, 600, 600, 600, 200000]
        for parts, arrived in run(rounds, sizes, bounds, ranks=3):
            # Two receives had been posted at the bound of before.
            self.assertEqual(parts, [1, 1, 1, 2, 2, 1, 1, 1, 1, 2])
            for step, round_ in enumerate(arrived):
                self.assertEqual(round_, [(sizes[step], 100 * (step % 2) + r) for r in range(3)])

    def test_no_more_is_taken_than_the_bound(self):
        for rank, error in enumerate(run(too_long, ranks=2)):
            self.assertIn(f"rank {1 - rank}: announces 1099511627776 bytes", error)

    def test_a_damaged_message_names_its_rank(self):
        (error, step), (fine, done), _ = run(damaged, "allgather", ranks=3)
        self.assertIn("exchange: rank 1: sent a bad message at step 1", error)
        self.assertEqual((step, fine, done), (1, None, 2))
        # With owners the others need what rank 0 chooses, and it tells them why there is nothing.
        first, *others = run(damaged, "owner", ranks=3)
        self.assertIn("Error: exchange: rank 1: sent a bad message at step 1", first[0])
        for error, step in others:
            self.assertIn("rank 0: gave up: exchange: rank 1: sent a bad message at step 1", error)
            self.assertEqual(step, 1)

    def test_other_traffic(self):
        for one, other, third in run(amid_other_traffic):
            self.assertTrue(torch.equal(one, other) and torch.equal(one, third))

    def test_what_is_left_over_goes(self):
        for mine, left, threads in run(loaded_often, ranks=2):
            self.assertEqual((mine, left, threads), (1, 0, 1))
        for used in run(dropped_states, ranks=2):
            self.assertLessEqual(used, 2)

    def test_a_group_is_destroyed(self):
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                subprocess.Popen([sys.executable, "-B", __file__, "--life", str(rank), folder])
                for rank in range(2)
            ]
            for process in processes:
                self.assertEqual(process.wait(timeout=100), 0)


class OwnersOfRanges(unittest.TestCase):
    def test_two_messages_for_each_bucket(self):
        for found in run(counted, True, {"ratio": 0.05, "algorithm": "owner"}):
            for each, messages, *_ in found[1:]:
                self.assertEqual((set(each.values()), messages), ({2}, 2))

    def test_traffic_does_not_grow(self):
        two, four = (run(received_bytes, ranks=ranks)[0] for ranks in (2, 4))
        # To each of the others: all of a message, or a share of about two.
        self.assertLess(abs(four["allgather"] / two["allgather"] - 1.0), 0.05)
        # In all 2 (N - 1) / N of a message: 1.5 times, where all-gather has 3 times.
        self.assertLess(3 * four["owner"], 1.6 * two["owner"])
        self.assertLess(four["owner"], 0.7 * four["allgather"])

    def test_nothing_is_lost(self):
        results = run(owners_keep_everything)
        applied, left = results[0][0], sum(left for _, left in results)
        gradients = [gradients_of(rank, step) for rank in range(4) for step in range(20)]
        names = list(Recorded.SHAPES)
        whole = sum(torch.cat([g[name].flatten() for name in names]) for g in gradients) / 4
        for parameters, _ in results:
            self.assertTrue(torch.equal(parameters, applied))
        torch.testing.assert_close(applied + left, whole, rtol=1e-4, atol=1e-3)

    def test_parameters_that_some_ranks_do_not_use(self):
        results = run(trained, {"ratio": 0.05, "algorithm": "owner", "clip_norm": 1e9})
        for parameters, _ in results:
            self.assertTrue(torch.equal(parameters, results[0][0]))

    def test_where_there_are_none(self):
        for path, backend in run(refused_owners, ranks=2):
            self.assertIn("algorithm 'owner': needs all parameters on the CPU", path)
            self.assertIn("algorithm 'owner': needs Gloo", backend)

    def test_an_error_of_one_rank(self):
        for error, step, unchanged in run(failed_owners):
            self.assertIn("rank 1: gave up: compress: 'first': nan", error)
            self.assertEqual((step, unchanged), (1, True))


class Planned(unittest.TestCase):
    def test_a_thread_ends_before_the_interpreter(self):
        """Its state is gone, and the script has nothing left to do."""
        script = (
            "import time; from dgc import _peers; waiter = _peers._Waiter();"
            "waiter.submit(lambda: (time.sleep(0.5), print('done')));"
            "del waiter"
        )
        out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        self.assertEqual((out.stdout, out.stderr, out.returncode), ("done\n", "", 0))

    def test_rounds_to_come(self):
        a, b, c = (Round("message", (i,)) for i in range(3))
        plan = Plan()
        self.assertEqual(plan.begin(a, 0, False), [])  # nobody knows yet
        self.assertEqual(plan.begin(b, 0, True), [(a, 1), (b, 1)])
        self.assertEqual(plan.begin(a, 1, False), [(b, 1), (a, 2)])
        self.assertEqual(plan.begin(c, 1, False), [])  # another step than the one before
        self.assertEqual(plan.begin(b, 1, True), [(a, 2), (c, 2)])
        self.assertEqual(plan.begin(a, 2, False), [(c, 2), (b, 2)])
        plan.skip()
        self.assertEqual(plan.begin(a, 2, False), [(c, 2), (b, 2)])
        alone = Plan()
        self.assertEqual(alone.begin(a, 5, True), [(a, 6), (a, 7)])


if __name__ == "__main__":
    if "--life" in sys.argv:
        one_life(int(sys.argv[2]), sys.argv[3])
    else:
        unittest.main()
