#!/usr/bin/env python3
"""test_command_line.py DGC WRITE_SAMPLES: the dgc command as a user meets it: output, errors, exit codes."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

DGC, WRITE_SAMPLES = sys.argv[1:3]


def dgc(*arguments: str, env: dict = {}) -> subprocess.CompletedProcess:
    return subprocess.run([DGC, *arguments], capture_output=True, text=True, env={**os.environ, **env}, timeout=600)


class CommandLine(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.samples = pathlib.Path(cls.folder.name)
        subprocess.run([WRITE_SAMPLES, cls.folder.name], check=True)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def succeeds(self, *arguments: str, env: dict = {}) -> str:
        result = dgc(*arguments, env=env)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def fails(self, code: int, *arguments: str, says: str, env: dict = {}) -> str:
        result = dgc(*arguments, env=env)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertIn(says, result.stderr)
        self.assertEqual(result.stdout, "")
        return result.stderr

    def test_version_and_help(self) -> None:
        self.assertRegex(self.succeeds("--version"), r"^dgc \d+\.\d+\.\d+\n$")
        for command in ([], ["info"], ["inspect"], ["bench"], ["bench", "compress"], ["bench", "exchange"], ["bench", "hub"], ["bench", "torch"], ["bench", "wire"], ["train"], ["sizes"], ["plan"]):
            text = self.succeeds(*command, "--help")
            self.assertIn("dgc", text)
            if command:
                self.assertRegex(text, "Examples?:", command)

    def test_wrong_usage(self) -> None:
        self.fails(2, says="subcommand is required")
        self.fails(2, "inspct", says="unknown command 'inspct'; did you mean 'inspect'?")
        self.fails(2, "bench", "wires", says="did you mean 'wire'?")
        far = self.fails(2, "kubernetes", says="unknown command 'kubernetes'; `dgc --help` lists all")
        self.assertNotIn("did you mean", far)
        self.fails(2, "bench", says="subcommand is required")
        self.fails(2, "bench", "compress", "--ratio", "2", says="--ratio")
        self.fails(2, "bench", "compress", "--threads", "0", says="--threads")
        self.fails(2, "bench", "compress", "--elements", "-5", says="--elements")
        self.fails(2, "inspect", says="FILE is required")
        self.fails(1, "bench", "compress", "--values", "fp8", says="fp32, fp16, bf16, int8, sign")
        self.fails(1, "bench", "compress", "--selection", "best", says="reuse, sampled, exact")
        self.fails(1, "bench", "compress", "--input", "/no/such/file", says="/no/such/file")

    def test_info(self) -> None:
        self.assertIn("instruction set", self.succeeds("info"))
        info = json.loads(self.succeeds("info", "--json", env={"DGC_TARGET": "scalar"}))
        self.assertEqual(info["target"], "scalar")
        self.assertIn("scalar", info["targets"])
        self.fails(1, "info", env={"DGC_TARGET": "mmx"}, says="unset it or choose one of")

    def test_info_measures_the_group(self):
        if "gloo" not in json.loads(self.succeeds("info", "--json"))["engines"]:
            self.skipTest("workers are started over gloo")
        group = json.loads(self.succeeds("info", "--group", "--workers", "2", "--emulate-link", "1Gbps,5ms", "--json"))
        self.assertEqual(group["workers"], 2)
        self.assertEqual(group["engine"], "shared, emulated link of 1 Gbps, 5 ms")
        self.assertTrue(group["costs"]["measured"])
        self.assertGreater(group["costs"]["delay"], 0.004)
        self.assertIn("encode, entry", self.succeeds("info", "--group", "--workers", "2"))
        self.fails(1, "info", "--group", "--emulate-link", "5ms", says="as 100Mbps,25ms")

    def test_inspect_message(self) -> None:
        path = str(self.samples / "valid" / "fp16-rice.dgc")
        text = self.succeeds("inspect", path)
        self.assertIn("message of step 7 from rank 3: 2 frames, 301 entries of 200,001 elements", text)
        info = json.loads(self.succeeds("inspect", path, "--json"))
        self.assertEqual([f["entries"] for f in info["frames"]], [300, 1])
        self.assertEqual(info["bytes"], os.path.getsize(path))
        self.assertEqual(info["frames"][0]["indices"], "rice")

    def test_inspect_state(self) -> None:
        path = str(self.samples / "state" / "momentum.dgc")
        self.assertIn("state of rank 1 of 2 after 99 steps, with velocity", self.succeeds("inspect", path))
        info = json.loads(self.succeeds("inspect", path, "--json"))
        self.assertEqual(info["tensors"][0]["shape"], [4, 3])
        self.assertEqual(info["tensors"][0]["residual_nonzero"], 12)

    def test_inspect_checkpoint(self) -> None:
        folder = self.samples / "inspected"
        shutil.copytree(self.samples / "checkpoints", folder)
        newest = folder / "step-000000000020"
        for path in (str(newest), str(newest) + "/"):
            text = self.succeeds("inspect", path)
            self.assertIn("checkpoint of step 20, written by 1 worker with dgc", text)
            self.assertIn("user: epoch 2", text)
        info = json.loads(self.succeeds("inspect", str(newest), "--json"))
        self.assertEqual([f["name"] for f in info["files"]], ["model.pt", "rank-00000.state"])
        self.assertEqual((info["step"], info["user"], info["whole"]), (20, "epoch 2", True))
        all_of_them = json.loads(self.succeeds("inspect", str(folder), "--json"))
        self.assertEqual([(c["step"], c["whole"]) for c in all_of_them], [(20, True), (10, True)])
        (newest / "model.pt").write_bytes(b"parametexs")
        self.fails(1, "inspect", str(newest), says="[checksum_mismatch]")
        self.fails(1, "inspect", str(newest), "--json", says="model.pt")
        (folder / "step-000000000010" / "manifest.json").write_text("{")
        self.fails(1, "inspect", str(folder / "step-000000000010"), says="[truncated]")
        all_of_them = json.loads(self.succeeds("inspect", str(folder), "--json"))
        self.assertEqual([c["error"] for c in all_of_them], ["checksum_mismatch", "truncated"])
        text = self.succeeds("inspect", str(folder))
        self.assertIn("model.pt: is damaged", text)
        self.assertIn("manifest.json: ends early", text)

    def test_inspect_rejects(self) -> None:
        self.fails(1, "inspect", "/no/such/file", says="No such file")
        self.fails(1, "inspect", str(self.samples), says="holds no checkpoint")
        for path in (self.samples / "reject").glob("*.dgc"):
            self.fails(1, "inspect", str(path), says=f"[{path.name.split('.')[1]}]")
        self.fails(1, "inspect", __file__, says="bad_magic")

    def test_data(self) -> None:
        listed = json.loads(self.succeeds("data", "--json"))
        names = {entry["name"] for entry in listed}
        self.assertTrue({"fashion-mnist", "cifar10", "ptb", "bible", "asterisk", "an4", "librispeech"} <= names)
        self.assertIn("cifar-10-binary", self.succeeds("data"))
        self.fails(1, "data", "check", str(self.samples / "nothing"), says="nothing")
        text = self.samples / "text"
        text.mkdir()
        (text / "train.txt").write_text("one line\n" * 100)
        self.assertIn("text", self.succeeds("data", "check", str(text)))

    def test_report(self) -> None:
        self.fails(1, "report", str(self.samples / "nothing"), says="nothing")

    def test_bench_compress(self) -> None:
        common = ["bench", "compress", "--elements", "200000", "--steps", "3", "--warmup", "2", "--quiet"]
        results = json.loads(self.succeeds(*common, "--json"))
        self.assertEqual([r["kind"] for r in results], ["gaussian", "student"])
        for r in results:
            for key in ("floor_ms", "step_ms", "step_over_floor", "memcpy_ms", "wire_bytes", "index_bits", "entropy_bits"):
                self.assertGreater(r[key], 0.0, key)
            self.assertEqual(r["k_sent"], r["k_target"])
            self.assertTrue(r["verified"])
        self.assertIn("over floor", self.succeeds(*common, "--threads", "1,2", "--kind", "student"))
        for extra in (["--nesterov"], ["--momentum", "0"], ["--selection", "sampled"], ["--selection", "exact"],
                      ["--values", "int8"], ["--indices", "runs"], ["--shapes", "single"], ["--ratio", "1"],
                      ["--momentum-correction", "global"], ["--momentum-correction", "off", "--values", "int8"]):
            self.assertIn("verified", self.succeeds(*common, "--kind", "gaussian", *extra))
        self.fails(1, *common, "--momentum-correction", "global", "--nesterov", says="--nesterov")

    def test_bench_hub(self) -> None:
        common = ["bench", "hub", "--members", "2,5", "--elements", "2000", "--ratio", "0.01", "--rounds", "3", "--quiet"]
        results = json.loads(self.succeeds(*common, "--json"))
        self.assertEqual([(r["members"], r["down"]) for r in results],
                         [(2, "forward"), (2, "select"), (5, "forward"), (5, "select")])
        for r in results:
            self.assertEqual(r["members_in_a_round"], r["members"])
            for key in ("hub_ms_per_round", "rounds_per_second_of_hub", "bytes_up_per_message", "bytes_down_per_message"):
                self.assertGreater(r[key], 0.0, key)
        self.assertIn("hub ms/round", self.succeeds(*common, "--down", "select"))
        self.fails(1, *common, "--down", "up", says="forward")
        self.fails(2, "bench", "hub", "--members", "0", says="--members")

    def test_bench_input(self) -> None:
        path = self.samples / "gradient.f32"
        path.write_bytes(b"\x00\x00\x80\x3f\x00\x00\x00\xc0" * 5000)
        common = ["bench", "compress", "--elements", "50000", "--steps", "2", "--warmup", "1", "--input"]
        self.assertEqual(json.loads(self.succeeds(*common, str(path), "--json"))[0]["kind"], "file")
        path.write_bytes(b"\x00\x00\x80")
        self.fails(1, *common, str(path), "--json", says="whole number of float32")
        path.write_bytes(b"\x00\x00\xc0\x7f")
        self.fails(1, *common, str(path), "--json", says="nan at index 0")

    def test_bench_wire(self) -> None:
        results = json.loads(self.succeeds("bench", "wire", "--elements", "100000", "--ratio", "0.01", "--repeat", "2", "--json"))
        self.assertTrue(all(r["verified"] for r in results))
        self.assertTrue(any("sum_ms" in r for r in results))
        self.assertIn("entropy", self.succeeds("bench", "wire", "--elements", "100000", "--repeat", "2"))

    def test_bench_exchange(self) -> None:
        small = ["bench", "exchange", "--elements", "20000", "--steps", "2", "--quiet"]
        common = [*small, "--workers", "2"]
        names = ["auto", "allgather", "owner", "dense", "hierarchical", "all_reduce"]
        built = json.loads(self.succeeds("info", "--json"))["engines"]
        for engine in ["local", "shared"] + (["gloo"] if "gloo" in built else []):
            results = json.loads(self.succeeds(*common, "--engine", engine, "--json"))
            own = ["gloo allreduce"] if engine == "gloo" else []  # the engine's, beside ours
            self.assertEqual([r["algorithm"] for r in results], names + own)
            for r in results:
                self.assertEqual((r["engine"], r["workers"], r["elements"]), (engine, 2, 20000))
                for key in ("bytes_sent", "bytes_received", "messages", "p50_ms", "formula_bytes_received", "less_than_dense"):
                    self.assertGreater(r[key], 0, key)
                self.assertLessEqual(r["bytes_received"], sum(p["bytes_received"] for p in r["phases"]))
                self.assertTrue(r["verified"])
            received = {r["algorithm"]: r["bytes_received"] for r in results}
            expected = {r["algorithm"]: r["formula_bytes_received"] for r in results}
            # Two messages with a notice, which has a bit for each tensor, and a checksum each.
            self.assertGreaterEqual(received["dense"], 8 * 20000 // 2 + 2 * (40 + 16 + 8 + 8))
            self.assertLess(received["dense"], 8 * 20000 // 2 + 2 * (40 + 16 + 8 + 8) + 20)
            self.assertEqual(received["all_reduce"], 8 * 20000 // 2)
            for name in names:
                self.assertLess(abs(received[name] / expected[name] - 1), 0.2, name)
            text = self.succeeds(*common, "--engine", engine, "--algorithm", "owner,allgather", "--no-verify")
            self.assertIn("less than dense", text)
            self.assertIn("not verified", text)
        for workers in ("1", "3", "4"):
            text = self.succeeds(*small, "--engine", "local", "--workers", workers, "--values", "int8", "--ratio", "0.1")
            self.assertIn("\nverified", text)
        self.fails(2, *common, "--algorithm", "ring", says="auto,allgather,owner,dense,hierarchical")
        self.fails(2, *common, "--engine", "nccl", says="local,shared,gloo,mpi,auto")
        self.fails(1, *common, "--values", "fp8", says="fp32, fp16, bf16, int8, sign")
        self.fails(1, *common, "--engine", "mpi", says="mpirun -n 2", env={"OMPI_COMM_WORLD_SIZE": ""})
        self.fails(1, "bench", "exchange", "--workers", "1024", "--elements", "2000000000", says="are free")

    def test_sizes(self) -> None:
        if "libtorch" not in str(json.loads(self.succeeds("info", "--json"))["integrations"]):
            return self.fails(1, "sizes", says="libtorch is not in this build")
        models = ["AlexNet", "ResNet-50", "PTB"]
        results = json.loads(self.succeeds("sizes", *models, "--steps", "2", "--json", "--quiet"))
        self.assertEqual([r["model"] for r in results], models)
        self.assertEqual([r["parameters"] for r in results], [60_965_224, 25_557_032, 51_034_000])
        for r, published in zip(results, (597.7, 276.7, 461.8)):
            self.assertEqual(r["dense_bytes"], 4 * r["parameters"])
            self.assertLess(abs(r["paper_ratio"] / published - 1), 0.01, r)
            self.assertAlmostEqual(r["paper_ratio"], r["dense_bytes"] / r["paper_format_bytes"])
            self.assertLess(r["paper_ratio"], r["rice_fp16_ratio"])
            self.assertLess(r["rice_fp16_ratio"], r["rice_fp16_dense_int8_ratio"])
            self.assertLess(r["rice_fp16_dense_int8_ratio"], r["best_ratio"])
        self.fails(1, "sizes", "ResNet-51", says="did you mean 'ResNet-50'?")
        self.fails(2, "sizes", "--steps", "0", says="--steps")

    def test_plan(self) -> None:
        common = ["plan", "--model", "resnet50", "--compute", "250ms"]
        self.assertIn("8 machines on 1 Gbps", self.succeeds("plan", "--help"))
        text = self.succeeds(*common, "--bandwidth", "1Gbps", "--nodes", "8")
        self.assertIn("<- take this", text)
        self.assertIn("8 nodes: dgc auto", text)
        # What the advice rests on stands above it.
        for assumed in ("Assumptions:", "50 us", "94 %", "0.9 ns", "28 ns", "8 ns", "20 us", "5 %", "--costs"):
            self.assertIn(assumed, text.split("8 nodes:")[0])
        quick = self.samples / "costs.json"
        quick.write_text('{"select": 4e-10}')
        self.assertIn("0.4 ns", self.succeeds(*common, "--nodes", "8", "--costs", str(quick)))
        plan = json.loads(self.succeeds(*common, "--bandwidth", "1Gbps,10Gbps", "--nodes", "2,64", "--json"))
        self.assertEqual([(p["bandwidth"], p["nodes"]) for p in plan["plans"]], [(1e9, 2), (1e9, 64), (1e10, 2), (1e10, 64)])
        methods = ["dense fp32", "dense fp16", "dgc auto", "dgc allgather", "dgc owner"]
        for p in plan["plans"]:
            self.assertEqual([m["method"] for m in p["predictions"]], methods)
            for m in p["predictions"]:
                self.assertAlmostEqual(m["efficiency"], m["speedup"] / p["nodes"])
        self.assertTrue(plan["plans"][1]["pays"])
        self.assertEqual(plan["assumptions"]["select_seconds_per_element"], 0.9e-9)
        self.assertAlmostEqual(plan["assumptions"]["latency_seconds"], 50e-6)
        inside = json.loads(self.succeeds(*common, "--nodes", "4", "--workers-per-node", "4", "--algorithm", "hierarchical", "--json"))
        self.assertEqual([m["method"] for m in inside["plans"][0]["predictions"]], ["dense fp32", "dense fp16", "dgc hierarchical"])
        self.assertEqual(inside["plans"][0]["workers"], 16)
        small = ["plan", "--parameters", "100000", "--compute", "2s", "--bandwidth", "10Gbps", "--nodes", "4"]
        self.assertIn("compression does not pay here", self.succeeds(*small))
        for name in ("chart.svg", "chart.html"):
            path = self.samples / name
            self.assertIn(f"chart: {path}", self.succeeds(*common, "--chart", str(path)))
            self.assertIn("<svg", path.read_text())

    def test_plan_local_steps(self) -> None:
        words = ["plan", "--model", "gpt2", "--compute", "1s", "--bandwidth", "20Mbps", "--latency", "25ms", "--nodes", "2,4",
                 "--network-share", "5%"]
        text = self.succeeds(*words)
        self.assertIn("docs/local.md", text)
        self.assertEqual(text.count("dgc-local"), 8)
        plans = json.loads(self.succeeds(*words, "--json"))["plans"]
        self.assertEqual([p["mode"] for p in plans], ["diloco", *["dgc-local"] * 4] * 2)
        for p in plans:
            self.assertLessEqual(p["exchange_seconds"] / (p["local_steps"] + p["exchange_seconds"]), 0.05 + 1e-9)
        only = json.loads(self.succeeds(*words, "--ratio", "0.01", "--values", "fp16", "--json"))
        self.assertEqual([p["ratio"] for p in only["plans"]], [1, 0.01] * 2)
        self.assertEqual(only["values"], "fp16")
        self.fails(1, *words[:-1], "5", says="is no percentage (such as 5%)")
        self.fails(1, *words[:-1], "100%", says="is out of range")
        self.fails(1, *words, "--algorithm", "owner", says="--algorithm: does not go with --network-share")
        self.fails(1, *words, "--nodes", "1", says="--nodes '1'")

    def test_plan_over_a_hub(self) -> None:
        words = ["plan", "--model", "resnet50", "--compute", "250ms", "--bandwidth", "20Mbps", "--latency", "25ms",
                 "--nodes", "4,32", "--hub", "1Gbps"]
        text = self.succeeds(*words)
        for row in ("hub forward", "hub select", "no hub: all-gather"):
            self.assertEqual(text.count(row), 2)
        self.assertIn("limits with more than 50", text)
        self.assertIn("32 members: auto takes select", text)
        plan = json.loads(self.succeeds(*words, "--json"))
        self.assertEqual((plan["hub_bandwidth"], plan["ratio"]), (1e9, 0.001))
        self.assertEqual([(p["members"], p["auto"]) for p in plan["plans"]], [(4, "forward"), (32, "select")])
        for p in plan["plans"]:
            for r in p["rounds"]:
                parts = sum(r[f"{part}_seconds"] for part in ("compute", "coding", "delay", "up", "down", "hub"))
                self.assertAlmostEqual(r["round_seconds"], parts)
        self.assertIn("at most 5 % of the time", self.succeeds(*words, "--network-share", "5%"))
        steps = json.loads(self.succeeds(*words, "--network-share", "5%", "--ratio", "0.01", "--json"))
        self.assertEqual([p["round"]["down"] for p in steps["plans"]], ["forward", "select"] * 2)
        for p in steps["plans"]:
            self.assertLessEqual(p["exchange_share"], 0.05 + 1e-9)
        for option in (["--algorithm", "owner"], ["--chart", "x.svg"], ["--workers-per-node", "2"], ["--shared-cores", "2"]):
            self.fails(1, *words, *option, says=f"{option[0]}: does not go with --hub")
        self.fails(1, *words[:-1], "fast", says="--hub 'fast': does not begin with a number")

    def test_plan_rejects(self) -> None:
        common = ["plan", "--model", "resnet50", "--compute", "250ms"]
        self.fails(1, *common, "--nodes", "0", says="--nodes '0': is out of range (from 1 to 65536, as 2,4,8)")
        self.fails(1, *common, "--nodes", "2,few", says="--nodes 'few': is no whole number")
        self.fails(1, *common, "--bandwidth", "-1Gbps", says="--bandwidth '-1Gbps': is negative")
        self.fails(1, *common, "--bandwidth", "1", says="--bandwidth '1': has no unit (1Gbps?)")
        self.fails(1, *common, "--bandwidth", "1Gbqs", says="there is no unit 'Gbqs' (did you mean 1Gbps?")
        self.fails(1, *common, "--latency", "5", says="--latency '5': has no unit (5ms?)")
        self.fails(1, *common, "--shared-cores", "0", says="--shared-cores '0'")
        self.fails(1, *common, "--values", "fp8", says="--values 'fp8': is unknown (fp32, fp16, bf16, int8, sign, table2 or table4)")
        self.fails(1, *common, "--algorithm", "ring", says="--algorithm 'ring': is not one to plan with (one of auto, allgather, owner;")
        self.fails(1, *common, "--batch", "8", says="--batch: belongs to --measure")
        self.fails(1, *common, "--inside-bandwidth", "1Gbps", says="a node has one worker")
        self.fails(1, *common, "--chart", "a.png", says="is neither .svg nor .html (a.svg?)")
        self.fails(1, *common, "--algorithm", "hierarchical", says="--workers-per-node 2 or more")
        self.fails(1, *common, "--costs", "/no/such/file", says="/no/such/file")
        self.fails(1, *common, "--measure", says="are both given")
        self.fails(1, "plan", "--compute", "1s", says="no model is given")
        self.fails(1, "plan", "--model", "resnet50", says="no compute time is given")
        self.fails(1, "plan", "--model", "resnet500", "--compute", "1s", says="did you mean 'resnet50'?")
        self.fails(1, "plan", "--parameters", "5", "--one-dimensional", "6", "--compute", "1s", says="--one-dimensional '6'")
        self.fails(1, "plan", "--parameters", "5", "--measure", says="known by name")

    def test_bench_torch(self) -> None:
        common = ["bench", "torch", "--model", "cnn", "--batch", "2", "--steps", "2", "--quiet"]
        if dgc(*common).returncode != 0:
            return self.fails(1, *common, says="libtorch is not in this build (install libtorch-dev")
        results = json.loads(self.succeeds(*common, "--json"))
        self.assertEqual([r["workers"] for r in results], [1, 2])
        for r in results:
            self.assertEqual((r["model"], r["parameters"], r["overlap"]), ("cnn", 224714, "on"))
            for key in ("plain_ms", "dense_ms", "dgc_ms", "plain_cpu_ms", "dgc_cpu_ms", "compress_ms", "encode_ms", "apply_ms", "message_ratio", "compress_share"):
                self.assertGreater(r[key], 0.0, key)
            for key in ("dense_extra_share", "extra_ms", "extra_share", "extra_cpu_share", "exchange_ms", "waiting_ms"):
                self.assertIn(key, r)
        text = self.succeeds(*common, "--workers", "2", "--cores", "2", "--no-overlap", "--values", "int8", "--ratio", "0.01")
        self.assertIn("message ratio", text)
        self.assertIn("overlap off", text)
        (r,) = json.loads(self.succeeds(*common, "--workers", "3", "--launch", "processes", "--block", "2", "--json"))
        self.assertEqual((r["workers"], r["launch"], r["block"], r["parameters"]), (3, "processes", 2, 224714))
        for key in ("plain_ms", "dense_ms", "dgc_ms", "plain_cpu_ms", "dense_cpu_ms", "dgc_cpu_ms"):
            self.assertGreater(r[key], 0.0, key)
        self.fails(1, *common, "--launch", "processes", says="it is one number")
        self.fails(2, *common, "--model", "vgg", says="resnet50,cnn,lstm")
        self.fails(2, *common, "--image", "8", says="--image")
        self.fails(1, *common, "--values", "fp8", says="fp32, fp16, bf16, int8, sign")
        self.fails(1, *common, "--algorithm", "ring", says="allgather")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
