"""Runs that did not run everything: what is judged all the same, what is not, and that nothing is written."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import models
import pytest
from verdict_project import LAYERS, STEADY_TEST, SteadyProject, heed_ctrl_c

GATE_ID = "tests/test_net.py::test_net::gptune-gate"
TEST_ID = "tests/test_net.py::test_net"

OWN_ASSERTION = """
import pytest

@pytest.mark.gptune(
    model="models/net.onnx", epsilon=1e-3, backend="steady", routes="-first=[off|on] -second=[off|on]"
)
def test_net(gptune, gptune_route):
    assert "{route}" not in str(gptune_route) or "{when}" != "before", "my own criterion"
    gptune.check()
    assert "{route}" not in str(gptune_route), "my own criterion"
"""


def slow(project: SteadyProject) -> None:
    models.slowed(project.model, LAYERS, width=8, batch=2)


def own_assertion(project: SteadyProject, route: str, when: str = "after") -> None:
    """The user's own assertion fails on the routes that contain ``route``."""
    text = OWN_ASSERTION.format(route=route, when=when)
    (project.path / "tests" / "test_net.py").write_text(text)


class TestSelection:
    @pytest.mark.parametrize("arguments", [[f"{TEST_ID}[first=on]"], ["--deselect", f"{TEST_ID}[default]"]])
    def test_without_the_default_nothing_is_judged(self, steady: SteadyProject, arguments: list[str]) -> None:
        slow(steady)
        run = steady.run("--gptune-search=full", *arguments)
        assert (run.code, run.said) == (0, ("incomparable", "partial_run"))
        assert "the default and the baseline's route did not run" in run.text
        assert run.test["winner"] is None

    def test_with_the_default_and_the_baselines_route_it_is_judged(self, steady: SteadyProject) -> None:
        slow(steady)
        run = steady.run("--gptune-search=full", "-k", "default")
        assert (run.code, run.said) == (1, ("fail", "slower"))

    def test_without_the_baselines_route_nothing_is_judged(self, steady: SteadyProject) -> None:
        steady.set(latency_us={"-first=on": 100})
        steady.write_baseline_entry()
        slow(steady)
        run = steady.run("--gptune-search=full", "-k", "default")
        assert (run.code, run.said) == (0, ("incomparable", "partial_run"))
        assert "the baseline's route did not run" in run.text

    def test_an_inaccurate_route_alone_says_nothing_of_the_others(self, steady: SteadyProject) -> None:
        steady.set(moved={"-first=on": 1.0})
        run = steady.run("--gptune-search=full", f"{TEST_ID}[first=on]")
        assert (run.code, run.said) == (0, ("incomparable", "partial_run"))
        assert run.outcomes == {"xfailed": 1, "skipped": 1}

    def test_a_rejected_route_alone_says_nothing_of_the_others(self, steady: SteadyProject) -> None:
        steady.set(rejected=["-first=on"])
        run = steady.run("--gptune-search=full", f"{TEST_ID}[first=on]")
        assert (run.code, run.said) == (0, ("incomparable", "partial_run"))

    def test_an_inaccurate_baselines_route_is_said_even_so(self, steady: SteadyProject) -> None:
        steady.set(moved={"": 1.0})
        run = steady.run("--gptune-search=full", f"{TEST_ID}[default]", f"{TEST_ID}[second=on]")
        assert (run.code, run.said) == (1, ("fail", "baseline_route_inaccurate"))

    def test_a_single_route_is_not_judged(self, steady: SteadyProject) -> None:
        run = steady.run("--gptune-route=-first=on")
        assert (run.code, run.said) == (0, ("incomparable", "partial_run"))
        assert run.statuses == {"first=on": "passed"}

    def test_a_single_inaccurate_route_is_not_judged(self, steady: SteadyProject) -> None:
        steady.set(moved={"-first=on": 1.0})
        run = steady.run("--gptune-route=-first=on")
        assert (run.code, run.said) == (0, ("incomparable", "partial_run"))

    def test_without_any_route_there_is_no_verdict(self, steady: SteadyProject) -> None:
        run = steady.run("-k", "nothing_of_this_name")
        assert run.code == 5
        assert run.report is not None
        assert run.report["tests"] == []


class TestBaselineIsNotUpdated:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["-k", "default"],
            ["-k", "not default"],
            ["--deselect", f"{TEST_ID}[first=on]"],
            ["--gptune-route=-first=on"],
            ["--gptune-route="],
        ],
    )
    def test_from_a_part_of_the_routes(self, steady: SteadyProject, arguments: list[str]) -> None:
        before = steady.record("baseline.json").read_bytes()
        steady.set(latency_us={"": 90})
        run = steady.run("--gptune-search=full", "--gptune-update-baseline", *arguments)
        assert run.said == ("incomparable", "partial_run")
        assert "the baseline was not updated" in run.text.lower()
        assert steady.record("baseline.json").read_bytes() == before

    def test_from_as_many_routes_as_were_planned_of_which_one_is_the_baselines(
        self, steady: SteadyProject
    ) -> None:
        steady.set(latency_us={"-first=on -second=on": 100})
        steady.write_baseline_entry()
        before = steady.record("baseline.json").read_bytes()
        run = steady.run(
            "--gptune-search=fast", "--gptune-update-baseline", "--deselect", f"{TEST_ID}[first=on]"
        )
        assert run.said == ("incomparable", "partial_run")
        assert steady.record("baseline.json").read_bytes() == before

    def test_after_x_ended_the_run(self, steady: SteadyProject) -> None:
        own_assertion(steady, "-first=on")
        before = steady.record("baseline.json").read_bytes()
        run = steady.run("--gptune-search=full", "--gptune-update-baseline", "-x")
        assert (run.code, run.said) == (1, ("incomparable", "partial_run"))
        assert steady.record("baseline.json").read_bytes() == before


class TestStoppedRuns:
    @pytest.mark.parametrize("option", ["-x", "--maxfail=1", "--exitfirst"])
    def test_after_a_failure_before_the_default_ran(self, steady: SteadyProject, option: str) -> None:
        own_assertion(steady, "first")
        (steady.path / "tests" / "test_a.py").write_text("def test_a():\n    assert False\n")
        run = steady.run(option, "--gptune-search=full")
        assert run.code == 1
        assert run.report is not None
        assert run.report["tests"] == []

    @pytest.mark.parametrize("option", ["-x", "--maxfail=1"])
    def test_after_the_routes_that_a_verdict_needs_ran(self, steady: SteadyProject, option: str) -> None:
        own_assertion(steady, "-first=on -second=off")
        slow(steady)
        run = steady.run(option, "--gptune-search=full")
        assert run.code == 1
        assert run.said == ("fail", "slower")
        assert len(run.statuses) < 4
        assert f"FAILED {GATE_ID}" in run.out

    def test_maxfail_that_the_verdict_reaches(self, steady: SteadyProject) -> None:
        slow(steady)
        run = steady.run("--maxfail=1")
        assert (run.code, run.said) == (1, ("fail", "slower"))
        assert run.case().find("failure") is not None

    def test_every_verdict_is_given_although_the_first_reaches_maxfail(self, steady: SteadyProject) -> None:
        text = STEADY_TEST.replace("test_net", "test_again")
        (steady.path / "tests" / "test_net.py").write_text(STEADY_TEST + text)
        steady.write_baseline_entry()
        slow(steady)
        run = steady.run("-x")
        assert run.code == 1
        assert {test["verdict"]["reason"] for test in run.tests.values()} == {"slower"}
        assert len(run.tests) == 2

    def test_a_test_that_ends_the_run(self, steady: SteadyProject) -> None:
        text = STEADY_TEST.replace("gptune.check()", "gptune.check()\n    pytest.exit('enough')")
        (steady.path / "tests" / "test_net.py").write_text(text)
        run = steady.run("--gptune-search=full")
        assert run.code == 2
        assert "INTERNALERROR" not in run.out

    def test_a_verdict_alone_makes_the_exit_code(self, steady: SteadyProject) -> None:
        slow(steady)
        run = steady.run()
        assert run.code == 1
        assert run.outcomes == {"passed": 1, "failed": 1}


class TestOwnAssertions:
    def test_on_one_route_it_fails_that_test_and_cannot_win(self, steady: SteadyProject) -> None:
        own_assertion(steady, "-first=on -second=off")
        steady.set(latency_us={"-first=on": 10})
        run = steady.run("--gptune-search=full")
        assert run.code == 1
        assert run.said == ("pass", "unchanged")
        assert run.statuses["first=on"] == "test_failed"
        assert run.outcomes == {"failed": 1, "passed": 4}
        assert "AssertionError: my own criterion" in run.out

    def test_before_the_check_as_well(self, steady: SteadyProject) -> None:
        own_assertion(steady, "-first=on -second=off", when="before")
        run = steady.run("--gptune-search=full")
        assert (run.code, run.said) == (1, ("pass", "unchanged"))
        assert run.statuses["first=on"] == "test_failed"

    @pytest.mark.parametrize("search", ["replay", "full"])
    def test_on_the_baselines_route_there_is_no_pass(self, steady: SteadyProject, search: str) -> None:
        """What failed its own test is not the engine that the baseline was."""
        steady.set(latency_us={"-first=on": 100})
        steady.write_baseline_entry()
        own_assertion(steady, "-first=on")
        run = steady.run(f"--gptune-search={search}")
        assert run.code == 1
        assert run.statuses["first=on"] == "test_failed"
        assert run.said == ("incomparable", "partial_run")
        assert "the baseline's route failed its own test" in run.text

    def test_on_all_routes_there_is_nothing_to_add(self, steady: SteadyProject) -> None:
        own_assertion(steady, "-first")
        run = steady.run("--gptune-search=full")
        assert run.code == 1
        assert run.said == ("incomparable", "partial_run")
        assert run.outcomes == {"failed": 4, "skipped": 1}
        assert "the test itself failed on every route" in run.text

    def test_without_a_check_no_route_can_win(self, steady: SteadyProject) -> None:
        text = STEADY_TEST.replace("gptune.check()", "gptune.benchmark(gptune.engine)")
        (steady.path / "tests" / "test_net.py").write_text(text)
        run = steady.run("--gptune-search=full")
        assert (run.code, run.said) == (0, ("incomparable", "partial_run"))
        assert set(run.statuses.values()) == {"unchecked"}
        assert "call gptune_golden.check(engine)" in run.text

    def test_a_check_without_a_benchmark_has_no_latency_to_judge(self, steady: SteadyProject) -> None:
        text = STEADY_TEST.replace("gptune.check()", "gptune.golden.check(gptune.engine)")
        (steady.path / "tests" / "test_net.py").write_text(text)
        run = steady.run("--gptune-search=full")
        assert (run.code, run.said) == (0, ("incomparable", "partial_run"))
        assert "no latency was measured in this run" in run.text


class TestLastFailed:
    def test_reruns_the_tuning_after_its_verdict_failed(self, steady: SteadyProject) -> None:
        content = steady.model.read_bytes()
        slow(steady)
        assert steady.run("--gptune-search=full").code == 1
        steady.model.write_bytes(content)
        run = steady.run("--lf", "--gptune-search=full")
        assert (run.code, run.said) == (0, ("pass", "unchanged"))
        assert len(run.statuses) == 4

    def test_forgets_a_verdict_that_passes(self, steady: SteadyProject) -> None:
        content = steady.model.read_bytes()
        slow(steady)
        steady.run()
        steady.model.write_bytes(content)
        steady.run("--lf")
        last_failed = steady.path / ".pytest_cache" / "v" / "cache" / "lastfailed"
        assert not last_failed.exists() or GATE_ID not in last_failed.read_text()

    def test_of_a_single_route_is_a_partial_run(self, steady: SteadyProject) -> None:
        own_assertion(steady, "-first=on -second=off")
        assert steady.run("--gptune-search=full").code == 1
        own_assertion(steady, "nothing")
        run = steady.run("--lf", "--gptune-search=full")
        assert (run.code, run.said) == (0, ("incomparable", "partial_run"))
        assert set(run.statuses) == {"first=on"}


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
class TestInterrupted:
    """Ctrl-C in a process of its own."""

    @pytest.fixture
    def patient(self, steady: SteadyProject) -> SteadyProject:
        """Each build takes long enough to be interrupted in it."""
        slow(steady)
        steady.set(pause_s=0.7)
        return steady

    def interrupted_after(
        self, project: SteadyProject, text: str, *arguments: str, times: int = 1
    ) -> tuple[int, str, float]:
        """Send SIGINT once ``text`` was printed; exit code, output and seconds from the signal to the end."""
        output = project.path / "output.txt"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                project.command("-v", "--gptune-search=full", *arguments),
                cwd=project.path,
                stdout=stream,
                stderr=subprocess.STDOUT,
                preexec_fn=heed_ctrl_c,
            )
            try:
                deadline = time.monotonic() + 60
                while output.read_text().count(text) < times and time.monotonic() < deadline:
                    assert process.poll() is None, output.read_text()
                    time.sleep(0.02)
                assert output.read_text().count(text) >= times, output.read_text()
                time.sleep(0.2)
                start = time.monotonic()
                process.send_signal(signal.SIGINT)
                code = process.wait(timeout=60)
            finally:
                process.kill()
        return code, output.read_text(), time.monotonic() - start

    def test_during_the_search(self, patient: SteadyProject) -> None:
        # Once the third route has begun, the first two are on record.
        code, out, _ = self.interrupted_after(patient, "test_net[", times=3)
        run = patient.finished(code, out)
        assert (run.code, run.said) == (2, ("incomparable", "partial_run"))
        assert "the run was interrupted" in run.text
        assert "KeyboardInterrupt" in out
        assert "INTERNALERROR" not in out
        assert "Traceback" not in out
        assert f"{GATE_ID} SKIPPED" in run.text
        # Both routes that a verdict needs had run: finals could have followed, and did not.
        assert "final: " not in run.text

    def test_before_any_route_ended(self, patient: SteadyProject) -> None:
        code, out, _ = self.interrupted_after(patient, "test_net[default]")
        assert code == 2
        assert "INTERNALERROR" not in out

    def test_during_the_finals(self, patient: SteadyProject) -> None:
        code, out, _ = self.interrupted_after(patient, "[first=on,second=on] PASSED")
        run = patient.finished(code, out)
        assert (run.code, run.said) == (2, ("incomparable", "partial_run"))
        assert "the run was interrupted" in run.text
        assert "INTERNALERROR" not in out

    def test_writes_no_baseline(self, patient: SteadyProject) -> None:
        before = patient.record("baseline.json").read_bytes()
        code, _, _ = self.interrupted_after(
            patient, "[first=on,second=on] PASSED", "--gptune-update-baseline"
        )
        assert code == 2
        assert patient.record("baseline.json").read_bytes() == before


class TestSpread:
    """Tests in several processes; xdist gives its workers the paths that its own process started with."""

    def test_over_two_processes(self, steady: SteadyProject) -> None:
        slow(steady)
        run = steady.run_outside("-n2", "--gptune-search=full")
        assert (run.code, run.said) == (1, ("fail", "slower"))
        assert len(run.statuses) == 4
        assert f"FAILED {GATE_ID}" in run.out
        assert run.case().find("failure") is not None

    def test_that_end_with_the_first_failure(self, steady: SteadyProject) -> None:
        own_assertion(steady, "-first=on -second=off")
        run = steady.run_outside("-n2", "-x", "--gptune-search=full")
        assert run.code in (1, 2)
        assert "INTERNALERROR" not in run.out
        assert run.report is not None

    def test_that_update_the_baseline(self, steady: SteadyProject) -> None:
        steady.set(latency_us={"-first=on": 100})
        run = steady.run_outside("-n2", "--gptune-search=full", "--gptune-update-baseline")
        assert (run.code, run.said) == (0, ("new", "written"))
        assert steady.baseline["entries"][0]["route"] == "-first=on"


def test_a_report_of_an_earlier_run_does_not_stay(steady: SteadyProject) -> None:
    report = steady.path / "report.json"
    assert steady.run().report is not None
    before = report.stat().st_mtime_ns
    steady.run("-k", "nothing_of_this_name")
    assert Path(report).stat().st_mtime_ns != before
