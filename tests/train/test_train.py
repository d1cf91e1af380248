#!/usr/bin/env python3
"""dgc train from the outside: test_train.py PART DGC [MPIRUN...]

Parts: same (the ways to start workers agree), resume (signals and kills), ratios (--ratio auto), errors (bad input), files
(what a run leaves).
"""
import base64
import gzip
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import wave

from ports import free_port

PART, DGC, MPIRUN = sys.argv[1], sys.argv[2], sys.argv[3:]
HERE = pathlib.Path(tempfile.mkdtemp(prefix="dgc-train-"))
# A small network on generated images; 4 workers, 24 steps of a batch that 4 divides.
CNN = ["train", "synthetic", "--model", "cnn", "--examples", "256", "--batch", "32", "--steps", "24",
       "--warmup-epochs", "1", "--lr", "0.01", "--checkpoint-every", "5", "--log-every", "1",
       "--link", "1Gbps,0.1ms"]  # bits are compared: all runs choose by the same link
# Text: the state of the network and dropout go on from step to step.
LSTM = ["train", "synthetic", "--model", "lstm", "--hidden", "24", "--dropout", "0.3", "--examples",
        "320", "--batch", "8", "--bptt", "5", "--steps", "40", "--checkpoint-every", "7",
        "--log-every", "1", "--link", "1Gbps,0.1ms"]
THREADS = ["--workers", "2", "--launch", "threads"]  # libtorch is loaded once
STEPS = 60  # of runs that are interrupted
# `make test` ends runs in the ways that differ most; `make check-all` (DGC_STORM=1) in all of them.
STORM = os.environ.get("DGC_STORM") == "1"
ALWAYS = {"cnn": ("SIGTERM to the launcher", "SIGTERM to a worker", "kill -9 of a worker",
                  "kill -9 of the launcher"), "lstm": ("SIGTERM to the launcher",)}
WITH_STORM = {"cnn": (*ALWAYS["cnn"], "SIGINT to the launcher", "SIGUSR1 to the launcher"),
              "lstm": (*ALWAYS["lstm"], "kill -9 of a worker")}
BEGUN = time.monotonic()
failures = []


def check(what, good, detail=""):
    print(f"{time.monotonic() - BEGUN:6.1f} s  {'ok    ' if good else 'FAILED'}  {what}", flush=True)
    if not good:
        failures.append(what)
        print(detail)


def environment(**extra):
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "DGC_STORE")}
    return {**clean, **{k: str(v) for k, v in extra.items()}}


def run(*words, env=None, **how):
    return subprocess.run([DGC, *words], capture_output=True, text=True, errors="replace", timeout=240,
                          env=env or environment(), **how)


def hashes(folder):
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["finished"], folder
    return {mode: result["parameters_hash"] for mode, result in summary["modes"].items()}


def same():
    modes = ["--compare", "dense,dgc"]
    done = run(*CNN, *modes, "--workers", "4", "--out", HERE / "processes")
    check("--workers 4 ends well", done.returncode == 0, done.stderr)
    expected = hashes(HERE / "processes")
    check("dense and dgc differ", expected["dense"] != expected["dgc"])

    done = run(*CNN, *modes, "--workers", "4", "--launch", "threads", "--out", HERE / "threads")
    check("threads give the same bits", done.returncode == 0 and hashes(HERE / "threads") == expected,
          done.stderr)

    if MPIRUN:
        done = subprocess.run([*MPIRUN, "-n", "4", DGC, *CNN, *modes, "--out", HERE / "mpi"],
                              capture_output=True, text=True, timeout=240, env=environment())
        check("mpirun gives the same bits",
              done.returncode == 0 and hashes(HERE / "mpi") == expected, done.stderr)

    port = free_port()
    ranks = [subprocess.Popen([DGC, *CNN, *modes, "--out", HERE / "address"],
                              stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                              env=environment(RANK=r, WORLD_SIZE=4, MASTER_ADDR="127.0.0.1",
                                              MASTER_PORT=port)) for r in range(4)]
    said = [rank.communicate(timeout=240)[1] for rank in ranks]
    check("RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT give the same bits",
          all(rank.returncode == 0 for rank in ranks) and hashes(HERE / "address") == expected,
          "\n".join(said))

    done = run(*CNN, *modes, "--workers", "4", "--launch", "threads", "--emulate-link", "1Gbps,1ms",
               "--out", HERE / "emulated")
    check("an emulated link changes no bits, and is named",
          done.returncode == 0 and hashes(HERE / "emulated") == expected
          and "emulated link of 1 Gbps, 1 ms" in (HERE / "emulated/summary.json").read_text(), done.stderr)
    measured = [word for word in CNN if word not in ("--link", "1Gbps,0.1ms")]
    done = run(*measured, "--mode", "dgc", "--workers", "3", "--out", HERE / "measured")
    result = json.loads((HERE / "measured/summary.json").read_text())["modes"]["dgc"]
    check("a link that is measured is said and kept",
          done.returncode == 0 and "auto by measured link" in done.stderr + done.stdout
          and result["costs"].startswith("measured link")
          and json.loads((HERE / "measured/dgc/costs.json").read_text())["workers"] == 3, done.stderr)

    done = run(*CNN, "--mode", "dgc", "--workers", "4", "--seed", "2", "--out", HERE / "seed")
    check("another seed gives others", hashes(HERE / "seed")["dgc"] != expected["dgc"])
    done = run(*CNN, "--mode", "naive,dense-fp16", "--workers", "3", "--out", HERE / "three")
    check("naive and dense-fp16, on 3 workers", done.returncode == 0 and len(hashes(HERE / "three")) == 2,
          done.stderr)


def workers_of(pid):
    out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in out.stdout.split()]


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def interrupted(job, folder, kill):
    """Starts a run, lets `kill` end it somewhere in the middle; the process and what it said."""
    # SIGINT is ignored, as shells have it for jobs in the background.
    process = subprocess.Popen([DGC, *job, "--workers", "3", "--out", folder], env=environment(),
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    log = folder / "dgc" / "metrics.jsonl"
    deadline = time.time() + 120
    while process.poll() is None and time.time() < deadline:
        if log.exists() and log.read_text().count("\n") >= 9:
            break
        time.sleep(0.01)
    children = workers_of(process.pid)
    assert len(children) == 3, (children, process.poll())
    kill(process.pid, children)
    said = process.communicate(timeout=120)[1]
    for _ in range(200):
        if not any(alive(child) for child in children):
            break
        time.sleep(0.05)
    left = [child for child in children if alive(child)]
    return process.returncode, said, left


def resume():
    # Slow enough that there is a middle to interrupt; few epochs, because each ends with a checkpoint
    # that waits for the disk.
    slow = ["--steps", str(STEPS), "--checkpoint-every", "20"]
    long = {"cnn": ["--examples", "640"], "lstm": ["--examples", "800"]}  # 20 steps each
    kills = {
        "SIGTERM to the launcher": lambda parent, _: os.kill(parent, signal.SIGTERM),
        "SIGINT to the launcher": lambda parent, _: os.kill(parent, signal.SIGINT),
        "SIGUSR1 to the launcher": lambda parent, _: os.kill(parent, signal.SIGUSR1),
        "SIGTERM to a worker": lambda _, ranks: os.kill(ranks[1], signal.SIGTERM),
        "kill -9 of a worker": lambda _, ranks: os.kill(ranks[1], signal.SIGKILL),
        "kill -9 of the launcher": lambda parent, _: os.kill(parent, signal.SIGKILL),
    }
    for name, job in (("cnn", CNN), ("lstm", LSTM)):
        job = [*job, *slow, *long[name]]
        done = run(*job, "--workers", "3", "--out", HERE / f"{name}-whole")
        assert done.returncode == 0, done.stderr
        expected = hashes(HERE / f"{name}-whole")
        for i, (what, kill) in enumerate(kills.items()):
            if what not in (ALWAYS[name] if not STORM else WITH_STORM[name]):
                continue
            folder = HERE / f"{name}-{i}"
            status, said, left = interrupted(job, folder, kill)
            check(f"{name}, {what}: ends, no process is left", status != 0 and not left, said)
            if what.startswith("SIG"):
                number = signal.Signals[what.split()[0]]
                check(f"{name}, {what}: by the signal, and says how to continue",
                      status == -number and f"dgc train --resume {folder}" in said, (status, said))
            if "of a worker" in what:
                check(f"{name}, {what}: names the rank and the reason",
                      status == 1 and "rank 1" in said and "signal 9" in said, (status, said))
            # Threads and processes give the same bits; threads load libtorch once.
            launch = ["--launch", "threads"] if name == "cnn" and i % 2 else []
            again = run("train", "--resume", folder, *launch)
            check(f"{name}, {what}: resumes to the same parameters",
                  again.returncode == 0 and hashes(folder) == expected, again.stderr)
            lines = [json.loads(line) for line in
                     (folder / "dgc" / "metrics.jsonl").read_text().splitlines()]
            steps = [line["step"] for line in lines if line["type"] == "step"]
            check(f"{name}, {what}: metrics.jsonl has every step once",
                  steps == list(range(1, STEPS + 1)), steps)
    for launch in ("processes", "threads"):
        folder = HERE / f"unread-{launch}"
        process = subprocess.Popen([DGC, *CNN, "--launch", launch, "--workers", "2", "--out", folder],
                                   env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        process.stderr.read(1)
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        check(f"{launch}: goes on when nobody reads its progress, and under nohup",
              process.wait(120) == 0 and hashes(folder), process.returncode)
    if STORM:  # 40 s of waiting
        # The others time out; nobody waits for the one that does not end.
        begun = time.time()
        status, said, left = interrupted([*CNN, *slow, "--timeout", "3"], HERE / "stuck", lambda parent, ranks: (
            os.kill(ranks[1], signal.SIGSTOP), os.kill(parent, signal.SIGTERM)))
        check("SIGTERM while a worker is stuck: ends, no process is left",
              status == -signal.SIGTERM and not left and "a rank is lost" in said,
              (status, said, time.time() - begun))
    folder = HERE / "twice"
    second = []
    interrupted([*CNN, *slow, "--steps", "100000"], folder, lambda parent, _: (
        second.append(run("train", "--resume", folder)), os.kill(parent, signal.SIGTERM)))
    check("a run that is going on is not continued by another process",
          second[0].returncode == 1 and "another process" in second[0].stderr, second[0].stderr)
    finished = run("train", "--resume", HERE / "cnn-0", "--json")
    check("a finished run is not run again", finished.returncode == 0 and
          json.loads(finished.stdout)["modes"]["dgc"]["steps"] == STEPS, finished.stderr)
    folder = HERE / "other"
    interrupted([*LSTM, *slow], folder, kills["SIGTERM to the launcher"])
    again = run("train", "--resume", folder, "--workers", "2")
    check("resumes with another number of workers", again.returncode == 0, again.stderr)
    folder = HERE / "epochs"
    interrupted([*CNN, "--steps", "0", "--epochs", "6"], folder, kills["SIGTERM to the launcher"])
    again = run("train", "--resume", folder, "--workers", "5")  # 30 in a step instead of 33
    check("and ends after as many epochs", again.returncode == 0 and
          json.loads((folder / "summary.json").read_text())["modes"]["dgc"]["epochs"] == 6,
          again.stderr)
    again = run("train", "--resume", folder, "--lr", "3")
    check("a setting cannot change in the middle",
          again.returncode == 1 and "--lr" in again.stderr and "cannot change" in again.stderr,
          again.stderr)


def ratios():
    """--ratio auto: what was decided is what was sent, and a run that is resumed repeats it."""
    job = [word for word in CNN if word not in ("--link", "1Gbps,0.1ms")]
    job += ["--examples", "1280", "--batch", "64", "--steps", "60", "--no-warmup", "--checkpoint-every", "20", "--ratio", "auto", *THREADS]
    for algorithm in ("allgather", "owner"):
        folder = HERE / f"free-{algorithm}"
        done = run(*job, "--algorithm", algorithm, "--link", "100Gbps,0.001ms", "--out", folder)
        check(f"{algorithm}: --ratio auto trains", done.returncode == 0, done.stderr)
        decided = json.loads((folder / "dgc/ratios.json").read_text())["decisions"]
        lines = [json.loads(line) for line in (folder / "dgc/metrics.jsonl").read_text().splitlines()]
        sent = {line["step"]: line["ratio"] for line in lines if line["type"] == "step"}
        least = sent[1]
        due = {step: max([least] + [d["ratio"] for d in decided if d["from_step"] < step][-1:]) for step in sent}
        check(f"{algorithm}: a fast link has room for more, from the step that was said",
              decided and max(sent.values()) > 1.1 * least and sent == due, (decided, sent))
        check(f"{algorithm}: it is said", "is sent: free beside" in done.stderr, done.stderr)
        expected = hashes(folder)
        newest = max((folder / "dgc/checkpoints").iterdir())
        shutil.rmtree(newest)
        for name in ("dgc/result.json", "summary.json"):
            (folder / name).unlink()
        again = run("train", "--resume", folder)
        check(f"{algorithm}: resumes with the same ratios", again.returncode == 0
              and "continues after step 40" in again.stderr and hashes(folder) == expected, again.stderr)
    done = run(*job, "--link", "1kbps,1s", "--out", HERE / "none-free")
    decided = json.loads((HERE / "none-free/dgc/ratios.json").read_text())["decisions"]
    check("a slow link has room for nothing", done.returncode == 0 and decided
          and {d["ratio"] for d in decided} == {least}, (decided, done.stderr))
    # 60 steps of the CNN.
    without = [word for word in job if word not in ("--ratio", "auto", "--no-warmup")]
    for algorithm in ("allgather", "owner"):
        folder = HERE / f"budget-{algorithm}"
        done = run(*without, "--budget", "5%", "--algorithm", algorithm, "--out", folder)
        check(f"{algorithm}: --budget trains", done.returncode == 0, done.stderr)
        spent = 1.0 / json.loads((folder / "summary.json").read_text())["modes"]["dgc"]["traffic_ratio_total"]
        check(f"{algorithm}: a worker receives what the budget allows", 0.045 < spent < 0.0505, spent)


def idx(folder, images=40, labels=40, label=3, cut=0, test_side=28):
    folder.mkdir()
    for half, side in (("train", 28), ("t10k", test_side)):
        data = struct.pack(">IIII", 0x803, images, side, side) + bytes(images * side * side)
        (folder / f"{half}-images-idx3-ubyte").write_bytes(data[:len(data) - cut])
        (folder / f"{half}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(struct.pack(">II", 0x801, labels) + bytes([label] * labels)))
    return folder


JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACgcHiMeGSgjISMtKygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarYqMyP/L2u71////"
    "m8H////6/+b9//j/wAALCAAIAAgBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAv/EABcQAAMBAAAAAAAAAAAAAAAAAAABBTH/2gAIAQEA"
    "AD8AUbEf/9k=")


def pictures(folder):
    """Two classes; one file of the train images is cut off."""
    for part in ("train", "val"):
        for name in ("cat", "dog"):
            (folder / part / name).mkdir(parents=True)
            for i in range(6):
                (folder / part / name / f"{i}.jpg").write_bytes(JPEG)
    (folder / "train" / "dog" / "3.jpg").unlink()
    # Not UTF-8.
    pathlib.Path(os.fsdecode(os.fsencode(folder / "train" / "dog") + b"/3\xe4.jpg")).write_bytes(JPEG[:150])
    return folder


def utterances(folder, texts):
    """A manifest of half seconds of noise."""
    folder.mkdir()
    lines = []
    for i, text in enumerate(texts):
        with wave.open(str(folder / f"{i}.wav"), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(8000)
            out.writeframes(bytes((i * 7 + j * j) % 256 for j in range(8000)))
        lines.append(f"{i}.wav\t{text}\n")
    (folder / "train.tsv").write_text("".join(lines))
    return folder


def skips(fails):
    """Files that cannot be read: skipped with a count, or fatal."""
    images = pictures(HERE / "pictures")
    job = ["imagenet", "--data", images, "--image-size", "64", "--batch", "4", "--epochs", "1",
           "--workers", "2", "--launch", "threads"]
    done = run("train", *job, "--out", HERE / "skipped")
    check("an unreadable JPEG is skipped, with a warning that names it",
          done.returncode == 0 and "a file could not be read and was skipped" in done.stderr and
          "dog/3\ufffd.jpg" in done.stderr, done.stderr)
    result = json.loads((HERE / "skipped" / "summary.json").read_text())["modes"]["dgc"]
    check("skipped files are counted", result["skipped_files"] == 1, result)
    fails("an unreadable JPEG with --strict", [*job, "--strict", "--out", HERE / "strict"], "dog/3\ufffd.jpg")
    gone = HERE / "gone"
    process = subprocess.Popen([DGC, "train", *job, "--epochs", "2000", "--log-every", "1", "--out", gone],
                               env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    log = gone / "dgc" / "metrics.jsonl"
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= 5):
        time.sleep(0.01)
    shutil.rmtree(images)
    said = process.communicate(timeout=120)[1]
    check("data that vanish end the run, with a reason and a way on",
          process.returncode == 1 and "could be read" in said and "--resume" in said, said)

    sounds = utterances(HERE / "sounds", ["YES", "NO", "", "MAYBE", "ONE", "TWO", "SIX", "TEN", "A"])
    (sounds / "3.wav").write_bytes(b"RIFF")
    job = ["speech", "--train", sounds / "train.tsv", "--hidden", "8", "--layers", "1", "--channels",
           "2", "--batch", "2", "--epochs", "1", "--workers", "2"]
    done = run("train", *job, "--out", HERE / "heard")
    check("an unreadable recording and an empty transcript are skipped, and said",
          done.returncode == 0 and "2 utterances cannot be used" in done.stderr, done.stderr)
    fails("an empty transcript with --strict", [*job, "--strict", "--out", HERE / "heard2"], "2.wav")
    (sounds / "train.tsv").write_text("0.wav\n")
    fails("a manifest without transcripts", [*job, "--out", HERE / "heard3"], "train.tsv", "1")


def errors():
    def fails(what, words, *texts, status=1, **how):
        done = run("train", *words, **how)
        good = done.returncode == status and all(text in done.stderr for text in texts)
        check(what, good, f"{done.returncode}: {done.stderr}")

    fails("unknown recipe", ["fashon"], "'fashon'", "did you mean 'fashion'")
    fails("unknown option", ["--epcohs", "3"], "--epcohs", "did you mean '--epochs'", status=2)
    fails("value of the wrong kind", ["--batch", "many"], "--batch", "many", "whole number")
    fails("value out of range", ["--ratio", "1.5"], "--ratio", "1.5")
    fails("unknown mode", ["--mode", "dcg"], "dcg", "did you mean 'dgc'")
    fails("unknown model", ["cifar10", "--model", "resnet50"], "resnet50", "resnet110")
    fails("empty --out", ["synthetic", "--out", ""], "--out", "is empty")
    fails("empty --resume", ["--resume", ""], "--resume", "is empty")
    fails("unknown schedule", ["--lr-schedule", "sine"], "sine", "cosine")
    config = HERE / "bad.json"
    config.write_text('{"epochs": 2,\n "learning-rate": 1}')
    fails("unknown key", ["--config", config], "bad.json", "learning-rate", "lists all")
    config.write_text('{"epochs": 2,\n "lr" 1}')
    fails("file that is not JSON", ["--config", config], "bad.json", "line 2")
    config.write_text('{"lr": 1e999}')
    fails("number that is none", ["--config", config], "bad.json", "1e999")
    fails("numbers too large", ["--keep", "4000000000"], "--keep", "4000000000")
    fails("numbers of more than 64 bits", ["--steps", "18446744073709551615"], "--steps", "too large")
    fails("missing file", ["--config", HERE / "none.json"], "none.json")
    fails("missing data", ["--data", HERE / "nothing"], "nothing")
    fails("data without files", ["--data", HERE], "train-images-idx3-ubyte")
    fails("truncated file", ["--data", idx(HERE / "cut", cut=100), *THREADS],
          "train-images-idx3-ubyte")
    fails("label out of range", ["--data", idx(HERE / "label", label=11), *THREADS],
          "label", "11")
    fails("counts that differ", ["--data", idx(HERE / "counts", labels=39), *THREADS],
          "39", "40")
    fails("test images of another size", ["--data", idx(HERE / "sizes", test_side=32), *THREADS],
          "32 x 32", "28 x 28")
    fails("more workers than examples",
          ["--data", idx(HERE / "few", images=3, labels=3), "--workers", "4"], "3 for 4 workers")
    (HERE / "file").write_text("")
    fails("folder that cannot be made", ["synthetic", "--out", HERE / "file" / "run"],
          "cannot be made", "--out")
    small = [*CNN[1:], "--steps", "2", "--workers", "2"]
    done = run("train", *small, "--out", HERE / "run")
    check("a small run ends well", done.returncode == 0, done.stderr)
    fails("folder that has a run", [*small, "--out", HERE / "run"], "has a run already", "--resume")
    fails("nothing to resume", ["--resume", HERE / "file2"], "file2", "no such run")
    fails("threads with dropout", ["synthetic", "--model", "lstm", "--launch", "threads"], "dropout")
    fails("data that a recipe does not read", ["text", "--data", HERE], "--data", "--train")
    fails("test text without train text", ["ptb", "--test", config], "--test belong to a --train")
    fails("setting of another model", ["--hidden", "3"], "--hidden", "means nothing to the model cnn")

    skips(fails)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    fails("disk that is full", [*small, "--out", HERE / "full"], "full", preexec_fn=limit)
    check("disk that is full: no half-written checkpoint",
          not list((HERE / "full").rglob("step-*/manifest.json")))

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        env = environment(RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=taken.getsockname()[1])
        fails("port in use", [*small, "--timeout", "2", "--out", HERE / "port"],
              str(taken.getsockname()[1]), env=env)


def files():
    folder = HERE / "run"
    # Not the default of a flag, so that config.json has something to say.
    done = run(*CNN, "--compare", "dense,dgc", "--workers", "2", "--dense-values", "fp16",
               "--out", folder)
    check("says the report's place and the comparison",
          "report.html" in done.stdout and "traffic ratio" in done.stdout, done.stdout)
    check("plain lines where there is no terminal", "\r" not in done.stderr and "[dgc] epoch" in done.stderr,
          done.stderr)
    summary = json.loads((folder / "summary.json").read_text())
    for mode in ("dense", "dgc"):
        result = summary["modes"][mode]
        wanted = ("metric", "seconds", "bytes_up_per_step", "message_ratio", "traffic_ratio",
                  "message_ratio_total", "parameters_hash", "data_share", "steps_at_final_ratio")
        check(f"summary.json of {mode}", all(key in result for key in wanted), result)
        total = sum(result["time"][key] for key in
                    ("data", "compute", "waiting", "apply", "evaluate", "checkpoint", "other"))
        check(f"times of {mode} add up", abs(total - result["total_seconds"]) < 1e-6)
        lines = [json.loads(line) for line in (folder / mode / "metrics.jsonl").read_text().splitlines()]
        check(f"a line for each step of {mode}", [l["step"] for l in lines if l["type"] == "step"] ==
              list(range(1, 25)))
        check(f"evaluations of {mode}", [l["epoch"] for l in lines if l["type"] == "evaluation"] ==
              [1, 2, 3])
    dense, dgc = summary["modes"]["dense"], summary["modes"]["dgc"]
    check("dense messages are whole", dense["message_ratio"] <= 1.0 and dense["message_ratio"] > 0.99)
    check("dgc sends less", dgc["message_ratio"] > 300 > dgc["message_ratio_total"] > 1, dgc)
    check("traffic ratio on 2 workers is the message ratio, but for dense's two phases",
          abs(dgc["traffic_ratio"] / dgc["message_ratio"] - 1.0) < 0.1, dgc)
    config = json.loads((folder / "config.json").read_text())
    again = run("train", "--config", folder / "config.json", "--out", HERE / "again", "--quiet")
    check("config.json makes the same run", again.returncode == 0 and
          hashes(HERE / "again") == hashes(folder), again.stderr)
    check("--quiet is quiet", again.stderr == "", again.stderr)
    check("config.json has the effective settings",
          config["workers"] == 2 and config["lr"] == 0.01 and config["values"] == "auto")
    listed = json.loads(run("train", "--list", "--json").stdout)
    check("--list has every recipe", [r["recipe"] for r in listed] ==
          ["fashion", "text", "gpt", "speech", "cifar10", "imagenet", "ptb", "an4", "librispeech", "synthetic"])
    small = {"resnet8": [], "lstm": ["--hidden", "16", "--dropout", "0"],
             "deepspeech": ["--hidden", "16", "--layers", "1", "--channels", "4"]}
    done = run("train", "synthetic", "--model", "lstm", "--hidden", "16", "--steps", "3",
               "--examples", "12", "--batch", "4", "--workers", "1", "--out", HERE / "alone")
    check("one worker may have dropout", done.returncode == 0, done.stderr)
    for model, flags in small.items():
        done = run("train", "synthetic", "--model", model, "--steps", "3", "--examples", "12",
                   "--batch", "4", "--workers", "2", *flags, "--compare", "dense,dgc",
                   "--out", HERE / model)
        check(f"{model} trains", done.returncode == 0, done.stderr)
    done = run("train", "synthetic", "--launch", "threads", "--workers", "2", "--steps", "120", "--mode", "dense",
               "--out", HERE / "defaults")
    lines = [json.loads(line) for line in (HERE / "defaults/dense/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["type"] == "step"]
    check("synthetic trains with its default rate", done.returncode == 0 and losses[-1] < 0.7 * losses[0], losses)
    check("help has examples", "Examples:" in run("train", "--help").stdout)


try:
    {"same": same, "resume": resume, "ratios": ratios, "errors": errors, "files": files}[PART]()
finally:
    shutil.rmtree(HERE, ignore_errors=True)
if failures:
    sys.exit(f"{len(failures)} failed: {failures}")
