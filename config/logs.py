"""One log line per event, as `key=value` pairs on standard error."""

import json
import logging
import time

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class KeyValueFormatter(logging.Formatter):
    """Time, level, logger and message, then whatever the caller passed in `extra`."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        pairs = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%SZ"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        pairs |= {key: value for key, value in vars(record).items() if is_plain(key, value)}
        line = " ".join(f"{key}={quoted(value)}" for key, value in pairs.items())
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        return "\n".join(part for part in (line, trace) if part)


def is_plain(key: str, value: object) -> bool:
    return key not in STANDARD and isinstance(value, str | int | float | bool)


def quoted(value: object) -> str:
    """The value as it is, or as a JSON string where blanks or quotes would split the pair."""
    text = str(value)
    if text and not any(mark.isspace() or mark in '"=' for mark in text):
        return text
    return json.dumps(text, ensure_ascii=False)
