"""From settings to the clients of all instances, with their keys, authorities and names of models."""

import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from evenload.router.shape import Shape
from evenload.router.sigv4 import Signer, Unavailable
from evenload.router.upstream import Upstream
from evenload.settings import InstanceSettings, Settings, SettingsError, backend_keys
from evenload.settings.instance_keys import FileKey, FixedKey, Key
from evenload.settings.problems import Problem, dotted
from evenload.settings.providers import read_key, service_of


def upstreams(
    settings: Settings, environ: Mapping[str, str], kept: Mapping[str, Upstream] | None = None
) -> dict[str, Upstream]:
    """Return the client of each instance by its id.

    Args:
        settings: all of them.
        environ: where instances' keys are.
        kept: clients that are used as they are.

    Raises:
        SettingsError: a key is missing, `ca_file` cannot be used, or requests cannot be signed; lists all of it.
    """
    keys = backend_keys(settings, environ)
    contexts = _Contexts()
    made: dict[str, Upstream] = {}
    problems: list[Problem] = []
    for p, pool in enumerate(settings.pools):
        for i, instance in enumerate(pool.instances):
            if kept and instance.id in kept:
                made[instance.id] = kept[instance.id]
                continue
            try:
                made[instance.id] = Upstream(
                    instance.url,
                    connect_timeout_s=pool.timeouts.connect_s,
                    shape=shape_of(instance, keys.get(instance.id)),
                    ssl_context=contexts.of(instance),
                    provider=instance.preset or "",
                )
            except (Unavailable, OSError) as error:
                key = "auth" if isinstance(error, Unavailable) else "ca_file"
                source = "settings" if key == "auth" else f"file {instance.ca_file}"
                reason = f"instance {instance.id!r}: {getattr(error, 'strerror', None) or error}"
                problems.append(Problem(source, dotted(("pools", p, "instances", i, key)), reason))
    if problems:
        raise SettingsError(problems)
    return made


def shape_of(instance: InstanceSettings, key: str | None) -> Shape | None:
    """Return what requests look like at an instance, None if they go as they came.

    Raises:
        sigv4.Unavailable: they are to be signed, and cannot be.
    """
    signer = None
    if instance.auth == "sigv4":
        assert instance.region is not None, "the settings ask for it"
        signer = Signer(instance.region, service_of(instance.url))
    elif not (key or instance.headers or instance.query or instance.model_names or instance.deployments):
        return None
    return Shape(
        key=None if key is None else _key(instance, key),
        key_header="authorization" if instance.auth == "bearer" else instance.auth,
        headers=instance.headers,
        query=instance.query,
        names=instance.model_names,
        deployments=instance.deployments,
        signer=signer,
    )


def _key(instance: InstanceSettings, key: str) -> Key:
    if instance.api_key_file is None:
        return FixedKey(key)
    return FileKey(instance.api_key_file, key, read_key, time.monotonic)


class _Contexts:
    """TLS contexts, one per file of authorities: each loads some 140 certificates."""

    def __init__(self) -> None:
        self._made: dict[Path | None, ssl.SSLContext] = {}

    def of(self, instance: InstanceSettings) -> ssl.SSLContext | None:
        """Return a context that verifies certificate and name, None for plain HTTP.

        Raises:
            OSError: the file cannot be read, or has no certificate in it.
        """
        if urlsplit(instance.url).scheme != "https":
            return None
        path = instance.ca_file
        if path not in self._made:
            self._made[path] = ssl.create_default_context(cafile=path)
        return self._made[path]
