"""test_reproduce.py PROJECT: what scripts/reproduce/pytorch-hooks makes of its measurements, and what
scripts/reproduce/two-hosts reads out of docs/multi-node.md."""

import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import tempfile
import unittest
import xml.dom.minidom

SCRIPTS = pathlib.Path(sys.argv[1]) / "scripts" / "reproduce"
sys.path.insert(0, str(SCRIPTS))

import hooks_tables  # noqa: E402
from hooks_worker import ROWS  # noqa: E402

STEPS, RATES = 1000, {1e9: "1 Gbps", 1e7: "10 Mbps"}


def program(name):
    """A script without .py as a module."""
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), str(SCRIPTS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        (self.folder / f"{name}.json").write_text(json.dumps(content))

    def training(self, row, accuracies):
        """Evaluated every 100 steps."""
        curve = [[100 * (i + 1), accuracy] for i, accuracy in enumerate(accuracies)]
        self.write(f"accuracy-{row}-{STEPS}-1", {"curve": curve})

    def short_run(self, row, rate, number, seconds, others):
        """`seconds` of each stage. The first steps take longer, and must not count."""
        stages = [{"name": stage.name, "steps": 5} for stage in ROWS[row].short_stages(5)]
        steps = [
            t for time in seconds for t in [99.0, 99.0 if time == seconds[0] else time] + 3 * [time]
        ]
        received = [1000.0 * (i + 1) for i in range(len(stages))]
        run = {"stages": stages, "seconds": steps, "received": received, "others": others}
        self.write(f"times-{row}-{rate:.0f}-{number}", run)

    def found(self):
        return hooks_tables.Found(self.folder, STEPS, RATES)

    def test_target_has_to_be_kept(self):
        self.training("ddp", [80, 95, 95, 95, 95, 95, 50, 95, 95, 95])
        # Means of five, fewer at the ends: 90, 91.25, 92, 95, 86, 86, 86, 86, 83.75, 95.
        self.assertEqual(self.found().steps_to("ddp", 83), 100)
        self.assertEqual(self.found().steps_to("ddp", 84), 1000)
        self.training("ddp", [80, 80, 80, 80, 90, 90, 90, 90, 90, 90])
        self.assertEqual(self.found().steps_to("ddp", 85), 500)
        self.assertIsNone(self.found().steps_to("ddp", 91))

    def test_time_is_that_of_each_stage(self):
        self.short_run("powersgd4", 1e7, 1, [4.0, 0.5], others=0.1)
        # The first tenth sends whole gradients.
        self.assertEqual(self.found().total("powersgd4", 1e7, 50), 50 * 4.0)
        self.assertEqual(self.found().total("powersgd4", 1e7, 300), 100 * 4.0 + 200 * 0.5)
        # The same stages, but it begins at step 4 of 1000.
        early = self.found().total("powersgd4-early", 1e7, 300)
        self.assertEqual(early, 4 * 4.0 + 296 * 0.5)
        self.assertEqual(
            self.found().total("powersgd4", 1e7, 150, "received"), 100 * 1e3 + 50 * 2e3
        )
        self.assertIsNone(self.found().total("powersgd4", 1e9, 300))

    def test_dgc_pays_for_its_warm_up(self):
        self.short_run("dgc", 1e7, 1, [16.0, 8.0, 4.0, 2.0, 1.0], others=0.1)
        self.assertEqual(
            self.found().total("dgc", 1e7, 200), 25 * (16.0 + 8.0 + 4.0 + 2.0) + 100 * 1.0
        )
        self.assertEqual(self.found().total("dgc-early", 1e7, 200), 200 * 1.0)

    def test_quietest_round_counts(self):
        self.short_run("ddp", 1e9, 1, [3.0], others=0.5)
        self.short_run("ddp", 1e9, 2, [2.0], others=0.1)
        self.short_run("ddp", 1e9, 3, [1.0], others=0.3)
        self.assertEqual(self.found().total("ddp", 1e9, 10), 20.0)

    def test_picture(self):
        for row in ("ddp", "dgc"):
            self.training(row, [90] * 10)
            for rate in RATES:
                self.short_run(row, rate, 1, [1.0] * len(ROWS[row].stages(STEPS)), others=0.1)
        file = self.folder / "picture.svg"
        hooks_tables.draw(self.found(), list(ROWS), 85, file)
        lines = xml.dom.minidom.parse(str(file)).getElementsByTagName("polyline")
        self.assertEqual(len(lines), 2)


class Page(unittest.TestCase):
    def test_commands(self):
        script = program("two-hosts")
        page = script.PAGE.read_text()
        self.assertEqual(sorted(script.scripts(page)), ["plain.py", "train.py"])
        steps = script.steps(page)
        self.assertEqual([sorted(blocks) for _, blocks in steps], [[0], [0], [0, 1]])
        for host, block in steps[-1][1].items():
            self.assertRegex(block, r"^export GLOO_SOCKET_IFNAME=eth0\ntorchrun .*train\.py\n$")
            self.assertIn(f"--node_rank {host} ", block)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
