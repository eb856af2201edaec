"""The gate decides rightly while another process keeps a core busy at random.

The short form runs with all tests, on any machine: a model that takes three times as long. The long one is
what the gate is judged by: 11 % and ten repeats of each, with the finals a user gets by default. With ``-s``
every ratio is seen.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import models
import pytest
from verdict_project import BATCH, LAYERS, WIDTH, Project, Run, slow_down

BUSY = """
import random, time
while True:
    end = time.perf_counter() + random.uniform(0.05, 0.5)
    while time.perf_counter() < end:
        sum(range(1000))
    time.sleep(random.uniform(0.05, 0.5))
"""


@pytest.fixture
def neighbour() -> Iterator[None]:
    """A process that computes and sleeps in turns of 50 to 500 ms."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
        assert process.poll() is None, "the neighbour ended by itself"
    finally:
        process.kill()
        process.wait()


@dataclass
class Series:
    """Runs of one project in its three states, and what was said of each."""

    project: Project
    original: bytes
    golden: bytes
    extra_layers: int = 1
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, project: Project, extra_layers: int = 1) -> Series:
        golden = project.record("golden.npz").read_bytes()
        return cls(project, project.model.read_bytes(), golden, extra_layers)

    def run(self, state: str, number: int, *arguments: str) -> None:
        """Bring the model into a state, run, and note whether the decision was right."""
        self.project.model.write_bytes(self.original)
        self.project.record("golden.npz").write_bytes(self.golden)
        expected: tuple[int, str, tuple[str, ...]] = (0, "pass", ("unchanged",))
        if state == "slower":
            slow_down(self.project, self.extra_layers)
            expected = (1, "fail", ("slower",))
        elif state == "other weights":
            models.mlp(self.project.model, LAYERS, WIDTH, BATCH, seed=1)
            arguments += ("--gptune-update-goldens",)
            expected = (0, "pass", ("within_limit", "improved"))
        run = self.project.run_outside(*arguments)
        code, outcome, reasons = expected
        right = run.code == code and run.said[0] == outcome and run.said[1] in reasons
        line = f"{state:>13} {number:>2}: {'right' if right else 'WRONG'}: {_figures(run)}"
        print(line, flush=True)
        if not right:
            self.wrong.append(f"{line}\n{run.out}")

    def check(self) -> None:
        """Fail with the output of the decisions that were wrong."""
        assert not self.wrong, "\n\n".join(self.wrong)


def _figures(run: Run) -> str:
    verdict, winner = run.verdict, run.test["winner"]
    latency = next((r["latency"]["value"] for r in run.test["routes"] if r["id"] == winner), 0.0)
    text = f"exit {run.code}, {verdict['outcome']} {verdict['reason']}, {latency * 1e6:.1f} us"
    if verdict["ratio"] is not None:
        low, high = verdict["interval"]
        text += f", ratio {verdict['ratio']:.4f} [{low:.4f}, {high:.4f}] over {verdict['builds']} builds"
    return text


@pytest.mark.usefixtures("neighbour")
def test_two_of_two(tuned: Project) -> None:
    series = Series.of(tuned, extra_layers=2 * LAYERS)
    for number in (1, 2):
        for state in ("slower", "restored"):
            series.run(state, number)  # replay: the default route, and the reference engine where it slowed
    series.check()


@pytest.mark.long
@pytest.mark.usefixtures("neighbour")
def test_ten_of_ten(tuned: Project, tuned_template: Path) -> None:
    """The baseline is made anew under load, with the finals that are the default."""
    (tuned.path / "pytest.ini").write_text("[pytest]\n")
    written = tuned.run_outside("--gptune-search=fast", "--gptune-update-baseline")
    assert written.said == ("new", "written"), written.out
    tuned.commit("baseline under load")
    series = Series.of(tuned)
    for state in ("unchanged", "slower", "restored", "other weights"):
        for number in range(1, 11):
            series.run(state, number, "--gptune-search=fast")
    series.check()
