"""``--gptune-against``: a revision that is nowhere is refused before anything runs."""

from __future__ import annotations

import pytest
from projects import Project
from verdict_project import commit, git

OTHER = "def test_other():\n    pass\n"


@pytest.fixture
def repository(project: Project) -> Project:
    """A project in a repository with one commit and the tag v1."""
    project.tests(OTHER, golden=None)
    git(project.path, "init", "--quiet", "--template=")
    commit(project.path, "all")
    git(project.path, "tag", "v1")
    return project


@pytest.mark.parametrize("revision", ["v1", "HEAD", "HEAD~0"])
def test_a_revision_that_is_there(repository: Project, revision: str) -> None:
    repository.run(f"--gptune-against={revision}").assert_outcomes(passed=1)


@pytest.mark.parametrize("revision", ["nope", "HEAD~7", "model.onnx", "-v"])
def test_a_revision_that_is_not_there(repository: Project, revision: str) -> None:
    result = repository.run(f"--gptune-against={revision}")

    assert result.ret == 4
    assert result.errlines[:3] == [
        f"ERROR: git knows no revision '{revision}'",
        "  in: --gptune-against",
        "  do: name a commit, tag or branch that is there (git fetch)",
    ]


def test_in_a_shallow_clone_it_is_said_how_to_get_the_rest(
    repository: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repository.path, "second")
    clone = repository.path / "clone"
    git(repository.path, "clone", "--quiet", "--depth=1", repository.path.as_uri(), str(clone))
    monkeypatch.chdir(clone)

    result = repository.run("--gptune-against=v1")

    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["ERROR: git knows no revision 'v1'", "*", "  do: this is a shallow clone: git fetch --unshallow *"]
    )


def test_without_a_repository(project: Project) -> None:
    project.tests(OTHER, golden=None)

    result = project.run("--gptune-against=HEAD")

    assert result.ret == 4
    assert result.errlines[:3] == [
        "ERROR: the project is not in a git repository",
        "  in: --gptune-against",
        "  do: commit it, so that old models can be had",
    ]


def test_a_revision_of_the_repository_that_an_argument_is_in(repository: Project) -> None:
    repository.write("inner/test_inner.py", OTHER)
    inner = repository.path / "inner"
    git(inner, "init", "--quiet", "--template=")
    commit(inner, "all")
    git(inner, "tag", "v9")

    assert repository.run("--gptune-against=v9").ret == 4
    repository.run("inner/test_inner.py::test_other", "--gptune-against=v9").assert_outcomes(passed=1)


def test_a_revision_may_be_a_submodules(repository: Project) -> None:
    """Its tests are found only when they are collected."""
    repository.write(".gitmodules", "")

    repository.run("--gptune-against=v9").assert_outcomes(passed=1)


def test_the_key_of_the_ini_file_does_not_stop_other_tests(repository: Project) -> None:
    """It goes with the project to copies without its history; the verdict says what was not to be had."""
    repository.ini(gptune_against="nope")

    repository.run().assert_outcomes(passed=1)
