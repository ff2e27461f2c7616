"""What Kafka's own consumer-groups command says of a group."""

import subprocess
from pathlib import Path
from typing import Final

from exactbatch.local import LocalStack
from exactbatch.local.java import fetch_jars, find_java
from exactbatch.local.state import write_secret
from support.logins import java_properties

_DEFINITIONS: Final = Path(__file__).parent / "ivy"
_COMMAND: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def described_group(stack: LocalStack, group: str) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Return (CURRENT-OFFSET, LOG-END-OFFSET, LAG) by topic and partition, as kafka-consumer-groups --describe does."""
    tools = fetch_jars("kafka-tools", stack.jars_dir, definitions=_DEFINITIONS)
    broker = fetch_jars("kafka", stack.jars_dir)
    command: list[str | Path] = [
        find_java(),
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{broker}/*:{tools}/*",
        _COMMAND,
    ]
    arguments = ["--bootstrap-server", stack.bootstrap_servers, "--describe", "--group", group]
    kafka = java_properties(stack.kafka_properties)
    client = stack.broker.folder / "client.properties"
    write_secret(client, "".join(f"{name}={value}\n" for name, value in kafka.items()))
    arguments += ["--command-config", str(client)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(group)]
    assert rows, done.stdout + done.stderr
    return {(row[1], int(row[2])): (int(row[3]), int(row[4]), int(row[5])) for row in rows}
