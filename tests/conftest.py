"""Provides the options and fixtures of all tests, and the switch that forbids skipping."""

import contextlib
import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Idle threads of libgomp sleep: while they wait for each other in parallel with other processes they would otherwise use most of a
# rank's time. The variable is read when torch is imported, here and in every process that a test starts.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Folders whose slow tests mostly wait, for daemons, timers and each other: `make test` has separate lanes for them and for computation.
WAITING = frozenset({"faults", "real"})


def pytest_configure(config: pytest.Config) -> None:
    """Disable Hypothesis deadlines, which a busy machine would exceed. tests/compat runs without hypothesis."""
    # Garbage collection took a tenth of the time of tests of documents and plans.
    gc.set_threshold(50_000, 10, 10)
    with contextlib.suppress(ImportError):
        from hypothesis import HealthCheck, settings

        # Those of make test-fast, make test and make soak.
        for name, examples in (("few", 10), ("usual", 50), ("many", 1000)):
            settings.register_profile(
                name, settings(), deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
            )
        settings.load_profile(config.getoption("--hypothesis-profile") or "usual")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of WAITING folders."""
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in WAITING:
            item.add_marker(pytest.mark.waits)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected files instead of comparing with them")


@pytest.fixture(autouse=True, scope="session")
def _state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Store runs that no test has put elsewhere in a folder of the tests, and never in the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether expected files are to be written, not compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With HEADWAY_NO_SKIPS set, as in CI, a skipped test is a failed one."""
    report = yield
    if report.skipped and os.environ.get("HEADWAY_NO_SKIPS"):
        report.outcome = "failed"
        report.longrepr = f"nothing may be skipped here: {report.longrepr}"
    return report
