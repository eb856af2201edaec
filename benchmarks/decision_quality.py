"""How often the paired gate is right, beside trtexec's protocol, on this machine.

    python benchmarks/decision_quality.py --quick          about five minutes
    python benchmarks/decision_quality.py --pairs 200 --slow 60

A decision compares two engines as the gate does: the model as it is, and the same with real extra work
(layers that change no output). The true ratio of each is established first, by a long interleaved
measurement of many builds. Decisions take turns over the conditions: one and two threads; alone, and with
another process that takes a core at random. Prints JSON: rates by slowdown and condition with Wilson
intervals at 95 %, and the seconds of measuring per decision.

``ours`` is ``plugin.gating`` as the plugin runs it, with the limit of ``--max-regression``; ``trtexec`` is
its protocol: each engine measured for itself, 200 ms of warm-up, then 3 s, means compared with the same
limit.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from record_series import load

from pytest_gptune.accuracy import AccuracyGate, Case, Golden, Provenance
from pytest_gptune.engines.base import BuildRequest
from pytest_gptune.engines.machine import cpu_model, usable_cores
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.worker import WorkerBackend
from pytest_gptune.plugin.contest import REFERENCE, Contest
from pytest_gptune.plugin.gating import Gating
from pytest_gptune.timing.finals import FinalsPlan
from pytest_gptune.timing.statistics import paired_ratio
from pytest_gptune.verdict import Change

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example_project"))
import make_models

WINNER = "new"
SLOWDOWNS = (0, 1, 2, 3, 5, 10)
CONDITIONS = tuple((threads, loaded) for threads in (1, 2) for loaded in (False, True))


class Bench:
    """Models with extra work, and decisions about them."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.backend = WorkerBackend("onnxruntime", route_timeout_s=600)
        self.limit = limit
        self.models = {}
        for percent in SLOWDOWNS:
            path = folder / f"mlp-{percent}.onnx"
            make_models.write(make_models.make_mlp(percent=percent), path)
            self.models[percent] = inspect_model(path)
        rng = np.random.default_rng(0)
        inputs = {"features": rng.standard_normal((32, 48)).astype(np.float32)}
        engine = self.backend.build(self.request(0, 1))
        outputs = engine.run(inputs)
        engine.close()
        self.case = Case("case0", inputs, outputs)
        self.golden = Golden((self.case,), Provenance(self.models[0].sha256, "itself"))

    def request(self, percent: int, threads: int) -> BuildRequest:
        """The model with ``percent`` more work."""
        model = self.models[percent]
        return BuildRequest(model.path, model.sha256, (("-ort:intra_op_num_threads", str(threads)),))

    def true_ratio(self, percent: int, threads: int, pairs: int) -> dict[str, float]:
        """Many pairs of builds, interleaved; quietest of six blocks of each."""
        first, second = [], []
        for _ in range(pairs):
            engines = [self.backend.build(self.request(p, threads)) for p in (percent, 0)]
            for engine in engines:
                engine.load(self.case.inputs)
                engine.sample(0.02, 1_000_000)
            best = [math.inf, math.inf]
            for _ in range(6):
                for which in random.sample([0, 1], 2):
                    engines[which].sample(0.01, 1_000_000)
                    block = engines[which].sample(0.05, 1_000_000).latencies_s
                    best[which] = min(best[which], float(np.percentile(block, 25)))
            first.append(best[0])
            second.append(best[1])
            for engine in engines:
                engine.close()
        ratio = paired_ratio(first, second)
        return {"ratio": round(ratio.value, 4), "low": round(ratio.low, 4), "high": round(ratio.high, 4)}

    def ours(self, percent: int, threads: int, seed: int) -> tuple[str, float]:
        """The paired gate's outcome, and seconds of measuring."""
        contest = Contest(
            backend=self.backend,
            gate=AccuracyGate("lInf", 1e-3),
            golden=self.golden,
            case=self.case,
            plan=FinalsPlan(builds=5, most_builds=25),
            requests={WINNER: self.request(percent, threads), REFERENCE: self.request(0, threads)},
            rng=random.Random(seed),
        )
        start = time.perf_counter()
        contest.run()
        verdict = Gating(
            spec=_Spec(self.limit),  # type: ignore[arg-type]
            contest=contest,
            winner=WINNER,
            entry=_Entry(),  # type: ignore[arg-type]
            change=Change(True, False, (), (), False, False),
            reference=REFERENCE,
            foreign=False,
        ).verdict("paired")
        return verdict.outcome, time.perf_counter() - start

    def trtexec(self, percent: int, threads: int) -> tuple[str, float]:
        """Means of two measurements, one after the other."""
        start = time.perf_counter()
        means = []
        for which in (percent, 0):
            engine = self.backend.build(self.request(which, threads))
            engine.load(self.case.inputs)
            samples = engine.sample(0.2, 1_000_000).latencies_s + engine.sample(3.0, 10_000_000).latencies_s
            means.append(statistics.fmean(samples))
            engine.close()
        return ("fail" if means[0] > means[1] * self.limit else "pass"), time.perf_counter() - start


class _Spec:
    """What the gate reads of a tuning."""

    default_key = ""

    def __init__(self, limit: float) -> None:
        self.max_regression = limit - 1


class _Entry:
    """A baseline that only lends its name: the paired gate compares with the reference engine."""

    between_build_spread = None
    latency_s = 1.0
    route = device_class = model_sha256 = tuner_version = ""
    interval = None
    builds = 1


def wilson(successes: int, count: int) -> list[float]:
    """Wilson's interval of a share, at 95 %."""
    if count == 0:
        return [0.0, 1.0]
    z, share = 1.96, successes / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return [round(max(centre - half, 0.0), 4), round(min(centre + half, 1.0), 4)]


def rates(outcomes: list[tuple[str, float]]) -> dict[str, Any]:
    """Shares of each outcome, with intervals, and seconds per decision."""
    count = len(outcomes)
    found: dict[str, Any] = {"decisions": count}
    for outcome in ("fail", "pass", "ambiguous", "incomparable"):
        number = sum(o == outcome for o, _ in outcomes)
        if number or outcome == "fail":
            found[outcome] = {"share": round(number / count, 4), "interval": wilson(number, count)}
    seconds = sorted(s for _, s in outcomes)
    found["seconds_median"] = round(statistics.median(seconds), 2)
    found["seconds_p95"] = round(seconds[min(int(0.95 * count), count - 1)], 2)
    return found


def decide(bench: Bench, schedule: list[tuple[str, int]]) -> dict[str, Any]:
    """Carry out the schedule, the conditions taking turns, and count."""
    found: dict[tuple[str, int, str], list[tuple[str, float]]] = defaultdict(list)
    # Shuffled, so that every kind of decision is spread over the time of the run.
    jobs = [
        (method, percent, CONDITIONS[i % len(CONDITIONS)]) for i, (method, percent) in enumerate(schedule)
    ]
    random.Random(0).shuffle(jobs)
    for seed, (method, percent, (threads, loaded)) in enumerate(jobs):
        with load(loaded, seed=seed):
            outcome = (
                bench.ours(percent, threads, seed) if method == "ours" else bench.trtexec(percent, threads)
            )
        condition = f"{threads} thread{'s' if threads > 1 else ''}, {'loaded' if loaded else 'alone'}"
        found[method, percent, condition].append(outcome)
        found[method, percent, "all"].append(outcome)
        print(f"{seed + 1}/{len(jobs)} {method} {percent} % {condition}: {outcome[0]}", file=sys.stderr)
    nested: dict[str, Any] = {}
    for (method, percent, condition), outcomes in sorted(found.items()):
        nested.setdefault(method, {}).setdefault(f"{percent} %", {})[condition] = rates(outcomes)
    return nested


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about five minutes")
    parser.add_argument("--pairs", type=int, default=200, help="identical pairs, default 200")
    parser.add_argument("--slow", type=int, default=60, help="pairs of each slowdown, default 60")
    parser.add_argument("--other", type=int, default=12, help="pairs of each for trtexec, default 12")
    parser.add_argument("--max-regression", type=float, default=1.0, help="percent, default 1")
    given = parser.parse_args()
    if given.quick:
        given = argparse.Namespace(**{**vars(given), "pairs": 12, "slow": 4, "other": 2})
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), 1 + given.max_regression / 100)
        try:
            truth = {
                f"{percent} %": {
                    f"{threads} threads": bench.true_ratio(percent, threads, 8 if given.quick else 40)
                    for threads in (1, 2)
                }
                for percent in SLOWDOWNS
                if percent or not given.quick
            }
            schedule = [("ours", 0)] * given.pairs + [("trtexec", 0)] * given.other
            for percent in SLOWDOWNS[1:]:
                schedule += [("ours", percent)] * given.slow + [("trtexec", percent)] * given.other
            decisions = decide(bench, schedule)
            version = bench.backend.environment({}).tuner_version
        finally:
            bench.backend.close()
    print(
        json.dumps(
            {
                "benchmark": "decision_quality",
                "command": " ".join(["python", *sys.argv]),
                "machine": {"cpu": cpu_model(), "cores": usable_cores(), "system": platform.platform()},
                "python": platform.python_version(),
                "onnxruntime": version,
                "limit": 1 + given.max_regression / 100,
                "true_ratios": truth,
                "decisions": decisions,
                "seconds": round(time.perf_counter() - start),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
