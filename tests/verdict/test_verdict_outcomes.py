"""Every verdict and what it does to a run, on a backend whose latencies are exact."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from verdict_project import LAYERS, SteadyProject, other_weights, second, slow

GATE_ID = "tests/test_net.py::test_net::gptune-gate"


class TestUnchanged:
    @pytest.mark.parametrize("search", ["replay", "fast", "full"])
    def test_passes_whatever_the_search(self, steady: SteadyProject, search: str) -> None:
        run = steady.run(f"--gptune-search={search}")
        assert (run.code, run.said) == (0, ("pass", "unchanged"))
        assert (run.verdict["gate"], run.verdict["ratio"], run.verdict["changed"]) == ("", None, [])
        assert run.test["winner"] == "default"
        assert re.search(r"its latency is (0\.99|1\.00)\d of the baseline's", run.verdict["message"])

    def test_drift_of_the_machine_is_shown_and_never_failed(self, steady: SteadyProject) -> None:
        steady.set(scale=1.5)
        run = steady.run("--gptune-search=full")
        assert (run.code, run.said) == (0, ("pass", "unchanged"))
        assert re.search(r"its latency is 1\.(49|50)\d of the baseline's", run.text)

    def test_another_golden_is_no_reason_to_compare(self, steady: SteadyProject) -> None:
        steady.move_golden(1e-6)
        run = steady.run()
        assert (run.code, run.said) == (0, ("pass", "unchanged"))

    def test_messages_are_sentences(self, steady: SteadyProject) -> None:
        steady.set(tuner_version="2.0")
        message = steady.run().verdict["message"]
        assert message == message.strip()
        assert message.endswith(" that is scaled away. Tuning again is worth while.")

    def test_its_report_passes(self, steady: SteadyProject) -> None:
        run = steady.run("-v")
        assert f"{GATE_ID} PASSED" in run.text
        assert run.outcomes == {"passed": 2}
        assert [child.tag for child in run.case() if child.tag != "properties"] == []


class TestSlowerModel:
    def test_fails_through_the_paired_gate(self, steady: SteadyProject) -> None:
        slow(steady)
        run = steady.run("--gptune-search=full")
        assert (run.code, run.said) == (1, ("fail", "slower"))
        assert run.verdict["gate"] == "paired"
        assert run.verdict["ratio"] == pytest.approx(20 / 18, rel=1e-3)
        assert run.verdict["limit"] == pytest.approx(1.03)
        assert run.verdict["changed"] == ["model: another digest"]
        assert run.verdict["interval"][0] > 1.03
        assert any(
            note.startswith("reference engine: models/net.onnx of commit") for note in run.test["notes"]
        )

    def test_is_measured_again_before_it_fails(self, steady: SteadyProject) -> None:
        slow(steady)
        assert steady.run().verdict["builds"] == 4  # twice the two of the configuration

    def test_says_both_latencies_the_ratio_and_its_interval(self, steady: SteadyProject) -> None:
        slow(steady)
        run = steady.run()
        assert f"FAILED {GATE_ID}" in run.text
        for text in (
            "200 us against the reference engine's 180 us",
            "ratio 1.111 [1.1",
            "limit 1.03",
            "over 4 builds",
        ):
            assert text in run.text
        failure = run.case().find("failure")
        assert failure is not None
        assert "200 us against the reference engine's 180 us, ratio 1.111" in (failure.text or "")
        assert "ratio 1.111" in (failure.get("message") or "")

    def test_restored_it_passes_as_unchanged(self, steady: SteadyProject) -> None:
        content = steady.model.read_bytes()
        slow(steady)
        assert steady.run().code == 1
        steady.model.write_bytes(content)
        run = steady.run()
        assert (run.code, run.said) == (0, ("pass", "unchanged"))

    @pytest.mark.parametrize(("arguments", "code"), [(["--gptune-max-regression=12"], 0), ([], 1)])
    def test_the_limit_can_be_set(self, steady: SteadyProject, arguments: list[str], code: int) -> None:
        slow(steady)
        assert steady.run(*arguments).code == code

    def test_committed_it_still_fails(self, steady: SteadyProject) -> None:
        """The reference engine is of the commit that wrote the baseline, not of the last one."""
        slow(steady)
        steady.commit("slower")
        run = steady.run()
        assert (run.code, run.said) == (1, ("fail", "slower"))

    def test_a_failure_does_not_recommend_to_make_it_the_baseline(self, steady: SteadyProject) -> None:
        slow(steady)
        run = steady.run()
        assert run.said == ("fail", "slower")
        assert "Tuning again is worth while" not in run.text
        assert run.verdict["command"] == ""

    def test_a_stack_that_changed_as_well_is_judged_too(self, steady: SteadyProject) -> None:
        """The paired gate measures both engines on the new stack, and so cannot see that it is slower."""
        steady.set(tuner_version="2.0", latency_us={"18": 400, "18 -first=on": 200})
        run = steady.run("--gptune-search=fast")
        assert run.test["winner"] == "first=on"
        assert (run.code, run.said) == (0, ("pass", "improved")), run.text
        assert "The stack changed as well: the absolute gate says pass, ratio 1.111" in run.text
        steady.set(tuner_version="2.0", latency_us={"18": 600, "18 -first=on": 300})
        run = steady.run("--gptune-search=fast")
        assert run.test["winner"] == "first=on"
        assert (run.code, run.said, run.verdict["gate"]) == (1, ("fail", "slower"), "absolute")
        assert "On this stack alone, the paired gate says pass" in run.text

    def test_a_route_that_makes_up_for_it_passes(self, steady: SteadyProject) -> None:
        """What counts is the tuned engine."""
        slow(steady)
        steady.set(latency_us={"20 -second=on": 150})
        run = steady.run("--gptune-search=fast")
        assert (run.code, run.said) == (0, ("pass", "improved"))
        assert run.verdict["ratio"] == pytest.approx(150 / 180, rel=1e-3)
        assert run.verdict["changed"] == ["model: another digest", "route: another route won"]

    def test_a_slow_tail_fails_although_the_statistic_is_equal(self, steady: SteadyProject) -> None:
        slow(steady)
        steady.set(latency_us={"20": 180}, tail={"20": 1.5})
        run = steady.run()
        assert (run.code, run.said) == (1, ("fail", "tail"))
        assert "its p95 is slower although its p25 is not" in run.text

    def test_a_slower_median_fails_although_the_statistic_is_equal(self, steady: SteadyProject) -> None:
        slow(steady)
        steady.set(latency_us={"20": 180}, tail={"20": 1.5}, tail_share={"20": 0.6})
        run = steady.run()
        assert (run.code, run.said) == (1, ("fail", "tail"))
        assert "its median is slower although its p25 is not" in run.text


class TestOtherModel:
    def test_as_fast_passes_within_the_limit(self, steady: SteadyProject) -> None:
        other_weights(steady)
        run = steady.run("--gptune-update-goldens")
        assert (run.code, run.said) == (0, ("pass", "within_limit"))
        assert run.verdict["changed"] == ["model: another digest", "golden: another digest"]
        assert run.verdict["interval"][0] < 1 < run.verdict["interval"][1]

    def test_faster_passes_as_improved(self, steady: SteadyProject) -> None:
        other_weights(steady, layers=LAYERS - 1)
        run = steady.run("--gptune-update-goldens")
        assert (run.code, run.said) == (0, ("pass", "improved"))
        assert run.verdict["ratio"] == pytest.approx(16 / 18, rel=1e-3)

    def test_a_little_slower_passes_within_the_limit(self, steady: SteadyProject) -> None:
        slow(steady)
        steady.set(latency_us={"20": 182})
        run = steady.run()
        assert (run.code, run.said) == (0, ("pass", "within_limit"))

    def test_against_names_the_commit_of_the_old_model(self, steady: SteadyProject) -> None:
        """The baseline was committed apart from its model, which no rule would find."""
        content, baseline = steady.model.read_bytes(), steady.record("baseline.json").read_bytes()
        steady.git("tag", "old")
        other_weights(steady)
        steady.record("baseline.json").unlink()
        steady.commit("another model")
        steady.git("checkout", "--quiet", "--orphan", "fresh")
        steady.record("baseline.json").write_bytes(baseline)
        steady.commit("a baseline without its model")
        assert steady.model.read_bytes() != content
        without = steady.run("--gptune-update-goldens")
        assert without.verdict["gate"] == "absolute"
        assert "not the one the baseline was made with" in without.text
        assert "--gptune-against REF" in without.text
        run = steady.run("--gptune-against=old")
        assert (run.code, run.said) == (0, ("pass", "within_limit"))
        assert run.verdict["gate"] == "paired"

    def test_against_an_unknown_revision_of_the_configuration(self, steady: SteadyProject) -> None:
        """Which goes with the project to clones that lack it; on the command line it is refused."""
        slow(steady)
        steady.ini(gptune_against="v9")
        run = steady.run()
        assert run.verdict["gate"] == "absolute"
        assert "git knows no revision 'v9'" in run.text

    def test_without_the_old_model_the_absolute_gate_is_taken_and_the_reason_said(
        self, steady: SteadyProject
    ) -> None:
        slow(steady)
        (steady.path / ".git").rename(steady.path / "gone")
        run = steady.run()
        assert (run.code, run.verdict["gate"]) == (0, "absolute")
        assert run.verdict["limit"] == pytest.approx(1.13)
        assert "no paired gate: the project is not in a git repository" in run.text

    def test_a_baseline_that_is_not_committed(self, steady: SteadyProject) -> None:
        steady.git("rm", "--quiet", "--cached", "-r", "tests/__gptune__")
        steady.git("commit", "--quiet", "--amend", "-m", "without its records")
        slow(steady)
        run = steady.run()
        assert (run.code, run.verdict["gate"]) == (0, "absolute")
        assert "no paired gate: the baseline has not been committed" in run.text
        assert "commit the baseline together with its model" in run.text

    def test_a_pointer_of_git_lfs_in_place_of_the_model(self, steady: SteadyProject) -> None:
        oid = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
        steady.model.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 1\n")
        steady.git("commit", "--quiet", "--all", "--amend", "-m", "a pointer and the baseline")
        slow(steady)
        run = steady.run()
        assert (run.code, run.verdict["gate"]) == (0, "absolute")
        assert "is a Git LFS pointer whose content is not here" in run.text
        assert "git lfs fetch origin" in run.text

    def test_a_reference_engine_that_cannot_be_built(self, steady: SteadyProject) -> None:
        slow(steady)
        steady.set(rejected=["18"])
        run = steady.run()
        assert (run.code, run.said) == (0, ("incomparable", "environment"))
        assert "the reference engine could not be measured: steady refuses" in run.text


class TestRoutes:
    def test_a_better_route_is_compared_with_the_baselines_in_the_same_run(
        self, steady: SteadyProject
    ) -> None:
        steady.set(latency_us={"-first=on": 120})
        run = steady.run("--gptune-search=fast")
        assert (run.code, run.said) == (0, ("pass", "improved"))
        assert (run.test["winner"], run.verdict["gate"]) == ("first=on", "paired")
        assert run.verdict["ratio"] == pytest.approx(120 / 180, rel=1e-3)
        assert run.verdict["changed"] == ["route: another route won"]

    def test_within_one_percent_the_baselines_route_stays(self, steady: SteadyProject) -> None:
        steady.set(latency_us={"-first=on": 179})
        run = steady.run("--gptune-search=fast")
        assert (run.said, run.test["winner"]) == (("pass", "unchanged"), "default")
        assert run.test["co_winners"][0] == "first=on"

    def test_replay_runs_the_default_and_the_baselines_route_only(self, steady: SteadyProject) -> None:
        steady.set(latency_us={"-first=on -second=on": 100})
        steady.write_baseline_entry()
        run = steady.run()
        assert run.statuses == {"default": "passed", "first=on,second=on": "passed"}
        assert (run.code, run.said) == (0, ("pass", "unchanged"))
        assert run.test["winner"] == "first=on,second=on"

    def test_a_search_runs_the_baselines_route_although_it_does_not_have_it(
        self, steady: SteadyProject
    ) -> None:
        steady.set(latency_us={"-first=on -second=on": 100})
        steady.write_baseline_entry()
        run = steady.run("--gptune-search=fast")
        assert set(run.statuses) == {"default", "first=on", "second=on", "first=on,second=on"}
        assert (run.code, run.said) == (0, ("pass", "unchanged"))

    def test_a_baselines_route_that_crashes_fails_its_test(self, steady: SteadyProject) -> None:
        steady.set(crashed=[""])
        run = steady.run("--gptune-search=fast")
        assert run.code == 1
        assert "FAILED tests/test_net.py::test_net[default]" in run.text
        assert "This is the baseline's route" in run.text
        assert run.statuses["default"] == "crashed"

    def test_a_route_that_is_not_available_any_more(self, steady: SteadyProject) -> None:
        steady.edit_baseline(lambda entry: entry.update(route="-third=on"))
        run = steady.run()
        assert (run.code, run.said) == (0, ("incomparable", "route_unavailable"))
        assert "'-third=on' is not in the knob space" in run.text
        assert run.outcomes == {"passed": 1, "skipped": 1}

    def test_a_search_shows_its_winner_although_the_baselines_route_is_gone(
        self, steady: SteadyProject
    ) -> None:
        steady.edit_baseline(lambda entry: entry.update(route="-third=on"))
        steady.set(latency_us={"-first=on": 100})
        run = steady.run("--gptune-search=fast")
        assert (run.code, run.said) == (0, ("incomparable", "route_unavailable"))
        assert run.test["winner"] == "first=on"

    def test_a_value_that_is_not_available_any_more(self, steady: SteadyProject) -> None:
        steady.edit_baseline(lambda entry: entry.update(route="-first=fast"))
        assert steady.run().said == ("incomparable", "route_unavailable")


class TestInaccurate:
    def test_when_no_route_passes_the_smallest_epsilon_is_said_and_no_latency(
        self, steady: SteadyProject
    ) -> None:
        steady.move_golden(1e-2)  # ten times epsilon
        steady.set(moved={"-first=on": 5e-3})  # half of it back
        run = steady.run("--gptune-search=full", "--benchmark-json=rows.json")
        assert (run.code, run.said) == (1, ("fail", "no_route_passes"))
        assert set(run.statuses.values()) == {"inaccurate"}
        assert "the smallest epsilon at which one would pass: 0.005" in run.text
        assert all(route["latency"] is None for route in run.test["routes"])
        assert all(route["speedup"] is None for route in run.test["routes"])
        assert run.test["winner"] is None
        rows = steady.path / "rows.json"
        assert not rows.exists() or json.loads(rows.read_text() or '{"benchmarks": []}')["benchmarks"] == []

        assert "of another model" not in run.text

    def test_a_golden_of_another_model_is_told(self, steady: SteadyProject) -> None:
        other_weights(steady)
        for search in ("full", "replay"):
            run = steady.run(f"--gptune-search={search}")
            assert (run.code, run.said) == (1, ("fail", "no_route_passes"))
            assert "The golden is of another model than this one" in run.text
        assert steady.run("--gptune-search=full", "--gptune-update-goldens").said[0] == "pass"

    def test_its_routes_are_xfailed_and_the_baselines_fails(self, steady: SteadyProject) -> None:
        steady.move_golden(1e-2)
        run = steady.run("--gptune-search=full")
        assert run.outcomes == {"failed": 2, "xfailed": 3}
        failure = run.case("test_net[default]").find("failure")
        assert failure is not None
        assert "inaccurate" in (failure.text or "")
        assert "Traceback" not in (failure.text or "")

    def test_what_it_says_would_do_does(self, steady: SteadyProject) -> None:
        steady.move_golden(1e-2)
        run = steady.run()
        needed = run.test["routes"][0]["needed_epsilon"]
        assert steady.run(f"--gptune-epsilon={needed}").said == ("pass", "unchanged")
        assert steady.run(f"--gptune-epsilon={needed * 0.99}").said == ("fail", "no_route_passes")

    def test_the_baselines_route(self, steady: SteadyProject) -> None:
        steady.set(moved={"": 1.0})
        run = steady.run("--gptune-search=fast")
        assert (run.code, run.said) == (1, ("fail", "baseline_route_inaccurate"))
        assert run.statuses == {"default": "inaccurate", "first=on": "passed", "second=on": "passed"}
        assert run.outcomes == {"failed": 2, "passed": 2}
        assert "the baseline's route is not accurate any more" in run.text

    def test_another_route_cannot_win_and_changes_nothing(self, steady: SteadyProject) -> None:
        steady.set(moved={"-first=on": 1.0}, latency_us={"-first=on": 10})
        run = steady.run("--gptune-search=fast")
        assert (run.code, run.said) == (0, ("pass", "unchanged"))
        assert run.statuses["first=on"] == "inaccurate"
        (row,) = [route for route in run.test["routes"] if route["id"] == "first=on"]
        assert row["latency"] is None
        assert run.outcomes == {"passed": 3, "xfailed": 1}

    def test_an_inaccurate_default_is_the_yardstick_and_cannot_win(self, steady: SteadyProject) -> None:
        steady.record("baseline.json").unlink()
        steady.set(moved={"": 1.0}, latency_us={"": 100})
        run = steady.run("--gptune-search=fast")
        assert run.said == ("new", "new")
        assert run.outcomes == {"passed": 2, "xfailed": 1, "skipped": 1}
        (winner,) = [route for route in run.test["routes"] if route["id"] == run.test["winner"]]
        assert winner["id"] in ("first=on", "second=on")
        assert winner["speedup"] == pytest.approx(100 / 180, rel=1e-2)

    def test_a_finalist_whose_second_build_is_inaccurate_does_not_win(self, steady: SteadyProject) -> None:
        steady.set(latency_us={"-first=on": 100}, moved_from_build={"-first=on": 1}, moved={"-first=on": 1.0})
        run = steady.run("--gptune-search=fast")
        assert (run.said, run.test["winner"]) == (("pass", "unchanged"), "default")
        assert run.statuses["first=on"] == "inaccurate"
        (row,) = [route for route in run.test["routes"] if route["id"] == "first=on"]
        assert row["latency"] is None
        assert "built again, it is inaccurate" in row["error"]

    def test_a_winner_that_is_inaccurate_when_it_is_measured_again_gives_way_to_the_next(
        self, steady: SteadyProject
    ) -> None:
        slow(steady)
        steady.set(
            latency_us={"20 -first=on": 195, "20": 230},
            builds={"20 -first=on": [1.0]},
            moved_from_build={"20 -first=on": 4},
            moved={"20 -first=on": 1.0},
        )
        run = steady.run("--gptune-search=fast")
        assert run.statuses["first=on"] == "inaccurate"
        (row,) = [route for route in run.test["routes"] if route["id"] == "first=on"]
        assert row["latency"] is row["speedup"] is row["speedup_interval"] is None
        assert (run.code, run.said) == (1, ("fail", "slower"))
        assert run.test["winner"] == "default"
        assert run.verdict["ratio"] == pytest.approx(230 / 180, rel=1e-2)

    def test_the_baselines_route_whose_second_build_is_inaccurate(self, steady: SteadyProject) -> None:
        steady.set(moved_from_build={"": 1}, moved={"": 1.0})
        run = steady.run("--gptune-search=fast")
        assert (run.code, run.said) == (1, ("fail", "baseline_route_inaccurate"))
        assert "built again" in run.text


class TestNew:
    @pytest.fixture
    def fresh(self, steady: SteadyProject) -> SteadyProject:
        steady.record("baseline.json").unlink()
        return steady

    def test_is_skipped_and_says_how_to_make_one(self, fresh: SteadyProject) -> None:
        run = fresh.run("-rs", "--gptune-search=full")
        assert (run.code, run.said) == (0, ("new", "new"))
        assert run.outcomes == {"passed": 4, "skipped": 1}
        assert "no baseline yet" in run.text
        assert run.verdict["command"] == (
            "python -m pytest 'tests/test_net.py::test_net' --gptune-search full --gptune-update-baseline"
        )
        assert run.case().find("skipped") is not None

    def test_the_command_it_says_makes_one(self, fresh: SteadyProject) -> None:
        import shlex

        command = shlex.split(fresh.run().verdict["command"])
        assert command[:3] == ["python", "-m", "pytest"]
        assert fresh.run(*command[3:]).said == ("new", "written")
        assert fresh.run().said == ("pass", "unchanged")

    def test_fails_where_a_baseline_is_required(self, fresh: SteadyProject) -> None:
        fresh.ini(gptune_require_baseline="true")
        run = fresh.run()
        assert (run.code, run.said) == (1, ("new", "new"))
        assert run.outcomes == {"passed": 1, "failed": 1}
        assert "gptune_require_baseline" in run.text
        assert "no baseline yet" in run.text

    def test_writing_one_does_not_fail_where_one_is_required(self, fresh: SteadyProject) -> None:
        fresh.ini(gptune_require_baseline="true")
        assert fresh.run("--gptune-update-baseline", "--gptune-search=fast").code == 0

    def test_of_a_backend_without_an_entry(self, steady: SteadyProject) -> None:
        steady.edit_baseline(lambda entry: entry.update(backend="another"))
        assert steady.run().said == ("new", "new")


class TestIncomparable:
    @pytest.mark.parametrize(
        ("change", "reason", "text"),
        [
            ({"shapes": {"x": [4, 8]}}, "shapes", "x"),
            ({"latency_kind": "device_queued"}, "kind", "device_queued"),
        ],
    )
    def test_what_differs_is_named(
        self, steady: SteadyProject, change: dict[str, Any], reason: str, text: str
    ) -> None:
        steady.edit_baseline(lambda entry: entry.update(change))
        run = steady.run("-rs")
        assert (run.code, run.said) == (0, ("incomparable", reason))
        assert f"the baseline has other {reason}" in run.verdict["message"]
        assert text in run.verdict["message"]
        assert run.outcomes == {"passed": 1, "skipped": 1}
        assert "--gptune-update-baseline" in run.verdict["command"]

    def test_another_schema(self, steady: SteadyProject) -> None:
        steady.write_baseline({"schema": 7, "entries": [{"of": "a later version"}]})
        run = steady.run("--gptune-search=fast")
        assert (run.code, run.said) == (0, ("incomparable", "schema"))
        assert "the baseline has schema 7, this version reads schema 1" in run.text

    def test_a_baseline_is_required(self, steady: SteadyProject) -> None:
        steady.ini(gptune_require_baseline="true")
        steady.write_baseline({"schema": 7, "entries": []})
        run = steady.run()
        assert (run.code, run.said) == (1, ("incomparable", "schema"))

    def test_a_broken_baseline_is_an_error_of_its_test(self, steady: SteadyProject) -> None:
        steady.record("baseline.json").write_text('{"schema": 1, "entries": [{"backend": 1}]}')
        run = steady.run()
        assert run.code == 1
        assert "the baseline has an entry that cannot be read" in run.text
        assert run.report is not None
        assert run.report["tests"] == []

    def test_a_broken_baseline_costs_no_other_test(self, steady: SteadyProject) -> None:
        second(steady)
        steady.record("baseline.json").write_text("{")
        run = steady.run()
        assert run.code == 1
        assert run.tests["test_other"]["verdict"]["reason"] == "unchanged"
