"""`agentctl import-config`: read another tool's config file and print what it means here."""

from __future__ import annotations

import json
from pathlib import Path

import click

from agent.errors import UsageError
from agent.toolkit import convert


def print_import(path: str, *, as_json: bool) -> None:
    """Our settings on stdout and the report on stderr, or both as one JSON object."""
    try:
        content = Path(path).read_bytes()
    except OSError as e:
        raise UsageError(f"toolkit config: {path}: {(e.strerror or 'unreadable').lower()}") from e
    made = convert(content, path)
    if as_json:
        click.echo(json.dumps({"config": made.text, "report": dict(made.report)}))
        return
    click.echo(made.text, nl=False)
    for key, words in made.report:
        click.echo(f"{key}: {words}", err=True)
