"""join: a member of a run that a hub holds together. Members come and go.

A Member is a thin loop around hub::Member of libdgc (src/hub/member.h), which knows what to ask and
what answers mean. This file gives it parameters and gradients of PyTorch, and a network.
"""

import io
import math
import os
import sys
import time
from contextlib import nullcontext
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Sized, Union

import torch

from . import _check, _core
from ._courier import Courier, Request, Say
from ._enrolment import Facts, enrol
from ._hub_address import OPERATION, place_of
from ._hub_folder import Folder, Path, default_folder, given_token, name_of
from ._hub_model import Arrays, HubModel
from ._hub_order import Order, Work
from ._signals import Softly
from ._torch_versions import load_tensors

Inner = Callable[[List[torch.Tensor]], torch.optim.Optimizer]
Evaluate = Callable[[], Mapping[str, float]]

_GOOD_BYE = 40.0  # seconds for an answer to the last words of a member that leaves


def _say(line: str) -> None:
    print(f"dgc: {line}", file=sys.stderr, flush=True)


def join(
    url: str,
    model: torch.nn.Module,
    *,
    data: Union[int, Sized],
    pin: Optional[str] = None,
    token_file: Optional[Path] = None,
    name: Optional[str] = None,
    state: Optional[Path] = None,
    inner: Optional[Inner] = None,
    evaluate: Optional[Evaluate] = None,
    buffers: Union[bool, Sequence[str]] = True,
    data_name: str = "examples",
    seed: Optional[int] = None,
    threads: int = 1,
    signals: bool = True,
    insecure: Optional[str] = None,
    say: Say = _say,
) -> "Member":
    """Joins the run of the hub at `url`, with a model and a loop of one's own.

    ::

        member = dgc.join("https://hub.example.org:7077", model, pin="sha256:…", data=len(inputs))
        for work in member:
            chosen = work.indices
            loss = loss_function(model(inputs[chosen]), targets[chosen])
            loss.backward()
            member.contribute(loss)

    The token comes from the environment variable DGC_TOKEN, or from `token_file`. An invitation is
    exchanged for a token of the member's own, which is kept in the folder of its state: the next
    start needs no other.

    All members have the same model. The parameters of the first one to join begin the run; those of
    others are replaced. Optimizer, learning rate, momentum and weight decay are the hub's.

    :param data: the number of examples, or a data set that has a length. All members have the same
        data, unless the hub was started for private data.
    :param pin: what `dgc serve` prints: the hash of the hub's key. Without it, the hub's certificate
        has to be one that this system trusts.
    :param name: what the member is called; each process on a machine has another name. Default: the
        machine's name.
    :param state: folder in which the member keeps what it has not sent yet, and its token. Default:
        one for each hub and name below ~/.local/state/dgc. A process that comes back with the same
        folder goes on where it was.
    :param inner: makes the optimizer of local steps from a list of parameters, in runs that have
        them; see :class:`dgc.Member`.
    :param evaluate: called where the hub asks for it, in model.eval() and without gradients. Returns
        numbers by name: "loss", and others. Without it, another member evaluates.
    :param buffers: of the model, which members average: all that have fractions and are saved with
        it (True), none, or those with these names.
    :param data_name: what the data is. Members with another name, or number, are refused.
    :param seed: of the order of the examples; all members have the same. Default: that of the hub's
        settings, else 0.
    :param threads: that compress.
    :param signals: whether Ctrl-C and SIGTERM leave after the round. A second one ends at once.
    :param insecure: "anywhere" allows http:// to other machines.
    :param say: called with lines for people: who this is, why a request is tried again and when.
    """
    place = place_of(url, pin, insecure)
    hub_model = HubModel(model, buffers)
    count = len(data) if isinstance(data, Sized) else data
    count = _check.check(OPERATION, "data", count, _check.whole(1), "data=len(inputs)")
    called = name_of(name)
    courier = Courier(place, say)
    folder = Folder(state if state is not None else default_folder(place, called))
    try:
        answer = enrol(courier, folder, given_token(token_file), called)
        facts = Facts(answer)
        core_model, core_buffers = hub_model.specs()
        core = _core.HubMember(
            facts=answer,
            model=core_model,
            buffers=core_buffers,
            folder=os.fspath(folder.path),
            threads=_check.check(OPERATION, "threads", threads, _check.whole(1), "threads=2"),
        )
        named = _check.check(OPERATION, "data_name", data_name, _check.TEXT, "data_name='faces'")
        core.set_data(count, named, evaluate is not None)
        hub_model.give_to(core)
        order = Order(count, facts.seed(seed))
        member = Member(
            core, courier, folder, hub_model, order, facts, inner, evaluate, signals, say
        )
        member._ask()  # whether model and data are those of the run
        say(f"member '{member.name}' at {place}")
        return member
    except BaseException:
        folder.close()
        courier.disconnect()
        raise


def _optimizer(value: Any) -> torch.optim.Optimizer:
    if not isinstance(value, torch.optim.Optimizer):
        raise TypeError
    return value


def _bytes_of(optimizer: torch.optim.Optimizer) -> bytes:
    room = io.BytesIO()
    torch.save(optimizer.state_dict(), room)
    return room.getvalue()


class Member:
    """What :func:`dgc.join` returns: iterate over it for work, until the run is over.

    ::

        for work in member:
            chosen = work.indices
            loss = loss_function(model(inputs[chosen]), targets[chosen])
            loss.backward()
            member.contribute(loss)

    Before each work, the model has the parameters that all members have, and no gradients. When the
    loop ends, the model has the last parameters that this member knows.

    Ctrl-C, SIGTERM and :meth:`leave` end the loop after the round, and nothing is lost. A process that
    is killed comes back by calling :func:`dgc.join` again. It then goes on with what it had saved;
    what came in since then is done by others. Leaving the loop by ``break`` ends nothing: iterate
    again, or end the process.

    In a run with local steps, `inner` makes the optimizer, which steps through the work by itself. Its
    state is saved, too. Its learning rate is the hub's. What is sent is what the parameters changed by::

        member = dgc.join(url, model, pin=pin, data=len(inputs), inner=torch.optim.AdamW)
        for work in member:
            for chosen in work.batches(16):
                member.optimizer.zero_grad()
                loss = loss_function(model(inputs[chosen]), targets[chosen])
                loss.backward()
                member.optimizer.step()
            member.contribute(loss)
    """

    def __init__(
        self,
        core: _core.HubMember,
        courier: Courier,
        folder: Folder,
        model: HubModel,
        order: Order,
        facts: Facts,
        inner: Optional[Inner],
        evaluate: Optional[Evaluate],
        signals: bool,
        say: Say,
    ) -> None:
        self._core, self._courier, self._folder, self._model = core, courier, folder, model
        self._order, self._facts, self._evaluate = order, facts, evaluate
        self._signals, self._say = signals, say
        self._optimizer: Optional[torch.optim.Optimizer] = None
        facts.check_inner(inner is not None)
        if inner is not None:
            optimizer = inner([p for _, p in model.parameters])
            kind = _check.Kind("a function that makes an optimizer of PyTorch", _optimizer)
            _check.check(OPERATION, "inner", optimizer, kind, "inner=torch.optim.AdamW")
            self._optimizer = optimizer
            core.keep_with_residual(lambda: _bytes_of(optimizer))
        self._work: Optional[Work] = None  # that was handed out
        self._began = 0.0
        self._leaves = False
        self._parting: Optional[float] = None  # since when the last words are tried
        self._ended = False
        self._private_at: Optional[int] = None  # examples of private data that were handed out

    def __repr__(self) -> str:
        return f"<dgc.Member '{self.name}' of {self._courier.place}, round {self.round}>"

    # ---- what a user looks at --------------------------------------------------------------------

    @property
    def name(self) -> str:
        """As the hub has it."""
        return self._facts.name

    @property
    def round(self) -> int:
        """Rounds that the model's parameters have had."""
        return self._core.round

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return self._core.finished

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """That of local steps."""
        if self._optimizer is None:
            hint = "give inner=torch.optim.AdamW to dgc.join, for example"
            _core.fail("wrong_order", OPERATION, "optimizer", "is the hub's", hint)
        return self._optimizer

    @property
    def settings(self) -> Any:
        """What the hub tells its members of the run."""
        return self._facts.settings

    def hash(self) -> int:
        """Of the parameters: the same for all members after the same round."""
        return self._core.hash()

    # ---- training --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Work]:
        with Softly(self._asked_to_leave) if self._signals else nullcontext():
            while self._next() == "compute":
                self._work = self._make_work()
                self._model.forget_gradients()
                self._began = time.monotonic()
                yield self._work
                if self._work is not None and not self._leaves:
                    hint = "call member.contribute(loss) in the loop, or member.leave()"
                    _core.fail("wrong_order", OPERATION, "work", "was not contributed", hint)
            self._model.take(self._core, with_buffers=True)

    def contribute(
        self, loss: Union[float, torch.Tensor], *, examples: Optional[int] = None
    ) -> None:
        """Gives the gradients of the work: means over its examples, as after ``loss.backward()``. With
        local steps, gives the change of the parameters.

        :param loss: mean over the examples; for people.
        :param examples: by which the gradients are weighed. Default: those of the work.
        """
        if self._work is None:
            problem = "there is none to contribute to"
            _core.fail(
                "wrong_order", "contribute", "work", problem, "contribute once for each work"
            )
        kind = _check.whole(1)
        count = self._work.count if examples is None else examples
        count = _check.check("contribute", "examples", count, kind, "examples=len(chosen)")
        arrays = self._arrays()
        buffers = self._model.flat_buffers() if self._core.wants_buffers else torch.empty(0)
        self._core.contribute(
            arrays.places,
            count,
            float(loss.detach() if isinstance(loss, torch.Tensor) else loss),
            time.monotonic() - self._began,
            (buffers.data_ptr(), buffers.numel()),
        )
        self._work = None

    def leave(self) -> None:
        """Ends the loop after the round; the run goes on without this member."""
        self._leaves = True
        self._core.leave()

    def close(self) -> None:
        """Ends the connection and gives the folder free, at once, as if the process had been killed.
        Not needed after the loop."""
        self._ended = True
        self._courier.disconnect()
        self._folder.close()

    def _asked_to_leave(self) -> None:
        self._say("leaves after the round; once more ends at once")
        self.leave()

    def _arrays(self) -> Arrays:
        if self._optimizer is None:
            return self._model.gradients()
        return self._model.changes(self._core)

    # ---- between two pieces of work --------------------------------------------------------------

    def _next(self) -> str:
        """Talks to the hub until there is something to compute, or nothing any more."""
        while not self._ended:
            todo = self._core.todo()
            if todo == "compute":
                return todo
            if todo == "end":
                self.close()
            elif todo == "evaluate":
                self._do_evaluate()
            else:
                self._ask()
        return "end"

    def _ask(self) -> None:
        request = Request(*self._core.next_request(self._courier.round_trip))
        answer = self._courier.carry(request, lambda: self._needs_no_answer(request))
        if answer is not None:
            self._take(request, answer)
        elif self._is_late():
            self._say(
                "the hub does not answer: what is not sent stays in "
                f"{self._folder.path}, and goes on from there"
            )
            self.close()

    def _needs_no_answer(self, request: Request) -> bool:
        """Who leaves waits for the outcome of a message, but not for the next work; and not for long
        where the hub is away."""
        if not self._leaves:
            return False
        if self._parting is None:
            self._parting = time.monotonic()
        return self._is_late() or (request.waits and not self._core.is_outstanding)

    def _is_late(self) -> bool:
        return self._parting is not None and time.monotonic() - self._parting > _GOOD_BYE

    def _take(self, request: Request, answer: bytes) -> None:
        self._core.take(answer)
        extra = self._core.take_saved_extra()
        if extra is not None and self._optimizer is not None:
            self._optimizer.load_state_dict(load_tensors(io.BytesIO(extra)))
        back = self._core.hub_went_back()
        if back is not None:
            was, now = back
            self._say(
                f"the hub is at round {now}, and this member was at {was}: the hub was restored "
                "from an older copy; its parameters are taken"
            )
        lost = self._core.went_back()
        if lost is not None:
            to, messages, examples = lost
            self._say(
                f"back at message {to}, as it was saved; what {messages} later messages with "
                f"{examples} examples kept back is lost, and their examples are done again"
            )

    def _make_work(self) -> Work:
        core = self._core
        self._model.take(core)
        sequence, epoch, first, count = core.lease
        if self._facts.private_data:
            if self._private_at is None:
                # About where it was when it comes back: each message had about as many.
                self._private_at = (sequence - 1) * count
            epoch, first = divmod(self._private_at, self._order.count)
            self._private_at += count
        if self._optimizer is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = core.inner_lr
        step = self._facts.step or count
        return Work(core.round, epoch, first, count, core.inner_lr, step, self._order)

    def _do_evaluate(self) -> None:
        if self._evaluate is None:
            self._core.evaluated(0.0, [])
            return
        self._model.take(self._core, with_buffers=True)
        modes = [(module, module.training) for module in self._model.module.modules()]
        self._model.module.eval()
        try:
            with torch.no_grad():
                found = {name: float(value) for name, value in self._evaluate().items()}
        finally:
            for module, training in modes:
                module.training = training
        bad = [name for name, value in found.items() if not math.isfinite(value)]
        for name in bad:
            self._say(f"evaluation: {name} is {found.pop(name)}, which is not reported")
        loss = found.pop("loss", None)
        metrics = list(found.items()) or ([] if loss is None else [("loss", loss)])
        self._core.evaluated(loss or 0.0, metrics)
