"""ratio="auto": what is free, the same on all ranks, and again after loading."""

import time
import unittest

import torch

import dgc
from workers import Training, caught, flat, gradients_of, run

FAST = "100Gbps,0.001ms"
SLOW = "1kbps,1s"
EVERY = 10  # steps between two decisions of a run of 100


def options(link=None, steps=100):
    return {"ratio": "auto", "link": link, "steps": steps, "values": "fp32"}


def trained(rank, link, steps, clock=0.0):
    """With so many seconds of computing in each step, of rank 1 twice that."""
    training = Training(**options(link))
    ratios = []
    for step in range(steps):
        time.sleep(clock * (1 + (rank == 1)))
        training.step(gradients_of(rank, step))
        ratios.append(training.state.stats.ratio)
    return flat(training.model), ratios, training.state.decisions


def resumed(rank, split):
    """Saves, goes on, and goes on once more from what was saved, over another link."""
    first = Training(**options(FAST))
    for step in range(split):
        time.sleep(0.01)
        first.step(gradients_of(rank, step))
    saved = first.state.state_dict()
    second = Training(**options(FAST))
    second.model.load_state_dict(first.model.state_dict())
    second.state.load_state_dict(saved)
    ratios = []
    for training in (first, second):
        training.step(gradients_of(rank, split))
        ratios.append(training.state.stats.ratio)
    return ratios, first.state.decisions, second.state.decisions, saved["decisions"]


class RatioAuto(unittest.TestCase):
    def test_least_follows_from_the_number_of_steps(self):
        for ratio, steps in ((0.07, 100), (0.001, None), (0.001, 100_000), (0.25, 4)):
            for _, ratios, decisions in run(trained_for, steps, ranks=2):
                self.assertAlmostEqual(ratios[0], ratio)
                self.assertEqual(decisions, [])

    def test_sends_more_where_the_network_is_free(self):
        results = run(trained, FAST, 25, 0.01, ranks=2)
        (one, ratios, decisions), (other, *others) = results
        self.assertTrue(torch.equal(one, other))
        self.assertEqual([ratios, decisions], others)
        self.assertEqual(ratios[: EVERY + 1], [0.07] * (EVERY + 1))
        self.assertEqual(ratios[EVERY + 1 :], [0.25] * (25 - EVERY - 1))
        ((from_step, ratio, seconds),) = decisions
        self.assertEqual((from_step, ratio), (EVERY + 1, 0.25))
        self.assertTrue(0.014 < seconds < 10.0, seconds)  # the mean of 10 and 20 ms, or more

    def test_sends_the_least_where_it_is_not(self):
        for _, ratios, decisions in run(trained, SLOW, 25, ranks=2):
            self.assertEqual(ratios, [0.07] * 25)
            self.assertEqual(decisions, [])

    def test_measures_the_link(self):
        results = run(trained, None, 12, 0.01, ranks=2)
        self.assertEqual(results[0][1:], results[1][1:])

    def test_goes_on_as_it_was(self):
        for ratios, first, second, saved in run(resumed, 15, ranks=2):
            self.assertEqual(ratios, [0.25, 0.25])
            self.assertEqual(first, second)
            self.assertEqual([list(one) for one in first], saved)

    def test_what_cannot_be_is_refused(self):
        given = (
            ({"link": FAST}, "link: is for ratio='auto'"),
            ({"steps": 10}, "steps: is for ratio='auto'"),
            ({"ratio": "auto", "link": "fast"}, "100Mbps"),
            ({"ratio": "automatic"}, "or 'auto'"),
            ({"ratio": "auto", "schedule": "0.1"}, "says everything about the ratio"),
        )
        for options, wanted in given:
            (text,) = run(refused, options, ranks=1)
            self.assertIn(wanted, str(text))


def trained_for(rank, steps):
    training = Training(**options(SLOW, steps))
    training.step(gradients_of(rank, 0))
    return None, [training.state.stats.ratio], training.state.decisions


def refused(rank, given):
    return caught(lambda: Training(**given))


if __name__ == "__main__":
    unittest.main()
