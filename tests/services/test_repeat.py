"""The same suite once more, on PostgreSQL and Redis, with real worker processes."""

from collections.abc import Callable

import pytest

from tests.services import repeating, servers


@pytest.mark.timeout(repeating.LONGEST_SECONDS + 120)
def test_the_suite_passes_on_postgresql_and_redis(
    running_repeat: repeating.Repeat | None, report_engine: Callable[[str], None]
):
    if running_repeat is None:
        missing = " and no ".join(servers.missing_engines())
        reason = f"no {missing} found: {servers.INSTALL_HINT}"
        report_engine(f"PostgreSQL with Redis: not used; {reason}")
        pytest.skip(reason)

    outcome = running_repeat.wait()

    counts = ", ".join(f"{number} {kind}" for kind, number in outcome.counts.items() if number)
    report_engine(
        f"{outcome.engines} and worker processes: {counts or 'no tests'} "
        f"in {outcome.seconds:.0f} s ({outcome.not_repeated} tests touch neither and were not "
        "repeated)"
    )
    for reason, number in outcome.skips.items():
        report_engine(f"  skipped there {number}: {reason}")
    assert outcome.status == 0, outcome.output
    assert outcome.counts.get("passed", 0) > 0
