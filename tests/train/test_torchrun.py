#!/usr/bin/env python3
"""dgc train under torchrun: test_torchrun.py DGC PYTHON, an interpreter that has PyTorch

With --rdzv_backend static torchrun's agent serves the store at MASTER_PORT, and the workers are its
clients. With c10d (PyTorch 1.13) rank 0 serves one of its own.
"""
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

DGC, PYTHON = sys.argv[1:]
failed = False
with tempfile.TemporaryDirectory(prefix="dgc-torchrun-") as folder:
    for backend in ("static", "c10d"):
        for secret in ("", "a secret"):
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            out = pathlib.Path(folder) / f"{backend}-{bool(secret)}"
            seen = out.with_suffix(".env")
            env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "DGC_STORE")}
            env |= {"DGC_SECRET": secret, "PYTHONWARNINGS": "ignore"}
            worker = (f"echo $TORCHELASTIC_USE_AGENT_STORE > {seen}; exec {DGC} train synthetic --model cnn "
                      f"--examples 64 --batch 4 --steps 5 --out {out}")
            # 9:1: Debian's PyTorch 1.13 needs some redirection under Python 3.11.
            done = subprocess.run(
                [PYTHON, "-m", "torch.distributed.run", "--redirects", "9:1", "--tee", "9:1",
                 "--nnodes", "1", "--node_rank", "0", "--nproc_per_node", "2", "--rdzv_backend", backend,
                 "--rdzv_endpoint", f"127.0.0.1:{port}", "--master_addr", "127.0.0.1", "--master_port",
                 str(port), "--no_python", "bash", "-c", worker],
                env=env, capture_output=True, text=True, timeout=120)
            good = done.returncode == 0 and (out / "summary.json").exists()
            if backend == "static":
                good = good and seen.read_text() == "True\n"
            print(f"{'ok    ' if good else 'FAILED'}  {backend}, {'with' if secret else 'no'} secret, "
                  f"agent's store: {seen.read_text() if seen.exists() else '?'}", flush=True)
            if not good:
                failed = True
                print(done.stdout, done.stderr)
sys.exit(failed)
