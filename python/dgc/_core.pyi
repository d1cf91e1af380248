"""libdgc on raw memory: addresses are those of memory that the caller keeps alive."""

from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

__version__: str
# Numbers by name, as in dgc/error.h.
ERROR_CODES: Dict[str, int]

# Tensor, address of its first float, number of elements.
Array = Tuple[int, int, int]
# Address, size in bytes.
Bytes = Tuple[int, int]

class Error(RuntimeError):
    """What the library reports: str() is the whole text; code, operation, subject, problem and hint are its parts."""

    code: str
    operation: str
    subject: str
    problem: str
    hint: str

class Schedule:
    """Which share of each gradient is sent at which step."""

    warmup_steps: int
    """First step from which the final ratio holds."""
    def __init__(self, ratio: float = ...) -> None: ...
    @staticmethod
    def stages(ratios: Sequence[float], steps_each: int, final_ratio: float) -> Schedule: ...
    @staticmethod
    def paper(warmup_steps: int) -> Schedule: ...
    @staticmethod
    def paper_stages(final_ratio: float = ...) -> List[float]: ...
    @staticmethod
    def exponential(first: float, final_ratio: float, steps: int) -> Schedule: ...
    @staticmethod
    def parse(text: str, steps_per_epoch: int = ...) -> Schedule: ...
    def ratio_at(self, step: int) -> float: ...
    def raised(self, step: int, ratio: float) -> Schedule:
        """The same, but from a step on never less than a ratio."""

    def describe(self) -> str: ...

class Notice:
    """What a rank tells the others with a bucket. A failure is a code and a text."""

    bucket: int
    present: List[bool]
    nonfinite: bool
    parameters: Optional[int]
    def __init__(
        self,
        bucket: int,
        present: Sequence[bool],
        nonfinite: bool = ...,
        parameters: Optional[int] = ...,
        failure: Optional[Tuple[str, str]] = ...,
    ) -> None: ...

class Parcels:
    """All ranks' messages of a round, checked. Raises Error with the code of a rank that failed.
    `memory` is what the messages are in: it stays as long as they are used."""

    merged: Notice
    """What any rank said."""
    def __init__(
        self,
        messages: Sequence[Bytes],
        memory: Any,
        mine: Notice,
        step: int,
        schema: int,
        tensors: Sequence[Tuple[int, int]],
    ) -> None: ...
    def add_to(self, targets: Sequence[Array], alpha: float) -> None: ...
    def add_mean_of_senders(
        self, targets: Sequence[Array], alpha: float, whole: Sequence[bool]
    ) -> None:
        """Of each entry, over the ranks that sent it; tensors in `whole` were sent by all."""

    def entries(self, rank: int) -> List[Tuple[int, int, bytearray, bytearray]]:
        """Of each frame: tensor, elements, positions as int64, values as float32."""

def parse_link(text: str) -> Tuple[float, float]:
    """ "100Mbps,25ms" as bytes a second and seconds."""

def free_ratio(
    *,
    tensors: Sequence[Tuple[str, Sequence[int], bool]],
    options: Dict[str, Any],
    algorithm: str,
    workers: int,
    link: Tuple[float, float],
    compute: float,
    hidden: float,
    least: float,
) -> float:
    """The largest ratio at which an exchange is free, or nearly: Exchange::free_ratio."""

class Session:
    step: int
    @property
    def clip_factor(self) -> float: ...
    def __init__(
        self,
        *,
        tensors: Sequence[Tuple[str, Sequence[int], bool]],
        rank: int,
        workers: int,
        schedule: Schedule,
        schema: int,
        options: Dict[str, Any],
        owner: str = ...,
    ) -> None: ...
    def change_schedule(self, schedule: Schedule) -> None: ...
    def norm(self, gradients: Sequence[Array]) -> float: ...
    def compress(
        self,
        gradients: Sequence[Array],
        notice: Notice,
        out: int,
        room: int,
        scale: float,
        norm: Optional[float],
    ) -> int: ...
    def owner_bounds(self, tensors: Sequence[int], step: int) -> Tuple[int, int]:
        """Of a message to an owner, and of one from an owner."""

    def compress_for_owners(
        self, gradients: Sequence[Array], notice: Notice, scale: float, norm: Optional[float]
    ) -> List[bytearray]: ...
    def choose(self, tensors: Sequence[int], slices: Parcels, notice: Notice) -> bytearray: ...
    def feed_back(self, parcels: Parcels) -> None: ...
    def commit(self, frozen: Sequence[int]) -> None: ...
    def restore(self) -> None: ...
    def velocity(self, tensor: int) -> Tuple[int, int]: ...
    def residual(self, tensor: int) -> Tuple[int, int]: ...
    def sent(self) -> List[int]: ...

class HubMember:
    """A member of a hub's run, without its network: src/hub/member.h. `facts` is the hub's answer to
    GET /v1/run."""

    def __init__(
        self,
        *,
        facts: bytes,
        model: Sequence[Tuple[str, Sequence[int], bool]],
        buffers: Sequence[Tuple[str, Sequence[int], bool]],
        folder: str,
        threads: int,
    ) -> None: ...
    def set_data(self, positions: int, data: str, evaluates: bool) -> None: ...
    def todo(self) -> str:
        """ask, compute, evaluate or end."""

    def next_request(self, rtt: float) -> Tuple[str, str, bytes, bool]:
        """Method, path, body, and whether the answer may take as long as a round."""

    def take(self, answer: bytes) -> None: ...
    def leave(self) -> None: ...
    def save(self) -> None: ...
    def contribute(
        self,
        gradients: Sequence[Array],
        examples: int,
        loss: float,
        seconds: float,
        buffers: Tuple[int, int],
    ) -> None:
        """`buffers`: address of the first float, number of elements, which may be 0."""

    def evaluated(self, loss: float, metrics: Sequence[Tuple[str, float]]) -> None: ...
    def keep_with_residual(self, extra: Callable[[], bytes]) -> None: ...
    def take_saved_extra(self) -> Optional[bytes]: ...
    def went_back(self) -> Optional[Tuple[int, int, int]]:
        """Since the last call: to which message, messages after it, and their examples."""

    def hub_went_back(self) -> Optional[Tuple[int, int]]:
        """Since the last call: the round of this member, and the one that the hub was restored to."""

    def parameters(self) -> List[Tuple[int, int]]:
        """Of each tensor: address of its first float, number of elements."""

    def buffers(self) -> Tuple[int, int]:
        """Of all of them, one after the other. The address is good until the next take()."""

    def hash(self) -> int: ...
    @property
    def lease(self) -> Tuple[int, int, int, int]:
        """Sequence, epoch, first position, number of positions."""

    @property
    def round(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def ratio(self) -> float: ...
    @property
    def inner_lr(self) -> float: ...
    @property
    def wants_buffers(self) -> bool: ...
    @property
    def is_outstanding(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def message_bytes(self) -> int: ...

def read_packet(bytes: bytes) -> str:
    """The JSON of what a hub sends."""

def write_packet(head: str) -> bytes: ...
def epoch_order(count: int, seed: int, epoch: int) -> bytearray:
    """0 … count - 1 as int64, in the order of `dgc train`."""

def fail(code: str, operation: str, subject: str, problem: str, hint: str = ...) -> NoReturn: ...
def first_difference(texts: Sequence[str]) -> Optional[Tuple[int, str]]:
    """Of texts that should be the same: the first rank that differs from rank 0, and how."""

def old_ranks_of(rank: int, ranks: int, old_ranks: int) -> List[int]: ...
def active_target() -> str: ...
def entries_at(ratio: float, elements: int) -> int: ...
def frame_bound(elements: int, entries: int, values: str, indices: str) -> int: ...
def inspect_message(message: Any) -> Dict[str, Any]:
    """What is in a message of dgc, which is checked completely: step, sender, schema, bytes, notice, and its frames."""

def encode(
    frames: Sequence[Tuple[int, int, int, int, int, int, str, str]],
    notice: Notice,
    step: int,
    schema: int,
    sender: int,
    out: int,
    room: int,
) -> int: ...
def pack(
    frames: Sequence[Tuple[int, int, int, str, str, int, int, int]],
    notice: Notice,
    step: int,
    schema: int,
    sender: int,
    out: int,
    room: int,
) -> Tuple[int, List[int]]:
    """The size of the message, and how many entries of each frame are sent. Of each frame: tensor, elements, entries, value type, coding, address, bytes, and where to
    write what its entries decode to. Without the last, at the address are the sections of a frame;
    with it, entries: positions as 32 bits, unless the whole tensor is there, and values."""

def value_bytes(values: str, entries: int) -> int: ...
def notice_message(
    notice: Notice, step: int, schema: int, sender: int, out: int, room: int
) -> int: ...
def parcel_bound(tensors: int, contents: int) -> int: ...
def hash64(address: int, size: int, seed: int) -> int: ...
