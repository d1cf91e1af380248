"""Checks of what users give: the value in the form that the package uses, or a clear Error."""

import math
import numbers
from typing import Any, Callable, List, NamedTuple, NoReturn, Sequence

from . import _core


class Kind(NamedTuple):
    """What a value has to be."""

    wanted: str  # for people
    # The value in one form. Raises TypeError, ValueError or OverflowError where it is another kind.
    read: Callable[[Any], Any]


def shown(value: Any) -> str:
    """The value and its type, short enough for a message."""
    text = repr(value).split("\n")[0]
    text = text if len(text) <= 60 else text[:57] + "..."
    return text if value is None else f"{text} ({type(value).__name__})"


def refuse(operation: str, name: str, value: Any, wanted: str, example: str) -> NoReturn:
    _core.fail(
        "invalid_argument",
        operation,
        name,
        f"is {shown(value)}, but has to be {wanted}",
        f"for example {example}",
    )


def check(operation: str, name: str, value: Any, kind: Kind, example: str) -> Any:
    try:
        return kind.read(value)
    except (TypeError, ValueError, OverflowError):
        refuse(operation, name, value, kind.wanted, example)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
        raise TypeError
    return float(value)


def whole(least: int, what: str = "a whole number") -> Kind:
    """An integer that also fits into 63 bits."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError
        number = int(value)
        if not least <= number < 2**63:
            raise ValueError
        return number

    return Kind(f"{what}, {least} or more", read)


def within(least: float, below: float = math.inf) -> Kind:
    """A finite number of a half-open range."""

    def read(value: Any) -> float:
        number = _number(value)
        if not least <= number < below:
            raise ValueError
        return number

    end = "or more" if math.isinf(below) else f"up to, but not including, {below:g}"
    return Kind(f"a number, {least:g} {end}", read)


def _share(value: Any) -> float:
    number = _number(value)
    if not 0.0 < number <= 1.0:
        raise ValueError
    return number


def _flag(value: Any) -> bool:
    # NumPy's has another type and the same two values.
    if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
        raise TypeError
    return bool(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _names(value: Any) -> List[str]:
    if isinstance(value, (str, bytes)):
        raise TypeError  # a text is a sequence of texts, too
    return [_text(name) for name in value]


SHARE = Kind("a number above 0, 1 at the most", _share)
FLAG = Kind("True or False", _flag)
TEXT = Kind("a text", _text)
NAMES = Kind("a list of names", _names)


def one_of(names: Sequence[str]) -> Kind:
    def read(value: Any) -> str:
        if value not in names:
            raise ValueError
        return _text(value)

    return Kind(f"one of {', '.join(names)}", read)


def optional(kind: Kind, without: Any = None) -> Kind:
    """None, too, which stands for `without`."""
    return Kind(
        f"{kind.wanted}, or None", lambda value: without if value is None else kind.read(value)
    )
