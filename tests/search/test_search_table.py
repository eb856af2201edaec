"""The table of docs/search.md: what each search finds on a landscape with planted interactions, and its cost.

GPTUNE_UPDATE_DOCS=1 python -m pytest tests/search/test_search_table.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from landscape import PLANTED, Found, run
from optuna_search import OptunaSearch

from pytest_gptune.search import create

PAGE = Path(__file__).parents[2] / "docs" / "search.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
NAMES = ("fast", "coordinate", "mixed", "full")


def found_by(name: str) -> Found:
    return run(create(name, PLANTED.expression, max_routes=10_000), PLANTED)


def row(name: str, found: Found) -> str:
    best, of_all = found.best, PLANTED.best()
    latency, least = best.latency_s or 0.0, of_all.latency_s or 0.0
    route = " ".join(f"`{n}={v}`" for n, v in best.route.values if v not in ("off", "plain")) or "default"
    return f"| {name} | {len(found.results)} | {route} | {latency:.3f} | {latency / least:.2f} |\n"


def table() -> str:
    head = "| search | routes tried | chosen route | latency over the default's | over the best of all |\n"
    lines = [head, "| --- | --- | --- | --- | --- |\n"]
    lines += [row(name, found_by(name)) for name in NAMES]
    for trials in (50, 150):
        optuna = OptunaSearch(PLANTED.expression, trials=trials, seed=1)
        lines.append(row(f"Optuna, {trials} trials", run(optuna, PLANTED)))
    return "".join(lines)


def test_the_table_in_the_documentation_is_what_they_find() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    written, _, after = rest.partition(END)
    if os.environ.get("GPTUNE_UPDATE_DOCS"):
        PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")
        return
    # How Optuna samples is its versions' own business.
    own = [line for line in table().splitlines() if "Optuna" not in line]
    assert [line for line in written.splitlines() if "Optuna" not in line] == own


@pytest.mark.parametrize("name", NAMES)
def test_none_chooses_the_fastest_route_which_is_inaccurate(name: str) -> None:
    assert found_by(name).best.route.as_dict()["-mode"] != "wrong"


def test_only_the_product_sees_the_pair_that_helps_together_alone() -> None:
    together = {name: {"-c", "-d"} <= _on(found_by(name)) for name in NAMES}
    assert together == {"fast": False, "coordinate": False, "mixed": False, "full": True}


def _on(found: Found) -> set[str]:
    return {name for name, value in found.best.route.values if value == "on"}
