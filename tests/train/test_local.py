#!/usr/bin/env python3
"""dgc train with local steps, and a transformer, from the outside: test_local.py DGC"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

DGC = sys.argv[1]
HERE = pathlib.Path(tempfile.mkdtemp(prefix="dgc-local-"))
MODES = ("dense", "diloco", "dgc-local")
STEPS, LOCAL = 100, 6  # the last round is shorter than the others
LONG = 400  # steps of runs that are interrupted
GPT = ["train", "synthetic", "--model", "gpt-1m", "--hidden", "16", "--layers", "1", "--heads", "2", "--context", "8",
       "--vocabulary", "64", "--examples", "2000", "--batch", "9", "--steps", str(STEPS), "--local-steps", str(LOCAL),
       "--checkpoint-every", "13", "--evaluate-every", "25", "--log-every", "1", "--workers", "3"]
# The average of gradients has a step of its own; local steps belong to the others.
PLAIN = [word for word in GPT if word not in ("--local-steps", str(LOCAL))]
failures = []


def check(what, good, detail=""):
    print(f"{'ok    ' if good else 'FAILED'}  {what}", flush=True)
    if not good:
        failures.append(what)
        print(detail)


def job_of(mode):
    return [*(PLAIN if mode == "dense" else GPT), "--mode", mode]


def run(*words, **how):
    return subprocess.run([DGC, *map(str, words)], capture_output=True, text=True, timeout=240, **how)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def lines_of(folder, mode, kind):
    lines = [json.loads(line) for line in (folder / mode / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["type"] == kind]


def fails(what, words, *texts):
    done = run("train", *words)
    check(what, done.returncode == 1 and all(text in done.stderr for text in texts), f"{done.returncode}: {done.stderr}")


def compared():
    """One command for all three; threads and processes agree bit for bit."""
    whole = HERE / "whole"
    done = run(*GPT, "--compare", ",".join(MODES), "--out", whole)
    check("three modes in one run", done.returncode == 0 and summary(whole)["finished"], done.stderr)
    threads = HERE / "threads"
    done = run(*GPT, "--compare", ",".join(MODES), "--launch", "threads", "--out", threads)
    found, others = summary(whole)["modes"], summary(threads)["modes"]
    check("threads give the same bits", all(found[m]["parameters_hash"] == others[m]["parameters_hash"] for m in MODES), done.stderr)
    rounds = -(-STEPS // LOCAL)
    at_rounds = [*range(LOCAL, STEPS, LOCAL), STEPS]
    for mode in ("diloco", "dgc-local"):
        check(f"{mode}: a line after each round", [l["step"] for l in lines_of(whole, mode, "step")] == at_rounds)
        check(f"{mode}: evaluations wait for the end of their round",
              all(l["step"] in at_rounds for l in lines_of(whole, mode, "evaluation")) and len(lines_of(whole, mode, "evaluation")) >= 4)
    sent = {mode: found[mode]["wire_bytes_total"] for mode in MODES}
    check("diloco sends everything, once a round", 0.9 < sent["dense"] / sent["diloco"] * rounds / STEPS < 1.1, sent)
    check("dgc-local sends less", sent["dgc-local"] * 20 < sent["diloco"], sent)
    # message_ratio is of a round, traffic_ratio against dense gradients in every step.
    check("both ratios", abs(found["diloco"]["message_ratio"] - 1) < 0.1
          and abs(found["diloco"]["traffic_ratio"] * rounds / STEPS - 1) < 0.1, found["diloco"])
    facts = summary(whole)
    check("tokens of a step", facts["examples_per_step"] == 9 * 8 and facts["example_name"] == "tokens", facts)
    check("the loss falls", all(found[m]["metric"] < lines_of(whole, m, "evaluation")[0]["metric"] for m in MODES))
    return {mode: found[mode]["parameters_hash"] for mode in MODES}


def interrupted(mode, folder, kill):
    """Starts a run, lets `kill` end it somewhere after its first checkpoint; what it said."""
    process = subprocess.Popen([DGC, *job_of(mode), "--steps", str(LONG), "--out", folder], text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    checkpoints = folder / mode / "checkpoints"
    deadline = time.time() + 120
    while process.poll() is None and time.time() < deadline and not list(checkpoints.glob("step-*/manifest.json")):
        time.sleep(0.005)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    kill(process.pid, [int(word) for word in children.stdout.split()])
    return process.communicate(timeout=120)[1]


def resumed():
    """The same bits as in one go, whatever ended the first half."""
    kills = {"SIGTERM": lambda parent, _: os.kill(parent, signal.SIGTERM),
             "kill -9 of a worker": lambda _, ranks: os.kill(ranks[1], signal.SIGKILL)}
    # `make test` has each way in two modes; `make check-all` (DGC_STORM=1) in all of them.
    always = {"dense": ("SIGTERM",), "diloco": ("kill -9 of a worker",), "dgc-local": tuple(kills)}
    for mode in MODES:
        whole = HERE / f"{mode}-whole"
        done = run(*job_of(mode), "--steps", LONG, "--out", whole)
        check(f"{mode}: {LONG} steps", done.returncode == 0, done.stderr)
        expected = summary(whole)["modes"][mode]["parameters_hash"]
        for name, kill in kills.items():
            if name not in always[mode] and os.environ.get("DGC_STORM") != "1":
                continue
            folder = HERE / f"{mode}-{name.replace(' ', '-')}"
            said = interrupted(mode, folder, kill)
            check(f"{mode}, {name}: says what happened", ("--resume" if name == "SIGTERM" else "rank 1") in said, said)
            again = run("train", "--resume", folder)
            check(f"{mode}, {name}: resumes to the same parameters",
                  again.returncode == 0 and summary(folder)["modes"][mode]["parameters_hash"] == expected, again.stderr)
            steps = [line["step"] for line in lines_of(folder, mode, "step")]
            check(f"{mode}, {name}: every line once", steps == [line["step"] for line in lines_of(whole, mode, "step")], steps)
    folder = HERE / "others"
    interrupted("dgc-local", folder, kills["SIGTERM"])
    again = run("train", "--resume", folder, "--workers", "2")
    check("resumes with another number of workers", again.returncode == 0, again.stderr)


def text():
    """Byte pairs of a text of one's own, kept with the run."""
    words = [f"word{i % 7} and {i * i % 11}.\n" for i in range(600)]
    corpus = HERE / "text"
    corpus.write_bytes("".join(words).encode() + b"\xff\x00\n" * 10)
    job = ["train", "gpt", "--model", "gpt-1m", "--train", corpus, "--hidden", "16", "--layers", "1", "--heads", "2",
           "--context", "8", "--vocabulary", "300", "--epochs", "1", "--batch", "8", "--workers", "2", "--local-steps", "4",
           "--launch", "threads", "--valid-examples", "200"]
    folder = HERE / "bpe"
    done = run(*job, "--out", folder)
    found = summary(folder)["modes"]["dgc-local"]
    check("trains on byte pairs", done.returncode == 0 and list(found["metrics"]) == ["bits per byte", "perplexity"], done.stderr)
    vocabulary = json.loads((folder / "vocabulary.json").read_text())
    check("the vocabulary is with the run", vocabulary["format"] == "dgc bpe 1" and 0 < len(vocabulary["merges"]) <= 44, vocabulary)
    config = json.loads((folder / "config.json").read_text())
    check("config.json has what this run uses", config["local-steps"] == 4 and config["inner"] == "adamw"
          and "momentum" not in config and "image-size" not in config and "masking" not in config, config)
    again = run("train", "--config", folder / "config.json", "--out", HERE / "bpe2")
    check("config.json makes the same run", again.returncode == 0
          and summary(HERE / "bpe2")["modes"]["dgc-local"]["parameters_hash"] == found["parameters_hash"], again.stderr)
    plain = [word for word in job if word not in ("--vocabulary", "300", "--local-steps", "4")]
    for inner in ("sgd", "adam"):
        flags = ["--momentum", "0.9"] if inner == "sgd" else []
        done = run(*plain, "--unit", "bytes", "--positions", "rotary", "--inner", inner, *flags, "--compare", "dense,dense-fp16",
                   "--lr", "0.01", "--out", HERE / inner)
        check(f"trains on bytes, with rotary positions and {inner}", done.returncode == 0, done.stderr)
    corpus.write_text("".join(f"another{i % 7} text, {i * i % 11}.\n" for i in range(600)))
    (folder / "dgc-local" / "result.json").unlink()
    again = run("train", "--resume", folder)
    check("another text does not continue a run", again.returncode == 1 and "vocabulary.json" in again.stderr
          and "other tokens" in again.stderr, again.stderr)


def errors():
    fails("local steps of a mode that has none", [*GPT[1:], "--mode", "dense"], "--local-steps", "diloco and dgc-local")
    fails("residual of a mode that has none", [*PLAIN[1:], "--mode", "diloco", "--residual-decay", "0.9"], "--residual-decay", "dgc-local")
    fails("momentum of AdamW", [*PLAIN[1:], "--momentum", "0.9"], "--momentum", "--inner adamw")
    fails("warm-up of local steps", ["synthetic", "--mode", "dgc-local", "--warmup-epochs", "1"], "--warmup-epochs", "dgc-local")
    fails("AdamW in dgc", [*PLAIN[1:], "--mode", "dgc"], "--inner", "dgc-local")
    fails("an outer rate that is none", [*PLAIN[1:], "--outer-lr", "fast"], "--outer-lr", "'fast'")
    fails("a decay above 1", [*PLAIN[1:], "--residual-decay", "1.5"], "--residual-decay", "1.5")
    fails("no local step", [*PLAIN[1:], "--local-steps", "0"], "--local-steps", "1 or more")
    fails("heads that do not fit", [*PLAIN[1:], "--heads", "3"], "--heads", "16")
    fails("words for a transformer", ["gpt", "--unit", "words"], "--unit", "bytes or bpe")
    fails("byte pairs for an LSTM", ["text", "--unit", "bpe"], "--unit", "words or characters")
    fails("a vocabulary without bytes", ["gpt", "--vocabulary", "100"], "--vocabulary", "256")
    fails("two texts", ["gpt", "--corpus", "bible", "--train", __file__], "--corpus", "--train")
    few = HERE / "few"
    few.write_text("a b c\n" * 100)
    fails("a text too short for a step", ["gpt", "--train", few, "--workers", "2", "--launch", "threads"], "too few for a step")


try:
    errors()
    text()
    compared()
    resumed()
finally:
    shutil.rmtree(HERE, ignore_errors=True)
if failures:
    sys.exit(f"{len(failures)} failed: {failures}")
