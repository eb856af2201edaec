"""What is told of the conditions a series was measured under."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from scripted_engines import ScriptedEngine

from pytest_gptune.engines.base import SampleBlock
from pytest_gptune.engines.disturbance import HostClock
from pytest_gptune.timing.protocol import SamplingPlan, measure
from pytest_gptune.timing.stability import Conditions

MS = 1e-3
NARROW, WIDE = (0.999 * MS, 1.001 * MS), (0.9 * MS, 1.1 * MS)


def warnings(interval: tuple[float, float], *blocks: SampleBlock) -> tuple[str, ...]:
    return Conditions.of(blocks).warnings(1 * MS, interval)


def block(**facts: object) -> SampleBlock:
    return SampleBlock((1 * MS,), **facts)  # type: ignore[arg-type]


def test_a_quiet_series_needs_no_word() -> None:
    assert warnings(NARROW, block(others_share=0.5)) == ()


def test_an_unstable_series_names_the_load() -> None:
    found = warnings(WIDE, block(others_share=0.4), block(others_share=0.3), block(others_share=0.5))
    assert found == ("unstable, within 10%: other processes took 40% of the cores",)


def test_an_unstable_series_without_a_known_cause_says_so() -> None:
    for blocks in ([block()], [block(others_share=0.02)]):
        assert warnings(WIDE, *blocks) == ("unstable, within 10%: no cause was seen",)


def test_a_single_build_has_no_interval_and_needs_no_word() -> None:
    assert warnings((0.0, math.inf), block(others_share=0.9)) == ()


def test_throttling_is_counted_by_blocks() -> None:
    words = ("throttled by the CPU quota",)
    found = warnings(WIDE, block(conditions=words), block(), block(conditions=words))
    assert found == ("unstable, within 10%: throttled by the CPU quota (2 of 3 blocks)",)


def test_a_device_that_waits_for_its_host_is_told_even_when_steady() -> None:
    assert warnings(NARROW, block(enqueue_share=0.79)) == ()
    (found,) = warnings(NARROW, block(enqueue_share=0.93))
    assert found.startswith("enqueue-bound: the host needs 93%")
    assert "unstable, within 10%: the host's pace is what is measured" in warnings(
        WIDE, block(enqueue_share=0.93)
    )


def test_a_clock_that_moved_is_told_even_when_steady() -> None:
    clocks = [block(sm_clock_hz=hz) for hz in (1980e6, 1500e6, 1900e6)]
    assert warnings(NARROW, *clocks) == ("the device's clock moved from 1500 to 1980 MHz",)
    assert warnings(NARROW, block(sm_clock_hz=1980e6), block(sm_clock_hz=1975e6)) == ()


def test_a_measurement_carries_its_warnings() -> None:
    class Disturbed(ScriptedEngine):
        def sample(self, seconds: float, at_most: int, batch: int = 1) -> SampleBlock:
            taken = super().sample(seconds, at_most, batch)
            return SampleBlock(taken.latencies_s, others_share=0.6)

    blocks = [[1 * MS] * 3, [1 * MS] * 3, *([[1 * MS * (1 + number % 2)] * 3 for number in range(40)])]
    result = measure(Disturbed(blocks), SamplingPlan(budget_s=0.0))
    (warning,) = result.warnings
    assert warning.endswith("other processes took 60% of the cores")


class TestHostClock:
    """``/proc/stat`` and ``cpu.stat`` as files that are written down; ticks of 10 ms."""

    @pytest.fixture(autouse=True)
    def two_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
        monkeypatch.setattr("os.sysconf", lambda name: 100, raising=False)

    @staticmethod
    def at(folder: Path, busy: int, *, stolen: int = 0, throttled: int = 0) -> HostClock:
        """A moment; cores 0 and 1 share the ticks, core 2 is not ours."""
        stat, group = folder / "stat", folder / "cpu.stat"
        line = f"{busy // 2} 0 0 77 0 0 0 {stolen} 0 0"
        stat.write_text(f"cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 {line}\ncpu1 {line}\ncpu2 999{line}\nintr 5\n")
        group.write_text(f"usage_usec 1\nnr_throttled {throttled}\n")
        return HostClock.now(stat, group)

    def test_the_time_of_others_is_what_is_not_ours(self, tmp_path: Path) -> None:
        from dataclasses import replace

        start = replace(self.at(tmp_path, 100), wall_s=0.0, own_s=1.0)
        end = replace(self.at(tmp_path, 250), wall_s=1.0, own_s=2.0)
        # 1.5 s of 2 s were busy, 1 s of them ours.
        assert start.describe(block(), end).others_share == pytest.approx(0.25)

    def test_quota_and_hypervisor(self, tmp_path: Path) -> None:
        from dataclasses import replace

        start = replace(self.at(tmp_path, 100), wall_s=0.0)
        end = replace(self.at(tmp_path, 100, stolen=20, throttled=3), wall_s=1.0)
        assert start.describe(block(), end).conditions == (
            "throttled by the CPU quota",
            "time stolen by the hypervisor",
        )
        assert start.describe(block(), replace(start, wall_s=1.0)).conditions == ()

    def test_a_moment_too_short_for_ticks_says_nothing(self, tmp_path: Path) -> None:
        from dataclasses import replace

        start = replace(self.at(tmp_path, 100), wall_s=0.0)
        assert start.describe(block(), replace(start, wall_s=0.01)).others_share is None

    def test_other_systems_say_nothing(self, tmp_path: Path) -> None:
        clock = HostClock.now(tmp_path / "missing", tmp_path / "missing")
        assert clock.busy_s is None
        assert clock.describe(block(), clock).others_share is None

    @pytest.mark.parametrize("content", ["", "cpu0 1 2\n", "cpu0 a b c d e f g h\n"])
    def test_a_file_of_another_form_says_nothing(self, tmp_path: Path, content: str) -> None:
        stat = tmp_path / "stat"
        stat.write_text(content)
        assert HostClock.now(stat, stat).busy_s is None
