"""What all sections have in common, and the number types they share."""

import logging
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the settings: frozen, and without room for unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


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
