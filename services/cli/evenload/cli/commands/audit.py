"""`evenload audit`."""

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from evenload.cli.apps import command_app
from evenload.cli.errors import EXIT_VERDICT
from evenload.cli.moments import MOMENT, moment_ms
from evenload.cli.options import Json, with_settings
from evenload.cli.progress import step_progress
from evenload.settings import Settings

if TYPE_CHECKING:
    from evenload.audit.findings import Report

app = command_app(no_args_is_help=True)


@app.command()
@with_settings("kafka")
def verify(
    settings: Settings,
    since: Annotated[str | None, typer.Option("--from", metavar="TIME", help=f"Check from then on: {MOMENT}.")] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Check what was before then.")] = None,
    instance: Annotated[str | None, typer.Option(metavar="ID", help="Check only what concerns this instance.")] = None,
    as_json: Json = False,
) -> int:
    """Recompute every snapshot and every decision in the topics and compare them, bit for bit, with what was recorded.

    Exit code 1 and the first difference if any differs; 2 if the log itself has a gap; what cannot be verified is
    counted, not failed.
    """
    from evenload.audit.main import Scope
    from evenload.audit.main import verify as run

    now_ms = int(time.time() * 1000)
    scope = Scope(
        from_ms=0 if since is None else moment_ms(since, now_ms),
        to_ms=2**63 if until is None else moment_ms(until, now_ms),
        instance=instance,
    )
    with step_progress() as progress:
        report = run(settings, scope, progress)
    if as_json:
        typer.echo(json.dumps(_data(report), indent=2))
    else:
        _print(report)
    return report.exit_code


@app.command()
@with_settings("kafka")
def explain(
    settings: Settings,
    request: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="As in the response's x-request-id.")],
    as_json: Json = False,
) -> int:
    """Tell the story of one request: candidates, scores, why this one, retries, and what happened then."""
    from evenload.audit.main import explain as run

    with step_progress() as progress:
        try:
            story = run(settings, request, progress)
        except LookupError as error:
            typer.echo(str(error), err=True)
            return EXIT_VERDICT
    typer.echo(json.dumps(story.data(), indent=2) if as_json else "\n".join(story.lines()))
    return 0


def _data(report: "Report") -> dict[str, object]:
    first = report.first_difference
    return {
        "exit_code": report.exit_code,
        "counts": {f"{subject} {verdict}": count for (subject, verdict), count in sorted(report.counts.items())},
        "unverifiable": dict(report.unverifiable),
        "gaps": report.gaps,
        "undecodable": report.undecodable,
        "telemetry_events": report.telemetry_events,
        "first_difference": None
        if first is None
        else {
            "subject": first.subject,
            "where": first.where,
            "reason": first.reason,
            "recorded": first.recorded,
            "recomputed": first.recomputed,
        },
    }


def _print(report: "Report") -> None:
    typer.echo(f"{report.telemetry_events} telemetry events replayed")
    for (subject, verdict), count in sorted(report.counts.items()):
        typer.echo(f"{count:>9} {subject}s {verdict}")
    for reason, count in report.unverifiable.most_common():
        typer.echo(f"{count:>9} unverifiable, {reason}")
    for topic, count in sorted(report.undecodable.items()):
        typer.echo(f"{count:>9} undecodable records on {topic}")
    for gap in report.gaps:
        typer.echo(f"gap: {gap}")
    first = report.first_difference
    if first is not None:
        typer.echo(f"first difference: {first.subject} {first.where}: {first.reason}")
        typer.echo(f"  recorded:   {first.recorded}\n  recomputed: {first.recomputed}")
