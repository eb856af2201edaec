"""How a verdict reaches the user: under every verbosity, without a terminal, in JUnit and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import models
import pytest
from verdict_project import LAYERS, STEADY_TEST, Run, SteadyProject

GATE_ID = "tests/test_net.py::test_net::gptune-gate"


@pytest.fixture
def slower(steady: SteadyProject) -> SteadyProject:
    models.slowed(steady.model, LAYERS, width=8, batch=2)
    return steady


class TestTerminal:
    @pytest.mark.parametrize(
        "option", ["", "-q", "-qq", "-v", "-vv", "--tb=no", "--tb=line", "--color=yes", "-rA"]
    )
    def test_a_failure_is_seen_whatever_the_verbosity(self, slower: SteadyProject, option: str) -> None:
        run = slower.run(*[option] if option else [])
        assert (run.code, run.said) == (1, ("fail", "slower"))
        assert "INTERNALERROR" not in run.out
        assert "ratio" in run.out
        if option != "--color=yes":
            assert f"FAILED {GATE_ID}" in run.out

    def test_no_summary(self, slower: SteadyProject) -> None:
        run = slower.run("--no-summary")
        assert run.code == 1
        assert "INTERNALERROR" not in run.out

    def test_no_terminal(self, slower: SteadyProject) -> None:
        run = slower.run("-p", "no:terminal", junit=False)
        assert (run.code, run.said) == (1, ("fail", "slower"))
        assert run.out == ""

    def test_no_terminal_and_a_pass(self, steady: SteadyProject) -> None:
        assert steady.run("-p", "no:terminal").code == 0

    def test_no_junit(self, slower: SteadyProject) -> None:
        run = slower.run("-p", "no:junitxml", junit=False)
        assert (run.code, run.said) == (1, ("fail", "slower"))

    def test_no_cache(self, slower: SteadyProject) -> None:
        assert slower.run("-p", "no:cacheprovider").code == 1

    def test_the_verdicts_are_counted(self, steady: SteadyProject) -> None:
        assert "2 passed" in steady.run().out.splitlines()[-1]

    def test_progress_does_not_run_beyond_its_end(self, steady: SteadyProject) -> None:
        run = steady.run("-v", "--gptune-search=full")
        shares = [
            int(line.rsplit("[", 1)[1].strip(" %]")) for line in run.out.splitlines() if line.endswith("%]")
        ]
        assert shares == sorted(shares)
        assert shares[-1] == 100

    def test_a_verdict_is_of_its_file(self, steady: SteadyProject) -> None:
        """Progress goes on in the line of the file."""
        lines = [line for line in steady.run().out.splitlines() if line.startswith("tests")]
        assert lines[0].split()[:2] == ["tests/test_net.py", ".."]

    def test_nothing_is_said_where_nothing_was_tuned(self, steady: SteadyProject) -> None:
        (steady.path / "tests" / "test_net.py").write_text("def test_plain():\n    pass\n")
        run = steady.run(report=False)
        assert (run.code, run.outcomes) == (0, {"passed": 1})
        assert "gptune" not in run.out.replace("gptune-0", "").replace(str(steady.path), "")

    @pytest.mark.parametrize("columns", ["60", "80", "160"])
    def test_no_line_but_a_command_is_wider_than_the_terminal(
        self, slower: SteadyProject, monkeypatch: pytest.MonkeyPatch, columns: str
    ) -> None:
        monkeypatch.setenv("COLUMNS", columns)
        lines = list(_summary(slower.run("--gptune-search=full")))
        assert lines
        assert all(len(line) <= int(columns) for line in lines if "python -m pytest" not in line)

    def test_a_command_is_on_a_line_of_its_own(
        self, slower: SteadyProject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        run = slower.run()
        assert run.verdict["command"] in [
            line.strip().removeprefix("next:").strip() for line in _summary(run)
        ]

    def test_the_verdict_is_a_line_that_can_be_searched_for(self, slower: SteadyProject) -> None:
        assert any(
            line.startswith("  verdict: fail, slower (gate paired)") for line in _summary(slower.run())
        )


def _summary(run: Run) -> Iterator[str]:
    """Lines of our section of the terminal summary."""
    within = False
    for line in run.out.splitlines():
        if line.startswith("====="):
            within = " gptune " in line
        elif line.startswith("-----"):
            within = False
        elif within:
            yield line


class TestJUnit:
    def test_the_verdict_is_a_test_case_of_its_own(self, slower: SteadyProject) -> None:
        run = slower.run("--gptune-search=full")
        assert run.junit is not None
        names = [case.get("name") for case in run.junit.iter("testcase")]
        assert names[-1] == "gptune-gate"
        assert run.case().get("classname") == "tests.test_net.test_net"
        (suite,) = run.junit.iter("testsuite")
        assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "1", "0")

    @pytest.mark.parametrize("family", ["xunit1", "xunit2"])
    def test_its_properties_name_winner_gate_and_figures(self, slower: SteadyProject, family: str) -> None:
        run = slower.run("-o", f"junit_family={family}")
        properties = {item.get("name"): item.get("value") for item in run.case().iter("property")}
        assert {key: properties[key] for key in ("gptune_outcome", "gptune_reason", "gptune_gate")} == {
            "gptune_outcome": "fail",
            "gptune_reason": "slower",
            "gptune_gate": "paired",
        }
        assert properties["gptune_winner"] == "default"
        assert float(properties["gptune_ratio"] or 0) == pytest.approx(20 / 18, rel=1e-3)
        assert float(properties["gptune_latency_s"] or 0) == pytest.approx(200e-6, rel=1e-2)

    def test_a_pass_has_no_failure(self, steady: SteadyProject) -> None:
        case = steady.run().case()
        assert case.find("failure") is None
        assert case.find("skipped") is None

    def test_a_skip_has_its_reason(self, steady: SteadyProject) -> None:
        steady.record("baseline.json").unlink()
        skipped = steady.run().case().find("skipped")
        assert skipped is not None
        assert "no baseline yet" in (skipped.get("message") or "")


class TestParameters:
    @pytest.fixture
    def parametrised(self, steady: SteadyProject) -> SteadyProject:
        text = STEADY_TEST.replace("def test_net(gptune):", "def test_net(self, gptune, size):")
        lines = ["import pytest", "", "@pytest.mark.parametrize('size', ['small', 'a/b'])", "class TestNet:"]
        body = text.replace("import pytest", "").strip().splitlines()
        lines += [f"    {line}" for line in body]
        (steady.path / "tests" / "test_net.py").write_text("\n".join(lines) + "\n")
        steady.write_baseline_entry()
        return steady

    def test_each_combination_has_a_verdict_of_its_own(self, parametrised: SteadyProject) -> None:
        models.slowed(parametrised.model, LAYERS, width=8, batch=2)
        run = parametrised.run("-v", "-k", "small or (default and not small)", "--gptune-search=fast")
        assert run.code == 1
        for size in ("small", "a/b"):
            assert f"FAILED tests/test_net.py::TestNet::test_net::gptune-gate[{size}]" in run.out
        assert {case.get("name") for case in run.junit.iter("testcase")} >= {  # type: ignore[union-attr]
            "gptune-gate[small]",
            "gptune-gate[a/b]",
        }

    def test_and_a_baseline_of_its_own(self, parametrised: SteadyProject) -> None:
        folder = parametrised.path / "tests" / "__gptune__" / "test_net"
        names = sorted(path.name for path in folder.glob("TestNet*.baseline.json"))
        assert len(names) == 2
        assert "TestNet.test_net[small].baseline.json" in names

    def test_and_is_judged_without_the_others(self, parametrised: SteadyProject) -> None:
        run = parametrised.run("-k", "small")
        assert (run.code, run.said) == (0, ("pass", "unchanged"))


class TestJson:
    def test_has_the_verdict(self, slower: SteadyProject) -> None:
        run = slower.run("--gptune-search=full")
        assert set(run.verdict) >= {
            "outcome",
            "reason",
            "gate",
            "ratio",
            "interval",
            "limit",
            "changed",
            "baseline",
        }
        low, high = run.verdict["interval"]
        assert low <= run.verdict["ratio"] <= high
        assert run.verdict["baseline"]["latency_s"] == pytest.approx(180e-6, rel=1e-2)

    def test_an_interval_without_an_end_is_null(self, slower: SteadyProject) -> None:
        slower.ini(gptune_ambiguous="warn")
        slower.set(builds={"20": [0.5, 2.0], "18": [0.5, 2.0]})
        text = (slower.path / "report.json", slower.run("-o", "gptune_final_builds=1"))[0].read_text()
        assert "Infinity" not in text
        assert "NaN" not in text

    def test_finalists_have_speedups_of_the_finals(self, steady: SteadyProject) -> None:
        steady.set(latency_us={"-first=on": 90})
        run = steady.run("--gptune-search=full")
        speedups = {route["id"]: route["speedup"] for route in run.test["routes"]}
        assert speedups["first=on"] == pytest.approx(2.0, rel=1e-2)
        assert speedups["default"] == 1.0
        intervals = {route["id"]: route["speedup_interval"] for route in run.test["routes"]}
        low, high = intervals["first=on"]
        assert 1.9 < low <= speedups["first=on"] <= high < 2.1
        assert intervals["default"] is None

    def test_the_winners_speedup_shows_how_uncertain_it_is(self, steady: SteadyProject) -> None:
        steady.set(latency_us={"-first=on": 90}, builds={"-first=on": [0.9, 1.1]})
        run = steady.run("--gptune-search=full", "-o", "gptune_final_builds=4")
        winner = next(route for route in run.test["routes"] if route["id"] == run.test["winner"])
        low, high = winner["speedup_interval"]
        assert low < winner["speedup"] / 1.05 < winner["speedup"] * 1.05 < high
        assert f"{winner['speedup']:.2f}x the default's speed ({low:.2f}x to {high:.2f}x)" in run.text


class TestBenchmarkRows:
    def test_a_passing_route_has_one_and_an_inaccurate_has_none(self, steady: SteadyProject) -> None:
        steady.set(moved={"-first=on": 1.0, "-second=on": 1.0})
        steady.run("--gptune-search=fast", "--benchmark-json=rows.json")
        rows = json.loads((steady.path / "rows.json").read_text())["benchmarks"]
        assert [row["name"] for row in rows] == ["test_net[default]"]

    @pytest.mark.parametrize("option", ["--benchmark-disable", "--benchmark-skip"])
    def test_without_measurements_nothing_is_judged(self, slower: SteadyProject, option: str) -> None:
        run = slower.run(option)
        assert run.code == 0
        assert "INTERNALERROR" not in run.out
        assert run.report is not None
        assert all(test["verdict"]["reason"] == "partial_run" for test in run.report["tests"])

    def test_only_benchmarks(self, slower: SteadyProject) -> None:
        run = slower.run("--benchmark-only")
        assert (run.code, run.said) == (1, ("fail", "slower"))

    def test_without_the_plugin(self, slower: SteadyProject) -> None:
        run = slower.run("-p", "no:benchmark")
        assert (run.code, run.said) == (1, ("fail", "slower"))
