"""Tables and picture of scripts/reproduce/pytorch-hooks, from the files that it has written.

Time to an accuracy = sum over all stages of (steps in the stage) x (time of such a step), up to the
step from which on the accuracy, as the mean of five neighbours, stays at or above the target. Steps
come from the trainings, times from the short runs over the limited link.
"""

import json
import math
import pathlib
import statistics

import svg
from hooks_worker import ROWS, WORKERS, BATCH


class Found:
    """What was measured so far."""

    def __init__(self, folder: pathlib.Path, steps: int, rates: dict):
        self.folder, self.steps, self.rates = folder, steps, rates
        self.seconds = {rate: self._stages(rate, "seconds") for rate in rates}
        self.received = {rate: self._stages(rate, "received") for rate in rates}

    def _read(self, pattern: str) -> list:
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob(pattern))]

    def trainings(self, row: str) -> list:
        return self._read(f"accuracy-{row}-{self.steps}-[0-9]*.json")

    def check(self, row: str, rate: float):
        runs = self._read(f"check-{row}-{self.steps}-{rate:.0f}.json")
        return runs[0] if runs else None

    def short_runs(self, rates: list) -> list:
        """Of each row and rate the round in which others used the cores least."""
        rounds = [
            self._read(f"times-{row}-{rate:.0f}-[0-9]*.json") for row in ROWS for rate in rates
        ]
        return [min(runs, key=lambda run: run["others"]) for runs in rounds if runs]

    def _stages(self, rate: float, what: str) -> dict:
        """Of each stage: the median over its steps, or of its bytes a step."""
        values = {}
        for run in self.short_runs([rate]):
            begin = 0
            for number, stage in enumerate(run["stages"]):
                end = begin + stage["steps"]
                # DDP forms its buckets anew after the very first step.
                skip = 2 if number == 0 else 1
                own = (
                    run["seconds"][begin + skip : end] if what == "seconds" else [run[what][number]]
                )
                values.setdefault(stage["name"], []).extend(own)
                begin = end
        return {name: statistics.median(all_of_it) for name, all_of_it in values.items()}

    def curve(self, row: str) -> list:
        """(step, accuracy), the mean over the seeds."""
        curves = [run["curve"] for run in self.trainings(row)]
        return [(points[0][0], statistics.mean(p[1] for p in points)) for points in zip(*curves)]

    def steps_to(self, row: str, target: float):
        """The step from which on the accuracy stays at or above the target; None: never. Single
        values scatter by half a point, so it is the mean of five neighbours."""
        reached, curve = None, self.curve(row)
        for number, (step, _) in enumerate(curve):
            near = curve[max(0, number - 2) : number + 3]
            if statistics.mean(accuracy for _, accuracy in near) < target:
                reached = None
            elif reached is None:
                reached = step
        return reached

    def total(self, row: str, rate: float, steps: int, of: str = "seconds"):
        """Of the first `steps` steps of a training; None where a stage was not measured."""
        total, left = 0.0, steps
        for stage in ROWS[row].stages(self.steps):
            here = min(left, stage.steps)
            if here > 0 and stage.name not in getattr(self, of)[rate]:
                return None
            total += here * getattr(self, of)[rate].get(stage.name, 0.0)
            left -= here
        return total

    def time_to(self, row: str, rate: float, target: float):
        steps = self.steps_to(row, target)
        return None if steps is None else self.total(row, rate, steps)


def _table(head: list, rows: list) -> None:
    print("| " + " | ".join(head) + " |\n| --- |" + " ---: |" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def _number(value, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def print_all(found: Found, rows: list, targets: list, checks: tuple) -> None:
    trained = [row for row in rows if found.trainings(row)]
    if trained:
        _accuracy(found, trained, targets)
    if found.short_runs(list(found.rates)):
        _steps(found, rows)
        _conditions(found)
    if trained and found.short_runs(list(found.rates)):
        _times(found, trained, targets)
        _checks(found, checks)


def _accuracy(found: Found, rows: list, targets: list) -> None:
    evaluated = dict(found.curve(rows[0]))
    some = [s for s in (found.steps // n for n in (10, 4, 2)) if s in evaluated]
    head = ["hook", *(f"after {s}, %" for s in some), f"after {found.steps}, %", "seeds"]
    lines = []
    for row in rows:
        curve, ends = dict(found.curve(row)), [run["curve"][-1][1] for run in found.trainings(row)]
        spread = f" ({min(ends):.2f} to {max(ends):.2f})" if len(ends) > 1 else ""
        line = [ROWS[row].title, *(_number(curve[s], 1) for s in some)]
        line += [f"{curve[found.steps]:.2f}{spread}", str(len(ends))]
        lines.append(line + [_number(found.steps_to(row, t)) for t in targets])
    _table(head + [f"steps to {t:g} %" for t in targets], lines)


def _steps(found: Found, rows: list) -> None:
    """Times of a step after the warm-up, and their mean over the whole training."""
    names = list(found.rates.values())
    head = ["hook", *(f"ms, {n}" for n in names), *(f"mean, {n}" for n in names)]
    lines = []
    for row in rows:
        last = ROWS[row].stages(found.steps)[-1].name
        line = [ROWS[row].title]
        line += [_number(_times_1000(found.seconds[rate].get(last))) for rate in found.rates]
        for rate in found.rates:
            whole = found.total(row, rate, found.steps)
            line.append(_number(None if whole is None else 1e3 * whole / found.steps))
        rate = next(iter(found.rates))
        line.append(_number(_times_1000(found.received[rate].get(last), 1e-3), 1))
        whole = found.total(row, rate, found.steps, "received")
        line.append(_number(None if whole is None else whole / 1e6))
        lines.append(line)
    _table(head + ["kB received a step", "MB in all"], lines)


def _times_1000(value, factor: float = 1e3):
    return None if value is None else factor * value


def _times(found: Found, rows: list, targets: list) -> None:
    head = ["hook"] + [f"{name}: {t:g} %" for name in found.rates.values() for t in targets]
    lines = []
    for row in rows:
        times = [found.time_to(row, rate, t) for rate in found.rates for t in targets]
        lines.append([ROWS[row].title, *(_number(time) for time in times)])
    print("Seconds to an accuracy:\n")
    _table(head, lines)


def _checks(found: Found, checks: tuple) -> None:
    lines = []
    for row, rate in checks:
        run = found.check(row, rate)
        if run is None:
            continue
        predicted, measured = found.total(row, rate, found.steps), sum(run["seconds"])
        same = found.trainings(row)[0]["curve"] == run["curve"]
        line = [ROWS[row].title, found.rates[rate], _number(measured), _number(predicted)]
        error = "-" if predicted is None else f"{100 * (predicted / measured - 1):+.0f} %"
        lines.append(line + [error, f"{100 * run['others']:.0f} %", "yes" if same else "no"])
    if lines:
        head = ["whole training", "link", "measured, s", "put together, s", "deviation"]
        _table(head + ["others had", "same accuracies"], lines)


def _conditions(found: Found) -> None:
    runs = found.short_runs(list(found.rates))
    others = sorted(100 * run["others"] for run in runs)
    print(
        f"{runs[0]['parameters']:,} parameters, {WORKERS} workers, {found.steps} steps of {BATCH} "
        f"images, PyTorch {runs[0]['torch']}. While times were measured, other processes and the "
        f"kernel had {others[0]:.0f} to {others[-1]:.0f} % of the cores, "
        f"{statistics.median(others):.0f} % in the middle run.\n"
    )


# The picture.

COLOURS = {  # on white, on dark
    "ddp": ("#c0392b", "#ff8f84"),
    "fp16": ("#b45f06", "#ffb866"),
    "powersgd4": ("#8338a8", "#d6a1f0"),
    "powersgd4-early": ("#5b6ee1", "#aab4ff"),
    "dgc1": ("#1663b0", "#74b6ff"),
    "dgc": ("#1d7a46", "#7fd6a2"),
    "dgc-early": ("#0f766e", "#5eead4"),
}


def draw(found: Found, rows: list, target: float, file: pathlib.Path) -> None:
    """Time to `target` against the rate of the link, both logarithmic."""
    rates = list(found.rates)
    lines = {r: [found.time_to(r, rate, target) for rate in rates] for r in rows if r in COLOURS}
    lines = {row: times for row, times in lines.items() if None not in times}
    if not lines:
        return
    everything = [time for times in lines.values() for time in times]
    low = math.floor(math.log10(min(everything)))
    high = max(low + 1, math.ceil(math.log10(max(everything))))
    left, right, top, bottom = 64, 420, 44, 300

    def x(number: int) -> float:
        return left + (right - left) * number / (len(rates) - 1)

    def y(seconds: float) -> float:
        return bottom - (bottom - top) * (math.log10(seconds) - low) / (high - low)

    out = [
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 720 340' role='img' "
        f"aria-label='Time to {target:g} % accuracy against the rate of the link'>",
        svg.style(COLOURS),
        "<rect width='100%' height='100%' fill='var(--paper)'/>",
        f"<text class='head' x='8' y='20'>Time to {target:g} % accuracy, {WORKERS} workers</text>",
    ]
    for power in range(low, high + 1):
        seconds, height = 10**power, y(10**power)
        out.append(f"<path class='grid' d='M{left} {height:.1f}H{right}'/>")
        text = f"{seconds:,} s"
        out.append(
            f"<text class='axis' x='{left - 6}' y='{height + 4:.1f}' text-anchor='end'>{text}</text>"
        )
    for number, name in enumerate(found.rates.values()):
        anchor = "<text class='axis' text-anchor='middle'"
        out.append(f"{anchor} x='{x(number):.1f}' y='{bottom + 20}'>{name}</text>")
    heights = svg.spread([y(times[-1]) for times in lines.values()], 15)
    for (row, times), height in zip(lines.items(), heights):
        points = " ".join(f"{x(n):.1f},{y(t):.1f}" for n, t in enumerate(times))
        out.append(f"<polyline class='line' stroke='var(--{row})' points='{points}'/>")
        out += [
            f"<circle r='3' fill='var(--{row})' cx='{x(n):.1f}' cy='{y(t):.1f}'/>"
            for n, t in enumerate(times)
        ]
        label = f"{ROWS[row].title}: {times[-1]:,.0f} s"
        out.append(
            f"<text x='{right + 12}' y='{height + 4:.1f}' style='fill:var(--{row})'>{label}</text>"
        )
    svg.write(file, out)
