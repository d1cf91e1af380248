#!/usr/bin/env python3
"""Kills a random rank at a random moment with SIGKILL, again and again, resuming each time: the
parameters in the end are those of a run that was never interrupted.

test_kill.py WORKER KILLS [SEED]
"""
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

WORKERS = 3
STEPS = 300
EVERY = 3
DEADLINE = 60  # seconds for a whole run, and for survivors to notice


def start(worker, folder, store):
    processes = []
    for rank in range(WORKERS):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(WORKERS), DGC_STORE=store,
                           OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        processes.append(subprocess.Popen([worker, folder, str(STEPS), str(EVERY)],
                                          env=environment, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True))
    return processes


def finish(processes):
    """Outputs of all ranks; none is left behind."""
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=DEADLINE))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return outputs


def hashes(outputs):
    found = {line for out, _ in outputs for line in out.splitlines() if line.startswith("final")}
    assert len(found) == 1, f"ranks ended with {found}: {outputs}"
    return found.pop()


def main():
    worker, kills = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    work = tempfile.mkdtemp(prefix="dgc-kill-")
    try:
        def run(name, number, kill_after=None):
            store = os.path.join(work, f"store-{name}-{number}")
            os.mkdir(store)
            began = time.monotonic()
            processes = start(worker, os.path.join(work, name), store)
            if kill_after is not None:
                time.sleep(kill_after)
                processes[chance.randrange(WORKERS)].send_signal(signal.SIGKILL)
            outputs = finish(processes)
            return outputs, [p.returncode for p in processes], time.monotonic() - began

        outputs, codes, whole = run("whole", 0)
        assert codes == [0] * WORKERS, outputs
        expected = hashes(outputs)

        killed, attempts, done, resumed = 0, 0, False, []
        while killed < kills:
            attempts += 1
            assert attempts <= 4 * kills + 10, f"only {killed} kills in {attempts} runs"
            if done:  # the run had ended before the kill: begin another
                shutil.rmtree(os.path.join(work, "killed"))
            outputs, codes, _ = run("killed", attempts, chance.uniform(0.0, whole * 0.7))
            done = all(code == 0 for code in codes)
            if done:
                assert hashes(outputs) == expected, (expected, outputs)
            else:
                assert -signal.SIGKILL in codes, (codes, outputs)
                for code, (_, err) in zip(codes, outputs):
                    assert code in (0, 1, -signal.SIGKILL), (codes, outputs)
                    assert code != 1 or "rank" in err, err
            resumed += [int(line.split()[1]) for out, _ in outputs[:1]
                        for line in out.splitlines() if line.startswith("from")]
            killed += not done
        outputs, codes, _ = run("killed", "last")
        assert codes == [0] * WORKERS, outputs
        assert hashes(outputs) == expected, (expected, outputs)
        left = sorted(os.listdir(os.path.join(work, "killed")))
        assert len(left) == 2 and all(name.startswith("step-") for name in left), left
        print(f"{killed} kills; began at steps {resumed}; {expected}, as in the run without")
        assert kills < 3 or any(step > 0 for step in resumed), "nothing was ever resumed"
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
