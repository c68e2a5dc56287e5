"""Fixtures that every test may use."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

if TYPE_CHECKING:
    from tests.e2e.serving import Server

# A busy machine is no fault of what is tested.
# `make test` draws the same examples every time; `make test-all` sets a seed.
SEEDED = "QUIRE_TEST_SEED" in os.environ
hypothesis.settings.register_profile(
    "quire", deadline=None, derandomize=not SEEDED, max_examples=100 if SEEDED else 25
)
hypothesis.settings.load_profile("quire")
if not SEEDED:
    # Hypothesis also draws constants that it finds in the modules loaded so far: other ones in
    # another order of tests.
    providers._get_local_constants = providers.Constants

# What somebody has exported (an API key, a proxy, a log level, a width) must not change a result.
_KEPT = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|TMPDIR|TZ|LANG|LC_\w+|CI|LD_\w+|PYTHON\w*|PYTEST_\w+"
    r"|\w+SAN_OPTIONS|OMP_NUM_THREADS|VIRTUAL_ENV|QUIRE_CPU_ISA|QUIRE_TEST_SEED"
)
for name in filter(lambda name: not _KEPT.fullmatch(name), list(os.environ)):
    del os.environ[name]

os.environ.setdefault("QUIRE_TEST_SEED", "0")

# Triton decides when it is imported whether its kernels are compiled or interpreted.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# Hundreds of processes import Quire: each would compile it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Several pytest workers share the cores; a thread pool in each would have them wait in turns.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background has them ignore Ctrl-C, which some are about.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots", metavar="DIR", help="write the dashboard's pictures into this folder"
    )
    parser.addoption(
        "--cpu-report", metavar="FILE", help="append each test's CPU seconds, fixtures included"
    )


def own_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    parts = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in parts)


def living_seconds() -> float:
    """Return the CPU time of this process's living descendants."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            number = int(stat.parent.name)
            parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))
    family = {os.getpid()}
    while found := {n for n, parent in parents.items() if parent in family} - family:
        family |= found
    alive = sum(ticks.get(number, 0) for number in family - {os.getpid()})
    return alive / os.sysconf("SC_CLK_TCK")


def report_cpu(config: pytest.Config, seconds: float, name: str) -> None:
    """Append one line; several workers may share the file."""
    with open(config.getoption("--cpu-report"), "a") as file:
        file.write(f"{seconds:9.3f} {name}\n")


def import_a_share(worker: int, workers: int) -> None:
    """Import the last test modules, so that no two pytest workers rewrite the same assertions.

    In a fresh checkout, rewriting costs more than all else of a collection. Its result is a file
    that the other workers find: each worker begins with the files of another part.
    """
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    for file in files[worker * len(files) // workers :] if worker else ():
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collection reports it
            importlib.import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Leave what collection makes out of the garbage collector's rounds: it stays to the end."""
    gc.disable()
    try:
        if [Path(path).resolve() for path in session.config.args] == [ROOT / "tests"]:
            name = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
            workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
            import_a_share(int(name.removeprefix("gw")), int(workers))
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(
            10_000
        )  # with torch and Transformers, a full round costs a tenth of a second
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("--cpu-report"):
        report_cpu(session.config, own_seconds(), "collection")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    if not item.config.getoption("--cpu-report"):
        return (yield)
    before = living_seconds() + own_seconds()  # in this order: /proc takes milliseconds to read
    result = yield
    after = own_seconds() + living_seconds()
    report_cpu(item.config, after - before, item.nodeid)
    return result


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of shared models and tokenizers beside the checkout; skips where absent."""
    folder = ROOT.parent / "shared"
    if not (folder / "models").is_dir():
        pytest.skip("the shared folder with real models is not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that loads and answers in no time."""
    from tests.e2e.tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def server(tiny_model: Path) -> Iterator[Server]:
    """One server of it for the tests of all folders: a start costs seconds."""
    from tests.e2e.serving import serving

    with serving(tiny_model, "--num-gpu-blocks-override", "256") as running:
        yield running
