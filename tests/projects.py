"""A project folder such as a user of the plugin has, and what its tests are usually made of."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

# Hypothesis takes a second to import, and pytester imports it anew for each run.
_WITHOUT = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")

MODEL = "model.onnx"
INACCURATE = "-ort:optimization.enable_gelu_approximation=1"
"""A route whose loss on ``MODEL`` is above 1e-4, while that of others is below 1e-6."""
ROUTES = "-ort:enable_mem_pattern=[on|off] -ort:optimization.enable_gelu_approximation=[0|1]"
"""Three routes under fast, four under full; those with the approximation are inaccurate."""
MARKER = f'@pytest.mark.gptune(model="{MODEL}", epsilon=1e-5, routes="{ROUTES}")'
CHECK = f"""
    {MARKER}
    def test_model(gptune_engine, gptune_golden):
        gptune_golden.check(gptune_engine)
"""
"""A test that checks accuracy and measures nothing, which keeps the tests of this plugin quick."""
MEASURE = f"""
    {MARKER}
    def test_model(gptune):
        gptune.check()
"""


class Project:
    """A user's project: a model, test files and goldens, in the folder of a ``pytester``.

    Attributes:
        path: the root folder.
        golden_content: a golden of ``MODEL``.
    """

    def __init__(self, pytester: pytest.Pytester, model: Path, golden_content: bytes) -> None:
        self._pytester = pytester
        self._model = model
        self.golden_content = golden_content
        self.path = pytester.path
        self.write(MODEL, model.read_bytes())
        self.ini()

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file; text is dedented."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content if isinstance(content, bytes) else textwrap.dedent(content).encode()
        path.write_bytes(data)
        return path

    def ini(self, **keys: object) -> None:
        """Write ``pytest.ini`` with these keys."""
        # Further builds of finalists and a process for engines cost time, and most tests are not about them.
        keys = {"gptune_final_builds": 1, "gptune_isolation": "none", **keys}
        lines = [f"{key} = {value}" for key, value in keys.items()]
        self.write("pytest.ini", "\n".join(["[pytest]", "addopts = --strict-markers", *lines, ""]))

    def tests(self, body: str, name: str = "test_model.py", *, golden: str | None = "test_model") -> Path:
        """Write a test file that imports pytest, and a golden for the test named ``golden``."""
        path = self.write(name, "import pytest\n" + textwrap.dedent(body))
        if golden is not None:
            self.golden(golden, path.stem, path.parent)
        return path

    def golden(self, owner: str = "test_model", stem: str = "test_model", folder: Path | None = None) -> Path:
        """Write the golden of a test, ``owner`` being its class, name and parameters."""
        path = self.golden_path(owner, stem, folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.golden_content)
        return path

    def golden_path(
        self, owner: str = "test_model", stem: str = "test_model", folder: Path | None = None
    ) -> Path:
        """Where the golden of a test stands."""
        return self._record(owner, stem, folder, "golden.npz")

    def baseline_path(
        self, owner: str = "test_model", stem: str = "test_model", folder: Path | None = None
    ) -> Path:
        """Where the baseline of a test stands."""
        return self._record(owner, stem, folder, "baseline.json")

    def _record(self, owner: str, stem: str, folder: Path | None, kind: str) -> Path:
        from pytest_gptune.storage import record_path

        return record_path((folder or self.path) / f"{stem}.py", owner, kind)

    def baseline(self, route: str, owner: str = "test_model", stem: str = "test_model") -> Path:
        """Write a baseline whose winner is ``route``, of another machine and so never slower or faster."""
        from pytest_gptune.records.baseline import Baseline, BaselineEntry, save_baseline
        from pytest_gptune.records.fingerprint import Fingerprint

        entry = BaselineEntry(
            backend="onnxruntime",
            device_class="cpu:another machine:1",
            shapes={"x": (2, 8)},
            latency_kind="host_wall",
            statistic="p25",
            route=route,
            latency_s=1e-5,
            interval=None,
            builds=1,
            between_build_spread=None,
            default=None,
            calibration_s=None,
            loss=0.0,
            metric="lInf",
            epsilon=1e-5,
            model_sha256="0" * 64,
            model_path=MODEL,
            golden_sha256="0" * 64,
            tuner_version="1.0.0",
            defaults_digest="0" * 64,
            engine_sha256="0" * 64,
            fingerprint=Fingerprint({"software": {}, "device": {}}, {}),
        )
        path = self.baseline_path(owner, stem)
        save_baseline(path, Baseline((entry,)))
        return path

    def run(self, *arguments: str | os.PathLike[str]) -> pytest.RunResult:
        """Run pytest on the project, in this process: quick, and with the engine of this process."""
        return self._pytester.runpytest_inprocess(*_WITHOUT, *arguments)

    def run_apart(self, *arguments: str | os.PathLike[str]) -> pytest.RunResult:
        """Run pytest on the project in a process of its own."""
        return self._pytester.runpytest_subprocess(*_WITHOUT, *arguments)

    def collect(self, *arguments: str | os.PathLike[str]) -> list[str]:
        """The ids of what is collected, without the name of the file where there is only one."""
        result = self.run("--collect-only", "-q", *arguments)
        ids = [line for line in result.outlines if "::" in line]
        files = {line.partition("::")[0] for line in ids}
        return [line.partition("::")[2] for line in ids] if len(files) == 1 else ids
