"""What a source of instances is: it runs for ever and reports; each report stands until the next."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from evenload.settings import InstanceSettings


class Found(NamedTuple):
    """One instance, as a source knows it.

    Attributes:
        instance: with its id as the source has it.
        ready: whether the source says that it takes requests.
        mark: what differs for another process under the same id and address; empty if the source cannot tell.
    """

    instance: InstanceSettings
    ready: bool = True
    mark: str = ""

    @property
    def identity(self) -> str:
        """What differs for anything else under the same id."""
        return f"{self.instance.url} {self.mark}".rstrip()


class Listener(Protocol):
    """Who a source reports to."""

    def found(self, instances: Sequence[Found]) -> None:
        """These there are now, and no others."""

    def failed(self, reason: str) -> None:
        """Nothing can be said now: what was found last stands. Repeated reasons are told once."""


class Source(Protocol):
    """Follows where instances come from."""

    async def run(self, listener: Listener) -> None:
        """Report to `listener` until cancelled."""
