"""Facts about the machine: what this process may use, never what the host has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from pytest_gptune.engines import machine

PINNED = """
import os, sys
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
from pytest_gptune.engines.machine import usable_cores
print(usable_cores())
"""
PRETENDED = """
import os, sys
os.cpu_count = lambda: 4096
from pytest_gptune.engines.machine import usable_cores
print(usable_cores())
"""
SPACE = """
import os
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend
from pytest_gptune.routes import KnobSpace
backend = OnnxRuntimeBackend()
space = KnobSpace.from_json(backend.knob_space(None, {}))
print([space.get(f"-ort:{kind}_op_num_threads").values for kind in ("intra", "inter")])
print(backend.environment({}).device["cores"], backend.environment({}).device_class.endswith(":1"))
"""
needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")


def printed(script: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """What a script prints in a process of its own, where affinity and limits can be changed."""
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **(environment or {})},
    )
    return run.stdout.splitlines()


@needs_affinity
def test_affinity_is_honoured() -> None:
    assert printed(PINNED) == ["1"]


@needs_affinity
def test_the_hosts_count_is_not_taken() -> None:
    assert int(printed(PRETENDED)[0]) <= len(os.sched_getaffinity(0))


@needs_affinity
def test_the_knob_space_of_a_pinned_process() -> None:
    assert printed(SPACE) == ["[('1',), ('1',)]", "1 True"]


def test_a_limit_of_the_environment_is_honoured() -> None:
    script = "from pytest_gptune.engines.machine import usable_cores; print(usable_cores())"
    assert printed(script, {"LOKY_MAX_CPU_COUNT": "1"}) == ["1"]


def test_usable_cores_are_a_plain_positive_int() -> None:
    assert type(machine.usable_cores()) is int
    assert machine.usable_cores() >= 1


def test_the_cpu_has_a_name() -> None:
    assert machine.cpu_model().strip() == machine.cpu_model() != ""


def test_the_cpu_has_a_name_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert machine.cpu_model() == "arm64"


def test_steering_variables_are_listed_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in machine.steering_environment():
        monkeypatch.delenv(name)
    assert machine.steering_environment() == {}
    for name in ("ORT_B", "NVIDIA_TF32_OVERRIDE", "ORT_A", "UNRELATED", "XORT_C"):
        monkeypatch.setenv(name, "1")
    assert list(machine.steering_environment()) == ["NVIDIA_TF32_OVERRIDE", "ORT_A", "ORT_B"]


def test_load_is_absent_where_the_platform_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getloadavg", raising=False)
    assert machine.load_average() is None


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        ({}, None),
        ({"a.slice": "max 100000", "a.slice/b.service": "max 100000"}, None),
        ({"a.slice/b.service": "150000 100000"}, 2),
        ({"a.slice": "100000 100000", "a.slice/b.service": "400000 100000"}, 1),
        ({"a.slice/b.service": "5000 100000"}, 1),
        ({"a.slice/b.service": "nonsense"}, None),
    ],
)
def test_quota_of_a_service_is_found_down_the_tree(tmp_path, limits, cores):
    (tmp_path / "a.slice" / "b.service").mkdir(parents=True)
    for group, limit in limits.items():
        (tmp_path / group / "cpu.max").write_text(limit + "\n")
    membership = tmp_path / "cgroup"
    membership.write_text("1:name=systemd:/x\n0::/a.slice/b.service\n")
    assert machine._nested_quota(tmp_path, membership) == cores


def test_quota_of_the_root_group_is_left_to_loky(tmp_path):
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "cgroup").write_text("0::/\n")
    assert machine._nested_quota(tmp_path, tmp_path / "cgroup") is None
    assert machine._nested_quota(tmp_path, tmp_path / "missing") is None
