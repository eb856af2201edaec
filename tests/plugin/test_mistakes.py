"""The mistakes a user can make, the message for each, and the table of them in ``docs/mistakes.md``.

Each is one message without a traceback: what is wrong, where, and what to write instead; the other tests of
the file run. To write the table anew:

    GPTUNE_UPDATE_DOCS=1 python -m pytest tests/plugin/test_mistakes.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import models
import onnxruntime
import pytest
from projects import CHECK, MEASURE, MODEL, ROUTES, Project

DOC = Path(__file__).parents[2] / "docs" / "mistakes.md"
UPDATE = "GPTUNE_UPDATE_DOCS"
HEAD = f"""\
# Mistakes, and what is printed

Each is an error of its test alone, without a traceback, and the other tests run; where the exit code is 4,
nothing runs. The first line says what is wrong, `in:` where, `do:` what to write or run instead.

<!-- Made by tests/plugin/test_mistakes.py from real runs, and compared by it. To write it anew:
     {UPDATE}=1 python -m pytest tests/plugin/test_mistakes.py
     PROJECT stands for the folder of the project, VERSION for that of ONNX Runtime. -->

| mistake | printed | exit code |
| --- | --- | --- |
"""

# Finds everything but onnxruntime, in the run and in the processes that it starts.
WITHOUT_ONNXRUNTIME = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] == "onnxruntime"
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""


@dataclass(frozen=True)
class Mistake:
    """One row of the table.

    Attributes:
        title: what the user did.
        given: on the command line.
        replace: what in the usual test is written otherwise, and how.
        prepare: what else is other in the project.
        measures: whether the test gets as far as to be measured.
        apart: run in a process of its own, with this in place of site's customisation.
        exit_code: of the run.
        others_run: whether the other test of the file runs.
    """

    title: str
    given: tuple[str, ...] = ()
    replace: tuple[str, str] = ("", "")
    prepare: Callable[[Project], object] = lambda project: None
    measures: bool = False
    apart: str = ""
    exit_code: int = 1

    @property
    def others_run(self) -> bool:
        return self.exit_code != 4

    def run(self, project: Project, patch: pytest.MonkeyPatch) -> str:
        """Make the mistake; the message, once everything else about the run is as it should be."""
        body = dedent(MEASURE if self.measures else CHECK)
        assert self.replace[0] in body
        if self.replace[0]:
            body = body.replace(*self.replace)
        project.tests(f"{body}\ndef test_other():\n    pass\n")
        self.prepare(project)
        if self.apart:
            project.write("site/sitecustomize.py", self.apart)
            patch.setenv("PYTHONPATH", str(project.path / "site"), prepend=os.pathsep)
            result = project.run_apart("-rs", *self.given)
        else:
            result = project.run("-rs", *self.given)
        assert result.ret == self.exit_code
        if self.others_run:
            assert result.parseoutcomes()["passed"] == (2 if self.measures else 1)
        text = result.stdout.str() + result.stderr.str()
        for unwanted in ("Traceback", "During handling", "INTERNALERROR", "\nE  "):
            assert unwanted not in text
        return message_of(result)


def message_of(result: pytest.RunResult) -> str:
    """The one message of a run: under its header, after ``ERROR:``, or the reason of a skip."""
    if result.ret == 4:
        lines = result.errlines
        message = [lines[0].removeprefix("ERROR: "), *lines[1:]]
        return "\n".join(line for line in message if line)
    lines = result.outlines
    starts = [n for n, line in enumerate(lines) if line.startswith("_") and " test_model" in line]
    if starts:
        assert len(starts) == 1
        (start,) = starts
        end = next(n for n, line in enumerate(lines) if n > start and line.startswith(("_", "=")))
        return "\n".join(lines[start + 1 : end])
    (start,) = [n for n, line in enumerate(lines) if line.startswith("SKIPPED")]
    return "\n".join([lines[start].partition(": ")[2], *lines[start + 1 : -1]])


def other_model(project: Project) -> None:
    models.several_outputs(project.path / MODEL)


def truncated_golden(project: Project) -> None:
    path = project.golden_path()
    path.write_bytes(path.read_bytes()[:-100])


def baseline_of_schema_99(project: Project) -> None:
    path = project.baseline("")
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))


def dynamic_model(project: Project) -> None:
    models.dynamic(project.path / MODEL)


MISTAKES = [
    Mistake("an option value that is none", ("--gptune-search=fsat",)),
    Mistake("a search that is none", replace=("epsilon", "search='best', epsilon")),
    Mistake("a metric that is none", ("--gptune-metric=linf",)),
    Mistake("a number that cannot be", ("--gptune-epsilon=-1",)),
    Mistake("percent with their sign", replace=("epsilon", "max_regression='3%', epsilon")),
    Mistake("no epsilon", replace=(", epsilon=1e-5", "")),
    Mistake("a backend that is none", ("--gptune-backend=onnxruntim",)),
    Mistake(
        "routes of a backend that is none",
        replace=(f'routes="{ROUTES}"', f'routes={{"onnxruntim": "{ROUTES}"}}'),
    ),
    Mistake(
        "a backend that is not installed, with a search", ("--gptune-search=fast",), apart=WITHOUT_ONNXRUNTIME
    ),
    Mistake("a backend that is not installed, otherwise: a skip", apart=WITHOUT_ONNXRUNTIME, exit_code=0),
    Mistake("a malformed expression", replace=(ROUTES, "-ort:enable_mem_pattern=[on|off")),
    Mistake("a knob without a value", replace=(ROUTES, "-ort:enable_mem_pattern")),
    Mistake("an unknown knob", replace=(ROUTES, "-ort:enable_mem_patern=[on|off]")),
    Mistake("an unknown knob in a route", ("--gptune-route=-ort:enable_mem_patern=off",)),
    Mistake("a value that is not allowed", replace=(ROUTES, "-ort:enable_mem_pattern=[on|of]")),
    Mistake(
        "more routes than allowed",
        ("--gptune-search=full",),
        prepare=lambda project: project.ini(gptune_max_routes=3),
    ),
    Mistake("no model", replace=(f'model="{MODEL}", ', "")),
    Mistake("a model that is not there", replace=(MODEL, "absent.onnx")),
    Mistake(
        "a model that is not ONNX", prepare=lambda project: project.write(MODEL, "a text, not a model\n")
    ),
    Mistake(
        "a model that Git LFS did not fetch",
        prepare=lambda project: project.write(MODEL, "version https://git-lfs.github.com/spec/v1\n"),
    ),
    Mistake("a golden that is not there", prepare=lambda project: project.golden_path().unlink()),
    Mistake("a golden whose inputs and outputs the model does not have", prepare=other_model),
    Mistake("a golden that is cut", prepare=truncated_golden),
    Mistake("a dynamic model without shapes", ("--gptune-update-goldens",), prepare=dynamic_model),
    Mistake(
        "a baseline of another schema: a skipped verdict",
        prepare=baseline_of_schema_99,
        measures=True,
        exit_code=0,
    ),
    Mistake(
        "a baseline that is none", prepare=lambda project: project.baseline("").write_text("<<<<<<< HEAD")
    ),
    Mistake("a marker with an unknown argument", replace=("epsilon", "epsilom")),
    Mistake("a marker with a positional argument", replace=("model=", "")),
    Mistake("a marker without a fixture", replace=("gptune_engine, gptune_golden", "")),
    Mistake(
        "a marker in a parameter set",
        replace=(
            "def test_model(",
            "@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.gptune())])\n"
            "def test_model(n, ",
        ),
    ),
    Mistake("options that exclude each other", ("--gptune-routes=x", "--gptune-route-file=y"), exit_code=4),
    Mistake("a malformed expression for tests that name none", ("--gptune-routes=xx",), exit_code=4),
    Mistake("a route file that is not there", ("--gptune-route-file=r.txt",), exit_code=4),
    Mistake("an interpreter that is not there", ("--gptune-reference-python=old/python",), exit_code=4),
    Mistake("a time that no route keeps to", ("--gptune-route-timeout=0",), exit_code=4),
    Mistake("a hint without a budget", ("--gptune-prior=old.jsonl",), exit_code=4),
    Mistake("engines to keep, and no folder", ("--gptune-save-all-engines",), exit_code=4),
    Mistake("a kept engine that is not there", ("--gptune-engine=old.engine",), exit_code=4),
    Mistake(
        "engines that are built, and goldens", ("--gptune-build-only", "--gptune-update-goldens"), exit_code=4
    ),
    Mistake("a report of a kind that is not written", ("--gptune-report=x.csv",), exit_code=4),
    Mistake("a dry run that cannot know", ("--gptune-dry-run", "--gptune-search=mixed"), exit_code=4),
    Mistake(
        "an ini key with a word that is none",
        prepare=lambda project: project.ini(gptune_ambiguous="perhaps"),
        exit_code=4,
    ),
]
"""The rows of the table, in its order."""


@pytest.fixture(scope="module")
def messages() -> dict[str, str]:
    """The messages that the tests of this file saw, by the mistake's title."""
    return {}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title)
def test_a_mistake_is_one_message(
    project: Project, monkeypatch: pytest.MonkeyPatch, messages: dict[str, str], mistake: Mistake
) -> None:
    message = mistake.run(project, monkeypatch)

    lines = message.splitlines()
    assert lines[0].strip() == lines[0] != ""
    if mistake.measures:  # a verdict, which is a sentence
        assert len(lines) == 1
        assert "--gptune-update-baseline" in message
    else:
        assert not lines[0].endswith(".")
        assert sum(line.startswith("  do: ") for line in lines) == 1
        # A backend that is not installed is so everywhere, and most of a command line names itself.
        places = sum(line.startswith("  in: ") for line in lines)
        if mistake.exit_code == 4:
            assert places <= 1
        else:
            assert places == (mistake.exit_code == 1 and not mistake.apart)
    plain = message.replace(str(project.path), "PROJECT").replace("\\", "/")
    messages[mistake.title] = plain.replace(onnxruntime.__version__, "VERSION")


def test_the_table_in_the_documentation_is_that_of_these_messages(messages: dict[str, str]) -> None:
    if len(messages) < len(MISTAKES):
        pytest.skip("the other tests of this file did not all run before it, or not in this process")
    made = HEAD + "".join(row(mistake, messages[mistake.title]) for mistake in MISTAKES)

    if os.environ.get(UPDATE):
        DOC.write_text(made, encoding="utf-8")

    assert DOC.read_text(encoding="utf-8") == made, f"run again with {UPDATE}=1, and look at what changed"


def row(mistake: Mistake, message: str) -> str:
    printed = "<br>".join(f"`{line.strip()}`" for line in message.splitlines()).replace("|", "\\|")
    given = "".join(f" `{argument}`" for argument in mistake.given)
    return f"| {mistake.title}{':' if given else ''}{given} | {printed} | {mistake.exit_code} |\n"
