"""From settings to the clients of all instances, with their keys, authorities and names of models."""

import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from evenload.router.aws_credentials import AwsCredentials, Unavailable
from evenload.router.shape import Shape
from evenload.router.sigv4 import Signer
from evenload.router.upstream import Upstream
from evenload.settings import InstanceSettings, Settings, SettingsError, backend_keys
from evenload.settings.instance_keys import FileKey, FixedKey, Key
from evenload.settings.problems import Problem, dotted
from evenload.settings.providers import read_key, service_of


class Means:
    """What clients of instances share: the AWS credentials, and TLS contexts, one per file of authorities.

    Each takes 50 ms and more to make, so in a running event loop `prepare` comes first, in a thread.

    Args:
        credentials: of AWS; found when they are needed.
    """

    def __init__(self, credentials: AwsCredentials | None = None) -> None:
        self._contexts: dict[Path | None, ssl.SSLContext | OSError] = {}
        self._credentials = credentials or AwsCredentials()
        self._unavailable: Unavailable | None = None
        self._loaded = False

    def prepare(self, settings: Settings) -> "Means":
        """Make what these settings need; files of authorities are read again. What fails is told to who asks for it.

        Returns:
            Itself.
        """
        wanted = list(_wanted(settings))
        if any(signs for signs, _, _ in wanted):
            self._load()
        paths = {path for _, secure, path in wanted if secure}.union(list(self._contexts))  # also of those found since
        self._contexts = {path: _context(path) for path in paths}
        return self

    def credentials(self) -> AwsCredentials:
        """Return the credentials, loaded.

        Raises:
            Unavailable: there are none.
        """
        if not self._loaded:
            self._load()
        if self._unavailable is not None:
            raise self._unavailable
        return self._credentials

    def context(self, instance: InstanceSettings) -> ssl.SSLContext | None:
        """Return a context that verifies certificate and name, None for plain HTTP.

        Raises:
            OSError: the file cannot be read, or has no certificate in it.
        """
        if not _is_secure(instance.url):
            return None
        path = instance.ca_file
        made = self._contexts.get(path)
        if made is None:
            made = self._contexts[path] = _context(path)
        if isinstance(made, OSError):
            raise made
        return made

    def _load(self) -> None:
        try:
            self._credentials.load()
        except Unavailable as error:
            self._unavailable = error
        else:
            self._unavailable = None
        self._loaded = True


def _wanted(settings: Settings) -> Iterator[tuple[bool, bool, Path | None]]:
    """Yield per instance and per template whether it signs, whether it is asked by TLS, and the file of authorities."""
    for pool in settings.pools:
        for one in pool.instances:
            yield one.auth == "sigv4", _is_secure(one.url), one.ca_file
        for source in pool.discovery:
            one = source.sample
            yield one.auth == "sigv4", source.scheme == "https" or one.ca_file is not None, one.ca_file


def _is_secure(url: str) -> bool:
    return urlsplit(url).scheme == "https"


def _context(path: Path | None) -> ssl.SSLContext | OSError:
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        return error


def upstreams(
    settings: Settings,
    environ: Mapping[str, str],
    kept: Mapping[str, Upstream] | None = None,
    means: Means | None = None,
) -> dict[str, Upstream]:
    """Return the client of each instance by its id.

    Args:
        settings: all of them.
        environ: where instances' keys are.
        kept: clients that are used as they are.
        means: what is there already.

    Raises:
        SettingsError: a key is missing, `ca_file` cannot be used, or requests cannot be signed; lists all of it.
    """
    keys = backend_keys(settings, environ)
    means = means or Means()
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
                    shape=shape_of(instance, keys.get(instance.id), means),
                    ssl_context=means.context(instance),
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


def shape_of(instance: InstanceSettings, key: str | None, means: Means | None = None) -> Shape | None:
    """Return what requests look like at an instance, None if they go as they came.

    Raises:
        Unavailable: they are to be signed, and cannot be.
    """
    signer = None
    if instance.auth == "sigv4":
        assert instance.region is not None, "the settings ask for it"
        signer = Signer((means or Means()).credentials(), instance.region, service_of(instance.url))
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
