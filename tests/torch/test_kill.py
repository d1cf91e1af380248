#!/usr/bin/env python3
"""Kills a random rank with SIGKILL, again and again, and resumes each time: in the end the parameters
are those of a run that was never interrupted.

test_kill.py WORKER KILLS [SEED]

A few kills (3) are a smoke test: runs are short, and every kill comes while checkpoints are saved.
From 10 kills on, runs save a hundred checkpoints, and every second kill comes at any moment. If
that is while ranks are finding each other, the survivors wait for the whole timeout of 10 s. With
DGC_STORM=1, before a release, there are 20.
"""
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

WORKERS = 3
EVERY = 3  # steps between checkpoints
DEADLINE = 60  # seconds for a whole run, and for survivors to notice


class Runs:
    """Runs of the worker in one scratch folder, all with the same number of steps."""

    def __init__(self, worker, work, steps, chance):
        self.worker, self.work, self.steps, self.chance = worker, work, steps, chance
        self.started = 0

    def run(self, name, wait_before_kill=None):
        """Outputs and exit codes of all ranks. Kills one of them when `wait_before_kill` returns."""
        self.started += 1
        store = self.work / f"store-{self.started}"
        store.mkdir()
        processes = []
        try:
            for rank in range(WORKERS):
                environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(WORKERS), DGC_STORE=str(store),
                                   OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
                processes.append(subprocess.Popen([self.worker, self.work / name, str(self.steps), str(EVERY)],
                                                  env=environment, stdout=subprocess.PIPE,
                                                  stderr=subprocess.PIPE, text=True))
            if wait_before_kill is not None:
                wait_before_kill(processes)
                processes[self.chance.randrange(WORKERS)].send_signal(signal.SIGKILL)
            outputs = [process.communicate(timeout=DEADLINE) for process in processes]
        finally:
            for process in processes:  # none is left behind
                if process.poll() is None:
                    process.kill()
                    process.wait()
        return outputs, [process.returncode for process in processes]


def hash_of(outputs):
    found = {line for out, _ in outputs for line in out.splitlines() if line.startswith("final")}
    assert len(found) == 1, f"ranks ended with {found}: {outputs}"
    return found.pop()


def checkpoints(folder):
    """Whole ones: step-N, without an ending."""
    return {path.name for path in folder.glob("step-*") if not path.suffix}


def check_killed(codes, outputs):
    """The victim was killed, and the others either had finished or say which rank they lost."""
    assert -signal.SIGKILL in codes, (codes, outputs)
    for code, (_, err) in zip(codes, outputs):
        assert code in (0, 1, -signal.SIGKILL), (codes, outputs)
        assert code != 1 or "rank" in err, err


def test(worker, kills, chance, work):
    # On two cores a run takes 0.9 s to start, 18 ms a step and 34 ms a checkpoint: 2.6 s with 60
    # steps, 10 s with 300.
    storm = kills >= 10
    runs = Runs(worker, work, 300 if storm else 60, chance)
    folder = work / "killed"

    began = time.monotonic()
    outputs, codes = runs.run("whole")
    whole = time.monotonic() - began
    assert codes == [0] * WORKERS, outputs
    expected = hash_of(outputs)

    def any_moment(_):
        """Also while ranks start and find each other."""
        time.sleep(chance.uniform(0.0, whole * 0.7))

    def while_saving(processes):
        """Not before this run has put a checkpoint into place: the next one has something to resume."""
        before = checkpoints(folder)
        began = time.monotonic()
        while checkpoints(folder) <= before and any(process.poll() is None for process in processes):
            assert time.monotonic() - began < DEADLINE, "no checkpoint"
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, whole * 0.3))

    killed, attempts, done, resumed = 0, 0, False, []
    while killed < kills:
        attempts += 1
        assert attempts <= 4 * kills + 10, f"only {killed} kills in {attempts} runs"
        if done:  # the run had ended before the kill: begin another
            shutil.rmtree(folder)
        outputs, codes = runs.run("killed", any_moment if storm and killed % 2 else while_saving)
        done = all(code == 0 for code in codes)
        if done:
            assert hash_of(outputs) == expected, (expected, outputs)
        else:
            check_killed(codes, outputs)
            killed += 1
        resumed += [int(line.split()[1]) for line in outputs[0][0].splitlines() if line.startswith("from")]

    outputs, codes = runs.run("killed")
    assert codes == [0] * WORKERS, outputs
    assert hash_of(outputs) == expected, (expected, outputs)
    resumed += [int(line.split()[1]) for line in outputs[0][0].splitlines() if line.startswith("from")]
    left = sorted(os.listdir(folder))
    assert len(left) == 2 and all(name.startswith("step-") for name in left), left
    print(f"{killed} kills; began at steps {resumed}; {expected}, as in the run without")
    assert any(step > 0 for step in resumed), "nothing was ever resumed"


def main():
    worker, kills = sys.argv[1], 20 if os.environ.get("DGC_STORM") == "1" else int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
    print(f"seed {seed}", flush=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="dgc-kill-"))
    try:
        test(worker, kills, random.Random(seed), work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
