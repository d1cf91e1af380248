"""The fused kernels, in Triton's interpreter: the bits of libdgc; what the host waits for; what crosses
to it. Skipped without Triton.

The cases are those of dgc.selftest. DGC_FULL=1 runs all of them, which takes long."""

import contextlib
import importlib.util
import io
import json
import os
import tempfile
import unittest
from typing import Any, Callable, List

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
HAS_TRITON = importlib.util.find_spec("triton") is not None

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from dgc import _core, _paths, benchmark, selftest  # noqa: E402
from dgc._options import LocalOptions, Options  # noqa: E402
from dgc._sequences import quicken_interpreter  # noqa: E402
from dgc._parameters import Spec  # noqa: E402
from dgc._residuals import CoreResiduals, Given, Part, Setting  # noqa: E402
from dgc._torch_residuals import TorchResiduals  # noqa: E402

from workers import Recorded, Training, caught, gradients_of, run, same_parts  # noqa: E402

if HAS_TRITON:
    from dgc._triton_residuals import Device, TritonResiduals

    quicken_interpreter()

CPU = torch.device("cpu")

# Operations that wait for a device when their tensor is on one.
_WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "is_nonzero",
    "equal",
    "unique",
    "_to_cpu",
)
_READING = (
    "item",
    "cpu",
    "tolist",
    "numpy",
    "nonzero",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
)


class Waits(TorchDispatchMode):
    """Records what would make the host wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.log: List[str] = []
        self.off = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(function).split(".")[1] if "." in str(function) else str(function)
        by_mask = name in ("index", "index_put_", "index_put") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if not self.off and (name in _WAITING or by_mask):
            self.log.append(name)
        return function(*args, **(kwargs or {}))

    def __enter__(self) -> "Waits":
        self._before = {name: getattr(torch.Tensor, name) for name in _READING}
        for name, call in self._before.items():
            setattr(torch.Tensor, name, self._recording(name, call))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for name, call in self._before.items():
            setattr(torch.Tensor, name, call)

    def _recording(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if not self.off:
                self.log.append(name)
            return call(*args, **kwargs)

        return recorded


if HAS_TRITON:

    class StandIn(Device):
        """A device whose stream does nothing before somebody waits for it: who reads a result
        without waiting reads what was there before."""

        def __init__(self, waits: Waits) -> None:
            super().__init__(CPU)
            self.waits, self.queue, self.launched = waits, [], []

        def host(self, count: int, dtype: torch.dtype) -> torch.Tensor:
            return super().host(count, dtype).fill_(0x5A)

        def upload(self, host: torch.Tensor) -> torch.Tensor:
            self.waits.log.append(f"upload {host.numel() * host.element_size()} bytes")
            return super().upload(host)

        def launch(self, kernel: Any, programs: int, *args: Any, **how: Any) -> None:
            self.launched.append(kernel.fn.__name__)
            self.queue.append((kernel, programs, args, how))

        def wait(self) -> None:
            self.waits.log.append("wait")
            queue, self.queue = self.queue, []
            self.waits.off = True
            for kernel, programs, args, how in queue:
                super().launch(kernel, programs, *args, **how)
            self.waits.off = False


def setting_of(sizes: Any, dense: Any = (), ratio: float = 0.001, **options: Any) -> Setting:
    specs = [Spec(f"tensor {i}", [n], i in dense, n) for i, n in enumerate(sizes)]
    return Setting(specs, 0, 1, _core.Schedule(ratio), Options.read(options), 7)


class Step:
    """A bucket that stays where it is, as DDP's."""

    def __init__(self, sizes: Any) -> None:
        self.buffer = torch.zeros(sum(sizes))
        self.parts = [Part(i, part, True) for i, part in enumerate(self.buffer.split(list(sizes)))]
        self.notice = _core.Notice(0, [True] * len(self.parts))
        self.room = torch.zeros(1 << 20, dtype=torch.uint8)


def hook_steps(rank: int, path: str) -> Any:
    training = Training(Recorded(), path=path, ratio=0.01)
    for step in range(4):
        training.step(gradients_of(rank, step))
    return training.state.state_dict(), training.state.stats


@unittest.skipUnless(HAS_TRITON, "Triton is not installed")
class Kernels(unittest.TestCase):
    def test_the_bits_of_libdgc(self):
        full = os.environ.get("DGC_FULL", "") == "1"
        counts = selftest.run(selftest.cases(full), "triton", CPU)
        print(f"\n{counts}")
        self.assertEqual(counts.differences, [])
        self.assertGreater(counts.entries, 50_000)
        self.assertGreater(counts.refused, 0)

    def test_hook(self):
        """In DDP, with both ranks' messages."""
        for ours, theirs in zip(*(run(hook_steps, path, ranks=2) for path in ("triton", "core"))):
            self.assertTrue(same_parts(ours[0], theirs[0]))
            self.assertEqual(ours[1], theirs[1])


@unittest.skipUnless(HAS_TRITON, "Triton is not installed")
class Waiting(unittest.TestCase):
    SIZES = (30_000, 64, 5000)

    def steps(self, residuals: Any, waits: Waits, ratio: float, scales: Any) -> List[List[str]]:
        """What each step waited for. The messages are libdgc's."""
        step, chance = Step(self.SIZES), torch.Generator().manual_seed(1)
        reference = CoreResiduals(setting_of(self.SIZES, (1,), ratio))
        logs = []
        for scale in scales:
            gradient = torch.randn(sum(self.SIZES), generator=chance) * scale
            waits.log.clear()
            with waits:
                size = residuals.compress(self.given(step, gradient), step.room)
            logs.append(list(waits.log))
            ours = step.room[:size].clone()
            size = reference.compress(self.given(step, gradient), step.room)
            self.assertTrue(torch.equal(ours, step.room[:size]))
            for one in (residuals, reference):
                one.commit([])
        return logs

    @staticmethod
    def given(step: Step, gradient: torch.Tensor) -> Given:
        step.buffer.copy_(gradient)
        return Given(step.parts, step.notice, 1.0, None)

    def test_the_host_waits_once(self):
        """Where the guess is right, and where it is wrong."""
        waits = Waits()
        device = StandIn(waits)
        residuals = TritonResiduals(setting_of(self.SIZES, (1,)), [CPU] * 3, device)
        logs = self.steps(residuals, waits, 0.001, (1.0, 1.0, 1.0, 1e4, 1e-4, 1.0))
        self.assertEqual(
            logs[0], ["upload 384 bytes", "upload 44 bytes", "upload 12 bytes", "wait"]
        )
        self.assertEqual(logs[1:], [["wait"]] * 5)
        self.assertEqual(len(device.launched), 6 * 14)

    def test_what_the_host_codes(self):
        """Bitmaps, for one: the host codes them, and the device hears what they decode to."""
        waits = Waits()
        setting = setting_of(self.SIZES, (1,))
        setting = setting._replace(options=Options.read({"indices": "bitmap"}))
        residuals = TritonResiduals(setting, [CPU] * 3, StandIn(waits))
        step = Step(self.SIZES)
        chance = torch.Generator().manual_seed(1)
        for number in range(2):
            gradient = torch.randn(sum(self.SIZES), generator=chance)
            waits.log.clear()
            with waits:
                residuals.compress(self.given(step, gradient), step.room)
            residuals.commit([])
        self.assertEqual(waits.log, ["wait", "upload 120 bytes", "upload 20 bytes"])

    def test_torch_operations_wait_often(self):
        """So the recording sees what it is to see."""
        waits = Waits()
        residuals = TorchResiduals(setting_of(self.SIZES, (1,)), [CPU] * 3)
        logs = self.steps(residuals, waits, 0.001, (1.0, 1.0))
        self.assertGreater(len(logs[1]), 10)
        self.assertIn("nonzero", logs[1])

    def test_what_crosses_to_the_host(self):
        """No more than the message and one number."""
        sizes, dense = (60_000, 100, 20_000, 3000, 1000, 10), (1, 4, 5)
        chance = torch.Generator().manual_seed(2)
        for values in ("fp32", "fp16", "bf16", "int8", "sign"):
            with self.subTest(values=values):
                waits = Waits()
                setting = setting_of(sizes, dense, values=values)
                residuals = TritonResiduals(setting, [CPU] * len(sizes), StandIn(waits))
                step = Step(sizes)
                for _ in range(2):
                    gradient = torch.randn(sum(sizes), generator=chance)
                    residuals._mailbox.fill_(0x5A5A5A5A)
                    size = residuals.compress(self.given(step, gradient), step.room)
                    residuals.commit([])
                written = residuals._mailbox.clone()
                words = -(-residuals._shipped // 4)
                self.assertTrue(bool((written[words:] == 0x5A5A5A5A).all()))
                self.assertLessEqual(4 * words, size + 8)
                self.assertEqual([entry for entry in waits.log if entry == "wait"], ["wait"] * 2)
                print(f"\n{values}: {residuals._shipped} bytes for a message of {size}", end="")
        print()


class Programs(unittest.TestCase):
    def test_torch_operations(self):
        """They are the reference, and what runs without Triton."""
        counts = selftest.run(selftest.cases(False), "torch", CPU)
        self.assertEqual(counts.differences, [])
        self.assertGreater(counts.entries, 50_000)

    def test_selftest(self):
        """What people call. Where there is no Triton it says so."""
        words, out, error = ["--device", "cpu", "--only", "zeros"], io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            self.assertEqual(selftest.main([*words, "--path", "torch"]), 0)
            self.assertEqual(selftest.main(words), 0 if HAS_TRITON else 2)
            self.assertEqual(selftest.main(["--device", "nowhere"]), 2)
        self.assertIn("0 differences", out.getvalue())
        said = (out if HAS_TRITON else error).getvalue()
        expected = "in Triton's interpreter" if HAS_TRITON else "pip install triton"
        self.assertIn(expected, said)

    def test_benchmark(self):
        words = ["--elements", "20000", "--steps", "2", "--warmup", "1", "--ratio", "0.01"]
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "report.json")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                done = benchmark.main([*words, "--device", "cpu", "--json", file])
            with open(file) as written:
                report = json.load(written)
        self.assertEqual(done, 0, out.getvalue())
        self.assertIn("fused kernels: not measured, there is no GPU", out.getvalue())
        rows = {row["name"]: row["same_as_libdgc"] for row in report["rows"]}
        self.assertEqual(
            rows,
            {"bare update": None, "torch.topk": None, "torch operations": True, "libdgc": None},
        )
        self.assertEqual((report["differences"], report["asked"]["ratio"]), ([], 0.01))

    def test_benchmark_refuses(self):
        bad = [["--ratio", "2"], ["--steps", "0"], ["--tensors", "9", "--elements", "3"]]
        for words in bad:
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ended:
                benchmark.main(words)
            self.assertEqual(ended.exception.code, 2)
        if not torch.cuda.is_available():
            with contextlib.redirect_stderr(io.StringIO()) as error:
                self.assertEqual(benchmark.main([]), 2)
            self.assertIn("finds no GPU", error.getvalue())


def chosen(path, devices, largest=0, **options):
    return _paths.choose(Options.read({"path": path, **options}), devices, largest)


class Choosing(unittest.TestCase):
    def tearDown(self):
        os.environ.pop("DGC_PATH", None)

    def test_auto(self):
        self.assertEqual(chosen("auto", [CPU, CPU]), "core")
        gpu = torch.device("cuda", 0)
        self.assertEqual(chosen("auto", [gpu, gpu]), "triton" if HAS_TRITON else "torch")
        self.assertEqual(chosen("auto", [gpu, torch.device("cuda", 1)]), "torch")
        self.assertEqual(chosen("torch", [gpu]), "torch")
        self.assertEqual(chosen("auto", [gpu], 2**31), "torch")
        self.assertEqual(chosen("auto", [gpu], values="table4"), "torch")
        local = LocalOptions.read({"residual_decay": 0.95, "values": "fp16"})
        self.assertEqual(_paths.choose(local, [gpu]), "torch", "a residual that decays")

    def test_variable(self):
        os.environ["DGC_PATH"] = "torch"
        self.assertEqual(chosen("auto", [CPU]), "torch")
        self.assertEqual(chosen("core", [CPU]), "core")
        for bad, said in (
            ("cuda", "is not one of auto, core, torch, triton"),
            ("core", "on the CPU"),
        ):
            os.environ["DGC_PATH"] = bad
            text = caught(lambda: chosen("auto", [torch.device("cuda", 0)]))
            self.assertIn(f"DGC_PATH={bad}", text)
            self.assertIn(said, text)

    def test_errors(self):
        gpu = torch.device("cuda", 0)
        self.assertIn("all parameters on the CPU", caught(lambda: chosen("core", [gpu])))
        text = caught(lambda: chosen("triton", [gpu, torch.device("cuda", 1)]))
        self.assertIn("one GPU" if HAS_TRITON else "pip install triton", text)
        if HAS_TRITON:
            text = caught(lambda: chosen("triton", [gpu], values="table2"))
            self.assertIn("does not know values of table2", text)
        os.environ["TRITON_INTERPRET"] = "0"
        try:
            text = caught(lambda: chosen("triton", [CPU]))
        finally:
            os.environ["TRITON_INTERPRET"] = "1"
        self.assertIn("TRITON_INTERPRET=1" if HAS_TRITON else "pip install triton", text)


if __name__ == "__main__":
    if not HAS_TRITON:
        print("test_triton: the kernels are skipped, because this Python has no Triton", flush=True)
    unittest.main()
