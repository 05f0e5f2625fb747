"""What is known of providers: address, path and authentication of each preset. docs/providers.md has their sources."""

import posixpath
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from pydantic_core import PydanticCustomError

Auth = Literal["bearer", "api-key", "x-api-key", "sigv4"]
PresetName = Literal["openai", "qwen", "hunyuan", "ark", "bedrock", "azure", "azure-deployments"]

AZURE_API_VERSION = "2024-10-21"  # the last stable one of the deployments paths
KEY_BYTES_MAX = 16 * 1024

_VERSION = re.compile(r"/v\d+[a-z0-9]*(?:/openai)?\Z")
# What follows the base in the address of one call, as Azure's portal shows it.
_AZURE_CALL = re.compile(
    r"(?:/openai)?(?:/deployments(?:/(?P<deployment>[^/]+).*)?|(?:/v1)?/(?:chat/completions|completions|embeddings|responses))\Z"
)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")
_CREDENTIALS = frozenset(
    {
        "api-key",
        "authorization",
        "cookie",
        "ocp-apim-subscription-key",
        "proxy-authorization",
        "x-amz-security-token",
        "x-api-key",
        "x-goog-api-key",
    }
)
_FRAMING = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"})


class Preset(NamedTuple):
    """Defaults of one kind of provider.

    Attributes:
        url: its address; `{region}` stands for the region, empty where each customer has an own one.
        key_env: the variable that its own tools read the key from.
        deployments: the model is part of the path.
        example: what `url` looks like where there is no default.
    """

    url: str
    key_env: str
    auth: Auth = "bearer"
    query: tuple[tuple[str, str], ...] = ()
    deployments: bool = False
    example: str = ""


PRESETS: dict[str, Preset] = {
    "openai": Preset("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "qwen": Preset("https://dashscope.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    "hunyuan": Preset("https://api.hunyuan.cloud.tencent.com/v1", "HUNYUAN_API_KEY"),
    "ark": Preset("https://ark.cn-beijing.volces.com/api/v3", "ARK_API_KEY"),
    "bedrock": Preset("https://bedrock-runtime.{region}.amazonaws.com/openai/v1", "AWS_BEARER_TOKEN_BEDROCK"),
    "azure": Preset(
        "", "AZURE_OPENAI_API_KEY", "api-key", example="https://RESOURCE.openai.azure.com/openai/v1"
    ),
    "azure-deployments": Preset(
        "",
        "AZURE_OPENAI_API_KEY",
        "api-key",
        (("api-version", AZURE_API_VERSION),),
        deployments=True,
        example="https://RESOURCE.openai.azure.com",
    ),
}  # fmt: skip


def filled(data: dict[str, Any]) -> dict[str, Any]:
    """Return an instance's settings with what its preset says, where they say nothing themselves.

    Raises:
        PydanticCustomError: the preset needs an address, another one, or a region.
    """
    preset = PRESETS.get(str(data.get("preset")))
    if preset is None:
        return data
    found: dict[str, Any] = {"kind": "none", "auth": preset.auth, "deployments": preset.deployments, **data}
    if not found.get("url"):
        found["url"] = _address(str(data["preset"]), preset, data.get("region"))
    if not preset.url:
        found["url"] = _azure_address(str(found["url"]), deployments=preset.deployments)
    query = data.get("query") or {}
    if preset.query and isinstance(query, dict):
        found["query"] = {**dict(preset.query), **query}
    if found["auth"] != "sigv4" and not data.get("api_key_env") and not data.get("api_key_file"):
        found["api_key_env"] = preset.key_env
    return found


def _address(name: str, preset: Preset, region: object) -> str:
    if not preset.url:
        raise PydanticCustomError("preset", f"preset {name} needs a url of the form {preset.example}")
    if "{region}" in preset.url and not region:
        raise PydanticCustomError("preset", f"preset {name} needs a region, for instance us-west-2, or a url")
    return preset.url.format(region=region)


def _azure_address(url: str, *, deployments: bool) -> str:
    """Return the base address of one of Azure's two APIs; the portal shows that of the resource, and those of calls.

    Raises:
        PydanticCustomError: it is the address of a call.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return url  # its own validator says what is wrong
    if not parts.netloc or "@" in parts.netloc:
        return url
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    if called := _AZURE_CALL.search(path):
        base = origin + path[: called.start()]
        name = called["deployment"]
        if deployments or name is None:
            api = "azure-deployments" if deployments else "azure"
            write = base if deployments else f"{base}/openai/v1"
            where = f", and {name!r} as the instance's name of a model in model_names" if name else ""
            raise PydanticCustomError("preset", "{write}", {"write": f"preset {api}: write {write} as url{where}"})
        reason = f"this url is for preset azure-deployments; preset azure wants {base}/openai/v1"
        raise PydanticCustomError("preset", "{reason}", {"reason": reason})
    if parts.query or parts.fragment:
        return url
    if deployments:
        return origin + path.removesuffix("/v1").removesuffix("/openai")
    return origin + (path or "/openai/v1")


def plain_path(url: str) -> str:
    """Return the URL with its path in the one form that everybody signs alike: no dots, no empty segments, encoded."""
    parts = urlsplit(url)
    path = posixpath.normpath("/" + unquote(parts.path).lstrip("/"))
    return f"{parts.scheme}://{parts.netloc}{quote(path.rstrip('/'), safe='/')}"


def is_provider(instance: object) -> bool:
    """Tell whether settings of an instance, checked or not, are those of a provider: it has no gauges."""
    if isinstance(instance, dict):
        return (bool(instance.get("preset")) and "kind" not in instance) or instance.get("kind") == "none"
    return getattr(instance, "kind", None) == "none"


def checked_headers(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers with lower-case names.

    Raises:
        PydanticCustomError: one cannot be sent, is the framing's, or is a credential.
    """
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise PydanticCustomError("header", "{name} is not a header of printable ASCII", {"name": repr(name)})
        if name.lower() in _FRAMING:
            raise PydanticCustomError("header", "{name} is set by the router itself", {"name": name})
        if name.lower() in _CREDENTIALS:
            reason = "{name} is a credential: use auth with api_key_env or api_key_file"
            raise PydanticCustomError("header", reason, {"name": name})
    return {name.lower(): value for name, value in headers.items()}


def checked_query(query: dict[str, str]) -> dict[str, str]:
    """Return the query as it is.

    Raises:
        PydanticCustomError: a parameter has no name, or looks like a credential.
    """
    for name in query:
        if not name:
            raise PydanticCustomError("query", "a parameter needs a name")
        if re.sub(r"[-_]", "", name.lower()) in ("key", "apikey", "token", "accesstoken", "signature"):
            reason = "{name} looks like a credential: use auth with api_key_env or api_key_file"
            raise PydanticCustomError("query", reason, {"name": name})
    return query


def auth_headers(auth: Auth, key: str | None) -> list[tuple[str, str]]:
    """Return the headers that carry a key; none without one, and none for what signs instead."""
    if not key or auth == "sigv4":
        return []
    return [("authorization", f"Bearer {key}")] if auth == "bearer" else [(auth, key)]


def read_key(path: Path) -> str:
    """Return the key in a file, without white space around it.

    Raises:
        OSError: it cannot be read.
        ValueError: there is none, or it cannot be part of a header.
    """
    with path.open("rb") as stream:
        raw = stream.read(KEY_BYTES_MAX + 1)
    key = raw.decode("ascii", "replace").strip()
    return plain_key(key if len(raw) <= KEY_BYTES_MAX else "")


def plain_key(key: str) -> str:
    """Return the key itself.

    Raises:
        ValueError: it is empty, or not printable ASCII in one piece.
    """
    if not key:
        raise ValueError("is empty or too long")
    if any(not "!" <= character <= "~" for character in key):
        raise ValueError("has characters that no key has")
    return key


def has_version(path: str) -> bool:
    """Tell whether a base path ends in a version of its own (`/v1`, `/api/v3`, `/v1beta/openai`), in place of `/v1`."""
    return _VERSION.search(path) is not None


def models_url(url: str, query: dict[str, str]) -> str:
    """Return where an instance lists its models."""
    listed = f"{url}/models" if has_version(urlsplit(url).path) else f"{url}/v1/models"
    return f"{listed}?{urlencode(query)}" if query else listed


def service_of(url: str) -> str:
    """Return the name under which AWS signs requests to an address of Bedrock."""
    return "bedrock-mantle" if (urlsplit(url).hostname or "").startswith("bedrock-mantle.") else "bedrock"
