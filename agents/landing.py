"""Cached prefixes that come from the other cluster."""

from __future__ import annotations

from collections.abc import Callable

from agents import config, wire
from agents.prefix_files import LostError, PrefixFiles, ends
from agents.profiles import MODELS
from agents.transport.receiver import Arrival, Receiver


class Landing:
    """Says of each prefix that has arrived that it is here; with `files` it is in them by then.

    What to call it there comes from the router, and may come later than the prefix, which waits for it then.
    `tell` speaks to the router.
    """

    def __init__(
        self,
        settings: config.Config,
        receiver: Receiver,
        tell: Callable[..., None],
        files: PrefixFiles | None,
    ) -> None:
        self._model = MODELS[settings.model]
        self._receiver, self._tell, self._files = receiver, tell, files
        self._expected: dict[int, wire.Message] = {}
        self._waiting: dict[int, Arrival] = {}

    def expect(self, message: wire.Message) -> None:
        """A prefix will come, or has come."""
        self._expected[message["id"]] = message
        self._look(message["id"])

    def arrived(self, arrival: Arrival) -> None:
        """All of it is here and right."""
        if self._files is None:
            self._receiver.release(arrival.number)
            self._tell("fetched", id=arrival.number)
            return
        self._waiting[arrival.number] = arrival
        self._look(arrival.number)

    def cancel(self, number: int) -> None:
        """Nobody wants it any more, whether it has come, comes, or will."""
        if self._expected.pop(number, None) is not None:
            self._waiting.pop(number, None)
            self._receiver.drop(number, "cancelled")

    def forget(self) -> None:
        """The router that asked for all this is no more."""
        for number in self._waiting:
            self._receiver.release(number)
        self._expected.clear()
        self._waiting.clear()

    def _look(self, number: int) -> None:
        if number not in self._expected or number not in self._waiting:
            return
        message, arrival = self._expected.pop(number), self._waiting.pop(number)
        try:
            self._keep(message, arrival)
        except LostError as error:
            self._tell("failed", id=number, cause=str(error))
        else:
            self._tell("fetched", id=number)
        self._receiver.release(number)

    def _keep(self, message: wire.Message, arrival: Arrival) -> None:
        """Its blocks, and the states behind the last one."""
        assert self._files is not None
        assert arrival.data is not None
        chain, tokens, came = message["chain"], message["prompt_tokens"], message["kv_tokens"]
        parts = ends(self._model, arrival.data, tokens, came)
        self._files.write_rows(chain, tokens, parts, came)
        self._files.write_states(chain, tokens, dict(enumerate(parts)))
