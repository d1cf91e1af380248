"""The signals that ask a process to end."""

import signal
import threading
from types import FrameType
from typing import Any, Callable, Dict, Optional

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Softly:
    """While it is entered, the first SIGINT or SIGTERM calls `asked`. The next one does what it did
    before. In other threads than the first, where Python has no signals, it does nothing."""

    def __init__(self, asked: Callable[[], None]) -> None:
        self._asked = asked
        self._before: Dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.getsignal(number)
            # Ignored, or handled by what is not Python: so it stays.
            if before is not None and before != signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._came)

    def __exit__(self, *_: object) -> None:
        while self._before:
            number, before = self._before.popitem()
            signal.signal(number, before)

    def _came(self, number: int, frame: Optional[FrameType]) -> None:
        self.__exit__()
        self._asked()
