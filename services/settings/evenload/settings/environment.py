"""Reading the environment: `EVENLOAD_ROUTER__PORT` is `router.port`."""

from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from evenload.settings.models import ENV_DELIMITER, ENV_PREFIX, Settings
from evenload.settings.problems import Location, Problem, dotted
from evenload.settings.suggestions import did_you_mean

# Read by the command line and by the tests, not settings.
OTHER_NAMES = frozenset({"EVENLOAD_ADMIN_KEY", "EVENLOAD_CONFIG", "EVENLOAD_SHARED"})
OTHER_PREFIX = "EVENLOAD_TEST_"


class MappingEnvSource(EnvSettingsSource):
    """pydantic-settings' reading of an environment, from a mapping that is passed in."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(Settings)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): None if value == "null" else value for name, value in self._environ.items()}

    def decode_complex_value(self, field_name: str, field: FieldInfo | None, value: Any) -> Any:
        """Decode JSON; what is not JSON stays text, for validation to report together with everything else."""
        try:
            return super().decode_complex_value(field_name, field, value)  # type: ignore[arg-type]
        except ValueError:
            return value


def settings_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Keep the variables that mean to be settings of Evenload."""
    return {
        name: value
        for name, value in environ.items()
        if name.upper().startswith(ENV_PREFIX) and name not in OTHER_NAMES and not name.startswith(OTHER_PREFIX)
    }


def location_of(name: str) -> Location:
    """Turn a variable's name into the location of its setting."""
    return tuple(part.lower() for part in name[len(ENV_PREFIX) :].split(ENV_DELIMITER))


def read_environment(environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[Location, str], list[Problem]]:
    """Read all settings that the environment has.

    Returns:
        The nested values, the variable's name by location, and the variables whose section does not exist
        (pydantic-settings does not look at those).
    """
    variables = settings_in(environ)
    names = {location_of(name): name for name in variables}
    problems = []
    for location, name in names.items():
        if location[0] not in Settings.model_fields:
            suggestion = did_you_mean(str(location[0]), Settings.model_fields)
            problems.append(Problem(f"environment {name}", dotted(location), f"unknown key{suggestion}"))
    known = {name: value for name, value in variables.items() if location_of(name)[0] in Settings.model_fields}
    return MappingEnvSource(known)(), names, problems
