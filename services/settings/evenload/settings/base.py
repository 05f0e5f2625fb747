"""What all sections have in common, and the number types they share."""

import logging
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/@]+):([0-9]{1,5})")


class Section(BaseModel):
    """A part of the settings: frozen, and without room for unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


def listen_address(text: str) -> str:
    """Check where a process is to listen.

    Raises:
        PydanticCustomError: It is not `host:port`.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= 65535:
        raise PydanticCustomError("address", "must be `host:port` or `[IPv6]:port`")
    return text


def host_and_port(address: str) -> tuple[str, int]:
    """Split what `listen_address` has checked."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


ListenAddress = Annotated[str, AfterValidator(listen_address)]
Port = Annotated[int, Field(ge=1, le=65535)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=128)]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class LogSettings(Section):
    """How every process writes its log."""

    level: LogLevel = Field("info", description="Least level that is written.")
    format: LogFormat = Field("text", description="One line of text or one JSON object per record, on stderr.")

    @property
    def level_number(self) -> int:
        """The level as the standard library counts it."""
        return logging.getLevelNamesMapping()[self.level.upper()]
