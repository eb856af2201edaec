"""The figures of ``workloads.py`` as Markdown."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from typing import Any

NO_FAILURE = ("passed", "inert", "skipped", "pruned")

_COLUMNS = (
    "workload",
    "default ms",
    "tuned ms",
    "interval ms",
    "speedup",
    "verified",
    "loss",
    "epsilon",
    "tried",
    "inert",
    "not passed",
    "skipped",
    "s",
    "load",
    "winner",
)
_EXPLAINED = """\
Threads of a session: {threads}. Latency of the default and of the winner from the finals, with the 95 %
interval of the winner's; *speedup* is their ratio as the finals measured it in turns, *verified* that of
`benchmarks/verify_winner.py`, which shares no code with the plugin. The loss is the winner's, beside
epsilon. *Inert* counts routes whose engine is that of another route; *not passed* those that were inaccurate,
rejected, or failed; *skipped* those that the budget left no time for. *Load* is the machine's before the
workload: beyond the number of cores, figures are of a machine with other work to do."""

_EXPLAINED_CUDA = """
Inputs and outputs lie in device memory; inferences are queued behind one another and timed by CUDA events.
`*` behind a latency: the host could not enqueue as fast as the device computed, so that its pace is what
was measured; a CUDA graph takes the host out. Nodes that the provider leaves to the CPU are accepted (most
compute shapes) and counted below. Epsilon is what the workload can stand, as on the CPU: TF32, in which the
default route multiplies, gets no allowance. Goldens are made on the same machine's CPU."""


def table(document: dict[str, Any]) -> str:
    """The figures as Markdown, every workload in it."""
    machine = document["machine"]
    lines = [
        f"# Real workloads: {document['provider']}",
        "",
        f"{machine['gpu'] + '; ' if 'gpu' in machine and document['provider'] == 'cuda' else ''}"
        f"{machine['device']}, {machine['cores']} cores, {machine['system']}; "
        + ", ".join(f"{k} {v}" for k, v in document["versions"].items())
        + (f"; {document['date']}." if "date" in document else "."),
        "",
        f"    {document['command']}",
        "",
        *([document["note"], ""] if document.get("note") else ()),
        *_EXPLAINED.format(threads=document["threads"]).splitlines(),
        *(_EXPLAINED_CUDA.splitlines() if document["provider"] == "cuda" else ()),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "| --- " * len(_COLUMNS) + "|",
        *map(row, document["workloads"]),
    ]
    speedups = [s for item in document["workloads"] if (s := _speedup(item))]
    if speedups:
        mean = math.exp(statistics.fmean(map(math.log, speedups)))
        above = sum(s >= 1.36 for s in speedups)
        lines += [
            "",
            f"Geometric mean of the speedups: {mean:.2f}x over {len(speedups)} workloads; "
            f"{above} at 1.36x or above.",
        ]
    lines += _agreement(document)
    lines += ["", "## What is measured, and why epsilon is what it is", ""]
    lines += ["| workload | model | inputs | metric | reason for epsilon |", "| --- " * 5 + "|"]
    for item in document["workloads"]:
        shapes = ", ".join("x".join(map(str, dims)) or "scalar" for dims in item.get("shapes", {}).values())
        lines.append(
            f"| {item['name']} | {item['kind']}: `{item['package']}/{item['model']}`{_cpu_nodes(item)} | "
            f"{item.get('cases', 0)} cases, {shapes} | {item['metric']} | {item['reason']} |"
        )
    lines += ["", "## Routes that did not pass", "", "| workload | routes | what the first says |"]
    lines += ["| --- " * 3 + "|", *itertools.chain.from_iterable(map(_failures, document["workloads"]))]
    return "\n".join(lines) + "\n"


def _failures(item: dict[str, Any]) -> list[str]:
    """A line for each way of failing: the routes it met, and its message up to the first figure."""
    ways: dict[str, list[str]] = {}
    messages: dict[str, str] = {}
    for route, error in item.get("failed", {}).items():
        way = re.split(r"[0-9:]", error, maxsplit=1)[0]
        ways.setdefault(way, []).append(route)
        messages.setdefault(way, " ".join(error.split())[:160].replace("|", "\\|"))
    if "error" in item:
        ways["all"], messages["all"] = (
            ["every route"],
            " ".join(item["error"].split())[-160:].replace("|", "\\|"),
        )
    return [
        f"| {item['name']} | {', '.join(map(_code, routes))} | {messages[way]} |"
        for way, routes in ways.items()
    ]


def _code(route: str) -> str:
    return f"`{route}`" if ":" in route else route


def row(item: dict[str, Any]) -> str:
    name, epsilon = item["name"], _epsilon(item["epsilon"])
    if "error" in item:
        return f"| {name} | | | | | | | {epsilon} | | | | | {item['seconds']} | | not tuned: see the JSON |"
    default, winner = item["default"], item["winner"]
    not_passed = sum(n for s, n in item["statuses"].items() if s not in NO_FAILURE)
    skipped = item["statuses"].get("skipped", 0)
    counts = f"{item['tried']} | {item['inert']} | {not_passed} | {skipped} | {item['seconds']:.0f}"
    counts += f" | {item['load']:.1f}"
    first = _latency(default)
    if not winner:
        return f"| {name} | {first} | | | | | | {epsilon} | {counts} | none |"
    interval = " - ".join(_ms(value) for value in winner["interval_s"] or [])
    again = item.get("verified", {})
    verified = f"{again['speedup']:.2f}" if "speedup" in again else "failed" if again else ""
    route = " ".join(f"`{token}`" for token in winner["id"].split(",")) or "`default`"
    tail = f"{winner['loss']:.2g} | {epsilon} | {counts}"
    gain = f"{_speedup(item):.2f}" if _speedup(item) else ""
    if winner["id"] == default["id"]:
        gain, route = "1.00", "gains nothing: the default wins"
    return f"| {name} | {first} | {_latency(winner)} | {interval} | {gain} | {verified} | {tail} | {route} |"


def _speedup(item: dict[str, Any]) -> float | None:
    winner = item.get("winner")
    return None if not winner else float(winner["speedup"] or 1.0)


def _agreement(document: dict[str, Any]) -> list[str]:
    """How many speedups and latencies of the finals are within 2 % of the verified ones."""
    both = [item for item in document["workloads"] if "speedup" in item.get("verified", {})]
    if not both:
        return []

    def within(found: list[dict[str, Any]], *, winners: bool) -> str:
        ratios = [
            item["verified"]["latencies_s"][1] / item["winner"]["latency_s"]
            if winners
            else item["verified"]["speedup"] / (_speedup(item) or 1.0)
            for item in found
        ]
        return f"{sum(abs(ratio - 1) <= 0.02 for ratio in ratios)} of {len(found)}"

    lines = [f"The speedups of {within(both, winners=False)} agree with the verified ones within 2 %."]
    if document["provider"] == "cuda":
        steady = [item for item in both if not _at_hosts_pace(item["default"])]
        waiting = [item for item in both if item not in steady and not _at_hosts_pace(item["winner"])]
        lines += [
            f"Where the device's pace is what was measured, of default and winner, those of "
            f"{within([i for i in steady if not _at_hosts_pace(i['winner'])], winners=False)} do. Where the "
            f"default has the host's pace and the winner the device's, the latencies of "
            f"{within(waiting, winners=True)} winners do.",
        ]
    known = [item for item in both if item["winner"].get("speedup_interval")]
    if known:
        lines.append(
            "The 95 % interval of the finals' speedup and the range of the script's builds overlap for "
            f"{sum(map(_overlap, known))} of {len(known)}."
        )
    return ["", *lines]


def _overlap(item: dict[str, Any]) -> bool:
    low, high = item["winner"]["speedup_interval"]
    return bool(low <= max(item["verified"]["builds"]) and min(item["verified"]["builds"]) <= high)


def _at_hosts_pace(route: dict[str, Any]) -> bool:
    return any(warning.startswith("enqueue-bound") for warning in route.get("warnings", ()))


def _latency(route: dict[str, Any] | None) -> str:
    """In ms; marked where it is the host's pace."""
    if route is None:
        return ""
    host = _at_hosts_pace(route)
    mark = " (inaccurate)" if route["status"] == "inaccurate" else ""
    return f"{_ms(route['latency_s'])}{'*' if host else ''}{mark}"


def _cpu_nodes(item: dict[str, Any]) -> str:
    nodes = item.get("verified", {}).get("default_cpu_nodes")
    if nodes is None:
        return ""
    return "; on the CPU: " + (", ".join(f"{n} {op}" for op, n in sorted(nodes.items())) or "no node")


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g}"


def _epsilon(epsilon: Any) -> str:
    return (
        ", ".join(f"{k} {v:g}" for k, v in epsilon.items()) if isinstance(epsilon, dict) else f"{epsilon:g}"
    )
