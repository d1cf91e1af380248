"""What scripts/reproduce/accuracy runs: of each part its rows, of each row the settings of `dgc train`."""

import math

# Four workers as threads. Processes give the same result, bit for bit, but wait more on two cores.
FOUR = ["--workers", "4", "--launch", "threads"]
FASHION = ["fashion", *FOUR]
SMALL = ["--preset", "small", *FOUR]
DGC = ["--mode", "dgc"]

RNN = ["ptb", *SMALL, "--momentum", "0.9"]
LINK = "1Gbps,0.1ms"


def ablation(base, clip):
    """Which ingredient matters? Each row has one ingredient more than the row before."""
    steps = [("dense", ["--mode", "dense"]),
             ("naive", ["--mode", "naive"]),
             ("+ momentum correction", ["--mode", "dgc", "--no-masking", "--no-clipping", "--no-warmup"]),
             ("+ masking", ["--mode", "dgc", "--no-clipping", "--no-warmup"]),
             ("+ clipping", ["--mode", "dgc", "--no-warmup"]),
             ("+ warm-up: all", ["--mode", "dgc"])]
    return [(name, base + clip + flags) for name, flags in steps]


def batch_for(workers, rate=None, rising=1):
    """Each worker keeps 32 images, so that the total batch grows with the workers.

    The rate grows with the root of the batch up to 16 workers, unless `rate` is given. Growing further
    is too much for a network without batch normalisation: with 32 workers and a rate of 0.1414 dense
    training diverges with one of two seeds, with 64 and 0.2 in the first epoch. The rate rises during
    the first epochs. One is short with many workers: at 0.1, units of the network die with some seeds."""
    return ["fashion", "--workers", str(workers), "--launch", "threads", "--batch", str(32 * workers),
            "--lr", f"{rate or 0.05 * math.sqrt(min(workers, 16) / 4):.4f}", "--lr-warmup", str(rising)]


def dense_of(base):
    """Dense training. The sum of the gradients does not depend on who computed which part of it, but for
    rounding: two workers train as 32 do, in half the time. Not so with batch normalisation, where each
    worker has its own statistics."""
    workers = base.index("--workers") + 1
    return [*base[:workers], "2", *base[workers + 1:], "--mode", "dense"]


RATE_OF_FORMS = 0.1414
RISING = 3  # epochs


def forms(workers):
    """Which form of momentum, exchange and warm-up holds with many workers?"""
    base = batch_for(workers, RATE_OF_FORMS)
    owner = [*base, *DGC, "--algorithm", "owner"]
    even = [*owner, "--momentum-correction", "global", "--no-warmup", "--ratio"]
    whole = ["--warmup-shape", "whole", "--warmup-epochs"]
    rows = [("dense", [*base, "--mode", "dense"])]
    for correction in ("global", "local", "off"):
        chosen = [*owner, "--momentum-correction", correction]
        rows += [(f"{correction}, owner, {float(ratio):.0%}, 1 epoch whole", [*chosen, "--ratio", ratio, *whole, "1"])
                 for ratio in ("0.02", "0.06")]
    rows += [("local, all-gather, 0.1 %, 1 epoch whole",
              [*base, *DGC, "--algorithm", "allgather", *whole, "1"]),
             ("published: local, all-gather, 0.1 %", [*base, *DGC, "--algorithm", "allgather"])]
    for correction in ("global", "local", "off"):
        chosen = [*owner, "--momentum-correction", correction, "--no-warmup"]
        rows += [(f"{correction}, owner, {float(ratio):.0%}", [*chosen, "--ratio", ratio])
                 for ratio in ("0.02", "0.0565", "0.25")]
    half = [*owner, "--momentum-correction", "global", "--dense-values", "fp16", *whole]
    rows += [("global, owner, 6%, 1 epoch whole as fp16", [*half, "1", "--ratio", "0.06"]),
             ("global, owner, 4%, half an epoch whole as fp16", [*half, "0.5", "--ratio", "0.04"]),
             ("the defaults", [*base, *DGC]),
             ("global, owner, 6%, int8", [*even, "0.06", "--values", "int8"]),
             ("global, owner, 12%, int8", [*even, "0.12", "--values", "int8"]),
             ("global, owner, 20%, sign", [*even, "0.2", "--values", "sign"]),
             ("global, owner, 6%, clipped", [*even, "0.06", "--clip-norm", "2"]),
             ("global, all-gather, 0.5%", [*even, "0.005", "--algorithm", "allgather"])]
    return [(f"{workers} workers, {name}", flags) for name, flags in rows]


def candidates(workers, rising=RISING):
    """Before the defaults were chosen: how much, and in which number format?"""
    base = batch_for(workers, rising=rising)
    steps = 15 * math.ceil(60000 / (32 * workers))
    owner = [*base, *DGC, "--algorithm", "owner", "--momentum-correction", "global"]
    whole = ["--warmup-shape", "whole", "--warmup-epochs"]
    half = [*whole, "0.5", "--dense-values"]
    rows = [("dense", [*base, "--mode", "dense"])]
    rows += [(f"{times} times covered, {values}, {epochs} epochs whole as {wide}",
              [*owner, *whole, epochs, "--dense-values", wide, "--values", values, "--ratio", f"{times / steps:.4f}"])
             for times, values, epochs, wide in ((80, "int8", "1", "fp16"), (60, "int8", "0.5", "fp16"), (100, "int8", "0.5", "fp16"),
                                                 (100, "int8", "0.5", "int8"), (60, "fp16", "0.5", "fp16"), (35, "fp16", "0.5", "fp16"))]
    rows += [(f"{100 * ratio:g}% {values}", [*owner, "--no-warmup", "--values", values, "--ratio", f"{ratio:g}"])
             for values, ratio in (("sign", 0.15), ("sign", 0.3), ("int8", 0.12), ("sign", 0.06), ("sign", 0.4), ("fp16", 0.074))]
    rows += [("30% sign, half an epoch whole as fp16",
              [*owner, *half, "fp16", "--values", "sign", "--ratio", "0.3"]),
             ("30% sign, momentum after the sum",
              [*base, *DGC, "--algorithm", "owner", "--momentum-correction", "off", "--no-warmup",
               "--values", "sign", "--ratio", "0.3"])]
    return [(f"{workers} workers, {name}", flags) for name, flags in rows]


def formats(workers):
    """Bytes that entries save buy more entries. How wide are values best, during warm-up and after it?"""
    base = batch_for(workers, rising=RISING)
    steps = 15 * math.ceil(60000 / (32 * workers))
    owner = [*base, *DGC, "--algorithm", "owner", "--momentum-correction", "global", "--warmup-shape", "whole", "--warmup-epochs"]
    rows = [(f"{times} times covered, {values}, {epochs} epochs whole as {wide}",
             [*owner, epochs, "--dense-values", wide, "--values", values, "--ratio", f"{times / steps:.4g}"])
            for times, values, epochs, wide in ((85, "table4", "0.5", "fp16"),
                                                (80, "int8", "0.5", "int8"), (110, "table4", "0.5", "int8"),
                                                (90, "int8", "0.5", "fp16"), (60, "int8", "1", "int8"),
                                                (150, "table4", "0.5", "int8"), (150, "table2", "0.5", "int8"))]
    return [(f"{workers} workers, {name}", flags) for name, flags in [("dense", dense_of(base)), *rows]]


def defaults(workers, epochs=15, recipe_batch=False):
    """What a user gets who says how many workers there are, and nothing else."""
    recipe = ["fashion", "--workers", str(workers), "--launch", "threads"]
    base = recipe if recipe_batch else batch_for(workers, rising=RISING)
    base += ["--epochs", str(epochs)] if epochs != 15 else []
    run = f"{workers} workers, {epochs} epochs, "
    return [(run + "dense", dense_of(base)), (run + "defaults", [*base, *DGC])]


def wide(workers, rate=None):
    """Table 2 of the paper."""
    base = batch_for(workers, rate)
    name = f"{workers}, rate {rate}" if rate else str(workers)
    return [(f"dense, {name}", base + ["--mode", "dense"]), (f"DGC, {name}", base + DGC)]


def owners_with_few(workers=4):
    """The same bytes buy owners N/2 times the ratio of all-gather."""
    base = batch_for(workers)
    rows = [(f"owner, {100 * ratio:g} %", [*base, *DGC, "--algorithm", "owner", "--ratio", f"{ratio:g}"])
            for ratio in (0.001, 0.002, 0.004)]
    rows += [("owner, global, 0.4 %", [*base, *DGC, "--algorithm", "owner", "--momentum-correction", "global",
                                       "--ratio", "0.004"])]
    return [("dense", dense_of(base)), ("all-gather, 0.1 %", [*base, *DGC, "--ratio", "0.001"]), *rows]


def biases(workers):
    """Tensors of one dimension are sent whole: do 8 bits cost anything?"""
    base = batch_for(workers)
    return [("dense", dense_of(base)),
            *((f"one-dimensional {values}", [*base, *DGC, "--ratio", "0.001", "--dense-values", values])
              for values in ("fp32", "fp16", "int8"))]


def cifar10(workers):
    """32 images a worker."""
    base = ["cifar10", "--model", "resnet20", "--epochs", "20", "--lr-schedule", "cosine", "--workers", str(workers),
            "--launch", "threads", "--batch", str(32 * workers), "--lr", f"{0.1 * math.sqrt(workers / 4):.4f}",
            "--lr-warmup", str(RISING)]
    return [("dense", [*base, "--mode", "dense"]), ("defaults", [*base, *DGC])]


def recurrent(recipe, epochs, workers):
    """The small presets, for so many epochs that dense gains little more. The total batch is the same."""
    base = [recipe, "--preset", "small", "--epochs", str(epochs), "--batch", "32", "--workers", str(workers),
            "--launch", "threads"]
    return [(f"{workers} workers, dense", [*base, "--mode", "dense"]), (f"{workers} workers, defaults", [*base, *DGC])]


def with_momentum(rates=("1", "2", "4")):
    """A language model that is trained with momentum, each form at the same three rates."""
    base = ["ptb", "--preset", "small", "--epochs", "8", *FOUR, "--momentum", "0.9", "--lr"]
    forms = [("dense", ["--mode", "dense"]), ("defaults", DGC),
             ("without masking", [*DGC, "--no-masking"]),
             ("global", [*DGC, "--momentum-correction", "global"]),
             ("off", [*DGC, "--momentum-correction", "off"])]
    return [(f"{name}, rate {rate}", [*base, rate, *flags]) for name, flags in forms for rate in rates]


def frontier(workers):
    """Accuracy against bytes. scripts/reproduce/powersgd adds its own rows to the picture."""
    base = batch_for(workers, rising=RISING)
    dgc = [*base, *DGC]
    constant = [*dgc, "--no-warmup", "--momentum-correction"]
    rows = [("dense", dense_of(base)),
            ("published", [*dgc, "--algorithm", "allgather", "--momentum-correction", "local", "--ratio", "0.001"])]
    for form, algorithm, ratios in (("local", "allgather", ("0.001", "0.004", "0.016")),
                                    ("global", "allgather", ("0.001", "0.004", "0.016")),
                                    ("global", "owner", ("0.004", "0.016", "0.064"))):
        rows += [(f"{form}, {algorithm}, {100 * float(ratio):g} %",
                  [*constant, form, "--algorithm", algorithm, "--ratio", ratio]) for ratio in ratios]
    rows += [("auto", [*dgc, "--ratio", "auto", "--link", LINK]), ("defaults", dgc)]
    return [(f"{workers} workers, {name}", flags) for name, flags in rows]


def without(workers=32):
    """The defaults with one ingredient less."""
    base = [*batch_for(workers, rising=RISING), *DGC]
    steps = 15 * math.ceil(60000 / (32 * workers))

    def with_all_but(**other):
        chosen = {"algorithm": "owner", "momentum-correction": "global", "values": "table4", "dense-values": "int8",
                  "warmup-shape": "whole", "warmup-epochs": "0.5", "ratio": f"{95 / steps:.4g}"}
        chosen.update({name.replace("_", "-"): value for name, value in other.items()})
        return [word for name, value in chosen.items() if value for word in (f"--{name}", value)]

    return [("dense", dense_of(batch_for(workers, rising=RISING))),
            ("the defaults", base),
            ("local momentum", [*base, *with_all_but(momentum_correction="local")]),
            ("momentum after the sum", [*base, *with_all_but(momentum_correction="off")]),
            ("all-gather for the same bytes", [*base, *with_all_but(algorithm="allgather", ratio=f"{190 / steps / workers:.4g}")]),
            ("fp16 for the same bytes", [*base, *with_all_but(values="fp16", ratio=f"{40 / steps:.4g}")]),
            ("30 times covered", [*base, *with_all_but(ratio=f"{30 / steps:.4g}")]),
            ("no warm-up", [*base, *with_all_but(warmup_shape=None, warmup_epochs=None), "--no-warmup"]),
            ("the rate rises for one epoch", [*batch_for(workers), *DGC])]


def by_workers(rows_of, counts):
    return [row for n in counts for row in rows_of(n)]


PARTS = {
    "fashion": [("dense", FASHION + ["--mode", "dense"]),
                ("DGC, fp16", FASHION + DGC),
                ("naive", FASHION + ["--mode", "naive"]),
                ("DGC, fp32", FASHION + DGC + ["--values", "fp32"]),
                ("DGC, int8", FASHION + DGC + ["--values", "int8"]),
                ("DGC, sign", FASHION + DGC + ["--values", "sign"]),
                ("DGC, sign, one-dimensional too", FASHION + DGC + ["--values", "sign", "--dense-values", "sign"]),
                ("DGC, fp16, one-dimensional int8", FASHION + DGC + ["--dense-values", "int8"]),
                ("DGC, fp16, owner", FASHION + DGC + ["--algorithm", "owner"])],
    "ptb": [("dense", ["ptb", *SMALL, "--mode", "dense"]), ("DGC, fp16", ["ptb", *SMALL, *DGC])],
    "an4": [("dense", ["an4", *SMALL, "--mode", "dense"]), ("DGC, fp16", ["an4", *SMALL, *DGC])],
    "cifar10": [(name, ["cifar10", "--model", "resnet20", "--epochs", "20", "--lr-schedule", "cosine",
                        "--warmup-epochs", "2", *FOUR, *mode])
                for name, mode in (("dense", ["--mode", "dense"]), ("DGC, fp16", DGC))],
    "cifar10-16": cifar10(16),
    "ptb-long": by_workers(lambda n: recurrent("ptb", 12, n), (4, 16)),
    "an4-long": by_workers(lambda n: recurrent("an4", 40, n), (4, 16)),
    "ptb-momentum": with_momentum(),
    "owner-4": owners_with_few(),
    "biases": biases(4),
    "frontier": by_workers(frontier, (4, 16, 32)),
    "without": without(),
    "recipe-batch": defaults(32, recipe_batch=True),
    "forms": forms(32),
    "candidates": candidates(32) + candidates(16) + candidates(64),
    "formats": by_workers(formats, (16, 32)),
    # The same with the rate rising in one epoch.
    "short-rise": candidates(32, rising=1),
    "defaults": [row for n in (32, 16, 64, 8, 4) for row in defaults(n)],
    "defaults-long": defaults(32, 40),
    "workers": [row for n in (8, 16) for row in wide(n)] + wide(32, RATE_OF_FORMS) + wide(32, 0.05) + wide(64, 0.2)[:1],
    "ablation-cnn": ablation([*FASHION, "--epochs", "6"], ["--clip-norm", "2"]),
    # The recipe of the language model has no momentum. Here it has, so that there is something to
    # correct. Masking takes momentum away from entries that are sent often, which makes their steps
    # smaller. The last two rows test that with a larger rate.
    "ablation-rnn": ablation(RNN + ["--lr", "2"], []) + [
        ("dense, three times the rate", RNN + ["--lr", "6", "--mode", "dense"]),
        ("all, three times the rate", RNN + ["--lr", "6", *DGC])],
}


# These parts compute in bf16, dense runs too: on processors that have it, that is a little faster.
# `auto` goes by a link that people have, rather than by the memory in which these workers meet.
FAST = ("defaults", "defaults-long", "recipe-batch", "cifar10-16", "ptb-long", "an4-long", "ptb-momentum", "owner-4",
        "biases", "formats", "frontier", "without")
for part in FAST:
    PARTS[part] = [(name, [*flags, "--precision", "bf16", *([] if "--link" in flags else ["--link", LINK])])
                   for name, flags in PARTS[part]]


# Rows that others are compared with. Where a part is not named here: its row "dense".
def _dense_of_workers(name):
    return name.split(",")[0] + ", dense"


ONE_SEED = {"forms", "frontier", "cifar10", "workers", "ablation-cnn", "ablation-rnn"}
BASELINE = {"workers": lambda name: "dense," + name.split(",", 1)[1],
            "defaults": lambda name: name.rsplit(",", 1)[0] + ", dense",
            "defaults-long": lambda name: name.rsplit(",", 1)[0] + ", dense",
            "recipe-batch": lambda name: name.rsplit(",", 1)[0] + ", dense",
            "ptb-momentum": lambda name: "dense, rate" + name.rsplit("rate", 1)[1],
            **dict.fromkeys(("forms", "candidates", "formats", "short-rise", "ptb-long", "an4-long", "frontier"), _dense_of_workers)}
