"""The gates absolute, relative and off, ambiguous verdicts, other devices, several tunings, updating."""

from __future__ import annotations

import pytest
from verdict_project import SteadyProject, second, slow

from pytest_gptune.errors import StorageError
from pytest_gptune.plugin import conclude

GATE_ID = "tests/test_net.py::test_net::gptune-gate"


class TestDevice:
    def test_an_entry_of_another_device_is_enough_for_unchanged(self, steady: SteadyProject) -> None:
        steady.set(device_class="steady:two")
        run = steady.run("--gptune-search=fast")
        assert (run.code, run.said) == (0, ("pass", "unchanged"))
        assert "its latency was recorded on steady:one" in run.text
        assert run.verdict["changed"] == ["name: steady:one -> steady:two"]

    def test_and_for_the_paired_gate(self, steady: SteadyProject) -> None:
        steady.set(device_class="steady:two", scale=0.5)
        slow(steady)
        run = steady.run("--gptune-search=fast")
        assert (run.code, run.said) == (1, ("fail", "slower"))
        assert run.verdict["gate"] == "paired"

    def test_and_not_for_the_absolute_one(self, steady: SteadyProject) -> None:
        steady.set(device_class="steady:two")
        run = steady.run("--gptune-gate=absolute")
        assert (run.code, run.said) == (0, ("incomparable", "environment"))
        assert "the baseline is of steady:one" in run.text

    def test_another_device_gets_an_entry_of_its_own(self, steady: SteadyProject) -> None:
        first = steady.baseline["entries"]
        steady.set(device_class="steady:two", latency_us={"-first=on": 100})
        steady.write_baseline_entry()
        assert [entry["route"] for entry in steady.baseline["entries"]] == ["", "-first=on"]
        assert steady.baseline["entries"][0] == first[0]
        steady.set(device_class="steady:one", latency_us={})
        run = steady.run()
        assert (run.said, run.test["winner"]) == (("pass", "unchanged"), "default")

    def test_a_route_of_another_device_that_is_inaccurate_here_fails_nothing(
        self, steady: SteadyProject
    ) -> None:
        steady.set(device_class="steady:two", latency_us={"-first=on": 100})
        steady.write_baseline_entry()
        steady.set(device_class="steady:one", latency_us={}, moved={"-first=on": 1.0})
        run = steady.run()
        assert (run.code, run.said) == (0, ("pass", "unchanged"))


class TestAbsolute:
    def test_is_taken_when_the_stack_changed(self, steady: SteadyProject) -> None:
        steady.set(tuner_version="2.0")
        run = steady.run()
        assert (run.code, run.said) == (0, ("pass", "within_limit"))
        assert run.verdict["gate"] == "absolute"
        assert run.verdict["changed"] == ["backend: steady 1.0 -> steady 2.0"]
        assert "Tuning again is worth while" in run.text

    def test_a_slower_stack_fails(self, steady: SteadyProject) -> None:
        steady.set(tuner_version="2.0", latency_us={"18": 230})
        run = steady.run("--gptune-search=fast")
        assert (run.code, run.said) == (1, ("fail", "slower"))
        assert run.verdict["ratio"] == pytest.approx(230 / 180, rel=1e-2)
        assert "230 us against the baseline's 180 us" in run.text

    def test_a_slower_machine_does_not(self, steady: SteadyProject) -> None:
        steady.set(tuner_version="2.0", scale=1.4)
        run = steady.run("--gptune-search=fast")
        assert (run.code, run.said) == (0, ("pass", "within_limit"))
        assert "the calibration engine takes 1.400 of its time in the baseline" in run.text

    def test_without_calibration_in_the_baseline(self, steady: SteadyProject) -> None:
        steady.edit_baseline(lambda entry: entry.update(calibration_s=None))
        steady.set(tuner_version="2.0")
        run = steady.run()
        assert (run.code, run.said) == (0, ("pass", "within_limit"))
        assert "no calibration in the baseline" in run.text

    def test_its_limit_is_wider(self, steady: SteadyProject) -> None:
        steady.set(tuner_version="2.0", latency_us={"18": 195})
        run = steady.run()
        assert (run.code, run.said) == (0, ("pass", "within_limit"))
        assert run.verdict["limit"] == pytest.approx(1.13)

    def test_can_be_asked_for(self, steady: SteadyProject) -> None:
        run = steady.run("--gptune-gate=absolute")
        assert (run.code, run.said) == (0, ("pass", "within_limit"))
        assert run.verdict["gate"] == "absolute"


class TestRelative:
    @pytest.fixture
    def gained(self, steady: SteadyProject) -> SteadyProject:
        """The baseline's route takes half of the default's time."""
        steady.set(latency_us={"-first=on": 90})
        steady.write_baseline_entry()
        return steady

    def test_the_gain_is_still_there(self, gained: SteadyProject) -> None:
        gained.set(scale=2.0)
        run = gained.run("--gptune-gate=relative")
        assert (run.code, run.said) == (0, ("pass", "within_limit"))
        assert run.verdict["ratio"] == pytest.approx(1.0, rel=1e-2)

    def test_the_gain_is_lost(self, gained: SteadyProject) -> None:
        gained.set(latency_us={"-first=on": 120})
        run = gained.run("--gptune-gate=relative")
        assert (run.code, run.said) == (1, ("fail", "slower"))
        assert run.verdict["ratio"] == pytest.approx(120 / 90, rel=1e-2)

    def test_other_defaults(self, gained: SteadyProject) -> None:
        gained.set(default_second="on")
        run = gained.run("--gptune-gate=relative")
        assert (run.code, run.said) == (0, ("incomparable", "default_changed"))

    def test_another_model(self, gained: SteadyProject) -> None:
        slow(gained)
        run = gained.run("--gptune-gate=relative")
        assert (run.code, run.said) == (0, ("incomparable", "environment"))
        assert "the model is another" in run.text

    def test_another_version(self, gained: SteadyProject) -> None:
        gained.set(tuner_version="2.0")
        run = gained.run("--gptune-gate=relative")
        assert (run.code, run.said) == (0, ("incomparable", "environment"))

    def test_a_baseline_without_a_default(self, gained: SteadyProject) -> None:
        gained.edit_baseline(lambda entry: entry.update(default=None))
        run = gained.run("--gptune-gate=relative")
        assert (run.code, run.said) == (0, ("incomparable", "environment"))
        assert "the default was not measured" in run.text

    def test_the_latencies_it_says_are_the_ones_it_compared(self, gained: SteadyProject) -> None:
        gained.set(latency_us={"-first=on": 120}, scale=2.0)
        run = gained.run("--gptune-gate=relative")
        assert run.said == ("fail", "slower")
        assert "ratio 1.333" in run.text
        assert "0.667 of the default's time, 0.500 in the baseline" in run.text


class TestGateOption:
    def test_off_compares_nothing(self, steady: SteadyProject) -> None:
        slow(steady)
        run = steady.run("--gptune-gate=off", "--gptune-search=fast")
        assert (run.code, run.said) == (0, ("incomparable", "off"))
        assert run.outcomes == {"passed": 3, "skipped": 1}

    def test_off_does_not_fail_where_a_baseline_is_required(self, steady: SteadyProject) -> None:
        steady.ini(gptune_require_baseline="true")
        assert steady.run("--gptune-gate=off").code == 0

    def test_off_does_not_make_inaccuracy_pass(self, steady: SteadyProject) -> None:
        steady.move_golden(1e-2)
        run = steady.run("--gptune-gate=off")
        assert (run.code, run.said) == (1, ("fail", "no_route_passes"))

    def test_paired_of_what_did_not_change(self, steady: SteadyProject) -> None:
        run = steady.run("--gptune-gate=paired")
        assert (run.code, run.said) == (0, ("pass", "within_limit"))
        assert run.verdict["ratio"] == 1.0

    def test_paired_without_the_old_model(self, steady: SteadyProject) -> None:
        slow(steady)
        steady.ini(gptune_against="v9")
        run = steady.run("--gptune-gate=paired")
        assert (run.code, run.said) == (0, ("incomparable", "environment"))
        assert "git knows no revision 'v9'" in run.text

    def test_in_the_configuration(self, steady: SteadyProject) -> None:
        steady.ini(gptune_gate="absolute")
        assert steady.run().verdict["gate"] == "absolute"
        assert steady.run("--gptune-gate=auto").verdict["gate"] == ""


class TestAmbiguous:
    @pytest.fixture
    def noisy(self, steady: SteadyProject) -> SteadyProject:
        """A slower model whose builds differ by as much as it is slower."""
        slow(steady)
        steady.set(builds={"20": [0.85, 1.1]})
        return steady

    def test_passes_with_a_warning(self, noisy: SteadyProject) -> None:
        run = noisy.run("--gptune-search=fast")
        assert (run.code, run.said) == (0, ("ambiguous", "noise"))
        assert run.outcomes["passed"] == 4
        assert "GptuneWarning: ambiguous, noise (gate paired)" in run.text
        assert run.verdict["builds"] == 10  # five times those of the configuration

    def test_fails_if_the_configuration_says_so(self, noisy: SteadyProject) -> None:
        noisy.ini(gptune_ambiguous="fail")
        run = noisy.run()
        assert (run.code, run.said) == (1, ("ambiguous", "noise"))
        assert run.outcomes == {"passed": 1, "failed": 1}
        failure = run.case().find("failure")
        assert failure is not None
        assert "gptune_ambiguous" in (failure.text or "")
        # A new baseline would accept what may be slower.
        assert "Tuning again" not in run.text
        assert "--gptune-update-baseline" not in run.text

    def test_warnings_that_are_errors_do_not_end_the_run(self, noisy: SteadyProject) -> None:
        run = noisy.run("-W", "error")
        assert run.said == ("ambiguous", "noise")
        assert "INTERNALERROR" not in run.text


class TestTwoTunings:
    def test_each_has_a_verdict(self, steady: SteadyProject) -> None:
        second(steady)
        slow(steady)
        run = steady.run("--gptune-search=fast")
        assert run.code == 1
        verdicts = {name: test["verdict"]["reason"] for name, test in run.tests.items()}
        assert verdicts == {"test_net": "slower", "test_other": "unchanged"}
        assert run.outcomes == {"passed": 7, "failed": 1}
        assert "FAILED tests/test_net.py::test_net::gptune-gate" in run.text
        assert "FAILED tests/test_other.py" not in run.text

    def test_updating_writes_both(self, steady: SteadyProject) -> None:
        second(steady)
        assert steady.record("baseline.json", "test_other", "test_other").exists()


class TestUpdate:
    def test_replaces_its_own_entry_and_keeps_others(self, steady: SteadyProject) -> None:
        (own,) = steady.baseline["entries"]
        others = [own | {"backend": "another"}, own | {"device_class": "steady:nine"}]
        steady.write_baseline({"schema": 1, "entries": [others[0], own, others[1]]})
        steady.set(latency_us={"-first=on": 100})
        run = steady.run("--gptune-search=fast", "--gptune-update-baseline")
        assert (run.code, run.said) == (0, ("new", "written"))
        entries = steady.baseline["entries"]
        assert [entry for entry in entries if entry in others] == others
        (new,) = [entry for entry in entries if entry not in others]
        assert (new["route"], new["latency_s"]) == ("-first=on", pytest.approx(100e-6, rel=1e-2))

    def test_what_it_records(self, steady: SteadyProject) -> None:
        (entry,) = steady.baseline["entries"]
        assert entry["latency_s"] == pytest.approx(180e-6, rel=1e-2)
        assert entry["default"]["latency_s"] == pytest.approx(180e-6, rel=1e-2)
        assert entry["calibration_s"] == pytest.approx(60e-6, rel=1e-2)
        # Two of the finals, and two beside the calibration engine.
        assert (entry["builds"], entry["model_path"]) == (4, "models/net.onnx")
        assert entry["between_build_spread"] == pytest.approx(0.0014, rel=0.2)
        assert entry["fingerprint"]["invalidating"]["software"] == {"backend": "steady 1.0"}

    def test_does_not_judge(self, steady: SteadyProject) -> None:
        slow(steady)
        run = steady.run("--gptune-search=fast", "--gptune-update-baseline")
        assert (run.code, run.said) == (0, ("new", "written"))

    def test_replaces_a_baseline_of_another_schema(self, steady: SteadyProject) -> None:
        steady.write_baseline({"schema": 7, "entries": []})
        run = steady.run("--gptune-search=fast", "--gptune-update-baseline")
        assert (run.code, run.said) == (0, ("new", "written"))
        assert steady.baseline["schema"] == 1

    def test_replaces_an_entry_whose_route_is_not_available_any_more(self, steady: SteadyProject) -> None:
        steady.edit_baseline(lambda entry: entry.update(route="-third=on"))
        run = steady.run("--gptune-search=fast", "--gptune-update-baseline")
        assert (run.code, run.said) == (0, ("new", "written"))
        assert [entry["route"] for entry in steady.baseline["entries"]] == [""]

    def test_replaces_an_entry_whose_route_is_not_accurate_any_more(self, steady: SteadyProject) -> None:
        steady.set(moved={"": 1.0})
        run = steady.run("--gptune-search=fast", "--gptune-update-baseline")
        assert run.said == ("new", "written")
        assert [entry["route"] for entry in steady.baseline["entries"]] != [""]
        assert steady.run().code == 0

    def test_writes_nothing_where_no_route_passes(self, steady: SteadyProject) -> None:
        before = steady.record("baseline.json").read_bytes()
        steady.move_golden(1e-2)
        run = steady.run("--gptune-search=fast", "--gptune-update-baseline")
        assert (run.code, run.said) == (1, ("fail", "no_route_passes"))
        assert steady.record("baseline.json").read_bytes() == before

    def test_that_cannot_be_written_fails(
        self, steady: SteadyProject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise StorageError("cannot write it: no space left on device")

        monkeypatch.setattr(conclude, "save_baseline", full)
        run = steady.run("--gptune-search=fast", "--gptune-update-baseline")
        assert (run.code, run.said) == (1, ("fail", "not_written"))
        assert "no space left on device" in run.text

    def test_names_the_file_to_commit(self, steady: SteadyProject) -> None:
        run = steady.run("--gptune-search=fast", "--gptune-update-baseline")
        assert (
            "commit tests/__gptune__/test_net/test_net.baseline.json with the model" in run.verdict["message"]
        )
