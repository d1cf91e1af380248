"""Carries a member's requests to a hub: one at a time, on one connection that is made again when it
is lost."""

import http.client
import json
import random
import select
import socket
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from . import _core
from ._hub_address import OPERATION, PORT, Place, check_tls, connection_to

Say = Callable[[str], None]
# Whether what is under way is to be given up.
Stop = Callable[[], bool]

_SILENCE = 60.0  # seconds between two pieces of a request or an answer
_ROUND = 90.0  # until an answer that may wait for a round; a hub lets nobody wait half as long
_LOOK = 0.2  # between two looks at `stop`
_PIECE = 1 << 16
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Request(NamedTuple):
    method: str
    path: str
    body: bytes = b""
    waits: bool = False


class _Away(Exception):
    """The hub answers, but cannot do what it is asked for now."""


class _Stopped(Exception):
    """Whoever asked does not want an answer any more."""


class Courier:
    """The token is in the header of each request, and nowhere else."""

    def __init__(self, place: Place, say: Say) -> None:
        self.place = place
        self.token = ""
        self.round_trip = 0.0  # of the last request that did not wait for a round, in seconds
        self._say = say
        self._connection: Optional[http.client.HTTPConnection] = None

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def carry(self, request: Request, stop: Stop) -> Optional[bytes]:
        """The body of the answer, which may be an error of the hub's. Repeats the request until
        there is one; None where `stop` said so, which is asked between attempts, and while an answer
        waits for a round."""
        pause, failed = _FIRST_PAUSE, False
        while True:
            try:
                answer = self._attempt(request, stop)
                if failed:
                    self._say(f"{self.place} answers again")
                return answer
            except _Stopped:
                return None
            except (_Away, OSError, http.client.HTTPException) as error:
                check_tls(self.place, error)
                # By chance a little more or less, so that members do not come back all at once.
                wait = pause * random.uniform(0.75, 1.25)
                why = str(error) or type(error).__name__
                self._say(f"no answer from {self.place} ({why}); trying again in {wait:.1f} s")
            failed = True
            if self._rest(wait, stop):
                return None
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _rest(self, seconds: float, stop: Stop) -> bool:
        end = time.monotonic() + seconds
        while not stop():
            left = end - time.monotonic()
            if left <= 0.0:
                return False
            time.sleep(min(left, _LOOK))
        return True

    def _attempt(self, request: Request, stop: Stop) -> bytes:
        status, answer = self._exchange(request, stop)
        if answer.startswith(b"DGCH"):
            if status == 503:
                raise _Away(problem_in(answer))
            return answer
        if status >= 500 or status == 429:
            raise _Away(f"HTTP {status}")
        problem = f"answers with HTTP {status}, and not as a hub does"
        hint = f"is the address right? A hub's port is usually {PORT}"
        _core.fail("bad_magic", OPERATION, str(self.place), problem, hint)

    def _exchange(self, request: Request, stop: Stop) -> Tuple[int, bytes]:
        old = self._connection
        if old is not None:
            try:
                return self._over(old, request, stop)
            except (OSError, http.client.HTTPException):
                pass  # it was closed meanwhile: a new one may do
        self._connection = connection_to(self.place)
        return self._over(self._connection, request, stop)

    def _over(
        self, connection: http.client.HTTPConnection, request: Request, stop: Stop
    ) -> Tuple[int, bytes]:
        try:
            connected = connection.sock is not None
            if not connected:
                connection.connect()
                _set_up(connection.sock)
            begin = time.monotonic()
            connection.putrequest(request.method, request.path, skip_accept_encoding=True)
            connection.putheader("Authorization", f"Bearer {self.token}")
            if request.method != "GET":
                connection.putheader("Content-Type", "application/octet-stream")
                connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders()
            # The time that may pass without a byte is that of a piece.
            for at in range(0, len(request.body), _PIECE):
                connection.send(request.body[at : at + _PIECE])
            if request.waits:
                _wait(connection.sock, stop)
            response = connection.getresponse()
            answer = response.read()
            if not request.waits:
                self.round_trip = time.monotonic() - begin
            return response.status, answer
        except BaseException:  # an answer may still come: not to the next request
            self.disconnect()
            raise


def _set_up(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.settimeout(_SILENCE)


def _wait(sock: socket.socket, stop: Stop) -> None:
    """Until there is something to read."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    end = time.monotonic() + _ROUND
    while not poll.poll(_LOOK * 1000):
        if stop():
            raise _Stopped
        if time.monotonic() > end:
            raise TimeoutError(f"nothing came for {_ROUND:.0f} s")


def read_head(answer: bytes) -> Dict[str, Any]:
    """The JSON of an answer. Raises Error where it is none."""
    head: Dict[str, Any] = json.loads(_core.read_packet(answer))
    return head


def facts_of(answer: bytes) -> Dict[str, Any]:
    """The same. Raises the Error that the hub answers with."""
    head = read_head(answer)
    if "error" in head:
        parts = (str(head.get(part, "")) for part in ("subject", "problem", "hint"))
        _core.fail(str(head["error"]), "hub", *parts)
    return head


def problem_in(answer: bytes) -> str:
    """What an error of the hub's says, in short."""
    head = read_head(answer)
    return f"{head.get('subject', 'hub')}: {head.get('problem', 'is not ready')}"
