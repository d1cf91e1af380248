"""torch.distributed.checkpoint saves and loads the state of every rank, also for another number of
workers."""

import tempfile
import unittest

import torch

from versions import HAS_DCP, WITHOUT_DCP
from workers import Recorded, Training, caught, flat, gradients_of, run, same_parts

STEPS = 8
OPTIONS = {"ratio": 0.05, "warmup": ([0.5, 0.2], 3)}


def checkpoints():
    import torch.distributed.checkpoint as dcp

    return dcp


def make(options=OPTIONS, model=None):
    return Training(model, **options)


def resume(rank, folder, split, options):
    """Trains, and goes on from a checkpoint at step `split` with everything made anew."""
    training = make(options)
    for step in range(STEPS):
        if step == split:
            parts = {
                "model": training.model.state_dict(),
                "optimizer": training.optimizer.state_dict(),
                "dgc": training.state.to_dcp(),
            }
            checkpoints().save(parts, checkpoint_id=folder)
            training = make(options, Recorded(seed=2))
            parts = {
                "model": training.model.state_dict(),
                "optimizer": training.optimizer.state_dict(),
                "dgc": training.state.from_dcp(folder),
            }
            checkpoints().load(parts, checkpoint_id=folder)
            training.model.load_state_dict(parts["model"])
            training.optimizer.load_state_dict(parts["optimizer"])
        training.step(gradients_of(rank, step))
    return flat(training.model), training.state.state_dict()


def save(rank, folder, options=OPTIONS, names=("dgc",)):
    training = make(options)
    for step in range(3):
        training.step(gradients_of(rank, step))
    checkpoints().save({name: training.state.to_dcp() for name in names}, checkpoint_id=folder)
    return training.state.state_dict()


def load(rank, folder):
    training = make()
    checkpoints().load({"dgc": training.state.from_dcp(folder)}, checkpoint_id=folder)
    loaded = training.state.state_dict()
    training.step(gradients_of(rank, 3))  # the ranks agree, and the next step goes well
    return loaded, training.state.step


def load_through_reader(rank, folder):
    training = make()
    reader = checkpoints().FileSystemReader(folder)
    checkpoints().load({"dgc": training.state.from_dcp(reader)}, storage_reader=reader)
    return training.state.state_dict()


def mistakes(rank, folder):
    """`folder` has a checkpoint of this many ranks."""
    dcp, training = checkpoints(), make()
    state, before = training.state, training.state.state_dict()
    larger = make(model=Recorded(shapes={**Recorded.SHAPES, "first": (61, 50)})).state
    without = make({"momentum": 0.0}).state

    def loading(part):
        return caught(lambda: dcp.load({"dgc": part}, checkpoint_id=folder))

    errors = {
        "plain save": caught(lambda: dcp.save({"dgc": state}, checkpoint_id=f"{folder}/other")),
        "plain load": loading(state),
        "to_dcp": loading(state.to_dcp()),
        "larger": loading(larger.from_dcp(folder)),
        "momentum": loading(without.from_dcp(folder)),
        "folder": caught(lambda: state.from_dcp(f"{folder}/nothing").state_dict()),
    }
    return errors, same_parts(before, state.state_dict())


def two_states(rank, folder):
    return caught(lambda: make().state.from_dcp(folder).state_dict())


def to_dcp(rank):
    state = make().state
    return caught(state.to_dcp), caught(lambda: state.from_dcp("anywhere"))


@unittest.skipUnless(HAS_DCP, WITHOUT_DCP)
class Dcp(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_training_goes_on_bit_for_bit(self):
        for number, options in enumerate((OPTIONS, {"momentum": 0.0}, {"path": "torch"})):
            with self.subTest(**options):
                resumed = run(resume, f"{self.folder}/{number}", 5, options, ranks=2)
                for one, other in zip(resumed, run(resume, None, None, options, ranks=2)):
                    self.assertTrue(torch.equal(one[0], other[0]))
                    self.assertTrue(same_parts(one[1], other[1]))
                    self.assertEqual(one[1]["step"], STEPS)
                # Ranks have values of their own, and each got its own back.
                self.assertFalse(same_parts(resumed[0][1], resumed[1][1]))

    def test_another_number_of_workers(self):
        for old_ranks, new_ranks in ((4, 3), (4, 2), (2, 4), (3, 1)):
            with self.subTest(old=old_ranks, new=new_ranks):
                folder = f"{self.folder}/{old_ranks}-{new_ranks}"
                old = run(save, folder, ranks=old_ranks)
                results = run(load, folder, ranks=new_ranks)
                new = [state for state, _ in results]
                self.assertEqual([(s["step"], step) for s, step in results], [(3, 4)] * new_ranks)
                for part in ("velocity", "residual"):
                    for name in old[0][part]:
                        torch.testing.assert_close(
                            sum(s[part][name] for s in new), sum(s[part][name] for s in old)
                        )
                for rank in range(min(old_ranks, new_ranks)):
                    if rank + new_ranks >= old_ranks:  # one old rank falls to it: the same bits
                        self.assertTrue(same_parts(new[rank], old[rank]))
                for rank in range(old_ranks, new_ranks):
                    self.assertEqual(float(new[rank]["residual"]["first"].abs().sum()), 0.0)

    def test_a_reader_in_place_of_a_folder(self):
        for one, other in zip(
            run(save, self.folder, ranks=2), run(load_through_reader, self.folder, ranks=2)
        ):
            self.assertTrue(same_parts(one, other))

    def test_mistakes(self):
        run(save, self.folder, ranks=2)
        says = {
            "plain save": "give state.to_dcp() to dcp.save",
            "plain load": "state.from_dcp(folder) to dcp.load",
            "to_dcp": "to_dcp(): is for dcp.save",
            "larger": "of 'first': is [3050] here and [3000] in what was saved",
            "momentum": "momentum: was 0.9 when this was saved",
            "folder": "give the folder of dcp.save",
        }
        for errors, same in run(mistakes, self.folder, ranks=2):
            for what, text in says.items():
                self.assertIn(text, str(errors[what]), what)
            self.assertTrue(same)

    def test_two_states_in_one_checkpoint(self):
        run(save, self.folder, OPTIONS, ("one", "two"), ranks=2)
        for error in run(two_states, self.folder, ranks=2):
            self.assertIn("has 2 states of dgc in it: one, two", error)


@unittest.skipIf(HAS_DCP, "this PyTorch has torch.distributed.checkpoint")
class WithoutDcp(unittest.TestCase):
    def test_it_says_so(self):
        for errors in run(to_dcp, ranks=2):
            for error in errors:
                self.assertIn("torch.distributed.checkpoint: needs PyTorch 2.2 or newer", error)
                self.assertIn("with torch.save", error)


if __name__ == "__main__":
    unittest.main()
