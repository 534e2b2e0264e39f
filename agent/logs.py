"""Log lines: one an event, `time level logger message key=value ...`, on stderr."""

from __future__ import annotations

import logging
import sys
import time

from agent.errors import one_line

PACKAGE = "agent"

# What a record has without anybody's `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class KeyValues(logging.Formatter):
    """A record as one line; values with spaces are quoted, control characters never appear."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of `record`."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        stamp = f"{seconds}.{int(record.msecs):03d}Z"
        name = record.name.removeprefix(f"{PACKAGE}.")
        parts = [stamp, record.levelname.lower(), name, one_line(record.getMessage())]
        parts += [f"{k}={_value(v)}" for k, v in vars(record).items() if k not in _OWN]
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            parts.append(f"error={_value(f'{type(error).__name__}: {error}')}")
        return " ".join(parts)


def set_up(level: str) -> None:
    """Send what the agent says of at least `level` to stderr; of libraries warnings only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValues())
    own = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(own, logging.WARNING), handlers=[handler], force=True)
    logging.getLogger(PACKAGE).setLevel(own)


def _value(value: object) -> str:
    text = one_line(str(value))
    return text if text and " " not in text and '"' not in text else f'"{text}"'
