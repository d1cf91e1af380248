#!/usr/bin/env python3
"""test_reference_decoder.py WRITE_SAMPLES GOLDEN_DIR FORMAT_DOC

Lets the C++ side write its sample files, and compares what the reference decoder finds in them (and in the
golden files, and in the document's example) with what C++ found or must find.
"""

import pathlib
import subprocess
import sys
import tempfile
from typing import Optional

import reference_decoder as reference


def notice_listing(notice: Optional[dict]) -> str:
    if notice is None:
        return ""
    text = f"notice {notice['bucket']} {notice['stop']:d}{notice['nonfinite']:d} "
    text += f"{notice['parameters'] or 0:016x} [{notice['present']}]"
    if notice["code"] is not None:
        text += f" {notice['code']} {notice['cause']}"
    return text + "\n"


def listing(message: dict) -> str:
    return notice_listing(message["notice"]) + "".join(
        f"{frame['tensor']} {frame['elements']} {index} {bits:08x}\n"
        for frame in message["frames"]
        for index, bits in frame["entries"]
    )


def check_folder(root: pathlib.Path) -> int:
    checks = 0
    for path in sorted((root / "valid").glob("*.dgc")):
        found = listing(reference.decode_message(path.read_bytes()))
        assert found == path.with_suffix(".txt").read_text(), f"{path}: other entries than C++"
        checks += 1
    for path in sorted((root / "reject").glob("*.dgc")):
        expected = path.name.split(".")[1]
        try:
            reference.decode_message(path.read_bytes())
            found = "accepted"
        except reference.FormatError as error:
            found = error.code
        assert found == expected, f"{path}: {found}"
        checks += 1
    for path in sorted((root / "state").glob("*.dgc")):
        state = reference.decode_state(path.read_bytes())
        assert (state["rank"], state["workers"], state["step"]) == (1, 2, 99), path
        assert [t["shape"] for t in state["tensors"]] == [[4, 3], [4], [0, 2]], path
        assert [t["dense"] for t in state["tensors"]] == [False, True, False], path
        assert state["has_velocity"] == (path.stem == "momentum"), path
        checks += 1
    return checks


def main() -> None:
    writer, golden, document = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([writer, folder], check=True)
        checks = check_folder(pathlib.Path(folder))
    golden_checks = check_folder(pathlib.Path(golden))
    assert checks == golden_checks > 70, (checks, golden_checks)

    example = reference.decode_message(reference.doc_example(pathlib.Path(document).read_text("utf-8")))
    entries = {f["tensor"]: [i for i, _ in f["entries"]] for f in example["frames"]}
    assert entries == {0: [2, 5, 300], 3: [1, 70000]}, entries
    print(f"{checks + golden_checks + 1} files decoded as expected")


if __name__ == "__main__":
    main()
