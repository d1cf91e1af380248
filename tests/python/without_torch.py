"""without_torch.py FOLDER VERSION: the package that is installed in FOLDER, where there is no PyTorch.
Importing it says so. Its extension, loaded alone, compresses a gradient and reads it back. To be run
with python -S, which sees no other package. Wheels for Pythons that have no PyTorch are tested so.
"""

import importlib.util
import pathlib
import sys
from array import array

FOLDER, VERSION = pathlib.Path(sys.argv[1]), sys.argv[2]


def load_extension():
    """As `import dgc._core` would, if `import dgc` could be had."""
    (file,) = (FOLDER / "dgc").glob("_core*.so")
    spec = importlib.util.spec_from_file_location("dgc._core", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.path.insert(0, str(FOLDER))
try:
    import dgc  # noqa: F401
except ModuleNotFoundError as error:
    assert error.name == "torch" and "dgc needs PyTorch" in str(error), error
else:
    sys.exit("without_torch.py: dgc was imported: is there a PyTorch?")

core = load_extension()
assert core.__version__ == VERSION, core.__version__
try:
    core.Schedule(2.0)
except core.Error as error:
    assert error.code == "invalid_argument" and error.hint, error
else:
    sys.exit("without_torch.py: a ratio of 2 was taken")

gradient, result = array("f", [0.0] * 100), array("f", [0.0] * 100)
for i in range(5):
    gradient[20 * i] = 1.0 + i
session = core.Session(
    tensors=[("w", [10, 10], False)],
    rank=0,
    workers=1,
    schedule=core.Schedule(0.05),
    schema=7,
    options={},
)
notice = core.Notice(0, [True])
frame_bound = core.frame_bound(100, 5, "fp32", "auto")
message = array("B", bytes(core.parcel_bound(1, frame_bound)))
address, room = message.buffer_info()
size = session.compress([(0, gradient.buffer_info()[0], 100)], notice, address, room, 1.0, None)
(frame,) = core.inspect_message(message.tobytes()[:size])["frames"]
assert (frame["tensor"], frame["elements"], frame["entries"]) == (0, 100, 5), frame
parcels = core.Parcels([(address, size)], message, notice, 0, 7, [(0, 100)])
parcels.add_to([(0, result.buffer_info()[0], 100)], 1.0)
assert result == gradient, list(result)
session.commit([])
print(
    f"dgc {VERSION} on Python {sys.version.split()[0]}: the extension works ({core.active_target()})"
)
