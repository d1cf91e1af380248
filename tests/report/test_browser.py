#!/usr/bin/env python3
"""test_report_browser.py DGC [SHOTS]: the report as a browser shows it.

Makes folders of runs with curves of known shape, has `dgc report` write pages, and looks at them in
headless Chromium (skipped without): no script fails, every series is drawn, values can be read by
mouse, touch and keyboard, nothing makes the page scroll sideways on a phone, and text from files
stays text. With SHOTS, screenshots are left in that folder.
"""

import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

from headless_browser import CHROMIUM, Browser

DGC = sys.argv[1]
SHOTS = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
NASTY = "</script><img src=x onerror=alert(1)>&\"'"
TENSORS = [("conv1.weight", [16, 1, 3, 3]), ("conv1.bias", [16]), ("conv2.weight", [32, 16, 3, 3]), ("conv2.bias", [32]),
           ("conv3.weight", [64, 32, 3, 3]), ("conv3.bias", [64]), ("fc1.weight", [64, 3136]), ("fc1.bias", [64]),
           ("fc2.weight", [10, 64]), ("fc2.bias", [10])]
PARAMETERS = sum(math.prod(shape) for _, shape in TENSORS)


def curve_lines(mode: str, epochs: int, per_epoch: int, every: int, seed: int, tail: str) -> tuple[list, dict]:
    """Lines of metrics.jsonl, and the summary that belongs to them."""
    draw = random.Random(f"{mode}{seed}")
    warm_up = [0.25, 0.0625, 0.015625, 0.004]
    message_dense = 4.0 * PARAMETERS + 300
    lag, floor = {"dense": (1.0, 0.21), "dgc": (1.12, 0.225), "naive": (1.3, 0.27)}.get(mode, (1.0, 0.2))
    lines, up, total, seconds = [], 0.0, epochs * per_epoch, 0.0
    speed = {"dense": 0.043, "dgc": 0.041}.get(mode, 0.042)
    messages = 0.0
    for step in range(1, total + 1):
        epoch = step / per_epoch
        quarter = int((step - 1) / per_epoch * 4)
        ratio = 1.0 if mode == "dense" else warm_up[quarter] if quarter < 4 else 0.001
        message = message_dense if mode == "dense" else 950 + 5.6 * ratio * PARAMETERS * draw.uniform(0.97, 1.03)
        sent = 1.5 * message if mode == "dense" else min(3 * message, 1.5 * message_dense)
        messages += message
        up += sent
        seconds += speed * draw.uniform(0.9, 1.1)
        if step % every == 0 or step == total:
            clean = floor + 2.1 * math.exp(-epoch / lag * 2.4) + 0.25 * math.exp(-epoch / lag * 0.5)
            lines.append({"type": "step", "step": step, "epoch": epoch, "seconds": seconds,
                          "loss": clean * draw.uniform(0.78, 1.25), "lr": 0.025 * (1 + math.cos(math.pi * step / total)),
                          "ratio": ratio, "achieved_ratio": ratio * (draw.uniform(1.0, 1.02) if ratio < 1 else 1),
                          "message_bytes": message, "message_ratio": 4.0 * PARAMETERS / message,
                          "traffic_ratio": 1.5 * 4 * PARAMETERS / sent, "bytes_up": up, "bytes_down": up,
                          "gradient_norm": 0.4 + clean * draw.uniform(0.3, 0.5),
                          "residual_norm": None if mode == "dense" else 3 * (1 - math.exp(-epoch)) * draw.uniform(0.95, 1.05),
                          "threshold": 0.01, "clip_factor": 1.0, "examples_per_second": 128 / speed * draw.uniform(0.9, 1.1),
                          "time": {"data": 0.0, "compute": 0.1, "waiting": 0.01, "apply": 0.0}})
        if step % per_epoch == 0:
            top1 = 92.0 - (floor - 0.21) * 12 - 22 * math.exp(-epoch / lag * 0.95) + draw.uniform(-0.2, 0.2)
            loss = floor + 0.02 + 0.9 * math.exp(-epoch / lag)
            lines.append({"type": "evaluation", "step": step, "epoch": epoch, "seconds": seconds, "bytes_up": up, "bytes_down": up,
                          "loss": loss, "metric": top1, "metrics": {f"top-1{tail}": top1, f"top-5{tail}": 100 - (100 - top1) / 12}})
    waiting = {"dense": 0.11, "dgc": 0.028}.get(mode, 0.03) * seconds
    parts = {"data": 0.004 * seconds, "waiting": waiting, "apply": 0.02 * seconds, "other": 0.003 * seconds}
    parts["compute"] = seconds - sum(parts.values())
    parts |= {"evaluate": 1.1 * epochs, "checkpoint": 0.1 * epochs}
    whole = sum(parts.values())
    beside = {"exchange": 0.12 * seconds} if mode == "dense" else {"compress": 0.035 * seconds, "exchange": 0.03 * seconds}
    end = lines[-1]
    return lines, {"metric": end["metric"], "metrics": end["metrics"], "best_metric": end["metric"], "loss": end["loss"],
                   "epochs": epochs, "steps": total, "seconds": seconds, "total_seconds": whole,
                   "bytes_up_per_step": sent, "bytes_down_per_step": sent,
                   "wire_bytes_total": 2 * up, "message_bytes_per_step": message, "message_ratio": 4 * PARAMETERS / message,
                   "traffic_ratio": 1.5 * 4 * PARAMETERS / sent, "message_ratio_total": 4 * PARAMETERS * total / messages,
                   "traffic_ratio_total": 1.5 * 4 * PARAMETERS * total / up, "steps_at_final_ratio": total - per_epoch,
                   "final_ratio": ratio, "time": parts | beside, "data_share": 0.004, "parameters_hash": "0123456789abcdef",
                   "finished": True}


def make_run(folder: pathlib.Path, modes: list[str], epochs: int = 6, per_epoch: int = 469, every: int = 10, seed: int = 1,
             tail: str = "", facts: dict | None = None, **config) -> pathlib.Path:
    """Writes a run's folder; `tail` is how the names of the metrics end."""
    summary = {"dgc_version": "0.1.0", "recipe": "fashion", "model": "cnn", "parameters": PARAMETERS, "workers": 4, "seed": seed,
               "date": "2026-11-16T05:00:00Z", "machine": {"cpu": "AMD EPYC 7763", "cores": 2, "threads_per_worker": 1},
               "engine": "gloo", "metric_name": "top-1 accuracy", "metric_unit": "%", "higher_is_better": True,
               "steps_per_epoch": per_epoch, "finished": True, "modes": {}}
    summary |= facts or {}
    for mode in modes:
        lines, summary["modes"][mode] = curve_lines(mode, epochs, per_epoch, every, seed, tail)
        (folder / mode).mkdir(parents=True)
        (folder / mode / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        tensors = []
        for name, shape in TENSORS:
            n = math.prod(shape)
            sparse = mode != "dense" and len(shape) > 1
            k = max(1, math.ceil(n / 1000)) if sparse else n
            tensors.append({"name": name, "shape": shape, "elements": n, "mode": "sparse" if sparse else "dense", "k": k,
                            "why": "" if sparse else "mode dense" if mode == "dense" else "one dimension",
                            "bytes": 12 + (4 * k if sparse else 2 * n)})
        (folder / mode / "tensors.json").write_text(json.dumps(tensors))
    (folder / "summary.json").write_text(json.dumps(summary))
    settings = {"recipe": "fashion", "model": "cnn", "data": "/usr/share/datasets/fashion-mnist", "epochs": epochs, "batch": 128,
                "lr": 0.05, "lr_schedule": "cosine", "momentum": 0.9, "nesterov": False, "weight_decay": 0.0001, "seed": seed,
                "ratio": 0.001, "warmup_epochs": 1, "values": "fp16", "indices": "rice", "exchange": "auto", "clip_norm": None,
                "workers": 4, "engine": "gloo", "log_every": every, "checkpoint_every": 500, "preset": "small"}
    (folder / "config.json").write_text(json.dumps(settings | config))
    return folder


class ReportInBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        cls.one = cls.report(make_run(cls.folder / "fashion", ["dense", "dgc", "naive"], tail=" accuracy"))
        cls.rounds = cls.report(make_run(cls.folder / "rounds", ["dense", "diloco", "dgc-local"],
                                         facts={"examples_per_step": 1024, "example_name": "tokens"},
                                         **{"link": "20Mbps,25ms", "local-steps": 15}))
        cls.several = cls.report(
            make_run(cls.folder / "a" / "seed1", ["dense", "dgc"], epochs=4),
            make_run(cls.folder / "b" / "seed1", ["dgc"], epochs=4, seed=2, ratio=0.01),
            make_run(cls.folder / NASTY.replace("/", "⁄"), ["dense", NASTY.replace("/", "⁄")], epochs=2, seed=3, note=NASTY))
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    @classmethod
    def report(cls, *runs: pathlib.Path) -> pathlib.Path:
        page = cls.folder / f"{runs[0].name}-{len(runs)}.html"
        subprocess.run([DGC, "report", *map(str, runs), "--out", str(page)], check=True, stdout=subprocess.DEVNULL, timeout=60)
        return page

    def open(self, page: pathlib.Path, width: int = 1280, height: int = 2000, **options) -> None:
        self.browser.open(page, width, height, **options)
        if options.get("scripts", True):
            self.assertEqual(self.browser.run("document.documentElement.dataset.drawn"), "yes", self.browser.errors)
        self.assertEqual(self.browser.errors, [])

    def drawn(self) -> dict:
        """For each chart, by title, the series that have a curve with points."""
        return self.browser.run("""Object.fromEntries([...document.querySelectorAll('.chart')].map(c => [
            c.querySelector('h3').textContent, [...c.querySelectorAll('g[data-series]')].filter(
                g => /^M[-0-9.]+,[-0-9.]+L/.test(g.querySelector('.curve').getAttribute('d'))).map(g => g.dataset.series)]))""")

    def choose(self, value: str) -> None:
        self.browser.run(f"document.querySelector('input[value=\"{value}\"]').click()")

    def test_every_series_is_drawn(self) -> None:
        self.open(self.one)
        all_of_them = ["dense", "dgc", "naive"]
        charts = self.drawn()
        self.assertEqual(list(charts), ["Loss", "Top-1 accuracy", "Share sent", "Ratio", "Training"])
        for title, series in charts.items():
            self.assertEqual(series, all_of_them, title)
        for against in ("bytes", "linear", "time", "epoch", "validation", "top-5 accuracy", "traffic", "gradient", "speed"):
            self.choose(against)
            for title, series in self.drawn().items():
                self.assertEqual(series, all_of_them, (against, title))
        labels = self.browser.run("[...document.querySelectorAll('.chart:nth-child(2) .choices label')].map(l => l.textContent)")
        self.assertEqual(labels, ["top-1 accuracy", "top-5 accuracy"])
        self.choose("residual")
        self.assertEqual(self.drawn()["Training"], ["dgc", "naive"])  # null all along for dense
        paths = self.browser.run("[...document.querySelectorAll('.chart path')].map(p => p.getAttribute('d')).join(' ')")
        self.assertNotRegex(paths, "NaN|Infinity|undefined")
        self.assertEqual(self.browser.errors, [])

    def test_local_steps(self) -> None:
        """Loss against tokens, bytes received and the time over a link."""
        self.open(self.rounds)
        labels = "[...document.querySelectorAll('.toolbar .choices:not([hidden]) label')].map(l => l.textContent)"
        self.assertEqual(self.browser.run(labels),
                         ["epochs", "tokens", "bytes sent", "bytes received", "time", "time over 20 Mbps, 25 ms"])
        texts = "[...document.querySelectorAll('.chart')].map(c => [...c.querySelectorAll('svg text')].map(t => t.textContent).join('|'))"
        for against, label in (("examples", "tokens, million"), ("received", "received by a worker"),
                               ("link", "time over 20 Mbps, 25 ms, computed")):
            self.choose(against)
            for title, series in self.drawn().items():
                self.assertEqual(series, ["dense", "diloco", "dgc-local"], (against, title))
            self.assertIn(label, self.browser.run(texts)[0])
        self.open(self.one)
        self.assertEqual(self.browser.run(labels), ["epochs", "bytes sent", "time"])

    def test_axes_have_units(self) -> None:
        self.open(self.one)
        texts = "[...document.querySelectorAll('.chart')].map(c => [...c.querySelectorAll('svg text')].map(t => t.textContent).join('|'))"
        self.assertIn("epoch", self.browser.run(texts)[0])
        self.assertIn("top-1 accuracy, %", self.browser.run(texts)[1])
        self.assertIn("100\u00a0%", self.browser.run(texts)[2])
        self.assertIn("100×", self.browser.run(texts)[3])
        self.choose("bytes")
        self.assertIn("100\u00a0MB", self.browser.run(texts)[0])
        self.choose("linear")
        self.assertIn("sent by a worker, GB", self.browser.run(texts)[0])
        self.choose("time")
        self.assertIn("training time, s", self.browser.run(texts)[0])

    def test_values_are_read(self) -> None:
        """By mouse, by touch, by keyboard: the values at the last epoch are those of the summary."""
        summary = json.loads((self.folder / "fashion" / "summary.json").read_text())["modes"]
        for width, way in ((1280, "mouse"), (360, "touch"), (1280, "keys")):
            self.open(self.one, width)
            chart = "document.querySelectorAll('.chart')[1]"
            self.browser.run(f"{chart}.scrollIntoView({{block: 'center'}})")
            box = self.browser.run(f"{chart}.querySelector('.plot').getBoundingClientRect().toJSON()")
            at = {"x": box["right"] - 13, "y": box["top"] + box["height"] / 2}
            if way == "mouse":
                self.browser.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
            elif way == "touch":
                self.browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[at])
                self.browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
            else:
                self.browser.run(f"{chart}.querySelector('.plot').focus()")
                for key in ("Home", "ArrowRight", "End"):
                    self.browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
            text = self.browser.run(f"{chart}.querySelector('.tip').hidden ? '' : {chart}.querySelector('.tip').textContent")
            self.assertIn("epoch 6 · step 2,814", text, way)
            for mode in summary:
                self.assertIn(f"{mode}{float('%.4g' % summary[mode]['metric']):g}\u00a0%", text, way)
            if way == "mouse":
                self.browser.shot(SHOTS, "hover")
        self.browser.call("Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape")
        self.assertTrue(self.browser.run(f"{chart}.querySelector('.tip').hidden"))

    def test_legend_hides_series(self) -> None:
        self.open(self.one)
        click = "document.querySelectorAll('.legend button')[{}].click()"
        self.browser.run(click.format(0))
        self.assertEqual(self.drawn()["Loss"], ["dgc", "naive"])
        self.assertEqual(self.browser.run("document.querySelector('.legend button').getAttribute('aria-pressed')"), "false")
        for index in (1, 2):
            self.browser.run(click.format(index))
        self.assertEqual(self.drawn()["Loss"], [])
        self.assertIn("hidden", self.browser.run("document.querySelector('.chart svg').textContent"))
        for index in (2, 1, 0):
            self.browser.run(click.format(index))
        self.assertEqual(self.drawn()["Loss"], ["dense", "dgc", "naive"])
        self.assertEqual(self.browser.errors, [])

    def test_tensors_sort(self) -> None:
        self.open(self.one)
        table = "document.querySelector('details[open] table.sortable')"
        column = f"[...{table}.tBodies[0].rows].map(r => r.cells[{{}}].textContent)"
        self.browser.run(f"{table}.querySelectorAll('th button')[3].click()")
        elements = [int(text.replace(",", "")) for text in self.browser.run(column.format(3))]
        self.assertEqual(elements, sorted(elements, reverse=True))
        self.assertEqual(self.browser.run(f"{table}.tHead.rows[0].cells[3].getAttribute('aria-sort')"), "descending")
        self.browser.run(f"{table}.querySelectorAll('th button')[0].click()")
        self.assertEqual(self.browser.run(column.format(0)), sorted(name for name, _ in TENSORS))

    def test_fits_a_phone(self) -> None:
        wide = """[...document.querySelectorAll('body *')].filter(e => {
            if (e.parentElement.closest('.scroll, svg, .parts') || !e.getClientRects().length) return false;
            const box = e.getBoundingClientRect();
            return box.right > innerWidth + 0.5 || box.left < -0.5;
        }).map(e => e.tagName + '.' + (e.getAttribute('class') || '') + ' ' + e.textContent.slice(0, 40))"""
        for page in (self.one, self.several, self.rounds):
            for width in (320, 360, 768, 1280):
                self.open(page, width, 3000)
                for against in ("bytes", "epoch"):
                    self.choose(against)
                    self.assertEqual(self.browser.run(wide), [], (page.name, width))
                    self.assertLessEqual(self.browser.run("document.scrollingElement.scrollWidth"), width, page.name)
                    self.assertEqual(self.browser.run("document.documentElement.clientWidth"), width)

    def test_wide_table_on_a_phone(self) -> None:
        """No word breaks; the table says that there is more of it, until its end is in sight."""
        self.open(self.one, 400, 3000)
        lines = "[...document.querySelectorAll('.results tbody th span')].map(s => s.getClientRects().length && s.offsetHeight / parseFloat(getComputedStyle(s).lineHeight))"
        self.assertEqual([round(n) for n in self.browser.run(lines)], [1, 1, 1])
        box = "document.querySelector('.results').closest('.scroll')"
        hint = f"!{box}.nextElementSibling.hidden && {box}.nextElementSibling.textContent"
        self.assertIn("more columns", self.browser.run(hint))
        self.assertTrue(self.browser.run(f"{box}.classList.contains('more')"))
        self.browser.run(f"new Promise(done => {{ {box}.scrollLeft = 9999; requestAnimationFrame(() => requestAnimationFrame(done)) }})")
        self.assertFalse(self.browser.run(hint))
        first = self.browser.run("document.querySelector('.results tbody th').getBoundingClientRect().left")
        self.assertGreaterEqual(first, 0)  # the names of the modes stay
        self.open(self.one, 1280)
        self.assertFalse(self.browser.run(hint))

    def test_light_and_dark(self) -> None:
        colours = """[getComputedStyle(document.documentElement).backgroundColor, getComputedStyle(document.body).color,
            ...[...document.querySelectorAll('.chart:first-child .curve')].map(c => getComputedStyle(c).stroke)]"""
        found = []
        for dark in (False, True):
            self.open(self.one, dark=dark)
            found.append(self.browser.run(colours))
            channels = [int(c) for c in found[-1][0][4:-1].split(",")]
            self.assertEqual(max(channels) < 60, dark)
            self.assertEqual(len(set(found[-1])), 5)
            dashes = self.browser.run("[...document.querySelectorAll('.chart:first-child .curve')].map(c => getComputedStyle(c).strokeDasharray)")
            self.assertEqual(len(set(dashes)), 3)
        self.assertFalse(set(found[0]) & set(found[1]))

    def test_several_runs(self) -> None:
        self.open(self.several)
        nasty = NASTY.replace("/", "⁄")
        expected = ["a/seed1 · dense", "a/seed1 · dgc", "b/seed1 · dgc", f"{nasty} · dense", f"{nasty} · {nasty}"]
        self.assertEqual(self.drawn()["Loss"], expected)
        self.assertEqual(self.browser.run("[...document.querySelectorAll('.legend button')].map(b => b.textContent)"), expected)
        labels = self.browser.run("[...document.querySelectorAll('.chart:nth-child(2) .choices label')].map(l => l.textContent)")
        self.assertEqual(labels, ["top-1", "top-5"])
        keys = self.browser.run("[...document.querySelectorAll('.differences tbody th')].map(t => t.textContent)")
        self.assertEqual(keys, ["epochs", "note", "ratio", "seed"])
        self.assertIn(NASTY, self.browser.run("[...document.querySelectorAll('.differences td')].map(t => t.textContent)"))
        self.assertEqual(self.browser.run("document.images.length"), 0)
        self.assertEqual(self.browser.run("document.scripts.length"), 3)

    def test_unfinished_run(self) -> None:
        folder = make_run(self.folder / "killed", ["dense", "dgc"], epochs=2)
        (folder / "summary.json").unlink()
        (folder / "dense" / "tensors.json").unlink()
        curves = (folder / "dgc" / "metrics.jsonl").read_bytes()
        (folder / "dgc" / "metrics.jsonl").write_bytes(curves[: len(curves) // 3])
        self.open(self.report(folder))
        self.assertEqual(self.drawn()["Loss"], ["dense", "dgc"])
        notes = self.browser.run("document.querySelector('.notes').textContent")
        self.assertIn("summary.json is missing", notes)
        self.assertIn("dense/tensors.json is missing", notes)
        only_config = self.folder / "begun"
        only_config.mkdir()
        (only_config / "config.json").write_text('{"lr": 0.1}')
        self.open(self.report(only_config))
        self.assertIn("no curves yet", self.browser.run("document.body.textContent"))

    def test_without_scripts(self) -> None:
        self.open(self.one, scripts=False)
        self.browser.call("Emulation.setScriptExecutionDisabled", value=False)  # our own question is a script too
        self.assertEqual(self.browser.run("document.querySelectorAll('.chart').length"), 0)
        self.assertIn("scripts are off", self.browser.run("document.querySelector('noscript').textContent"))
        self.assertEqual(self.browser.run("document.querySelectorAll('.results tbody tr').length"), 3)
        self.assertEqual(self.browser.run("document.querySelectorAll('.bar').length"), 3)

    def test_gaps(self) -> None:
        """A loss that was not finite for a while is a gap in the curve, not a line across."""
        folder = make_run(self.folder / "gaps", ["dgc"], epochs=1)
        path = folder / "dgc" / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines[10:14]:
            line["loss"] = None
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.open(self.report(folder))
        path = self.browser.run("document.querySelector('.chart .curve').getAttribute('d')")
        self.assertEqual(path.count("M"), 2)

    def test_shots(self) -> None:
        if SHOTS is None:
            self.skipTest("no folder for screenshots")
        for name, page in (("one", self.one), ("several", self.several), ("rounds", self.rounds)):
            for width, size in ((1280, "desktop"), (400, "phone")):
                for dark in (False, True):
                    self.open(page, width, 2000, dark=dark)
                    self.browser.shot(SHOTS, f"{name}-{size}-{'dark' if dark else 'light'}")
        self.open(self.one)
        self.choose("bytes")
        self.browser.shot(SHOTS, "one-desktop-bytes")


if __name__ == "__main__":
    if CHROMIUM is None:
        print("skipped: chromium is not installed")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
