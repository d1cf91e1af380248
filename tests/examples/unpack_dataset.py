#!/usr/bin/env python3
"""unpack_dataset.py FROM TO: the .gz files of folder FROM, uncompressed in folder TO, unless they are there already."""

import gzip
import pathlib
import shutil
import sys

source, target = map(pathlib.Path, sys.argv[1:3])
target.mkdir(parents=True, exist_ok=True)
for packed in sorted(source.glob("*.gz")):
    unpacked = target / packed.stem
    if unpacked.exists():
        continue
    partial = unpacked.with_suffix(".partial")
    with gzip.open(packed) as read, partial.open("wb") as write:
        shutil.copyfileobj(read, write)
    partial.rename(unpacked)
