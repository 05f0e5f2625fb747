"""What operators do to instances while everything runs: list, add, take out, drain and undrain one.

The router that is asked tells the log one event, and with it every router knows: a drain lives there and nowhere else.
Who is added or taken out stands in `discovery.changes_file` besides, which all processes that name it follow; without
it neither can be done. So it is in the log also where no collector follows that file, and one that does finds it there.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from pydantic import ValidationError

from evenload.api.errors import ApiError
from evenload.api.keys import ClientKeys, Key
from evenload.discovery.changes import adding, change, removing, restoring
from evenload.discovery.discovery import Discovery, unfit
from evenload.router.dispatcher import Dispatcher
from evenload.router.fleet import gauges_known
from evenload.routing.policy import InstanceView
from evenload.schemas import Membership
from evenload.settings import InstanceSettings, PoolSettings, SettingsError
from evenload.settings.discovery import qualified
from evenload.settings.instance_files import ChangesFile
from evenload.settings.load import problems_of
from evenload.settings.sources import Sources

log = logging.getLogger(__name__)

OPERATOR = "operator"
COLUMNS = ("pool", "instance", "url", "source", "state", "score", "in_flight", "gauges", "generation")
PAGELESS = "none"  # the kind of instances that have no gauges: providers


class AdminError(Exception):
    """It is not done; `error` says why."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = ApiError(status=status, code=code, message=message, param=param)


class Admin:
    """Does it, for those who have a key.

    Attributes:
        keys: of operators; None for nobody.
    """

    def __init__(self, dispatcher: Dispatcher, discovery: Discovery, keys: ClientKeys | None) -> None:
        self.keys = keys
        self._dispatcher = dispatcher
        self._discovery = discovery
        self._changing = asyncio.Lock()

    def operator(self, headers: Mapping[bytes, bytes]) -> Key:
        """Return whose key a request carries.

        Raises:
            AdminError: 403, nobody may.
            client_keys.Refused: 401.
        """
        if self.keys is None:
            raise AdminError(403, "admin_off", "There are no operators' keys: set router.admin_keys_file.")
        return self.keys.identify(headers)

    def listed(self) -> list[dict[str, Any]]:
        """Return one row per instance, and one per id that was taken out. Whose gauges do not come, nobody polls."""
        origins = self._discovery.origins()
        rows = [
            self._row(pool, instance, origins.get(instance.id, ""))
            for pool in self._discovery.merged().pools
            for instance in pool.instances
        ]
        taken_out = (name for name in self._discovery.changes.removed if name not in {row["instance"] for row in rows})
        blank = dict.fromkeys(COLUMNS)
        return rows + [{**blank, "instance": name, "source": "changes", "state": "taken out"} for name in taken_out]

    async def add(self, by: Key, body: bytes) -> dict[str, Any]:
        """Add an instance, described as in a list with the `pool` beside it; or bring back one that was taken out.

        Raises:
            AdminError: 400, it is not one; 404, there is no such pool; 409, there is one of that id, or no file to
                keep it in.
        """
        data = _decoded(body)
        pool, name = self._pool(data.pop("pool", None)), data.get("id")
        if isinstance(name, str) and name in self._discovery.changes.removed and "url" not in data:
            await self._change(restoring(name))
            if name in self._dispatcher.upstreams:  # its source may have forgotten it
                self._rejoin(name)
            log.info("operator %s: %s is back", by.name, name)
            return {"instance": name}
        instance = _instance(pool, data)
        self._may_have_its_key(instance)
        if reason := unfit(pool, instance):
            raise AdminError(400, "invalid_instance", reason)
        async with self._changing:
            if instance.id in self._dispatcher.upstreams:
                raise AdminError(409, "instance_exists", f"There is an instance {instance.id!r}.", "id")
            await self._write(adding(pool.name, instance))
            if instance.id not in self._dispatcher.upstreams:
                reason = self._discovery.refusal or "see the log"
                await self._write(removing(instance.id))
                raise AdminError(400, "invalid_instance", f"The instance cannot be used: {reason}")
            self._rejoin(instance.id)
        log.info("operator %s: added %s (%s) to pool %s", by.name, instance.id, instance.url, pool.name)
        return {"instance": instance.id}

    async def remove(self, by: Key, name: str) -> dict[str, Any]:
        """Take an instance out: it drains, then it leaves.

        Raises:
            AdminError: 404, there is no such instance; 409, there is no file to keep that in.
        """
        drained = self._known(name).state.draining
        self._changes_file()
        self._tell(name, "draining")
        try:
            await self._change(removing(name))
        except AdminError:
            if not drained:
                self._tell(name, "joined")  # nothing has changed
            raise
        log.info("operator %s: took out %s", by.name, name)
        return {"instance": name}

    def drain(self, by: Key, name: str, *, drains: bool) -> dict[str, Any]:
        """Let an instance have no new requests while others can take them, or end that.

        Raises:
            AdminError: 404, there is no such instance; 409, it has left.
        """
        if self._known(name).state.left_ms is not None:
            raise AdminError(409, "instance_left", f"{name!r} has left the fleet; its collector says when it is back.")
        self._tell(name, "draining" if drains else "joined")
        log.info("operator %s: %s %s", by.name, "drain" if drains else "undrain", name)
        return {"instance": name, "draining": drains}

    def _may_have_its_key(self, instance: InstanceSettings) -> None:
        """Refuse keys that the settings give to no instance: else any secret of this process could be sent anywhere."""
        pools = self._discovery.settings.pools
        listed = [one.model_dump() for pool in pools for one in pool.instances]
        templates = [source.template for pool in pools for source in pool.discovery]
        for field in ("api_key_env", "api_key_file"):
            value = getattr(instance, field)
            if value is not None and str(value) not in {str(one.get(field)) for one in (*listed, *templates)}:
                message = f"{field}: the settings name it for no instance of theirs, so operators cannot use it."
                raise AdminError(403, "key_not_allowed", message, field)

    def _rejoin(self, name: str) -> None:
        left = self._known(name).state.left_ms is not None
        self._tell(name, "joined", self._dispatcher.view.generation(name) + left)

    def _tell(self, name: str, what: Literal["draining", "joined"], generation: int | None = None) -> None:
        generation = self._dispatcher.view.generation(name) if generation is None else generation
        self._dispatcher.tell(Membership(instance=name, gen=generation, change=what, cause=OPERATOR))

    def _known(self, name: str) -> InstanceView:
        dispatcher = self._dispatcher
        if name not in dispatcher.upstreams:
            raise AdminError(404, "no_such_instance", f"There is no instance {name[:200]!r} here.")
        return dispatcher.view.read(name, dispatcher.book.counts(name), dispatcher.log_clock.now_ms(dispatcher.clock()))

    def _pool(self, name: Any) -> PoolSettings:
        pools = {pool.name: pool for pool in self._discovery.settings.pools}
        if name is None and len(pools) == 1:
            return next(iter(pools.values()))
        if not isinstance(name, str) or name not in pools:
            raise AdminError(404, "no_such_pool", f"Name one of the pools: {', '.join(pools)}.", "pool")
        return pools[name]

    def _row(self, pool: PoolSettings, instance: InstanceSettings, source: str) -> dict[str, Any]:
        row = {"pool": pool.name, "instance": instance.id, "url": instance.url, "source": source}
        if instance.id not in self._dispatcher.upstreams:
            row["state"] = "not taken over"
            return {**row, "score": None, "in_flight": None, "gauges": None, "generation": None}
        view = self._known(instance.id)
        now_ms = self._dispatcher.log_clock.now_ms(self._dispatcher.clock())
        score, in_flight = round(view.score, 1), view.in_flight
        return {
            **row,
            "state": _state(view),
            "score": score,
            "in_flight": in_flight,
            "gauges": None if instance.kind == PAGELESS else gauges_known(view, now_ms),
            "generation": view.state.generation,
        }

    def _changes_file(self) -> None:
        if self._discovery.settings.discovery.changes_file is None:
            message = "There is no file to keep changes in: set discovery.changes_file. Draining needs none."
            raise AdminError(409, "no_changes_file", message)

    async def _change(self, by: Any) -> None:
        async with self._changing:
            await self._write(by)

    async def _write(self, by: Any) -> None:
        self._changes_file()
        path = self._discovery.settings.discovery.changes_file
        assert path is not None
        try:
            changes: ChangesFile = await asyncio.to_thread(change, path, by)
        except SettingsError as error:
            raise AdminError(500, "changes_file", str(error)) from error
        self._discovery.take_changes(changes)


def _state(view: InstanceView) -> str:
    state = view.state
    if state.left_ms is not None:
        return "left"
    if not state.ready:
        return f"not ready ({state.cause})" if state.cause else "not ready"
    return "draining" if state.draining else "member"


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise AdminError(400, "invalid_json", "The body must be a JSON object.") from None
    if not isinstance(data, dict):
        raise AdminError(400, "invalid_json", "The body must be a JSON object.")
    return data


def _instance(pool: PoolSettings, data: dict[str, Any]) -> InstanceSettings:
    try:
        found = InstanceSettings.model_validate(data)
        return InstanceSettings.model_validate({**data, "id": qualified(pool.name, found.id)})
    except ValidationError as error:
        problems = list(problems_of(error, Sources({}, {}, {}, {}, {}, None), InstanceSettings))
        text = "; ".join(f"{problem.key}: {problem.reason}" for problem in problems)
        raise AdminError(400, "invalid_instance", text, problems[0].key) from None
