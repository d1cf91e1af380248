"""Python and C++ send the same bytes, read each other's, and select the same entries.

test_wire.py MESSAGE_PEER [SGD_PEER]
"""

import ctypes
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import torch

import dgc
import dgc._core as core
from workers import Recorded, Training, flat, gradients_of, run

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "wire"))
import reference_decoder  # noqa: E402

PEERS = [a for a in sys.argv[1:] if not a.startswith("-")]
WORKERS, STEPS, RATIO = 4, 30, 0.01
SHAPES = {**Recorded.SHAPES, "third": (300, 40)}
torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = (
    1 << 30
)  # a message a step, as from C++'s compressor


def recorded(rank, step, denormals):
    """Normal gradients; or such that velocities decay through the denormals, and v holds some."""
    if not denormals:
        return gradients_of(rank, step, SHAPES)
    scale = 1.5e-37 if step == 0 else 1e-40 if step % 7 == 0 else 0.0
    return {name: g * scale for name, g in gradients_of(rank, step, SHAPES).items()}


def train(rank, folder, options, denormals):
    """Writes gradients and messages; returns what the hook made of them."""
    model = Recorded(shapes=SHAPES)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    if options.get("momentum_correction") == "off":
        nesterov = options.get("nesterov", False)
        options = {
            **options,
            "optimizer": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=nesterov),
        }
    training = Training(
        model, ddp={"bucket_cap_mb": 1024}, ratio=RATIO, check_parameters_every=0, **options
    )
    messages, sums = [], []
    residuals = training.state._residuals
    compress = residuals.compress

    def listen(given, out):
        size = compress(given, out)
        messages.append(ctypes.string_at(out.data_ptr(), size))
        return size

    residuals.compress = listen
    with open(f"{folder}/gradients.{rank}", "wb") as file:
        for step in range(STEPS):
            gradients = recorded(rank, step, denormals)
            for g in gradients.values():
                file.write(ctypes.string_at(g.data_ptr(), 4 * g.numel()))
            training.step(gradients)
            sums.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for step, message in enumerate(messages):
        pathlib.Path(folder, f"python.{rank}.{step}").write_bytes(message)
    return flat(model), training.state.state_dict(), sums, residuals._setting.schema


def floats(file):
    return torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.float32)


class Wire(unittest.TestCase):
    def trained(self, folder, options, denormals=False, workers=WORKERS):
        (folder / "model.txt").write_text(
            "".join(f"{name} {' '.join(map(str, shape))}\n" for name, shape in SHAPES.items())
        )
        return run(train, str(folder), options, denormals, ranks=workers)

    def test_messages(self):
        for values, path in (("fp16", "core"), ("fp32", "torch"), ("int8", "core")):
            with self.subTest(values=values, path=path), tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                results = self.trained(folder, {"values": values, "path": path})
                subprocess.run(
                    [
                        PEERS[0],
                        name,
                        str(WORKERS),
                        str(STEPS),
                        str(RATIO),
                        values,
                        str(results[0][3]),
                    ],
                    check=True,
                )
                elements = results[0][2][0].numel()
                for step in range(STEPS):
                    ours = [
                        (folder / f"python.{rank}.{step}").read_bytes() for rank in range(WORKERS)
                    ]
                    theirs = [
                        (folder / f"cpp.{rank}.{step}").read_bytes() for rank in range(WORKERS)
                    ]
                    self.assertEqual(ours, theirs, f"step {step}")
                    # C++ adds Python's messages; Python adds C++'s.
                    self.assertTrue(
                        torch.equal(floats(folder / f"sum.{step}"), results[0][2][step]),
                        f"step {step}",
                    )
                    self.assertTrue(
                        torch.equal(
                            self.added(theirs, step, results[0][3], elements), results[0][2][step]
                        )
                    )
                info = dgc.inspect_message(theirs[2])
                self.assertEqual(
                    (info["step"], info["sender"], len(info["frames"])), (STEPS - 1, 2, len(SHAPES))
                )
                self.assertEqual({f["values"] for f in info["frames"]}, {values, "fp32"})
                self.assertEqual(
                    info["notice"],
                    {
                        "bucket": 0,
                        "present": [True] * len(SHAPES),
                        "stop": False,
                        "nonfinite": False,
                        "parameters": None,
                        "failure": None,
                    },
                )
                self.assertEqual(reference_decoder.decode_message(ours[1])["sender"], 1)

    def added(self, messages, step, schema, elements):
        sums = torch.zeros(elements)
        targets, begin = [], 0
        for t, shape in enumerate(SHAPES.values()):
            count = torch.Size(shape).numel()
            targets.append((t, sums.data_ptr() + 4 * begin, count))
            begin += count
        notice = core.Notice(0, [True] * len(SHAPES))
        tensors = [(tensor, count) for tensor, _, count in targets]

        def checked(messages, at=step, mine=notice):
            buffers = [ctypes.create_string_buffer(m, len(m)) for m in messages]
            places = [(ctypes.addressof(b), len(m)) for b, m in zip(buffers, messages)]
            return core.Parcels(places, buffers, mine, at, schema, tensors)

        parcels = checked(messages)
        parcels.add_to(targets, 1.0)
        self.assertEqual(parcels.merged.present, notice.present)
        damaged = messages[0][:-1] + bytes([messages[0][-1] ^ 1])
        for code, says, given in (
            ("configuration_mismatch", "rank 0: .*step", (messages, step + 1)),
            ("configuration_mismatch", "rank 0: .*sender 1, 0", (messages[1:],)),
            ("configuration_mismatch", "bucket 0, 3", (messages, step, core.Notice(3, []))),
            ("checksum_mismatch", "rank 0: .*checksum", ([damaged],)),
        ):
            with self.assertRaisesRegex(dgc.Error, says) as raised:
                checked(*given)
            self.assertEqual(raised.exception.code, code)
        return sums

    @unittest.skipUnless(len(PEERS) > 1, "libtorch is not compiled in")
    def test_sgd_selects_the_same(self):
        owner, shared = {"algorithm": "owner"}, {"momentum_correction": "global"}
        cases = (
            ({"values": "fp32"}, WORKERS),
            ({"values": "fp16", "nesterov": True}, 2),
            ({"values": "fp32", **owner}, WORKERS),
            ({"values": "fp16", "nesterov": True, **owner}, 3),
            ({"values": "int8", **owner}, 2),
            ({"values": "fp32", **shared}, WORKERS),
            ({"values": "fp16", "nesterov": True, **shared}, 2),
            ({"values": "fp16", "nesterov": True, "path": "torch", **shared}, 2),
            ({"values": "fp16", **owner, **shared}, 3),
            ({"values": "fp16", "nesterov": True, "momentum_correction": "off"}, 2),
        )
        for options, workers in cases:
            with self.subTest(workers=workers, **options):
                self.compare_with_sgd(options, workers)

    @unittest.skipUnless(len(PEERS) > 1, "libtorch is not compiled in")
    def test_sgd_drops_the_same_velocities(self):
        for path, nesterov in (("core", False), ("torch", False), ("torch", True)):
            with self.subTest(path=path, nesterov=nesterov):
                velocity = self.compare_with_sgd(
                    {"values": "fp32", "nesterov": nesterov, "path": path}, 2, denormals=True
                )
                # Some had decayed below the normal range, and some had not.
                dropped = int((velocity["third"] == 0).sum())
                self.assertTrue(1000 < dropped < velocity["third"].numel() - 1000, dropped)

    def compare_with_sgd(self, options, workers, denormals=False):
        """The same run of dgc::Sgd. The same entries were sent exactly where u and v are the same,
        bit for bit."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            results = self.trained(folder, options, denormals, workers)
            nesterov = str(int(options.get("nesterov", False)))
            sizes = [str(workers), str(STEPS), str(RATIO)]
            how = [options["values"], nesterov, options.get("algorithm", "allgather")]
            how.append(options.get("momentum_correction", "local"))
            subprocess.run([PEERS[1], name, *sizes, *how], check=True)
            for rank, (parameters, ours, _, _) in enumerate(results):
                theirs = state_file(folder / f"state.{rank}")
                self.assertEqual(theirs["step"], STEPS)
                for part in ("velocity", "residual"):
                    self.assertEqual(bool(ours["velocity"]), how[-1] == "local")
                    for tensor in ours[part]:
                        self.assertTrue(
                            torch.equal(ours[part][tensor], theirs[part][tensor]),
                            f"{part} of '{tensor}', rank {rank}",
                        )
                torch.testing.assert_close(
                    parameters, floats(folder / "parameters"), rtol=1e-5, atol=1e-5
                )
            return results[0][1]["velocity"]


def state_file(file):
    """u and v of a state file, read without the library."""
    saved = reference_decoder.decode_state(file.read_bytes())
    found = {"step": saved["step"], "velocity": {}, "residual": {}}
    for tensor in saved["tensors"]:
        for part in ("velocity", "residual"):
            if tensor[part] is None:  # no velocity with global momentum
                continue
            found[part][tensor["name"]] = torch.frombuffer(
                bytearray(struct.pack(f"<{len(tensor[part])}I", *tensor[part])), dtype=torch.float32
            )
    return found


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
