"""Eligible routes and the winner's latency over epsilon, as a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gptune.errors import SettingsError
from pytest_gptune.records.cached_tuning import CachedTuning
from pytest_gptune.records.what_if import Rung
from pytest_gptune.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = (".png", ".svg")


def check_plot_path(path: Path) -> None:
    """Raise SettingsError unless ``path`` is one that a plot can be written to."""
    if path.suffix.lower() not in KINDS:
        raise SettingsError(
            f"--plot writes {' or '.join(KINDS)}, not {path.name!r}",
            mend="give a path that ends in one of them",
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SettingsError(
            "matplotlib is not installed, and --plot needs it",
            mend='python -m pip install "pytest-gptune[report]"',
        ) from None


def write_what_if_plot(path: Path, found: Sequence[tuple[CachedTuning, Sequence[Rung]]]) -> None:
    """Draw the ladder of each tuning that has one, one below the other.

    Raises:
        SettingsError: the path ends otherwise, or matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    check_plot_path(path)
    import matplotlib
    from matplotlib.figure import Figure

    drawn = [(tuning, rungs) for tuning, rungs in found if rungs]
    # A Figure of its own rather than pyplot, which keeps state and looks for a display.
    figure = Figure(figsize=(7.0, 3.2 * max(len(drawn), 1)), layout="constrained")
    for number, (tuning, rungs) in enumerate(drawn, start=1):
        _draw(figure.add_subplot(len(drawn), 1, number), tuning, rungs)
    stream = io.BytesIO()
    # Equal ladders give equal files: no date, no random ids.
    with matplotlib.rc_context({"svg.hashsalt": "gptune"}):
        metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(stream, format=path.suffix.lower()[1:], dpi=150, metadata=metadata)
    write_atomically(path, stream.getvalue())


def _draw(axes: Axes, tuning: CachedTuning, rungs: Sequence[Rung]) -> None:
    from matplotlib.ticker import MaxNLocator

    rungs = sorted(rungs, key=_place)
    places = [_place(rung) for rung in rungs]
    asked = 1.0 if rungs[0].multiple is not None else tuning.epsilon
    marked = [asked] if isinstance(asked, (int, float)) else []
    positive = [place for place in (*places, *marked) if place > 0]
    smallest, greatest = min(positive, default=1.0), max(positive, default=1.0)
    # Epsilon 0 asks for equality and has its place: linear below the smallest epsilon, logarithmic above.
    axes.set_xscale("symlog", linthresh=10.0 ** math.floor(math.log10(smallest)))
    end = greatest * 3
    counts = [rung.eligible for rung in rungs]
    axes.step([*places, end], [*counts, counts[-1]], where="post", color="tab:blue", label="eligible routes")
    axes.set_ylim(0, len(tuning.routes) * 1.1)
    axes.set_xlim(min(0.0, *places), end)
    axes.set_xlabel("multiple of the epsilons of the outputs" if rungs[0].multiple is not None else "epsilon")
    axes.set_ylabel("eligible routes", color="tab:blue")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))  # there are no halves of routes
    for epsilon in marked:
        axes.axvline(epsilon, color="tab:gray", linestyle=":")
        place = axes.get_xaxis_transform()
        axes.text(epsilon, 1.0, " the test's", transform=place, fontsize="small", color="tab:gray", va="top")
    axes.set_title(tuning.tuning or tuning.writer, fontsize="medium")
    won = [
        (place, rung.winner.latency_s)
        for place, rung in zip(places, rungs, strict=True)
        if rung.winner is not None and rung.winner.latency_s is not None
    ]
    if won:
        right = axes.twinx()
        slowest_s = max(latency_s for _, latency_s in won)
        factor, unit = (1e3, "ms") if slowest_s >= 1e-3 else (1e6, "us")
        latencies = [latency_s * factor for _, latency_s in won]
        right.step(
            [*(place for place, _ in won), end],
            [*latencies, latencies[-1]],
            where="post",
            color="tab:orange",
            linestyle="--",
        )
        # Apart from the counts, which would hide a line that is as level.
        right.set_ylim(0, slowest_s * factor * 1.25)
        right.set_ylabel(f"winner's latency ({unit})", color="tab:orange")


def _place(rung: Rung) -> float:
    if rung.multiple is not None:
        return rung.multiple
    return max(rung.epsilon.values()) if isinstance(rung.epsilon, Mapping) else rung.epsilon
