"""The ways of telling whether an engine became slower that ``decision_quality.py`` compares.

Each takes the model as it is and the same with real extra work, and answers ``fail``, ``pass`` or
``ambiguous``.
"""

from __future__ import annotations

import math
import random
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_gptune.accuracy import AccuracyGate, Case, Golden, Provenance
from pytest_gptune.engines.base import BuildRequest
from pytest_gptune.engines.calibration import calibration_inputs, calibration_request
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.worker import WorkerBackend
from pytest_gptune.plugin.contest import REFERENCE, Contest
from pytest_gptune.plugin.gating import Gating
from pytest_gptune.records.baseline import BaselineEntry
from pytest_gptune.records.fingerprint import Fingerprint
from pytest_gptune.timing.finals import FinalsPlan
from pytest_gptune.timing.statistics import paired_ratio
from pytest_gptune.verdict import ABSOLUTE_EXTRA_LIMIT, Change

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example_project"))
import make_models

SLOWDOWNS = (0, 1, 2, 3, 5, 10)
# The absolute gate's limit is ten points wider: what lies within it has to pass, what lies beyond to fail.
OF_ABSOLUTE = (0, 5, 10, 15, 25)
STATISTICS = ("mean", "median", "min")

_WINNER = "new"

_BENCHMARK_TEST = """
import numpy as np
import onnxruntime as ort

def test_latency(benchmark):
    options = ort.SessionOptions()
    options.intra_op_num_threads = {threads}
    session = ort.InferenceSession({model!r}, options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32)
    benchmark(lambda: session.run(None, {{"features": x}}))
"""


@dataclass(frozen=True)
class Then:
    """An earlier measurement of the model as it is, with the calibration engine beside it; seconds."""

    latencies: tuple[float, ...]
    calibrations: tuple[float, ...]


class Methods:
    """Models with extra work in ``folder``, and decisions about them by ``limit``, a ratio."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.backend = WorkerBackend("onnxruntime", route_timeout_s=600)
        self.limit = limit
        self.folder = folder
        self.models = {}
        for percent in sorted({*SLOWDOWNS, *OF_ABSOLUTE}):
            path = folder / f"mlp-{percent}.onnx"
            make_models.write(make_models.make_mlp(percent=percent), path)
            self.models[percent] = inspect_model(path)
        rng = np.random.default_rng(0)
        inputs = {"features": rng.standard_normal((32, 48)).astype(np.float32)}
        engine = self.backend.build(self._request(0, 1))
        outputs = engine.run(inputs)
        engine.close()
        self.case = Case("case0", inputs, outputs)
        self.golden = Golden((self.case,), Provenance(self.models[0].sha256, "itself"))

    def _request(self, percent: int, threads: int) -> BuildRequest:
        """The model with ``percent`` more work."""
        model = self.models[percent]
        route = (("-ort:intra_op_num_threads", str(threads)),)
        return BuildRequest(model.path, model.sha256, route)

    def true_ratio(self, percent: int, threads: int, pairs: int) -> dict[str, float]:
        """Many pairs of builds, interleaved; the quietest of six blocks of each."""
        best: tuple[list[float], list[float]] = ([], [])
        for number in range(pairs):
            # In turns: what is built first lies elsewhere in memory.
            order = (0, 1) if number % 2 else (1, 0)
            blocks = self._interleaved([self._request((percent, 0)[side], threads) for side in order], 6)
            for side, found in zip(order, blocks, strict=True):
                best[side].append(found)
        ratio = paired_ratio(*best)
        return {"ratio": round(ratio.value, 4), "low": round(ratio.low, 4), "high": round(ratio.high, 4)}

    def _interleaved(self, requests: list[BuildRequest], rounds: int) -> list[float]:
        """p25 of the quietest block of one build of each."""
        engines = [self.backend.build(request) for request in requests]
        for engine, request in zip(engines, requests, strict=True):
            of_model = request.model_sha256 in {model.sha256 for model in self.models.values()}
            engine.load(self.case.inputs if of_model else calibration_inputs())
            engine.sample(0.03, 1_000_000)
        found = [math.inf] * len(engines)
        for _ in range(rounds):
            for which in random.sample(range(len(engines)), len(engines)):
                engines[which].sample(0.012, 1_000_000)
                block = engines[which].sample(0.05, 1_000_000).latencies_s
                found[which] = min(found[which], float(np.percentile(block, 25)))
        for engine in engines:
            engine.close()
        return found

    def paired(self, percent: int, threads: int, seed: int) -> str:
        """Our paired gate: both engines built and interleaved in this run."""
        contest = self._contest({_WINNER: (percent, threads), REFERENCE: (0, threads)}, seed)
        return self._gating(contest, REFERENCE, None).verdict("paired").outcome

    def measure_then(self, threads: int) -> Then:
        """What a baseline keeps: five builds, each with a build of the calibration engine beside it."""
        calibration = calibration_request(self.folder)
        request = self._request(0, threads)
        beside = BuildRequest(calibration.model, calibration.model_sha256, request.route)
        pairs = [self._interleaved([request, beside], 3) for _ in range(5)]
        return Then(tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))

    def absolute(self, percent: int, threads: int, seed: int, then: Then) -> str:
        """Our absolute gate with calibration, against a measurement of another time."""
        contest = self._contest({_WINNER: (percent, threads)}, seed)
        return self._gating(contest, None, then).verdict("absolute").outcome

    def _contest(self, engines: dict[str, tuple[int, int]], seed: int) -> Contest:
        contest = Contest(
            backend=self.backend,
            gate=AccuracyGate("lInf", 1e-3),
            golden=self.golden,
            case=self.case,
            plan=FinalsPlan(),
            requests={key: self._request(*engine) for key, engine in engines.items()},
            rng=random.Random(seed),
            folder=self.folder,
        )
        contest.run()
        return contest

    def _gating(self, contest: Contest, reference: str | None, then: Then | None) -> Gating:
        route = " ".join(f"{name}={value}" for name, value in contest.requests[_WINNER].route)
        return Gating(
            spec=_Spec(self.limit),  # type: ignore[arg-type]
            contest=contest,
            winner=_WINNER,
            entry=_entry(then, route),
            change=Change(True, False, (), (), False, False),
            reference=reference,
            foreign=False,
        )

    def trtexec(self, percent: int, threads: int) -> str:
        """Means of two measurements, one after the other: 200 ms of warm-up, then 3 s."""
        means = []
        for which in (0, percent):
            engine = self.backend.build(self._request(which, threads))
            engine.load(self.case.inputs)
            engine.sample(0.2, 10_000_000)
            means.append(statistics.fmean(engine.sample(3.0, 10_000_000).latencies_s))
            engine.close()
        return "fail" if means[1] > means[0] * self.limit else "pass"

    def pytest_benchmark(self, percent: int, threads: int) -> dict[str, str]:
        """pytest-benchmark's ``--benchmark-compare-fail`` by each statistic: a saved run, then another."""
        run = self.folder / "compare"
        run.mkdir(exist_ok=True)
        options = ["--benchmark-storage", str(run / "saved"), "-p", "no:gptune", "-q"]
        self._write_test(run, 0, threads)
        self._pytest(run, [*options, "--benchmark-save=then"])
        saved = max((run / "saved").rglob("*_then.json"))
        self._write_test(run, percent, threads)
        share = f"{100 * (self.limit - 1):g}%"
        # One option with all: given again it would replace what was given before.
        fails = ["--benchmark-compare-fail", *(f"{statistic}:{share}" for statistic in STATISTICS)]
        output = self._pytest(run, [*options, f"--benchmark-compare={saved.name.split('_')[0]}", *fails])
        saved.unlink()
        regressed = set(re.findall(r"Field '(\w+)' has failed", output))
        return {name: "fail" if name in regressed else "pass" for name in STATISTICS}

    def _write_test(self, run: Path, percent: int, threads: int) -> None:
        text = _BENCHMARK_TEST.format(threads=threads, model=self.models[percent].path)
        (run / "test_latency.py").write_text(text)

    def _pytest(self, run: Path, options: list[str]) -> str:
        command = [sys.executable, "-m", "pytest", "test_latency.py", "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, cwd=run, capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        # A regression ends pytest with a traceback, before it says what passed.
        if "1 passed" not in output and "Performance has regressed" not in output:
            raise RuntimeError(f"pytest-benchmark's run failed:\n{output}")
        return output

    def close(self) -> None:
        """End the workers."""
        self.backend.close()


class _Spec:
    """What the gate reads of a tuning."""

    default_key = ""

    def __init__(self, limit: float) -> None:
        self.max_regression = limit - 1


def _entry(then: Then | None, route: str) -> BaselineEntry:
    """A baseline of ``then``; the paired gate takes nothing but its name from it."""
    latencies = then.latencies if then else (1.0,)
    spread = statistics.stdev(latencies) / statistics.fmean(latencies) if len(latencies) > 1 else None
    plain: dict[str, Any] = {
        "backend": "onnxruntime",
        "device_class": "cpu",
        "shapes": {},
        "latency_kind": "host_wall",
        "statistic": "p25",
        "route": route,
        "latency_s": statistics.median(latencies),
        "interval": None,
        "builds": len(latencies),
        "between_build_spread": spread if then else None,
        "default": None,
        "calibration_s": statistics.median(then.calibrations) if then else None,
        "loss": 0.0,
        "metric": "lInf",
        "epsilon": 1e-3,
        "model_sha256": "",
        "model_path": "",
        "golden_sha256": "",
        "tuner_version": "",
        "defaults_digest": "",
        "engine_sha256": "",
        "fingerprint": Fingerprint({}, {}),
    }
    return BaselineEntry(**plain)


def limits(limit: float) -> dict[str, float]:
    """The ratio beyond which each method fails."""
    of_others = dict.fromkeys(("trtexec", *(f"pytest-benchmark {s}" for s in STATISTICS)), limit)
    return {"paired": limit, "absolute": round(limit + ABSOLUTE_EXTRA_LIMIT, 4), **of_others}
