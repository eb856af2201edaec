"""How often the gates are right, beside the ways in use, on this machine.

    python benchmarks/decision_quality.py --quick                          about five minutes
    python benchmarks/decision_quality.py --record decisions.jsonl         hours; goes on where it was stopped

A decision compares two engines: the model as it is, and the same with real extra work (layers that change no
output). The true ratio of each is established first, by a long interleaved measurement of many builds.
Decisions of all kinds are shuffled, so that each is spread over the time of the run, and over the conditions:
one and two threads; alone, and with another process that takes a core at random.

``paired`` and ``absolute`` are our gates as the plugin runs them; ``absolute`` is given a baseline that was
recorded at another time of the run. ``trtexec`` is its protocol: 200 ms of warm-up, 3 s, means. The rest are
pytest-benchmark's own ``--benchmark-compare-fail``, by mean, median and min. All have the limit of
``--max-regression``, but absolute, whose limit is ten points wider.

Prints JSON: rates by method, slowdown and condition with Wilson intervals at 95 %, and seconds per decision.
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
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from decision_methods import OF_ABSOLUTE, SLOWDOWNS, STATISTICS, Methods, Then, limits
from record_series import load

from pytest_gptune.engines.machine import cpu_model, load_average, usable_cores

CONDITIONS = tuple((threads, loaded) for threads in (1, 2) for loaded in (False, True))


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


def schedule(given: argparse.Namespace) -> list[tuple[str, int, int, bool]]:
    """Method, slowdown, threads and load of every decision, shuffled the same way each time."""
    counts = {
        "paired": (given.pairs, given.slow),
        "absolute": (given.absolute, math.ceil(given.absolute / 10)),
        "trtexec": (given.other, given.other),
        "pytest-benchmark": (given.other, given.other),
    }
    jobs: list[tuple[str, int, int, bool]] = []
    for method, (identical, slow) in counts.items():
        for percent in OF_ABSOLUTE if method == "absolute" else SLOWDOWNS:
            count = slow if percent else identical
            jobs += [(method, percent, *CONDITIONS[number % len(CONDITIONS)]) for number in range(count)]
    random.Random(0).shuffle(jobs)
    return jobs


def decide(methods: Methods, jobs: list[tuple[str, int, int, bool]], skip: int) -> Iterator[dict[str, Any]]:
    """Carry out the jobs after the first ``skip``, one record each."""
    baselines: dict[int, Then] = {}
    for number, (method, percent, threads, loaded) in list(enumerate(jobs))[skip:]:
        if threads not in baselines:
            baselines[threads] = methods.measure_then(threads)
        with load(loaded, seed=number):
            start = time.perf_counter()
            if method == "paired":
                outcomes = {"paired": methods.paired(percent, threads, number)}
            elif method == "absolute":
                outcomes = {"absolute": methods.absolute(percent, threads, number, baselines[threads])}
            elif method == "trtexec":
                outcomes = {"trtexec": methods.trtexec(percent, threads)}
            else:
                found = methods.pytest_benchmark(percent, threads)
                outcomes = {f"pytest-benchmark {name}": found[name] for name in STATISTICS}
            seconds = time.perf_counter() - start
        if method == "absolute":
            del baselines[threads]  # the next one has a baseline of its own, recorded before other work
        print(f"{number + 1}/{len(jobs)} {percent} % {threads} {loaded}: {outcomes}", file=sys.stderr)
        yield {
            "slowdown": percent,
            "condition": f"{threads} thread{'s' if threads > 1 else ''}, {'loaded' if loaded else 'alone'}",
            "outcomes": outcomes,
            "seconds": round(seconds, 3),
            "load": load_average(),
        }


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Rates by method, slowdown and condition."""
    found: dict[tuple[str, int, str], list[tuple[str, float]]] = defaultdict(list)
    for record in records:
        for method, outcome in record["outcomes"].items():
            for condition in (record["condition"], "all"):
                found[method, record["slowdown"], condition].append((outcome, record["seconds"]))
    nested: dict[str, Any] = {}
    for (method, percent, condition), outcomes in sorted(found.items()):
        nested.setdefault(method, {}).setdefault(f"{percent} %", {})[condition] = rates(outcomes)
    return nested


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about five minutes")
    parser.add_argument("--pairs", type=int, default=200, help="identical pairs of paired, default 200")
    parser.add_argument("--slow", type=int, default=60, help="pairs of each slowdown, default 60")
    parser.add_argument(
        "--absolute", type=int, default=200, help="identical of absolute, a tenth of each slow"
    )
    parser.add_argument(
        "--other", type=int, default=12, help="of each slowdown for the ways in use, default 12"
    )
    parser.add_argument("--max-regression", type=float, default=1.0, help="percent, default 1")
    parser.add_argument(
        "--record", type=Path, help="JSON lines, one a decision; what is in it is not repeated"
    )
    given = parser.parse_args()
    if given.quick:
        small = {"pairs": 12, "slow": 4, "absolute": 4, "other": 1}
        given = argparse.Namespace(**{**vars(given), **small})
    records: list[dict[str, Any]] = []
    if given.record and given.record.exists():
        records = [json.loads(line) for line in given.record.read_text().splitlines()]
    truth = records.pop(0) if records else None
    limit = 1 + given.max_regression / 100
    jobs = schedule(given)
    with tempfile.TemporaryDirectory() as name:
        methods = Methods(Path(name), limit)
        try:
            if truth is None:
                truth = {
                    f"{percent} %": {
                        f"{threads} threads": methods.true_ratio(percent, threads, 4 if given.quick else 16)
                        for threads in (1, 2)
                    }
                    for percent in sorted({*SLOWDOWNS, *OF_ABSOLUTE})
                    if percent or not given.quick
                }
                _keep(given.record, truth)
            for record in decide(methods, jobs, len(records)):
                records.append(record)
                _keep(given.record, record)
        finally:
            methods.close()
    loads = [record["load"] for record in records if record["load"] is not None]
    print(
        json.dumps(
            {
                "benchmark": "decision_quality",
                "command": " ".join(["python", *sys.argv]),
                "machine": {"cpu": cpu_model(), "cores": usable_cores(), "system": platform.platform()},
                "versions": {
                    "python": platform.python_version(),
                    **{name: version(name) for name in ("onnxruntime", "pytest-benchmark", "numpy")},
                },
                "load_average": {"median": statistics.median(loads), "most": max(loads)} if loads else None,
                "limits": limits(limit),
                "true_ratios": truth,
                "decisions": summarise(records),
            },
            indent=2,
        )
    )


def _keep(path: Path | None, record: dict[str, Any]) -> None:
    if path is not None:
        with path.open("a") as stream:
            stream.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
