"""How somebody who was given a hub's address and a token becomes a member."""

import json
from typing import Any, Optional

from . import _check, _core
from ._courier import Courier, Request, facts_of, read_head
from ._hub_address import OPERATION
from ._hub_folder import VARIABLE, Folder


class Facts:
    """What a hub tells everybody with a token, as `dgc serve` makes it."""

    def __init__(self, answer: bytes) -> None:
        head = facts_of(answer)
        self.name = str(head.get("name", ""))
        self.private_data = bool(head.get("private_data"))
        try:
            self.settings: Any = json.loads(head["settings"])
        except (KeyError, TypeError, ValueError):
            self.settings = None

    def _setting(self, name: str) -> Any:
        """Of training."""
        try:
            return self.settings["settings"][name]
        except (KeyError, TypeError):
            return None

    def seed(self, given: Optional[int]) -> int:
        """Of the order of the examples: given, else the hub's."""
        found = self._setting("seed")
        seed = given if given is not None else found if isinstance(found, int) else 0
        return int(_check.check(OPERATION, "seed", seed, _check.whole(0), "seed=1"))

    @property
    def step(self) -> Optional[int]:
        """Examples of one local step; None where the hub does not say."""
        found = self._setting("batch")
        return found if isinstance(found, int) and found > 0 else None

    def check_inner(self, given: bool) -> None:
        mode = self.settings.get("mode") if isinstance(self.settings, dict) else None
        if mode == "dgc-local" and not given:
            hint = "give inner=torch.optim.AdamW, or what the run trains with"
            problem = "is missing: the run has local steps"
            _core.fail("invalid_argument", OPERATION, "inner", problem, hint)
        if mode == "dgc" and given:
            problem = "is given, but the run has no local steps: it takes gradients"
            hint = "leave it out, or start the hub with --mode dgc-local"
            _core.fail("invalid_argument", OPERATION, "inner", problem, hint)


def _run(courier: Courier) -> bytes:
    answer = courier.carry(Request("GET", "/v1/run"), lambda: False)
    assert answer is not None  # nobody stops it
    return answer


def enrol(courier: Courier, folder: Folder, given: Optional[str], name: str) -> bytes:
    """What the hub tells of its run, with the token that `courier` has then: the one that the folder
    keeps, else `given`. An invitation is exchanged for a token of the member's own, called `name` or
    like it, which the folder keeps for the next time."""
    kept = folder.token()
    if kept is not None:
        courier.token = kept
        answer = _run(courier)
        # Another hub may be there by now; else whoever runs this one does not want this member.
        if given is None or read_head(answer).get("subject") != "token":
            facts_of(answer)
            return answer
    if given is None:
        hint = f"`dgc serve` prints a line with it; set {VARIABLE}, or give token_file="
        _core.fail("invalid_argument", OPERATION, VARIABLE, "is not set", hint)
    courier.token = given
    answer = _run(courier)
    facts = facts_of(answer)
    right = facts.get("right")
    if right == "read":
        subject, problem = f"token '{facts.get('name')}'", "is for looking at the run only"
        _core.fail("invalid_argument", OPERATION, subject, problem, "ask for one to work with")
    if right != "invite":
        return answer
    body = _core.write_packet(json.dumps({"name": name}))
    token = courier.carry(Request("POST", "/v1/enroll", body), lambda: False)
    assert token is not None
    courier.token = str(facts_of(token).get("token", ""))
    folder.keep_token(courier.token)
    return _run(courier)
