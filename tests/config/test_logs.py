import logging

from config.logs import KeyValueFormatter


def line(message: str, **extra: object) -> str:
    record = logging.makeLogRecord(
        {"name": "rollouts.tasks", "levelname": "INFO", "msg": message, "created": 0.0, **extra}
    )
    return KeyValueFormatter().format(record)


def test_an_event_is_one_line_of_pairs():
    assert line("swept", rollout=7, is_due=True) == (
        "time=1970-01-01T00:00:00Z level=info logger=rollouts.tasks event=swept "
        "rollout=7 is_due=True"
    )


def test_text_that_would_split_a_pair_or_a_line_is_quoted():
    written = line('he said "stop"\nlevel=error', reason="a b")

    assert "\n" not in written
    assert 'event="he said \\"stop\\"\\nlevel=error"' in written
    assert 'reason="a b"' in written


def test_a_trace_follows_the_line():
    try:
        raise ValueError("bad row")
    except ValueError as error:
        written = line("failed", exc_info=(type(error), error, error.__traceback__))

    assert written.splitlines()[0].endswith("event=failed")
    assert written.splitlines()[-1] == "ValueError: bad row"
