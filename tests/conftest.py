"""Shared by all tests: pytester, and a project folder such as a user of the plugin has."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import models
import pytest
from projects import MODEL, Project

pytest_plugins = ["pytester"]

# python -m pytest tests/fuzz --hypothesis-profile long: for files and options that strangers write.
hypothesis.settings.register_profile(
    "long", max_examples=100_000, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
# The machine is shared: a slow example is the machine's.
hypothesis.settings.register_profile("short", deadline=None)
hypothesis.settings.load_profile("short")


@pytest.fixture(autouse=True)
def _not_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``-n 2`` these tests run in workers of pytest-xdist; what they run does not."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def _imported() -> Iterator[None]:
    """Import what cannot be imported twice, or takes long: pytester forgets what an inner run imported."""
    import pytest_gptune
    from pytest_gptune.engines.onnxruntime import knobs

    for name in ("boltons.fileutils", "filelock", "loky", "onnx.numpy_helper", "onnxruntime", "rich.table"):
        importlib.import_module(name)
    for module in pkgutil.walk_packages(pytest_gptune.__path__, "pytest_gptune."):
        importlib.import_module(module.name)
    with pytest.MonkeyPatch.context() as patch:
        # What ONNX Runtime's library knows is read off its 40 MB by each process: here, by one.
        patch.setattr(knobs, "known_keys", functools.cache(knobs.known_keys))
        patch.setattr(knobs, "known_passes", functools.cache(knobs.known_passes))
        yield


@pytest.fixture(scope="session")
def _model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A Gelu of ``x`` [2, 8] as exporters write it, and a golden of it."""
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper

    from pytest_gptune.accuracy import Case, Golden, Provenance
    from pytest_gptune.accuracy.goldens import golden_to_bytes

    values = (TensorProto.FLOAT, [2, 8])
    weights = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    nodes = [
        helper.make_node("Div", ["x", "root"], ["ratio"]),
        helper.make_node("Erf", ["ratio"], ["error"]),
        helper.make_node("Add", ["error", "one"], ["factor"]),
        helper.make_node("Mul", ["x", "factor"], ["product"]),
        helper.make_node("Mul", ["product", "half"], ["y"]),
    ]
    model = models.build(
        nodes, {"x": values}, {"y": values}, {name: np.array(v, np.float32) for name, v in weights.items()}
    )
    path = models.write(model, tmp_path_factory.mktemp("model") / MODEL)
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs: Any = session.run(None, {"x": x})
    golden = Golden((Case("case0", {"x": x}, {"y": outputs[0]}),), Provenance("", "onnxruntime"))
    return path, golden_to_bytes(golden)


@pytest.fixture
def project(
    _imported: None, _model: tuple[Path, bytes], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A project with ``model.onnx`` and no test yet; what the outer run was given does not reach it."""
    for name in ("PYTEST_ADDOPTS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Project(pytester, *_model)
