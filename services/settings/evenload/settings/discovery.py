"""Where a pool's instances come from besides its list, and what they are called."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from evenload.settings.base import Section
from evenload.settings.instances import InstanceSettings

_HOST_PORT = re.compile(r"[A-Za-z0-9._-]+:([0-9]{1,5})")
_SRV = re.compile(r"_[A-Za-z0-9-]+\._(?:tcp|udp)\.[A-Za-z0-9._-]+")
_SERVICE = re.compile(r"(?:[a-z0-9-]+/)?[a-z0-9.-]+:[a-z0-9-]+")
KINDS = ("file", "dns", "srv", "kubernetes")
_OWN = ("id", "url", "preset")
_PLACEHOLDER = "http://template.invalid"


class SourceSettings(Section):
    """One source of instances; exactly one of `file`, `dns`, `srv` and `kubernetes`."""

    file: Path | None = Field(
        None, description="YAML or JSON file with a list `instances`, as in a pool; it is watched."
    )
    dns: str | None = Field(
        None, max_length=260, description="`name:port`; each A and AAAA address of the name is an instance."
    )
    srv: str | None = Field(
        None,
        max_length=255,
        description="Name of SRV records, `_http._tcp.engines.internal`; each target is an instance.",
    )
    kubernetes: str | None = Field(
        None,
        max_length=320,
        description="`[namespace/]service:port`, the port by name or number; each endpoint in its EndpointSlices is an "
        "instance. Needs the extra `kubernetes`.",
    )
    scheme: Literal["http", "https"] = Field("http", description="Of the URLs made from names and addresses.")
    nameservers: tuple[str, ...] = Field(
        (), max_length=10, description="Name servers as `IP` or `IP:port`; empty asks those of the system."
    )
    kubeconfig: Path | None = Field(
        None, description="Kubeconfig to use outside of a cluster; null takes the pod's service account."
    )
    template: dict[str, Any] = Field(
        default_factory=dict,
        max_length=50,
        description="Keys of `pools[].instances[]` for all instances of this source, for instance `kind`, "
        "`api_key_env` and `ca_file`.",
    )

    @property
    def kind(self) -> str:
        """Which of the sources it is."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def label(self) -> str:
        """Name for people and metrics, `dns engines:8000` for instance."""
        return f"{self.kind} {getattr(self, self.kind)}"

    @field_validator("dns")
    @classmethod
    def _is_host_port(cls, value: str | None) -> str | None:
        if value is not None:
            match = _HOST_PORT.fullmatch(value)
            if match is None or not 1 <= int(match[1]) <= 65535:
                raise PydanticCustomError("source", "must be `name:port`")
        return value

    @field_validator("srv")
    @classmethod
    def _is_srv(cls, value: str | None) -> str | None:
        if value is not None and not _SRV.fullmatch(value):
            raise PydanticCustomError("source", "must be a name like `_http._tcp.engines.internal`")
        return value

    @field_validator("kubernetes")
    @classmethod
    def _is_service(cls, value: str | None) -> str | None:
        if value is not None and not _SERVICE.fullmatch(value):
            raise PydanticCustomError("source", "must be `[namespace/]service:port`")
        return value

    @field_validator("nameservers")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            try:
                server_of(text)
            except ValueError:
                raise PydanticCustomError("source", "must be addresses, `10.0.0.2` or `10.0.0.2:53`") from None
        return value

    @model_validator(mode="after")
    def _is_one(self) -> "SourceSettings":
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise PydanticCustomError("source", f"needs exactly one of {', '.join(KINDS)}")
        if owned := [key for key in _OWN if key in self.template]:
            raise PydanticCustomError("source", f"template: {owned[0]} is what the source says")
        try:
            _ = self.sample
        except ValidationError as error:
            found = error.errors()[0]
            where = ".".join(str(part) for part in found["loc"])
            raise PydanticCustomError("source", f"template: {where}: {found['msg']}") from None
        return self

    @property
    def sample(self) -> InstanceSettings:
        """An instance that has what all of this source have."""
        return self.instance({"url": _PLACEHOLDER})

    def instance(self, data: dict[str, Any]) -> InstanceSettings:
        """Make an instance of this source, of its template and what is known of the one.

        Raises:
            ValidationError: it cannot be one.
        """
        return InstanceSettings.model_validate({**self.template, **data})


class DiscoverySettings(Section):
    """How sources are followed, and the changes that operators make."""

    changes_file: Path | None = Field(
        None,
        description="File of the instances that operators add and remove by the admin API; written by routers, watched "
        "by all processes that name it. Null: nothing can be added or removed that way.",
    )
    look_s: float = Field(1.0, ge=0.05, le=3600, description="Time between two looks at a watched file.")
    ttl_s_min: float = Field(5.0, ge=0.05, le=3600, description="DNS is asked again no sooner, whatever its TTL.")
    ttl_s_max: float = Field(60.0, ge=0.05, le=86_400, description="And no later.")
    leave_s_max: float = Field(
        600,
        ge=1,
        le=86_400,
        description="An instance that was taken out drains until its requests have ended, but no longer than this; "
        "then the log says that it left.",
    )


def server_of(text: str) -> tuple[str, int]:
    """Return address and port of a name server.

    Raises:
        ValueError: it is none.
    """
    try:
        return str(ip_address(text.strip("[]"))), 53
    except ValueError:
        parts = urlsplit(f"//{text}")
        return str(ip_address(parts.hostname or "")), parts.port or 53


def qualified(pool: str, instance: str) -> str:
    """Return the id of a discovered instance: its pool stands in front, and so tells everybody how it is scored."""
    return instance if instance.startswith(f"{pool}:") else f"{pool}:{instance}"


def pool_in(instance: str) -> str:
    """Return the pool that stands in front of a discovered instance's id."""
    return instance.partition(":")[0]
