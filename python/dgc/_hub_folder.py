"""What a member keeps on its disk: its token, and beside it what hub::Member saves there."""

import fcntl
import os
import pathlib
import re
import socket
from typing import Optional, Union

from . import _check, _core
from ._hub_address import OPERATION, Place

Path = Union[str, "os.PathLike[str]"]
VARIABLE = "DGC_TOKEN"
_TOKEN = "token"


def given_token(token_file: Optional[Path]) -> Optional[str]:
    """From the file, or from the environment. No error shows it."""
    if token_file is None:
        text = os.environ.get(VARIABLE, "").strip()
        return _checked(VARIABLE, text) if text else None
    return _read_token(pathlib.Path(token_file))


def _read_token(file: pathlib.Path) -> str:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        _core.fail("io", OPERATION, str(file), f"cannot be read: {reason}")
    return _checked(str(file), text.strip())


def _checked(subject: str, token: str) -> str:
    if not re.fullmatch(r"[!-~]+", token):
        hint = "copy the whole token, and nothing else"
        _core.fail("invalid_argument", OPERATION, subject, "has no token of a hub", hint)
    return token


def name_of(name: Optional[str]) -> str:
    """What the member is to be called; by default as the machine."""
    if name is None:
        machine = socket.gethostname().split(".")[0]
        return re.sub(r"[^A-Za-z0-9_-]", "-", machine)[:56] or "member"
    text = str(_check.check(OPERATION, "name", name, _check.TEXT, "name='anna'"))
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,56}", text):
        problem = f"{text!r} is no name of a member"
        hint = "use up to 56 letters, digits, '-' and '_'"
        _core.fail("invalid_argument", OPERATION, "name", problem, hint)
    return text


def default_folder(place: Place, name: str) -> pathlib.Path:
    """The same as of `dgc join`."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local/state")
    return pathlib.Path(home, "dgc", f"{place.host.replace(':', '-')}-{place.port}", name)


class Folder:
    """One process uses it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = pathlib.Path(path)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The folder itself, as `dgc join` does it: the two exclude each other.
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            problem = f"cannot be used: {error.strerror}"
            _core.fail("io", OPERATION, str(self.path), problem, "give another folder by state=")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            problem = "is in use by another member"
            hint = "give each on a machine a name= or state= of its own, or close() the old one"
            _core.fail("io", OPERATION, str(self.path), problem, hint)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def token(self) -> Optional[str]:
        """That was kept here."""
        file = self.path / _TOKEN
        return _read_token(file) if file.exists() else None

    def keep_token(self, token: str) -> None:
        """For this user alone."""
        made = self.path / (_TOKEN + ".new")
        made.unlink(missing_ok=True)
        handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w") as file:
            file.write(token + "\n")
            file.flush()
            os.fsync(file.fileno())
        made.replace(self.path / _TOKEN)
