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
    assert (test["verdict"]["outcome"], test["verdict"]["reason"]) == ("fail", "search_failed")
    assert result.ret == 1
    # What ran until then was measured in finals all the same.
    assert test["winner"] == "default"
    assert test["finalists"] == ["default"]
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ('["-a=on"]', "proposed '-a=on', which is no route"),
        ("None", "the search 'odd' failed: TypeError"),
        ("()", "the search 'odd' failed: ValueError: no notes"),
    ],
)
def test_what_is_no_route_is_no_internal_error(planted: PlantedProject, answer: str, message: str) -> None:
    planted.plant(knobs=KNOBS)
    planted.write(
        "conftest.py",
        f"""
        class Odd:
            name = "odd"

            def __init__(self, expression):
                self.expression = expression

            def initial(self):
                return (self.expression.default,)

            def propose(self, results):
                return {answer}

            def notes(self, results):
                raise ValueError("no notes")

        def pytest_gptune_search(name, expression):
            return Odd(expression) if name == "odd" else None
        """,
    )
    result, test = planted.search("--gptune-search=odd")
    assert message in test["verdict"]["message"]
    assert result.ret == 1
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


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('x')", "pytest_gptune_verdict: KeyError: 'x'"),
        ("return 'pass'", "pytest_gptune_verdict returned 'pass', which is no Verdict"),
        (
            "import dataclasses; return dataclasses.replace(report.verdict, outcome='failed')",
            "pytest_gptune_verdict returned the outcome 'failed', which is none of pass, fail, ambiguous",
        ),
    ],
)
def test_a_verdict_hook_that_fails_is_a_failed_verdict(planted: PlantedProject, body: str, said: str) -> None:
    planted.plant(knobs=KNOBS)
    planted.write("conftest.py", f"def pytest_gptune_verdict(report):\n    {body}\n")
    result, test = planted.search("--gptune-search=fast")
    assert (test["verdict"]["outcome"], test["verdict"]["reason"]) == ("fail", "hook_failed")
    assert said in test["verdict"]["message"]
    assert result.ret == 1
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_a_filter_hook_that_fails_is_said_at_the_test(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS)
    planted.write(
        "conftest.py", "def pytest_gptune_filter_routes(nodeid, routes):\n    raise KeyError('x')\n"
    )
    planted.write("test_other.py", "def test_other():\n    pass\n")
    result = planted.run("--gptune-search=fast")
    message = one_message(result, "test_model.py::test_model, *conftest.py:2")
    assert message == "the hook pytest_gptune_filter_routes failed: KeyError: 'x'"


@pytest.mark.parametrize("answer", ["('a', 'b', 'c')", "7"])
def test_a_filter_hook_that_gives_no_mapping_is_said_at_the_test(
    planted: PlantedProject, answer: str
) -> None:
    planted.plant(knobs=KNOBS)
    planted.write("conftest.py", f"def pytest_gptune_filter_routes(nodeid, routes):\n    return {answer}\n")
    planted.write("test_other.py", "def test_other():\n    pass\n")
    message = one_message(planted.run("--gptune-search=fast"), "test_model.py::test_model, *")
    assert message.startswith("the hook pytest_gptune_filter_routes failed: ")


def one_message(result: pytest.RunResult, where: str) -> str:
    """The first line of the only error of a run; its place is ``where``, and the other test ran."""
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == 1
    text = result.stdout.str() + result.stderr.str()
    for unwanted in ("Traceback", "During handling", "INTERNALERROR", "\nE  "):
        assert unwanted not in text
    result.stdout.fnmatch_lines([f"  in: {where}", "  do: *"], consecutive=True)
    lines = result.outlines
    (start,) = [n for n, line in enumerate(lines) if line.startswith("_") and " test_model" in line]
    return lines[start + 1]


NO_SEARCH = [
    ("raise KeyError('x')", "the hook pytest_gptune_search failed: KeyError: 'x'"),
    ("return helper()", "the hook pytest_gptune_search failed: ZeroDivisionError: division by zero"),
    ("return 'fast'", "the hook pytest_gptune_search returned 'fast', which is no search"),
    ("return Begins", "the hook pytest_gptune_search returned <class 'conftest.Begins'>, which is no search"),
    ("return Begins(KeyError('x'))", "the search 'own' failed: KeyError: 'x'"),
    ("return Begins(None)", "the search 'own' failed: TypeError: object of type 'NoneType' has no len()"),
    ("return Begins(['-a=on'])", "the search 'own' began with '-a=on', which is no route"),
]


@pytest.mark.parametrize(("body", "message"), NO_SEARCH)
def test_a_search_that_cannot_begin_is_said_at_the_test(
    planted: PlantedProject, body: str, message: str
) -> None:
    planted.plant(knobs=KNOBS)
    planted.write("test_other.py", "def test_other():\n    pass\n")
    planted.write(
        "conftest.py",
        f"""
        def helper():
            return 1 / 0

        class Begins:
            name = "own"

            def __init__(self, routes):
                self.routes = routes

            def initial(self):
                if isinstance(self.routes, Exception):
                    raise self.routes
                return self.routes

            def propose(self, results):
                return ()

            def notes(self, results):
                return ()

        def pytest_gptune_search(name, expression):
            {body}
        """,
    )
    hook = message.startswith("the hook pytest_gptune_search failed")
    where = "test_model.py::test_model" + (", *conftest.py:23" if hook else "")
    assert one_message(planted.run("--gptune-search=own"), where) == message


def test_a_verdict_of_ones_own_is_asked_before_anything_is_written(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS)
    planted.write(
        "conftest.py",
        """
        from dataclasses import replace

        def pytest_gptune_verdict(report):
            return replace(report.verdict, outcome="fail", reason="never", message="never")
        """,
    )
    arguments = ("--gptune-save-engine=kept", "--gptune-update-baseline")
    _, test = planted.search("--gptune-search=fast", *arguments)
    assert test["verdict"]["reason"] == "never"
    assert not planted.baseline_path().exists()
    assert not list((planted.path / "kept").rglob("*"))
    planted.search("--gptune-search=fast", "--gptune-save-engine=kept")
    assert not list((planted.path / "kept").rglob("*.engine"))


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
