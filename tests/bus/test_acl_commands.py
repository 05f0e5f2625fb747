"""What `evenload topics acls` prints, run by Kafka's own tool: the broker then lists just the rights of the table."""

import asyncio
import os
import shlex
import uuid
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.admin import DescribeAclsRequest
from typer.testing import CliRunner

from evenload.broker.jars import KAFKA_VERSION, java_home, resolve
from evenload.bus.rights import OPERATIONS, RIGHTS, Right, rights_of
from evenload.bus.topics import topic_names
from evenload.cli.app import app
from tests.secured_kafka import TYPES, SecuredKafka

TOOL = f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}+org.slf4j:slf4j-simple:1.7.36"
ANY_RESOURCE, MATCH, ALLOW = 1, 2, 3


def printed(process: str, prefix: str, kafka: SecuredKafka) -> dict[Right, str]:
    """The commands of a process, by what they should grant."""
    arguments = ["--process", process, "--topic-prefix", prefix, "--bootstrap", kafka.plain]
    done = CliRunner().invoke(app, ["topics", "acls", *arguments, "--principal", f"User:{prefix}-{{process}}"])
    assert done.exit_code == 0, done.output
    rights = rights_of(process, topic_names(prefix)._asdict(), "evenload-scorer")
    return dict(zip(rights, done.stdout.splitlines(), strict=True))


def first_of_a_kind(commands: dict[Right, str]) -> dict[Right, str]:
    """One for each operation and kind: the rest differs by the topic's name, and the tool takes seconds to start."""
    firsts = {(right.kind, right.operation): right for right in reversed(commands)}
    return {right: commands[right] for right in firsts.values()}


async def granted(kafka: SecuredKafka, principal: str) -> set[Right]:
    """What the broker lists as allowed."""
    kinds = {code: kind for kind, code in TYPES.items()}
    operations = {code: name for name, code in OPERATIONS.items()}
    async with kafka.admin() as admin:
        found: Any = await admin._send_request(
            DescribeAclsRequest(ANY_RESOURCE, None, MATCH, principal, None, ANY_RESOURCE, ANY_RESOURCE)
        )
    return {
        Right(kinds[kind], name, operations[operation])
        for kind, name, _pattern, acls in found.resources
        for _who, host, operation, permission in acls
        if (host, permission) == ("*", ALLOW)
    }


@pytest.mark.kafka
@pytest.mark.timeout(600)
async def test_the_printed_commands_grant_what_the_table_says(secured: SecuredKafka, tmp_path: Path) -> None:
    # The tool's script is not in any jar; it starts this class. The commands are run as they are, by a shell.
    jars = os.pathsep.join(map(str, resolve(TOOL, java_home())))
    java = f"{shlex.quote(str(java_home() / 'bin' / 'java'))} -Xmx64m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    script = tmp_path / "kafka-acls.sh"
    script.write_text(f'#!/bin/sh\nexec {java} -cp {shlex.quote(jars)} org.apache.kafka.tools.AclCommand "$@"\n')
    script.chmod(0o755)
    (tmp_path / "admin.properties").write_text("")
    prefix = f"t-{uuid.uuid4().hex[:8]}"
    wanted = {process: first_of_a_kind(printed(process, prefix, secured)) for process in RIGHTS}
    shell = await asyncio.create_subprocess_exec(
        *("sh", "-e", "-c", "\n".join(line for commands in wanted.values() for line in commands.values())),
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await shell.communicate())[0].decode()
    assert shell.returncode == 0, said
    for process, commands in wanted.items():
        assert await granted(secured, f"User:{prefix}-{process}") == commands.keys(), process
