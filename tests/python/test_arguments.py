"""Every argument of the package with a wrong type, a wrong range, None or nothing in it: a clear
error, or the right thing. On one rank."""

import ctypes
import dataclasses
import math
import re
import unittest
import warnings

import torch
import torch.distributed as dist

import dgc
from dgc._options import Options
from workers import Recorded, caught, run, same_parts

# What a message must never be: the interpreter's own words, or pybind11's list of signatures.
RAW = re.compile(
    r"incompatible (function|constructor) arguments|object is not iterable|has no attribute|"
    r"not supported between|cannot unpack|unsupported operand|must be real number|KeyError"
)
JUNK = (
    None,
    "",
    "x",
    b"x",
    5,
    -1,
    0,
    1.5,
    math.nan,
    math.inf,
    -math.inf,
    10**400,
    2**63,
    True,
    [],
    (),
    {},
    [None],
    ([], 5),
    ([0.5], 0),
    ([0.5], -1),
    ([2.0], 5),
    (0.5, 5),
    ([0.5],),
    object(),
    torch.ones(2),
    print,
)


def plain(model, **options):
    return dgc.DGCState(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **options)


def refused(wanted, work):
    """work() has to raise a dgc.Error with this text and with a hint."""
    try:
        work()
    except dgc.Error as error:
        assert wanted in str(error), (wanted, str(error))
        assert error.hint or "momentum" in wanted or "[1, 1024]" in wanted, str(error)
        return
    raise AssertionError(f"accepted: {wanted}")


def texts(rank):
    """What is said of the mistakes that people make."""
    model = Recorded()

    class Lazy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.LazyLinear(3)

    given = [
        (
            "warmup",
            1.5,
            "warmup: is 1.5 (float), but has to be a whole number of steps, or a pair of ratios",
        ),
        ("warmup", 1.5, "(for example warmup=2000 or warmup=([0.25, 0.05], 500))"),
        ("warmup", ([], 5), "warmup: is ([], 5) (tuple), but has to be"),
        ("warmup", -1, "warmup: is -1 (int)"),
        (
            "schedule",
            5,
            "schedule: is 5 (int), but has to be a dgc.Schedule or its text, or None (for example schedule='0.25",
        ),
        ("schedule", "0.25,0.001", "how long a stage lasts"),
        (
            "check_parameters_every",
            -1,
            "check_parameters_every: is -1 (int), but has to be a whole number, 0 or more",
        ),
        (
            "momentum",
            1.0,
            "momentum: is 1.0 (float), but has to be a number, 0 up to, but not including, 1 (for example momentum=0.9)",
        ),
        ("momentum", "0.9", "momentum: is '0.9' (str)"),
        ("nesterov", 1, "nesterov: is 1 (int), but has to be True or False"),
        (
            "clip_norm",
            -1.0,
            "clip_norm: is -1.0 (float), but has to be a number, 0 or more, or None",
        ),
        (
            "ratio",
            2.0,
            "ratio: is 2.0 (float), but has to be a number above 0, 1 at the most, or 'auto' (for example ratio=0.001)",
        ),
        ("values", "fp8", "values 'fp8'"),
        ("values", "fp8", "fp32, fp16, bf16, int8, sign"),
        ("values", 16, "values: is 16 (int), but has to be a text"),
        ("dense_values", "fp8", "dense_values 'fp8'"),
        ("indices", "dense", "dense is not a coding for a selection"),
        ("indices", "huffman", "indices 'huffman'"),
        ("selection", "top", "selection 'top': is unknown (use one of: reuse, sampled, exact)"),
        (
            "dense",
            "conv",
            "dense: is 'conv' (str), but has to be a list of names (for example dense=['embedding.weight'])",
        ),
        (
            "dense",
            ["third"],
            "dense: 'third': is not the name of a parameter that is trained (the first names are first, bias",
        ),
        ("path", "gpu", "path: is 'gpu' (str), but has to be one of auto, core, torch"),
        (
            "nonfinite",
            "ignore",
            "nonfinite: is 'ignore' (str), but has to be one of error, skip, or None",
        ),
        ("threads", 0, "threads: is 0 (int), but has to be a whole number, 1 or more"),
        ("threads", 2**40, "is not in [1, 1024]"),
        ("scaler", 1024.0, "scaler: is 1024.0 (float), but has to be a GradScaler"),
        ("process_group", 5, "process_group: is 5 (int), but has to be a process group, or None"),
        (
            "process_group",
            dist.GroupMember.NON_GROUP_MEMBER,
            "process_group: does not have this rank in it",
        ),
    ]
    for name, value, wanted in given:
        refused(wanted, lambda: plain(model, **{name: value}))
    refused("nesterov: needs a momentum", lambda: plain(model, momentum=0.0, nesterov=True))
    refused("no ratio and no warmup", lambda: plain(model, schedule="0.001", warmup=5))
    parameters = [
        (
            torch.nn.Linear(3, 4, device="meta"),
            "parameter 'weight': is on the device meta, which has no values (make it real first",
        ),
        (Lazy(), "parameter 'layer.weight': has no shape yet"),
        (Recorded().double(), "parameter 'first': is torch.float64 (use float32"),
        ([], "parameters: none of them requires a gradient"),
        (
            None,
            "parameters: is None, but has to be a module, or pairs of names and parameters (for example model or",
        ),
        (5, "parameters: is 5 (int)"),
        (list(model.parameters()), "parameters: is [Parameter containing"),
        ([("a", model.first), ("a", model.second)], "parameter 'a': is the name of two parameters"),
    ]
    for one, wanted in parameters:
        refused(wanted, lambda: dgc.DGCState(one, optimizer=None))
        refused(wanted.replace("DGCState", "attach"), lambda: plain(model).attach(one))
    refused(
        "'first': is not among the parameters", lambda: plain(model).attach(torch.nn.Linear(3, 4))
    )
    refused(
        "'more': is not in this state",
        lambda: plain(model).attach(
            [*model.named_parameters(), ("more", torch.ones(2, requires_grad=True))]
        ),
    )


def optimizers(rank):
    model = Recorded()
    parameters = list(model.parameters())

    class Own(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

    class Around(Own):
        """As Accelerate has one around the script's."""

        def __init__(self, optimizer):
            super().__init__(parameters)
            self.optimizer = optimizer

    def warned(make):
        with warnings.catch_warnings(record=True) as all_of_them:
            warnings.simplefilter("always")
            make()
        for one in all_of_them:
            assert one.filename == __file__, one
        return [str(one.message) for one in all_of_them]

    def state(optimizer):
        return lambda: dgc.DGCState(model, optimizer=optimizer)

    assert warned(state(torch.optim.SGD(parameters, lr=0.1))) == []
    assert warned(state(dgc.SGD(parameters, lr=0.1, weight_decay=1e-4))) == []
    (decay,) = warned(state(torch.optim.SGD(parameters, lr=0.1, weight_decay=1e-4)))
    assert "weight decay of SGD gets no momentum" in decay and "dgc.SGD" in decay, decay
    (none,) = warned(state(None))
    for text in ("optimizer=None", "momentum=0", "dgc.SGD", "AdamW, trains wrongly"):
        assert text in none, none
    (unknown,) = warned(state(Own(parameters)))
    assert "does not know Own" in unknown, unknown
    assert warned(state(Around(torch.optim.SGD(parameters, lr=0.1)))) == []
    refused("AdamW has momentum of its own", state(Around(torch.optim.AdamW(parameters))))
    refused("SGD has momentum of its own", state(torch.optim.SGD(parameters, lr=0.1, momentum=0.9)))
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        refused(f"{kind.__name__} has momentum of its own", state(kind(parameters)))
    refused(
        "RMSprop computes its step from more than the gradient",
        state(torch.optim.RMSprop(parameters)),
    )
    refused("give both the same", state(dgc.SGD(parameters, lr=0.1, momentum=0.5)))

    def late(**options):
        sgd = torch.optim.SGD(parameters, lr=0.1, **options)
        return lambda: dgc.DGCState(model, optimizer=sgd, momentum_correction="off")

    assert warned(late(momentum=0.9, weight_decay=1e-4)) == []
    refused("'off': give both the same", late())
    refused("'off': give both the same", late(momentum=0.9, nesterov=True))
    refused("without dampening", late(momentum=0.9, dampening=0.1))
    for kind in (dgc.SGD, torch.optim.Adam):
        refused(
            f"torch.optim.SGD without dampening, and this is {kind.__name__}",
            lambda: dgc.DGCState(
                model, optimizer=kind(parameters, lr=0.1), momentum_correction="off"
            ),
        )
    refused("has none of the parameters", state(torch.optim.SGD(Recorded().parameters(), lr=0.1)))
    refused("optimizer: is 0.1 (float), but has to be an optimizer of PyTorch, or None", state(0.1))
    assert caught(lambda: dgc.DGCState(model)).startswith(
        "TypeError: "
    ), "optimizer was not asked for"
    assert "'optimizer'" in caught(lambda: dgc.DGCState(model))


def junk(rank):
    """Nothing but dgc.Error, and nothing in the words of the interpreter."""
    model = Recorded()
    accepted = []
    for name in [f.name for f in dataclasses.fields(Options)] + ["scaler", "process_group"]:
        for value in JUNK:
            error = caught(lambda: plain(model, **{name: value}))
            if error is None:
                accepted.append((name, value))
            assert error is None or error.startswith("Error: ") and not RAW.search(error), (
                name,
                value,
                error,
            )
            # A state that was made can say what it is.
            if error is None:
                state = plain(model, **{name: value})
                assert state.report() and repr(state)
    for value in JUNK:
        for attempt in (
            lambda: dgc.DGCState(value, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)),
            lambda: plain(model).attach(value),
            lambda: plain(model).load_state_dict(value),
            lambda: dgc.DGCState(model, optimizer=0 if value is None else value),
            lambda: dgc.inspect_message(value),
            lambda: dgc.Schedule.parse(value),
            lambda: dgc.Schedule.paper(value),
            lambda: dgc.Schedule.stages(value, 5, 0.1),
            lambda: dgc.Schedule.stages([0.5], value, 0.1),
            lambda: dgc.Schedule.stages([0.5], 5, value),
            lambda: dgc.Schedule.exponential(value, 0.1, 5),
            lambda: dgc.Schedule.exponential(0.5, value, 5),
            lambda: dgc.Schedule.exponential(0.5, 0.1, value),
            lambda: dgc.Schedule(value),
            lambda: dgc.Schedule(0.5).ratio_at(value),
        ):
            error = caught(attempt)
            assert error is None or error.startswith("Error: ") and not RAW.search(error), (
                value,
                error,
            )
        for name in ("lr", "momentum", "weight_decay", "nesterov"):
            error = caught(lambda: dgc.SGD(model.parameters(), **{"lr": 0.1, name: value}))
            assert error is None or error.startswith("ValueError: dgc.SGD: "), (name, value, error)
            group = {"params": list(model.parameters()), name: value}
            assert (caught(lambda: dgc.SGD([group], lr=0.1)) is None) == (error is None), (
                name,
                value,
            )
    return [(name, repr(value)) for name, value in accepted]


def saved_states(rank):
    """What load_state_dict refuses, after which nothing has changed."""
    model = Recorded()
    state = plain(model)
    good = state.state_dict()
    state.load_state_dict(good)
    state.load_state_dict([good])
    state.load_state_dict(
        {key: value for key, value in good.items() if key != "options"}
    )  # of older versions

    def changed(part, values):
        return {**good, part: {**good[part], "first": values}}

    bad = [
        (
            b"x",
            "saved: is b'x' (bytes), but has to be what state_dict() returned, or the list of what it returned on all ranks",
        ),
        (None, "saved: is None"),
        ([], "saved: is []"),
        ([good, 5], "saved: is ["),
        ({}, "a dict without 'version'"),
        ({**good, "version": 7}, "version: 7 (int) is not one that this package reads"),
        ({**good, "step": -1}, "step: is -1 (int)"),
        ({**good, "rank": "0"}, "rank: is '0' (str)"),
        ({**good, "rank": 5, "workers": 9}, "was given what rank 5 of 9 saved"),
        ({**good, "shapes": {"first": [2]}}, "'first': is [60, 50] here and [2] in what was saved"),
        ({**good, "shapes": 5}, "shapes: is 5 (int), but has to be a dict"),
        ({**good, "velocity": {}}, "momentum: was 0.9 when this was saved"),
        (changed("residual", None), "residual of 'first': is None, but has to be a tensor"),
        (
            changed("residual", torch.zeros(3)),
            "residual of 'first': is [3] of torch.float32, and has to be [3000]",
        ),
        (
            changed("velocity", torch.zeros(3000).double()),
            "velocity of 'first': is [3000] of torch.float64",
        ),
        (
            changed("velocity", torch.full((3000,), math.nan)),
            "velocity of 'first': has values that are Inf or NaN",
        ),
        ([good, good], "list: has ranks [0, 0] of a run with 1 workers"),
        (
            [{**good, "workers": 2}, {**good, "rank": 1, "workers": 2, "step": 3}],
            "list: was not saved at one step",
        ),
    ]
    for saved, wanted in bad:
        refused(wanted, lambda: state.load_state_dict(saved))
    assert same_parts(state.state_dict(), good) and state.step == 0


def shown(rank):
    """report() and repr()."""
    model = Recorded()
    report = plain(model, warmup=([0.25], 100), dense=["conv"]).report()
    for text in (
        "conv    8x4x3x3  dense   288",
        "asked for",
        "fewer than two dimensions",
        "steps 0 to 99: ratio 0.25",
        "overlap with backward: on",
    ):
        assert text in report, (text, report)
    assert "overlap with backward: off: clipping" in plain(model, clip_norm=1.0).report()
    assert repr(plain(model)) == "DGCState(<5 tensors>, <rank 0 of 1, step 0>)", plain(model)
    assert repr(plain(model, clip_norm=0.5, masking=False)).endswith(
        "step 0>, clip_norm=0.5, masking=False)"
    )
    assert (
        repr(dgc.Schedule.paper(400))
        == "<dgc.Schedule: ratio 0.25 at step 0, 0.001 from step 400 on>"
    )
    for name, value in Options.read({}).plain().items():
        assert f":param {name}: " in dgc.DGCState.__doc__, name
        # What is saved is what was given, and torch.load(weights_only=True) knows its types.
        assert isinstance(value, (int, float, str, list, tuple, type(None))), (name, value)
    options = Options.read({"schedule": dgc.Schedule.exponential(0.5, 0.01, 7), "dense": ["conv"]})
    again = Options.read(options.plain())
    assert [options.make_schedule().ratio_at(s) for s in range(9)] == [
        again.make_schedule().ratio_at(s) for s in range(9)
    ]
    assert again.dense == ["conv"] and again.changed().keys() == {"ratio", "warmup", "dense"}, again


class Arguments(unittest.TestCase):
    def test_texts(self):
        run(texts, ranks=1)

    def test_optimizers(self):
        run(optimizers, ranks=1)

    def test_junk(self):
        accepted = run(junk, ranks=1)[0]
        self.assertEqual(
            {name for name, value in accepted if value == "None"},
            {
                *("clip_norm", "warmup", "schedule", "nonfinite", "scaler", "process_group"),
                *("steps", "link"),
            },
        )
        by_value = {}
        for name, value in accepted:
            by_value.setdefault(value, set()).add(name)
        self.assertEqual(by_value["True"], {"nesterov", "masking"})
        self.assertEqual(
            by_value["0"], {"momentum", "clip_norm", "warmup", "check_parameters_every"}
        )
        self.assertEqual(
            by_value["5"], {"clip_norm", "warmup", "check_parameters_every", "threads"}
        )
        self.assertEqual(by_value["1.5"], {"clip_norm"})
        self.assertEqual(by_value["9223372036854775808"], {"clip_norm"})
        self.assertEqual(by_value["[]"], {"dense"})
        self.assertLessEqual(
            by_value.keys(),
            {"None", "True", "0", "5", "1.5", "9223372036854775808", "[]", "()", "{}"},
        )

    def test_saved_states(self):
        run(saved_states, ranks=1)

    def test_shown(self):
        run(shown, ranks=1)

    def test_order_of_calls(self):
        refused(
            "torch.distributed: has no process group yet (call torch.distributed.init_process_group first)",
            lambda: plain(Recorded()),
        )

    def test_messages(self):
        refused(
            "message: is a str, but has to be bytes in one piece",
            lambda: dgc.inspect_message("DGCM"),
        )
        backwards = memoryview(bytes(64))[::-1]
        refused(
            "message: is a memoryview, but has to be bytes in one piece",
            lambda: dgc.inspect_message(backwards),
        )
        for data in (
            b"DGCM",
            bytearray(b"DGCM"),
            memoryview(b"DGCM"),
            ctypes.create_string_buffer(b"DGCM", 4),
        ):
            with self.assertRaises(dgc.Error) as raised:
                dgc.inspect_message(data)
            self.assertEqual(raised.exception.code, "truncated")

    def test_schedules(self):
        refused(
            "warmup_steps: is 1.5 (float), but has to be a whole number of steps (for example warmup_steps=500)",
            lambda: dgc.Schedule.paper(1.5),
        )
        refused("ratio: is 'x' (str), but has to be a number above 0", lambda: dgc.Schedule("x"))
        refused(
            "ratios: is 0.5 (float), but has to be a list of ratios",
            lambda: dgc.Schedule.stages(0.5, 5, 0.1),
        )


if __name__ == "__main__":
    unittest.main()
