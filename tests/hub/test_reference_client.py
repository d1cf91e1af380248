#!/usr/bin/env python3
"""test_reference_client.py SERVE_TOY HUB_DOC: a member written from docs/hub.md alone.

It joins a hub of ours (serve_toy.cpp) that has a member of ours, trains with it for some rounds, and
has the same parameters as the hub, bit for bit. The document's example is decoded, too.
"""

import http.client
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import reference_packet as reference
from reference_packet import wire

SERVE, DOCUMENT = sys.argv[1], pathlib.Path(sys.argv[2]).read_text("utf-8")
MODEL = [{"name": "w", "shape": [64, 25], "dense": False}, {"name": "b", "shape": [7], "dense": True}]


class Client:
    def __init__(self, port: int, token: str) -> None:
        self.line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.token = token

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()

    def ask(self, method: str, path: str, body: bytes = b"") -> "tuple[int, bytes]":
        self.line.request(method, path, body or None, {"Authorization": "Bearer " + self.token})
        answer = self.line.getresponse()
        return answer.status, answer.read()

    def packet(self, method: str, path: str, head: "dict | None" = None, *strings: bytes) -> reference.Packet:
        status, body = self.ask(method, path, b"" if head is None else reference.encode(head, strings))
        packet = reference.decode(body)
        if status != 200:
            raise RuntimeError(f"{status}: {packet[0]}")
        return packet


class ReferenceClient(unittest.TestCase):
    def test_the_example_of_the_document(self) -> None:
        data = wire.doc_example(DOCUMENT)
        head, strings = reference.decode(data)
        self.assertEqual(head, {"session": "5f1c", "sequence": 9, "base": 12, "have": 12, "saved": 8, "examples": 8, "loss": 0.5,
                                "seconds": 1.5, "residual": 0.25, "rtt": 0.0125})
        self.assertEqual(reference.encode(head, strings), data)
        self.assertEqual(strings, [reference.whole_message([[0.5, -1.0, 0.0]]), b""])

    def test_what_is_damaged_is_refused(self) -> None:
        data = wire.doc_example(DOCUMENT)
        for i in range(len(data)):
            with self.assertRaises(wire.FormatError):
                reference.decode(data[:i] + bytes([data[i] ^ 1]) + data[i + 1:])
            with self.assertRaises(wire.FormatError):
                reference.decode(data[:i])

    def test_it_trains_with_a_member_of_ours(self) -> None:
        self.train_with("toy", "forward")

    def test_it_trains_where_the_hub_selects(self) -> None:
        self.train_with("select", "select")

    def train_with(self, recipe: str, down: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            hub = subprocess.Popen([SERVE, folder, "0", recipe], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                self.train(hub, down)
            finally:
                hub.stdin.close()
                hub.wait(60)
                hub.stdout.close()

    def train(self, hub: subprocess.Popen, down: str) -> None:
        said = dict(hub.stdout.readline().split() for _ in range(3))
        hub.stdin.write("join ours 192.0.2.1\n")
        hub.stdin.flush()
        with Client(int(said["port"]), said["token"]) as looker:
            status: dict = {}
            while status.get("round", 0) < 3:
                status = json.loads(looker.ask("GET", "/v1/status")[1])
        with Client(int(said["port"]), said["worker"]) as client:
            self.work(client, down)

    def work(self, client: Client, down: str) -> None:
        run, _ = client.packet("GET", "/v1/run")
        self.assertEqual((run["protocol"], run["terms"]["down"], run["terms"]["momentum_bits"]), (1, down, 0))
        joined, _ = client.packet("POST", "/v1/join", {"protocol": 1, "version": run["version"], "positions": 4000, "data": "toy",
                                                       "model": MODEL, "buffers": [], "sequence": 0, "alive": False, "saved": []})
        self.assertFalse(joined["needs_parameters"])
        parameters = reference.Parameters(client.ask("GET", "/v1/snapshot")[1])
        about = lambda sequence: {"session": joined["session"], "sequence": sequence, "have": parameters.round, "saved": sequence,
                                  "rtt": 0.001}
        sequence, checked, mine, seen = 0, 0, 0, set()
        answer, commits = client.packet("POST", "/v1/wait", about(0))
        while parameters.round < 50:
            for commit in commits:
                checked += parameters.apply(commit)
                parts = reference.decode(commit)[0]["parts"]
                self.assertEqual(down == "select", not parts)
                mine += down == "select" or any(part["member"] == "worker" for part in parts)
            if answer["snapshot"]:
                parameters = reference.Parameters(client.ask("GET", "/v1/snapshot")[1])
            if answer["outcome"] != 1 and answer["lease"]["count"] > 0 and answer["round"] == parameters.round:
                lease = answer["lease"]
                self.assertEqual(lease["sequence"], sequence + 1)
                positions = {(lease["epoch"], p) for p in range(lease["first"], lease["first"] + lease["count"])}
                self.assertFalse(positions & seen)
                seen |= positions
                sequence += 1
                gradient = [reference.rounded(w * lease["count"]) for w in parameters.values]
                message = reference.whole_message([gradient[:1600], gradient[1600:]])
                answer, commits = client.packet("POST", "/v1/round", about(sequence) | {
                    "base": parameters.round, "examples": lease["count"], "loss": 0.5, "seconds": 0.01, "residual": 0.0}, message, b"")
            else:
                answer, commits = client.packet("POST", "/v1/wait", about(sequence))
        self.assertGreater(mine, 10)
        self.assertGreaterEqual(checked, 2)  # every 20 rounds
        client.packet("POST", "/v1/leave", about(sequence))
        with self.assertRaisesRegex(RuntimeError, "409.*join again"):
            client.packet("POST", "/v1/wait", about(sequence))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
