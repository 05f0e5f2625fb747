"""From command line, environment and file to one checked `Settings`, or one error that lists every problem."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from evenload.settings.environment import read_environment
from evenload.settings.files import FileContent, read_yaml
from evenload.settings.instances import InstanceSettings
from evenload.settings.models import Settings
from evenload.settings.problems import Problem, SettingsError, dotted
from evenload.settings.providers import plain_key, read_key
from evenload.settings.sources import Sources, nested
from evenload.settings.suggestions import did_you_mean, model_at

DEFAULT_FILE = Path("evenload.yaml")
CONFIG_VARIABLE = "EVENLOAD_CONFIG"


def load_settings(
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Load the settings; precedence: overrides, environment, file, defaults.

    Args:
        config: The YAML file; without it `EVENLOAD_CONFIG` of `environ`, else `evenload.yaml` in the working folder if
            there is one.
        overrides: Values of the command line, nested (`{"router": {"port": 1}}`) or dotted (`{"router.port": 1}`);
            None means not given.
        environ: The environment; `os.environ` if not given.

    Raises:
        SettingsError: A file, a key or a value is bad; lists all of them.
    """
    environ = os.environ if environ is None else environ
    path = config_path(config, environ)
    content = read_yaml(path) if path is not None else FileContent()
    env, names, problems = read_environment(environ)
    sources = Sources(nested(overrides or {}), env, names, content.data, content.lines, path)
    problems = [*content.problems, *problems]
    try:
        settings = Settings.model_validate(sources.merged())
    except ValidationError as error:
        problems += list(problems_of(error, sources))
    else:
        problems = [problem for problem in problems if not _is_key_variable(problem, settings)]
    if problems:
        raise SettingsError(problems)
    return settings


def config_path(config: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Find the file to read: the option, the variable, the default if it is there, or none."""
    if config is not None:
        return config
    if environ.get(CONFIG_VARIABLE):
        return Path(environ[CONFIG_VARIABLE])
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def backend_keys(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Read the keys that the instances want, by instance id; called by what sends requests to them.

    Those of sources' templates are looked for as well: what is missing is then known before an instance is found.

    Raises:
        SettingsError: A variable that `api_key_env` names is missing or empty, or a file that `api_key_file` names
            cannot be read or has no key in it.
    """
    keys: dict[str, str] = {}
    problems: list[Problem] = []
    for p, pool in enumerate(settings.pools):
        for i, instance in enumerate(pool.instances):
            try:
                key = key_of(instance, environ)
            except NoKey as missing:
                where = dotted(("pools", p, "instances", i, missing.key))
                problems.append(Problem(missing.source, where, f"the key of instance {instance.id!r} {missing.reason}"))
            else:
                if key is not None:
                    keys[instance.id] = key
        for d, source in enumerate(pool.discovery):
            try:
                key_of(source.sample, environ)
            except NoKey as missing:
                where = dotted(("pools", p, "discovery", d, "template", missing.key))
                problems.append(Problem(missing.source, where, f"the key of {source.label} {missing.reason}"))
    if problems:
        raise SettingsError(problems)
    return keys


# What people call variables: words with _ between them. Anything else may be the key itself, pasted into its place.
_VARIABLE = re.compile(r"[A-Z]{1,20}|([A-Z][A-Z0-9]{0,15}|[a-z]{1,15})(_([A-Z0-9]{1,15}|[a-z]{1,15}))+")
_UNSAID = "; the name of its variable is not repeated, for it looks like a key: the key stands in the variable"


class NoKey(Exception):
    """An instance wants a key, and there is none."""

    def __init__(self, source: str, key: str, reason: str) -> None:
        super().__init__(reason)
        self.source, self.key, self.reason = source, key, reason


def key_of(instance: InstanceSettings, environ: Mapping[str, str]) -> str | None:
    """Read the key that an instance wants, if it wants one.

    Raises:
        NoKey: it is missing.
    """
    if instance.api_key_env is not None:
        name = instance.api_key_env
        source = f"environment {name}" if _VARIABLE.fullmatch(name) else "environment"
        text = environ.get(name, "").strip()
        if not text:
            about = "is missing or empty" if source.endswith(name) else "is missing or empty" + _UNSAID
            raise NoKey(source, "api_key_env", about)
        try:
            return plain_key(text)
        except ValueError as error:
            raise NoKey(source, "api_key_env", str(error)) from None
    if instance.api_key_file is None:
        return None
    try:
        return read_key(instance.api_key_file)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or type(error).__name__}"
    except ValueError as error:
        reason = str(error)
    raise NoKey(f"file {instance.api_key_file}", "api_key_file", reason)


def _is_key_variable(problem: Problem, settings: Settings) -> bool:
    """Tell whether an unknown variable is one that the settings name as holding a key or a password."""
    return problem.source in {f"environment {name}" for name in secret_variables(settings)}


def secret_variables(settings: Settings) -> set[str]:
    """Return the names of the variables that hold keys and passwords."""
    security = settings.kafka.security
    named = [instance.api_key_env for pool in settings.pools for instance in pool.instances]
    return {name for name in (*named, security.password_env, security.key_password_env) if name}


def problems_of(error: ValidationError, sources: Sources, root: type[BaseModel] = Settings) -> Iterator[Problem]:
    """Say what is wrong, and where it stands; `root` is what was validated."""
    for detail in error.errors():
        yield from _problems(detail, sources, root)


def _problems(detail: ErrorDetails, sources: Sources, root: type[BaseModel]) -> Iterator[Problem]:
    if detail["type"] == "conflicts":
        for location, reason in detail["ctx"]["problems"]:
            yield Problem(sources.describe(location), dotted(location), reason)
        return
    if detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]:
        return  # the list is long enough; what is in it is bad, and reported
    location = detail["loc"]
    yield Problem(sources.describe(location), dotted(location), _reason(detail, root))


def _reason(detail: ErrorDetails, root: type[BaseModel]) -> str:
    """Say what is wrong in the words of a configuration file."""
    location, message = detail["loc"], detail["msg"]
    match detail["type"]:
        case "extra_forbidden":
            parent = model_at(root, location[:-1])
            return "unknown key" + did_you_mean(str(location[-1]), parent.model_fields if parent else ())
        case "missing":
            return "is required"
        case "base_url" if any(mark in str(detail["input"]) for mark in "@?"):
            # A URL with a credential in it is not repeated: errors end up in logs.
            return message
        case "string_pattern_mismatch" | "string_too_long" if location[-1] in (
            "api_key_env",
            "password_env",
            "key_password_env",
        ):
            # Most likely it is the key or the password itself.
            what = "key" if location[-1] == "api_key_env" else "password"
            return f"must be the name of an environment variable, of letters, digits and _; the {what} stands in it"
        case "preset" | "auth" | "header" | "query" | "source":
            return message
        case "literal_error":
            message = f"must be {detail['ctx']['expected']}"
        case "tuple_type":
            message = "must be a list (in the environment: JSON)"
        case "model_type" | "dict_type":
            message = "must be a mapping of keys (in the environment: JSON)"
        case _:
            message = (message[:1].lower() + message[1:]).replace("input should", "must")
    return f"{message}, not {_given(detail['input'])}"


def _given(value: object) -> str:
    """Repeat what was given if it is short and plain."""
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"{value!r:.80}"
