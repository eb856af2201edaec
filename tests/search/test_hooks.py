"""The hooks ``pytest_gptune_search``, ``_filter_routes`` and ``_verdict``, and a search by Optuna."""

from __future__ import annotations

from pathlib import Path

import pytest
from landscape import PLANTED, run
from optuna_search import OptunaSearch
from planted_project import PlantedProject, statuses

from pytest_gptune.search import Search

KNOBS = {"-a": ["off", "on"], "-b": ["off", "on"], "-c": ["off", "on"]}


def test_a_search_of_ones_own(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors={"-a=on -c=on": 0.5})
    planted.write(
        "conftest.py",
        """
        class Pairs:
            name = "pairs"

            def __init__(self, expression):
                self.expression = expression

            def initial(self):
                return (self.expression.default,)

            def propose(self, results):
                known = {result.route for result in results}
                pairs = [r for r in self.expression.full() if list(r.as_dict().values()).count("on") == 2]
                return tuple(route for route in pairs if route not in known)

            def notes(self, results):
                return (f"pairs: {len(results)} routes",)

        def pytest_gptune_search(name, expression):
            return Pairs(expression) if name == "pairs" else None
        """,
    )
    result, test = planted.search("--gptune-search=pairs", "-v")
    result.assert_outcomes(passed=4, skipped=1)
    assert test["winner"] == "a=on,c=on"
    assert test["search"] == "pairs"
    assert "pairs: 4 routes" in test["notes"]


def test_a_search_that_fails_says_so_and_the_rest_is_judged(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS)
    planted.write(
        "conftest.py",
        """
        class Broken:
            name = "broken"

            def __init__(self, expression):
                self.expression = expression

            def initial(self):
                return (self.expression.default,)

            def propose(self, results):
                return results[99]

            def notes(self, results):
                return ()

        def pytest_gptune_search(name, expression):
            return Broken(expression) if name == "broken" else None
        """,
    )
    result, test = planted.search("--gptune-search=broken")
    assert "the search 'broken' failed: IndexError" in test["verdict"]["message"]
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


VETO = """
    def pytest_gptune_filter_routes(nodeid, routes):
        assert nodeid.startswith("test_model.py::test_model")
        return {r: "b needs a licence" for r in routes if r.as_dict().get("-b") == "on"}
"""


@pytest.mark.parametrize("search", ["full", "mixed"])
def test_a_veto_with_a_reason(planted: PlantedProject, search: str) -> None:
    planted.plant(knobs=KNOBS, factors={"-a=on": 0.8, "-b=on": 0.7, "-c=on": 0.9})
    planted.write("conftest.py", VETO)
    result, test = planted.search(f"--gptune-search={search}", "-rs")
    found = statuses(test)
    assert {status for route, status in found.items() if "b=on" in route} == {"pruned"}
    assert test["winner"] == "a=on,c=on"
    assert not any("-b=on" in route for route in planted.builds())
    result.stdout.fnmatch_lines(["SKIPPED * vetoed: b needs a licence"])


def test_a_veto_of_late_routes(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors={"-a=on": 0.8, "-c=on": 0.9})
    planted.write("conftest.py", VETO.replace('r.as_dict().get("-b") == "on"', 'str(r).count("=on") > 1'))
    _, test = planted.search("--gptune-search=mixed")
    assert statuses(test)["a=on,c=on"] == "pruned"


def test_the_default_cannot_be_vetoed(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS)
    planted.write("conftest.py", VETO.replace('== "on"', '== "off"'))
    result = planted.run("--gptune-search=fast")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*the route default is vetoed (b needs a licence), and every verdict needs it*"]
    )


def test_a_verdict_of_ones_own(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors={"-a=on": 0.8})
    planted.write(
        "conftest.py",
        """
        from dataclasses import replace

        def pytest_gptune_verdict(report):
            if report.winning is not None and report.winning.speedup < 1.5:
                return replace(report.verdict, outcome="fail", reason="too_slow", message="we need 1.5x")
        """,
    )
    result, test = planted.search("--gptune-search=fast")
    assert (test["verdict"]["outcome"], test["verdict"]["reason"]) == ("fail", "too_slow")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*verdict: fail, too_slow*we need 1.5x*"])


class TestOptuna:
    """As proof that the interface suffices."""

    def test_it_is_a_search_and_finds_a_planted_interaction(self) -> None:
        search: Search = OptunaSearch(PLANTED.expression, trials=200, seed=1)
        found = run(search, PLANTED)
        assert found.best.latency_s == PLANTED.best().latency_s
        assert len(found.results) <= 201

    def test_it_goes_on_from_results_it_did_not_propose(self) -> None:
        """As a run that resumes gives them to it."""
        first = run(OptunaSearch(PLANTED.expression, trials=30, seed=1), PLANTED)
        again = OptunaSearch(PLANTED.expression, trials=60, seed=1)
        proposed = again.propose(first.results)
        assert proposed
        assert not set(proposed) & {result.route for result in first.results}

    def test_through_the_plugin(self, planted: PlantedProject) -> None:
        planted.plant(knobs=KNOBS, factors={"-a=on": 1.1, "-b=on": 1.1, "-a=on -b=on": 0.5})
        planted.write("optuna_search.py", (Path(__file__).parent / "optuna_search.py").read_text())
        planted.write(
            "conftest.py",
            """
            from optuna_search import OptunaSearch

            def pytest_gptune_search(name, expression):
                return OptunaSearch(expression, trials=20, seed=1) if name == "optuna" else None
            """,
        )
        _, test = planted.search("--gptune-search=optuna")
        assert test["winner"] == "a=on,b=on"
        assert len(test["routes"]) <= 8
