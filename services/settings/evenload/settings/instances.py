"""One instance: where it is, how it is asked, and what it is within its pool."""

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from evenload.settings.base import Section
from evenload.settings.providers import Auth, PresetName, checked_headers, checked_query, filled, plain_path

DEFAULT_PORTS = {"http": 80, "https": 443}
URL_SHAPE = "must be http(s)://host[:port][/prefix]"


def base_url(text: str) -> str:
    """Check and normalise an instance's address.

    Returns:
        The URL without a slash or `/v1` at its end; OpenAI's clients want that, but `/metrics` is not below it. Another
        version at its end, as in `/api/v3`, stays: it takes the place of `/v1`.

    Raises:
        PydanticCustomError: It is not `http(s)://host[:port][/prefix]`.
    """
    try:
        parts = urlsplit(text)
        port_ok = parts.port is None or parts.port > 0
        (parts.hostname or "").encode("idna")  # as a connection will: labels of 1 to 63 characters
    except ValueError:
        raise PydanticCustomError("base_url", URL_SHAPE) from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or not port_ok:
        raise PydanticCustomError("base_url", URL_SHAPE)
    if "@" in parts.netloc:
        raise PydanticCustomError("base_url", URL_SHAPE + "; name the variable that holds a key in api_key_env")
    if parts.query or parts.fragment or any(c.isspace() for c in text):
        raise PydanticCustomError("base_url", URL_SHAPE + ", without query, fragment or spaces")
    if not (text.isascii() and text.isprintable()):
        raise PydanticCustomError("base_url", URL_SHAPE + " in ASCII: a path percent-encoded, a host as xn--...")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def page_url(text: str) -> str:
    """Check the address of a page; a path that is not given is `/metrics`.

    Raises:
        PydanticCustomError: It is not `http(s)://host[:port][/path]`.
    """
    checked = base_url(text)
    return text if urlsplit(text).path.strip("/") else checked + "/metrics"


def host_port(url: str) -> str:
    """Derive an instance id from its URL: `http://gpu-1:8000/v1x` is `gpu-1:8000`."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or DEFAULT_PORTS[parts.scheme]}"


class InstanceSettings(Section):
    """One engine, or one provider's endpoint."""

    id: str = Field(
        "",
        pattern=r"^[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]*$",
        max_length=128,
        description="Name in telemetry and decisions; unique in the file. Host and port of the URL if not given.",
    )
    preset: PresetName | None = Field(
        None, description="A provider whose address, path and authentication are known: docs/providers.md."
    )
    url: Annotated[str, AfterValidator(base_url)] = Field(
        max_length=2048,
        description="Base address: `http(s)://host[:port][/prefix]`. A version at its end (`/v1`, `/api/v3`) takes the "
        "place of the `/v1` that clients ask for.",
    )
    kind: Literal["auto", "vllm", "sglang", "trtllm", "triton", "tgi", "llamacpp", "none"] = Field(
        "auto",
        description="Whose metrics are polled; `auto` finds out by what they say (docs/engines.md); `none` for a "
        "provider without gauges, as with a preset.",
    )
    metrics_url: Annotated[str, AfterValidator(page_url)] | None = Field(
        None,
        max_length=2048,
        description="Address of the metrics page if it is not below `url`, for instance Triton's port 8002.",
    )
    auth: Auth = Field(
        "bearer",
        description="How the key is sent: `Authorization: Bearer`, a header of its own, or not at all, but with AWS "
        "credentials as a signature (extra `bedrock`). A preset has its own default.",
    )
    api_key_env: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        max_length=128,
        description="Environment variable that holds the key of this instance. A preset has its own default.",
    )
    api_key_file: Path | None = Field(
        None, description="File that holds the key instead; it is read again when it changes."
    )
    region: str | None = Field(
        None, pattern=r"^[a-z0-9-]+$", max_length=64, description="AWS region, for preset `bedrock` and `sigv4`."
    )
    model_names: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict,
        max_length=1000,
        description="The instance's name of a model (at Azure: deployment) by the name that clients ask for; `*` for "
        "all others.",
    )
    deployments: bool = Field(
        default=False, description="Whether the model is part of the path, as in preset `azure-deployments`."
    )
    query: dict[str, str] = Field(
        default_factory=dict, max_length=100, description="Query of requests to this instance, instead of the client's."
    )
    headers: dict[str, str] = Field(
        default_factory=dict, max_length=100, description="More headers of requests to this instance; no credentials."
    )
    ca_file: Path | None = Field(
        None, description="PEM file of the authorities that are trusted for this instance, instead of the system's."
    )
    weight: float = Field(
        1,
        gt=0,
        le=1000,
        description="Share: it gets the requests of so many instances of weight 1 (docs/providers.md).",
    )
    priority: int = Field(
        0, ge=0, le=100, description="Tier: the lowest serves, the next joins as the pool's `spill_over_ms` says."
    )

    @field_validator("headers")
    @classmethod
    def _headers(cls, value: dict[str, str]) -> dict[str, str]:
        return checked_headers(value)

    @field_validator("query")
    @classmethod
    def _query(cls, value: dict[str, str]) -> dict[str, str]:
        return checked_query(value)

    @model_validator(mode="after")
    def _one_way_to_authenticate(self) -> "InstanceSettings":
        if self.api_key_env is not None and self.api_key_file is not None:
            raise PydanticCustomError("auth", "api_key_env and api_key_file exclude each other")
        if self.auth == "sigv4" and (self.api_key_env or self.api_key_file):
            raise PydanticCustomError("auth", "auth sigv4 signs with AWS credentials; api_key_env and _file do not fit")
        if self.auth == "sigv4" and self.region is None:
            raise PydanticCustomError("auth", "auth sigv4 needs a region, for instance us-west-2")
        if self.auth == "sigv4" and plain_path(self.url) != self.url:
            reason = "auth sigv4 signs the path in one form only: write {url} as url"
            raise PydanticCustomError("auth", reason, {"url": plain_path(self.url)})
        return self

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: Any) -> Any:
        """Fill in what the preset says, and the id; a URL that cannot be read is reported by its own validator."""
        if not isinstance(data, dict):
            return data
        data = filled(data)
        if data.get("id"):
            return data
        try:
            return {**data, "id": host_port(base_url(str(data.get("url"))))}
        except PydanticCustomError:
            return {**data, "id": "unknown"}
