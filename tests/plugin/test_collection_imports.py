"""A run that uses nothing of ours: none of the heavy packages is imported because of the plugin."""

from __future__ import annotations

import json

import pytest
from projects import CHECK, MODEL, Project

HEAVY = {
    "numpy",
    "onnx",
    "onnxruntime",
    "ml_dtypes",
    "loky",
    "boltons",
    "rich",
    "filelock",
    "jinja2",
    "psutil",
}
PROBE = f"""
    import json
    import sys

    def pytest_unconfigure(config):
        loaded = sorted(name for name in sys.modules if name.split(".")[0] in {sorted(HEAVY)!r})
        ours = sorted(name for name in sys.modules if name.startswith("pytest_gptune"))
        with open("loaded.json", "w") as stream:
            json.dump([loaded, ours], stream)
"""


def loaded(project: Project, *arguments: str) -> tuple[set[str], set[str]]:
    """The heavy packages, and the modules of ours, that a run imported."""
    project.write("conftest.py", PROBE)
    assert project.run_apart(*arguments).ret in (0, 5)
    heavy, ours = json.loads((project.path / "loaded.json").read_text())
    return {name.partition(".")[0] for name in heavy}, set(ours)


@pytest.mark.parametrize("arguments", [[], ["-p", "no:benchmark"], ["-m", "gptune"], ["--collect-only"]])
def test_a_project_without_our_tests_imports_nothing_heavy(project: Project, arguments: list[str]) -> None:
    project.write("pytest.ini", "[pytest]\n")
    project.tests("def test_other():\n    pass\n", golden=None)

    with_us, ours = loaded(project, *arguments)
    without_us, _ = loaded(project, "-p", "no:gptune", *arguments)

    assert with_us <= without_us
    assert not with_us & {"numpy", "onnx", "onnxruntime"}
    assert len(ours) < 12


def test_options_in_the_ini_file_import_nothing_heavy(project: Project) -> None:
    project.ini(gptune_epsilon=1, gptune_search="fast")
    project.tests("def test_other():\n    pass\n", golden=None)

    assert not loaded(project)[0] & {"numpy", "onnx", "onnxruntime"}


def test_a_test_of_ours_that_is_deselected_builds_nothing(project: Project) -> None:
    project.tests(CHECK + "\n    def test_other():\n        pass\n")

    result = project.run_apart("-k", "test_other", "-o", "gptune_isolation=process")

    result.assert_outcomes(passed=1, deselected=1)


def test_with_isolation_the_controlling_process_does_not_import_the_backend(project: Project) -> None:
    project.tests(f'@pytest.mark.gptune(model="{MODEL}")\ndef test_model(gptune_engine):\n    pass\n')

    heavy, _ = loaded(project, "-o", "gptune_isolation=process")

    assert "onnxruntime" not in heavy
    assert "onnx" in heavy
