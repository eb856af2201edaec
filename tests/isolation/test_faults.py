"""Whatever an engine does, the run ends, says what happened, keeps what was done, leaves nothing behind."""

from __future__ import annotations

import sys

import pytest
from faulty_backend import DEEDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the deeds are POSIX signals")

# Status that each deed gives its route, and what its message must name.
EXPECTED = {
    "fine": ("passed", ""),
    "raise": ("crashed", "ValueError: a backend's own exception"),
    "abort": ("crashed", "SIGABRT"),
    "segfault": ("crashed", "SIGSEGV"),
    "exit": ("crashed", "exited with code 3 without a word"),
    "hang": ("timeout", "no answer within"),
    "hang_child": ("timeout", "no answer within"),
    "memory_error": ("out_of_memory", "host's memory ran out"),
    "allocate": ("out_of_memory", "memory"),
    "kill": ("out_of_memory", "SIGKILL"),
    "device_oom": ("out_of_memory", "CUDA error: out of memory"),
    "reject": ("rejected", "no implementation"),
    "ignored": ("rejected", "read back ''"),
    "wrong": ("inaccurate", "lInf"),
    "nan": ("inaccurate", "NaN"),
    "missing": ("inaccurate", "missing"),
    "chatter": ("crashed", "log: builder: line 49"),
    "spoil": ("passed", ""),
}

QUICK = ("fine", "raise", "segfault", "exit", "memory_error", "reject", "wrong", "chatter")


def expression(deeds, when="build"):
    return f"-faulty:do=[{'|'.join(deeds)}] -faulty:when={when} -faulty:spin=[4|2]"


def route_of(deed):
    return "default" if deed == "fine" else f"faulty:do={deed}"


def assert_right(outcome, deeds):
    for deed in deeds:
        status, text = EXPECTED[deed]
        route = outcome.route(route_of(deed))
        assert route["status"] == status, (deed, route["error"])
        assert text in route["error"], (deed, route["error"])
    assert outcome.left == []
    keys = {row["build_route"] for row in outcome.rows}
    assert len(keys) == len(outcome.rows) == len(outcome.test["routes"])


def test_every_deed_is_expected():
    assert set(EXPECTED) == set(DEEDS)


@pytest.mark.parametrize("isolation", [[], ["-n", "2"]], ids=["alone", "n2"])
def test_failures_in_the_middle_of_a_search(faulty_project, isolation):
    outcome = faulty_project.run(expression(QUICK), *isolation)
    assert_right(outcome, QUICK)
    assert outcome.code == 0, outcome.output
    assert outcome.test["winner"] == "faulty:spin=2"
    assert outcome.test["verdict"]["outcome"] == "new"


@pytest.mark.long
@pytest.mark.parametrize("when", ["build", "run", "sample"])
@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "n2"])
def test_all_failures_in_the_middle_of_a_search(faulty_project, workers, when):
    deeds = [d for d in DEEDS if when == "build" or d not in ("wrong", "nan", "missing")]
    # What others take of two cores is in a route's time too.
    outcome = faulty_project.run(expression(deeds, when), *workers, timeout_s=12)
    assert_right(outcome, deeds)
    assert outcome.code == 0, outcome.output
    assert outcome.test["winner"] == "faulty:spin=2"


def _timeout_s(deed):
    """Short where it is waited for; others of a busy machine take as long as they take."""
    return 6 if deed == "hang" else 60


@pytest.mark.parametrize("deed", ["segfault", pytest.param("hang", marks=pytest.mark.long), "nan"])
def test_failure_of_the_default_route(faulty_project, deed):
    outcome = faulty_project.run(
        "-faulty:do=[fine|raise]", timeout_s=_timeout_s(deed), FAULTY_DEFAULT=deed, FAULTY_WHEN="build"
    )
    assert outcome.route("default")["status"] == EXPECTED[deed][0]
    assert outcome.test["winner"] == "faulty:do=fine"
    assert outcome.code == 0, outcome.output
    assert outcome.left == []


@pytest.mark.parametrize(
    "deed", ["segfault", pytest.param("hang", marks=pytest.mark.long), "wrong", pytest.param("exit")]
)
def test_failure_of_the_winner_in_the_finals(faulty_project, deed):
    """The fastest route of the search fails when it is built again: another wins, with figures of its own."""
    outcome = faulty_project.run(
        f"-faulty:do=[fine|{deed}] -faulty:when=rebuild -faulty:spin=[4|2|1]",
        "--gptune-search=full",
        timeout_s=_timeout_s(deed),
    )
    fastest = outcome.route(f"faulty:do={deed},faulty:spin=1")
    if deed != "wrong":
        assert fastest["status"] == EXPECTED[deed][0], fastest
        assert fastest["speedup"] is None
    assert outcome.test["winner"] == "faulty:spin=1"
    assert outcome.route("faulty:spin=1")["latency"]["stop_reason"] == "finals"
    assert outcome.code == 0, outcome.output
    assert outcome.left == []


def test_every_route_failed(faulty_project):
    outcome = faulty_project.run("-faulty:do=[segfault|exit]", FAULTY_DEFAULT="abort")
    assert set(outcome.statuses().values()) == {"crashed"}
    assert outcome.code == 1
    assert outcome.test["verdict"]["outcome"] == "fail"
    assert outcome.test["verdict"]["reason"] == "every_route_failed"
    assert "SIGABRT" in outcome.output
    assert outcome.left == []


def test_baselines_route_that_crashes_fails_plainly(faulty_project):
    first = faulty_project.run("-faulty:spin=[4|2]", "--gptune-update-baseline")
    assert first.code == 0, first.output
    second = faulty_project.run("-faulty:spin=[4|2]", "--gptune-search=replay", FAULTY_DEFAULT="segfault")
    assert second.code == 1
    assert "SIGSEGV" in second.output
    assert "This is the baseline's route." in second.output
    assert second.left == []


def test_without_isolation_exceptions_are_still_statuses(faulty_project):
    deeds = ("fine", "raise", "memory_error", "device_oom", "reject", "wrong", "nan", "missing")
    outcome = faulty_project.run(expression(deeds), "--gptune-isolation=none")
    assert_right(outcome, deeds)
    assert outcome.code == 0, outcome.output
