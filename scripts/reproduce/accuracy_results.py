"""The file of results of scripts/reproduce/accuracy: which runs there are, and what came out of them."""

import hashlib
import json
import pathlib
import re
import shlex
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = (ROOT / "src" / "train" / "defaults.cpp").read_text()


def settings_of(flags):
    """Whatever their order."""
    return frozenset(shlex.join(flags).replace(" --", "\n--").splitlines())


def chosen_by(flags, table=TABLE):
    """Runs that leave settings to `dgc train` are other runs once their row in its table of defaults, or a
    number that the row depends on, has changed. None for a run that depends on no row."""
    if "--mode dgc" not in shlex.join(flags) or "--momentum-correction" in flags:
        return None
    # As row_for() does it.
    many = int(flags[flags.index("--workers") + 1]) >= int(re.search(r"kManyWorkers = (\d+);", table)[1])
    row = "kFew" if not many else "kManyRecurrent" if flags[0] in ("ptb", "text", "an4", "speech") else "kMany"
    named = ["kPublishedRatio", "kCoverage", "kMostRatio"] if row == "kMany" else ["kPublishedRatio"]
    if "auto" in flags:
        named += ["kLeastCoverage", "kMostRatio"]
    parts = [re.search(rf"constexpr \w+ {name} = .*?;", table, re.DOTALL)[0] for name in (row, *sorted(set(named)))]
    return hashlib.sha256(" ".join(" ".join(parts).split()).encode()).hexdigest()[:12]


class Results:
    """The file of results: a line of JSON for each run that has ended. Parts share runs: a run is known
    by its settings and its seed, and by the table of defaults where that decides."""

    def __init__(self, file):
        self._file, self._lock = file, threading.Lock()
        lines = file.read_text().splitlines() if file.exists() else []
        self._by_run = {self._key(shlex.split(r["command"]), r["seed"], r.get("defaults")): r for r in map(json.loads, lines)}

    @staticmethod
    def _key(flags, seed, defaults):
        return settings_of(flags), seed, defaults

    def of(self, flags, seed):
        """None where the run has not ended."""
        return self._by_run.get(self._key(flags, seed, chosen_by(flags)))

    def add(self, result):
        with self._lock:
            flags = shlex.split(result["command"])
            self._by_run[self._key(flags, result["seed"], result.get("defaults"))] = result
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with open(self._file, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(result) + "\n")
