"""What other estimators and plans of the finals would have decided, on recorded series.

    python benchmarks/simulate_timing.py --trials 400

Decisions of the paired gate are played through with pairs of builds drawn from ``data/cpu-series.npz``
(builds of one model, recorded by ``record_series.py``), one side of each pair multiplied by a true slowdown.
The gate's own functions judge; what varies is what stands for a build, how many blocks it has, and how many
builds are made before it is decided. ``data/gpu-series.npz`` has samples of single builds on a GPU: for those
the spread between builds is printed by estimator. Prints JSON: a change of protocol is judged without hours
of measuring.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_gptune.timing.statistics import paired_ratio
from pytest_gptune.verdict import judge

DATA = Path(__file__).resolve().parent / "data"
SLOWDOWNS = (0, 1, 2, 3, 5, 10)

# Columns of the recorded blocks.
P25, P50, _P75, _P95, MEAN, MIN = range(6)

ESTIMATORS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "quietest block's p25": lambda blocks: blocks[..., P25].min(-1),
    "median block's p25": lambda blocks: np.median(blocks[..., P25], -1),
    "quietest block's median": lambda blocks: blocks[..., P50].min(-1),
    "minimum": lambda blocks: blocks[..., MIN].min(-1),
    "mean": lambda blocks: blocks[..., MEAN].mean(-1),
}

# Measured with the example's mlp: building, checking and warming up one engine.
_BUILD_S = 0.06
_BLOCK_S, _HEAD_S = 0.05, 0.012


@dataclass(frozen=True)
class Plan:
    """How a decision is made.

    Attributes:
        rounds: blocks of each build.
        builds: pairs of builds before the first look.
        step: pairs added before each further look.
        most: pairs in all.
    """

    estimator: str = "quietest block's p25"
    rounds: int = 4
    builds: int = 5
    step: int = 5
    most: int = 25
    limit: float = 1.01


def decide(ratios: Callable[[], tuple[float, float]], plan: Plan) -> tuple[str, int]:
    """The gate as ``plugin.gating`` applies it: look, add builds, look again; how many pairs it took."""
    first: list[float] = []
    second: list[float] = []

    def add(count: int) -> None:
        for _ in range(count):
            a, b = ratios()
            first.append(a)
            second.append(b)

    add(plan.builds)
    fresh = None
    while True:
        outcome = judge(paired_ratio(first, second), plan.limit)
        if outcome == "pass":
            return "pass", len(first)
        if outcome == "fail" and fresh is not None and fresh > plan.limit:
            return "fail", len(first)
        if len(first) >= plan.most:
            return "ambiguous", len(first)
        add(plan.step)
        fresh = paired_ratio(first[-plan.step :], second[-plan.step :]).value


def simulate(series: dict[str, np.ndarray], plan: Plan, trials: int) -> dict[str, Any]:
    """Rates over all conditions, and seconds of measuring."""
    rng = random.Random(0)
    found: dict[str, Any] = {}
    for slowdown in SLOWDOWNS:
        outcomes: Counter[str] = Counter()
        used: list[int] = []
        for blocks in series.values():
            latencies = ESTIMATORS[plan.estimator](blocks[:, :, : plan.rounds])

            def ratios(latencies: np.ndarray = latencies, slowdown: int = slowdown) -> tuple[float, float]:
                # Either engine of a recorded pair may be the slower one.
                a, b = rng.sample(list(latencies[rng.randrange(len(latencies))]), 2)
                return float(a) * (1 + slowdown / 100), float(b)

            for _ in range(trials):
                outcome, count = decide(ratios, plan)
                outcomes[outcome] += 1
                used.append(count)
        per_pair = 2 * (plan.rounds * (_BLOCK_S + _HEAD_S) + _BUILD_S)
        total = sum(outcomes.values())
        found[f"{slowdown} %"] = {
            **{name: round(outcomes[name] / total, 4) for name in ("fail", "pass", "ambiguous")},
            "seconds_median": round(statistics.median(used) * per_pair, 2),
            "seconds_mean": round(statistics.fmean(used) * per_pair, 2),
        }
    return found


def between_builds(samples: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Relative spread between builds of one configuration, in percent, by estimator; median and worst."""
    estimators: dict[str, Callable[[np.ndarray], float]] = {
        "p25": lambda s: float(np.percentile(s, 25)),
        "median": lambda s: float(np.median(s)),
        "mean": lambda s: float(np.mean(s)),
        "minimum": lambda s: float(np.min(s)),
    }
    builds: dict[str, list[np.ndarray]] = {}
    for key, values in samples.items():
        builds.setdefault(key.rsplit("/", 1)[0], []).append(values)
    found = {}
    for name, estimate in estimators.items():
        spreads = []
        for several in builds.values():
            estimates = [estimate(one) for one in several]
            spreads.append(100 * (max(estimates) / min(estimates) - 1))
        found[name] = {"median": round(statistics.median(spreads), 3), "worst": round(max(spreads), 3)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=200, help="decisions a condition, default 200")
    given = parser.parse_args()
    with np.load(DATA / "cpu-series.npz", allow_pickle=False) as archive:
        about = json.loads(str(archive["about"]))
        series = {key: archive[key] for key in archive.files if key != "about"}
    plans = [
        *(Plan(estimator=name) for name in ESTIMATORS),
        *(Plan(rounds=rounds) for rounds in (2, 3, 6)),
        Plan(builds=5, step=3),
        Plan(builds=6, step=3),
        Plan(builds=8, step=4),
        Plan(rounds=3, builds=6, step=3),
        Plan(rounds=3, builds=8, step=4),
        Plan(rounds=2, builds=8, step=4),
    ]
    decisions = []
    for number, plan in enumerate(plans, start=1):
        decisions.append({"plan": asdict(plan), "rates": simulate(series, plan, given.trials)})
        print(f"{number}/{len(plans)}", file=sys.stderr)
    result: dict[str, Any] = {
        "benchmark": "simulate_timing",
        "command": " ".join(["python", *sys.argv]),
        "python": platform.python_version(),
        "recorded": {**about, "pairs": {key: len(value) for key, value in series.items()}},
        "decisions": decisions,
    }
    if (path := DATA / "gpu-series.npz").exists():
        with np.load(path, allow_pickle=False) as archive:
            samples = {key: archive[key] for key in archive.files if key != "about"}
            result["gpu"] = {
                "recorded": json.loads(str(archive["about"])),
                "spread_between_builds_percent": {
                    kind: between_builds({k: v for k, v in samples.items() if k.startswith(kind)})
                    for kind in ("device_queued", "device_waited")
                },
            }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
