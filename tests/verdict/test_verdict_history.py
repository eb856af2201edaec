"""The baseline's model out of git: which commit it is taken from, and what is said where it cannot be had."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import models
import pytest
from verdict_project import commit, git

from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.errors import GptuneError
from pytest_gptune.records.history import HistoryError, OldModel, old_model, repository_root, required_root


@dataclass
class Repository:
    """A repository with the model ``models/net.onnx`` and a baseline that names its digest."""

    root: Path
    into: Path

    @property
    def model(self) -> Path:
        return self.root / "models" / "net.onnx"

    @property
    def baseline(self) -> Path:
        return self.root / "tests" / "net.baseline.json"

    @property
    def sha256(self) -> str:
        return inspect_model(self.model).sha256

    def write_baseline(self, *digests: str) -> None:
        self.baseline.parent.mkdir(exist_ok=True)
        self.baseline.write_text("".join(f"{digest}\n" for digest in digests or [self.sha256]))

    def old(self, sha256: str, **values: str) -> OldModel:
        folder = self.into / str(len(list(self.into.iterdir())))
        folder.mkdir()
        return old_model(
            root=self.root,
            baseline=self.baseline,
            model_path="models/net.onnx",
            sha256=sha256,
            into=folder,
            **values,
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    (tmp_path / "repository").mkdir()
    (tmp_path / "into").mkdir()
    made = Repository(tmp_path / "repository", tmp_path / "into")
    git(made.root, "init", "--quiet")
    models.mlp(made.model, layers=1, width=4)
    return made


def change_model(repository: Repository, seed: int = 1) -> None:
    models.mlp(repository.model, layers=1, width=4, seed=seed)


class TestCommit:
    def test_the_commit_that_wrote_the_baseline(self, repository: Repository) -> None:
        commit(repository.root, "model")
        repository.write_baseline()
        sha256, content = repository.sha256, repository.model.read_bytes()
        written = commit(repository.root, "baseline")
        change_model(repository)
        commit(repository.root, "another model")
        found = repository.old(sha256)
        assert (found.commit, found.path.read_bytes()) == (written, content)
        assert found.path.name == "net.onnx"

    def test_a_model_that_is_changed_and_not_committed(self, repository: Repository) -> None:
        repository.write_baseline()
        sha256 = repository.sha256
        commit(repository.root, "both")
        change_model(repository)
        assert inspect_model(repository.old(sha256).path).sha256 == sha256

    def test_nothing_is_written_to_the_repository(self, repository: Repository) -> None:
        repository.write_baseline()
        commit(repository.root, "both")
        before = git(repository.root, "status", "--porcelain", "--ignored")
        repository.old(repository.sha256)
        assert git(repository.root, "status", "--porcelain", "--ignored") == before

    def test_a_baseline_that_is_not_committed(self, repository: Repository) -> None:
        commit(repository.root, "model")
        repository.write_baseline()
        with pytest.raises(HistoryError, match="has not been committed") as caught:
            repository.old(repository.sha256)
        assert "commit the baseline together with its model" in str(caught.value)

    def test_a_repository_without_commits(self, repository: Repository) -> None:
        repository.write_baseline()
        with pytest.raises(HistoryError, match=r"does not have any commits|has not been committed"):
            repository.old(repository.sha256)

    def test_a_model_that_was_never_committed(self, repository: Repository) -> None:
        repository.write_baseline()
        git(repository.root, "add", "tests")
        git(repository.root, "commit", "--quiet", "-m", "baseline alone")
        with pytest.raises(HistoryError, match=r"models/net\.onnx is not in commit") as caught:
            repository.old(repository.sha256)
        assert "--gptune-against REF" in str(caught.value)

    def test_a_model_that_changed_between_its_baseline_and_the_commit(self, repository: Repository) -> None:
        repository.write_baseline()
        sha256 = repository.sha256
        change_model(repository)
        commit(repository.root, "a model that the baseline was not made with")
        with pytest.raises(HistoryError, match="not the one the baseline was made with") as caught:
            repository.old(sha256)
        assert "commit model and baseline together" in str(caught.value)

    def test_a_baseline_to_which_another_device_was_added_later(self, repository: Repository) -> None:
        """The entry of one device is older than the last commit of the file."""
        repository.write_baseline()
        first = repository.sha256
        written = commit(repository.root, "first device")
        change_model(repository)
        repository.write_baseline(first, repository.sha256)
        commit(repository.root, "second device, another model")
        assert repository.old(first).commit == written

    def test_an_entry_that_was_replaced_and_came_back(self, repository: Repository) -> None:
        repository.write_baseline()
        first = repository.sha256
        commit(repository.root, "first")
        change_model(repository)
        repository.write_baseline()
        commit(repository.root, "second")
        change_model(repository, seed=0)
        repository.write_baseline()
        written = commit(repository.root, "first again")
        assert repository.old(first).commit == written

    def test_a_baseline_outside_of_the_repository(self, repository: Repository, tmp_path: Path) -> None:
        commit(repository.root, "model")
        with pytest.raises(HistoryError, match="not in the repository"):
            old_model(
                root=repository.root,
                baseline=tmp_path / "x.json",
                model_path="models/net.onnx",
                sha256="",
                into=repository.into,
            )


class TestAgainst:
    @pytest.mark.parametrize("revision", ["v1", "HEAD~1", "main~1"])
    def test_a_revision(self, repository: Repository, revision: str) -> None:
        git(repository.root, "checkout", "--quiet", "-b", "main")
        first = repository.sha256
        named = commit(repository.root, "model")
        git(repository.root, "tag", "-a", "v1", "-m", "an annotated tag")
        change_model(repository)
        commit(repository.root, "another model")
        found = repository.old(first, against=revision)
        assert found.commit == named

    @pytest.mark.parametrize("revision", ["v9", "--help", "-n1", "HEAD~99", "a b", "HEAD:models"])
    def test_a_revision_that_is_not_there(self, repository: Repository, revision: str) -> None:
        commit(repository.root, "model")
        with pytest.raises(HistoryError, match="git knows no revision") as caught:
            repository.old(repository.sha256, against=revision)
        assert "--gptune-against" in str(caught.value)

    def test_the_digest_counts_for_a_revision_as_well(self, repository: Repository) -> None:
        commit(repository.root, "model")
        with pytest.raises(HistoryError, match="not the one the baseline was made with"):
            repository.old("0" * 64, against="HEAD")


class TestExternalData:
    @pytest.fixture
    def external(self, repository: Repository) -> Repository:
        models.external_data(repository.model)
        repository.write_baseline()
        return repository

    def test_is_taken_from_the_same_commit(self, external: Repository) -> None:
        sha256 = external.sha256
        commit(external.root, "both")
        models.external_data(external.model, seed=1)
        commit(external.root, "other weights")
        found = external.old(sha256)
        assert inspect_model(found.path).sha256 == sha256
        assert found.path.with_name("net.onnx.data").is_file()

    def test_weights_alone_make_another_model(self, external: Repository) -> None:
        old = external.sha256
        commit(external.root, "both")
        models.external_data(external.model, seed=1)
        assert external.sha256 != old

    def test_that_was_not_committed(self, external: Repository) -> None:
        git(external.root, "add", "models/net.onnx", "tests")
        git(external.root, "commit", "--quiet", "-m", "without data")
        with pytest.raises(HistoryError, match=r"models/net\.onnx\.data is not in commit"):
            external.old(external.sha256)


class TestShallowClone:
    @pytest.fixture
    def shallow(self, repository: Repository, tmp_path: Path) -> tuple[Repository, str]:
        """A clone of depth 1, after the model has changed, and the old model's digest."""
        repository.write_baseline()
        old = repository.sha256
        commit(repository.root, "both")
        change_model(repository)
        commit(repository.root, "another model")
        clone = tmp_path / "clone"
        git(tmp_path, "clone", "--quiet", "--depth", "1", repository.root.as_uri(), str(clone))
        return Repository(clone, repository.into), old

    def test_is_said_with_what_mends_it(self, shallow: tuple[Repository, str]) -> None:
        repository, old = shallow
        with pytest.raises(HistoryError) as caught:
            repository.old(old)
        assert "git fetch --unshallow" in str(caught.value)
        assert "fetch-depth: 0" in str(caught.value)

    def test_is_said_for_a_revision(self, shallow: tuple[Repository, str]) -> None:
        repository, old = shallow
        with pytest.raises(HistoryError) as caught:
            repository.old(old, against="HEAD~1")
        assert "git fetch --unshallow" in str(caught.value)

    def test_what_it_says_mends_it(self, shallow: tuple[Repository, str]) -> None:
        repository, old = shallow
        git(repository.root, "fetch", "--quiet", "--unshallow")
        assert inspect_model(repository.old(old).path).sha256 == old

    def test_does_where_the_model_did_not_change_since(self, repository: Repository, tmp_path: Path) -> None:
        repository.write_baseline()
        commit(repository.root, "both")
        clone = tmp_path / "clone"
        git(tmp_path, "clone", "--quiet", "--depth", "1", repository.root.as_uri(), str(clone))
        assert Repository(clone, repository.into).old(repository.sha256).commit


class TestLargeFileStorage:
    """Git LFS keeps a pointer in the repository; its content may not be here."""

    POINTER = (
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
    )

    @pytest.fixture
    def pointed(self, repository: Repository) -> tuple[Repository, str]:
        """The pointer is what was committed, as with the filter of Git LFS; the digest is of the model."""
        repository.write_baseline()
        sha256, content = repository.sha256, repository.model.read_bytes()
        repository.model.write_text(self.POINTER)
        (repository.root / ".gitattributes").write_text("*.onnx filter=lfs diff=lfs merge=lfs -text\n")
        commit(repository.root, "both")
        repository.model.write_bytes(content)
        return repository, sha256

    def test_without_git_lfs(self, pointed: tuple[Repository, str]) -> None:
        repository, sha256 = pointed
        with pytest.raises(HistoryError, match="Git LFS pointer whose content is not here") as caught:
            repository.old(sha256)
        assert "git lfs fetch" in str(caught.value)

    def test_with_a_required_filter_that_cannot_get_the_content(
        self, pointed: tuple[Repository, str]
    ) -> None:
        """As after ``git lfs install``, where the server is out of reach or the program is gone."""
        repository, sha256 = pointed
        git(repository.root, "config", "filter.lfs.smudge", "git-lfs-that-is-not-here smudge -- %f")
        git(repository.root, "config", "filter.lfs.required", "true")
        with pytest.raises(HistoryError, match="Git LFS pointer whose content is not here") as caught:
            repository.old(sha256)
        assert "git lfs fetch" in str(caught.value)

    def test_with_the_content_here(self, pointed: tuple[Repository, str], tmp_path: Path) -> None:
        repository, sha256 = pointed
        shutil.copy(repository.model, tmp_path / "content")
        git(
            repository.root,
            "config",
            "filter.lfs.smudge",
            f"cat > /dev/null; cat '{(tmp_path / 'content').as_posix()}'",
        )
        assert inspect_model(repository.old(sha256).path).sha256 == sha256

    def test_of_the_weights(self, repository: Repository) -> None:
        models.external_data(repository.model)
        repository.write_baseline()
        sha256 = repository.sha256
        repository.model.with_name("net.onnx.data").write_text(self.POINTER)
        commit(repository.root, "both")
        with pytest.raises(HistoryError, match=r"net\.onnx\.data .* Git LFS pointer"):
            repository.old(sha256)


class TestRepositoryRoot:
    def test_of_a_folder_within(self, repository: Repository) -> None:
        (repository.root / "a" / "b").mkdir(parents=True)
        found = repository_root(repository.root / "a" / "b")
        assert found is not None
        assert found.samefile(repository.root)

    def test_of_a_name_with_spaces_and_other_letters(self, tmp_path: Path) -> None:
        odd = tmp_path / "näme with späces"
        odd.mkdir()
        git(odd, "init", "--quiet")
        found = repository_root(odd)
        assert found is not None
        assert found.samefile(odd)

    def test_outside(self, tmp_path: Path) -> None:
        assert repository_root(tmp_path) is None
        with pytest.raises(HistoryError, match="not in a git repository"):
            required_root(tmp_path)

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to give files away")
    def test_of_another_user(self, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in a container of a CI service, whose checkout belongs to the host's user."""
        for name in ("SUDO_UID", "GIT_TEST_ASSUME_DIFFERENT_OWNER"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        for path in (repository.root, repository.root / ".git"):
            os.chown(path, 12345, 12345)
        assert repository_root(repository.root) is None
        with pytest.raises(HistoryError, match="dubious ownership") as caught:
            required_root(repository.root)
        assert "safe.directory" in str(caught.value)

    def test_without_git(self, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(repository.root))
        assert repository_root(repository.root) is None
        with pytest.raises(HistoryError, match="git is not installed"):
            repository.old("0" * 64)

    def test_within_a_hook_of_another_repository(
        self, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Git sets variables for its hooks, and pytest may run in one."""
        other = tmp_path / "other"
        other.mkdir()
        git(other, "init", "--quiet")
        repository.write_baseline()
        commit(repository.root, "both")
        monkeypatch.setenv("GIT_DIR", str(other / ".git"))
        monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
        found = repository_root(repository.root)
        assert found is not None
        assert found.samefile(repository.root)
        assert repository.old(repository.sha256).commit


def test_what_is_in_git_is_no_model(repository: Repository) -> None:
    repository.write_baseline()
    sha256 = repository.sha256
    repository.model.write_text("no model")
    commit(repository.root, "both")
    with pytest.raises(GptuneError, match="not an ONNX model") as caught:
        repository.old(sha256)
    assert "models/net.onnx at " in str(caught.value)


def test_filters_of_a_checkout_apply(repository: Repository) -> None:
    """What a clean filter changed when the file was committed, its smudge filter changes back."""
    (repository.root / ".gitattributes").write_text("*.onnx filter=turn\n")
    for name in ("clean", "smudge"):
        git(repository.root, "config", f"filter.turn.{name}", "tr '\\000-\\377' '\\200-\\377\\000-\\177'")
    repository.write_baseline()
    commit(repository.root, "both")
    assert os.fspath(repository.old(repository.sha256).path).endswith("net.onnx")
