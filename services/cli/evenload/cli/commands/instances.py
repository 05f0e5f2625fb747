"""`evenload instances list | add | remove | drain | undrain`: the routers' admin API, one router after the other."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import typer
from pydantic_core import PydanticCustomError

from evenload.cli.apps import command_app
from evenload.cli.errors import CommandError
from evenload.cli.http import request
from evenload.cli.options import Json, with_settings
from evenload.cli.tables import print_rows
from evenload.settings import Settings
from evenload.settings.instances import base_url

KEY_VARIABLE = "EVENLOAD_ADMIN_KEY"
TIMEOUT_S = 10.0

At = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="URL", help="Router to ask, at its operators' port; may be given several times."),
]
KeyFile = Annotated[
    Path | None, typer.Option(help=f"File with an operator's key; without it the key is in {KEY_VARIABLE}.")
]
Id = Annotated[str, typer.Argument(help="Id of the instance, as `list` shows it.")]

app = command_app(no_args_is_help=True, help="List, add, remove, drain and undrain instances of running routers.")


class AdminRefused(Exception):
    """A router did not do it; the message has its address and its reason."""


class RouterUnreachable(Exception):
    """A router did not answer."""


@app.command("list")
@with_settings()
def list_instances(settings: Settings, at: At = None, key_file: KeyFile = None, as_json: Json = False) -> None:
    """List all instances with where they come from and how they are."""
    rows = []
    for router, answer in _Routers(settings, at, key_file).ask("GET", ""):
        if not isinstance(found := answer.get("instances"), list):
            raise AdminRefused(f"{router}: no answer of a router")
        rows += [{"router": router, **row} for row in found]
    if not as_json and sys.stdout.isatty():
        rows = [{**({"router": row["router"]} if len(at or ()) > 1 else {}), **_short(row)} for row in rows]
    print_rows(rows, as_json=as_json)


@app.command()
@with_settings()
def add(
    settings: Settings,
    *,
    url: Annotated[str | None, typer.Argument(help="Its base address. Not for one that was taken out.")] = None,
    pool: Annotated[str | None, typer.Option(help="Its pool, if there are several.")] = None,
    name: Annotated[str | None, typer.Option("--id", help="Its id; host and port of the URL if not given.")] = None,
    given: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="More of pools[].instances[], as JSON.")
    ] = None,
    at: At = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Add an instance, or bring back one that was taken out, by its id."""
    body = {"pool": pool, "id": name, "url": url, **dict(map(_pair, given or ()))}
    wanted = {key: value for key, value in body.items() if value is not None}
    _do(_Routers(settings, at, key_file), "POST", "", wanted, as_json=as_json)


@app.command()
@with_settings()
def remove(settings: Settings, instance: Id, at: At = None, key_file: KeyFile = None, as_json: Json = False) -> None:
    """Take an instance out: no new requests; when the last one has ended it leaves."""
    _do(_Routers(settings, at, key_file), "DELETE", f"/{quote(instance)}", as_json=as_json)


@app.command()
@with_settings()
def drain(settings: Settings, instance: Id, at: At = None, key_file: KeyFile = None, as_json: Json = False) -> None:
    """Send an instance no new requests while others can take them. One router is enough: all hear of it."""
    _do(_Routers(settings, at, key_file), "POST", f"/{quote(instance)}/drain", as_json=as_json)


@app.command()
@with_settings()
def undrain(settings: Settings, instance: Id, at: At = None, key_file: KeyFile = None, as_json: Json = False) -> None:
    """End a drain."""
    _do(_Routers(settings, at, key_file), "POST", f"/{quote(instance)}/undrain", as_json=as_json)


class _Routers(NamedTuple):
    """Whom to ask, and with which key."""

    settings: Settings
    at: list[str] | None
    key_file: Path | None

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Ask one after the other; yields address and answer of each."""
        host, port = self.settings.router.admin_address
        headers = {"authorization": f"Bearer {_key(self.key_file)}", "content-type": "application/json"}
        for router in self.at or [f"http://{f'[{host}]' if ':' in host else host}:{port}"]:
            url = f"{_address(router)}/admin/instances{path}"
            data = None if body is None else json.dumps(body).encode()
            try:
                status, answer = request(method, url, timeout_s=TIMEOUT_S, headers=headers, body=data)
            except OSError as error:
                raise RouterUnreachable(f"{router}: {error}") from error
            yield router, _read(router, status, answer)


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what 80 columns have room for; elsewhere a row has everything."""
    silent = row.get("gauges") is False and row["state"] == "member"
    return {
        "instance": row["instance"],
        "source": str(row["source"]).partition(" ")[0],
        "state": "member, no gauges" if silent else row["state"],
        "score": row["score"],
        "busy": row["in_flight"],
    }


def _do(
    routers: _Routers, method: str, path: str, body: Mapping[str, Any] | None = None, *, as_json: bool = False
) -> None:
    print_rows([{"router": router, **answer} for router, answer in routers.ask(method, path, body)], as_json=as_json)


def _read(router: str, status: int, answer: bytes) -> dict[str, Any]:
    try:
        read = json.loads(answer)
        if status == 200 and isinstance(read, dict):
            return read
        reason = str(read["error"]["message"])
    except (ValueError, KeyError, TypeError):
        reason = f"status {status}, and no answer of a router"
    raise AdminRefused(f"{router}: {reason}")


def _address(text: str) -> str:
    """Check where a router is said to be; a scheme may be left out."""
    try:
        return base_url(text if "://" in text else f"http://{text}")
    except PydanticCustomError as error:
        raise CommandError(f"instances: --at {text}: {error.message()}") from None


def _key(file: Path | None) -> str:
    try:
        key = os.environ.get(KEY_VARIABLE, "") if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"instances: --key-file {file}: {getattr(error, 'strerror', None) or error}") from None
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        where = KEY_VARIABLE if file is None else file
        raise CommandError(f"instances: {where} holds no operator's key; `evenload keys new NAME` makes one")
    return key


def _pair(text: str) -> tuple[str, Any]:
    key, mark, value = text.partition("=")
    if not mark:
        raise CommandError(f"instances add: --set {text!r} must be KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
