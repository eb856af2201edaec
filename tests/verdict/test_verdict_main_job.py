"""The main job with real engines: a model that gets slower than its baseline, is restored, or is another.

A shared machine changes its pace by a factor of 1.7 for seconds; a model whose verdict must be certain takes
three times as long as the other. What smaller changes do is shown on the backend ``steady``, and real ones of
11 % by ``test_gate_under_load.py``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time

import models
import pytest
from verdict_project import BATCH, LAYERS, WIDTH, Project, heed_ctrl_c, slow_down

# Where the finals do not matter.
ONE_BUILD = ("-o", "gptune_final_builds=1")

# In percent, where the ratio does not matter.
NO_LIMIT = 400

GATE_ID = "tests/test_net.py::test_net::gptune-gate"


def test_unchanged_it_passes(tuned: Project) -> None:
    run = tuned.run("--gptune-search=fast")
    assert (run.code, run.said) == (0, ("pass", "unchanged"))
    assert run.statuses == {"default": "passed", "ort:session.disable_prepacking=1": "passed"}
    assert run.test["winner"] == "default"


def test_replay_passes_with_the_baselines_route_alone(tuned: Project) -> None:
    run = tuned.run()
    assert (run.code, run.said) == (0, ("pass", "unchanged"))
    assert run.statuses == {"default": "passed"}


def test_slower_it_fails_and_restored_it_passes(tuned: Project) -> None:
    content = tuned.model.read_bytes()
    slow_down(tuned, extra=2 * LAYERS)
    run = tuned.run("--gptune-search=fast")
    assert (run.code, run.said) == (1, ("fail", "slower"))
    assert run.verdict["gate"] == "paired"
    low, high = run.verdict["interval"]
    assert 1.03 < low <= run.verdict["ratio"] <= high
    assert f"FAILED {GATE_ID}" in run.out
    failure = run.case().find("failure")
    assert failure is not None
    for text in (run.text, failure.text or ""):
        assert "s against the reference engine's" in " ".join(text.split())
        assert f"ratio {run.verdict['ratio']:.3f} [{low:.3f}, {high:.3f}]" in text
    tuned.model.write_bytes(content)
    run = tuned.run()
    assert (run.code, run.said) == (0, ("pass", "unchanged"))


def test_other_weights_pass_within_the_limit(tuned: Project) -> None:
    models.mlp(tuned.model, LAYERS, WIDTH, BATCH, seed=1)
    run = tuned.run("--gptune-update-goldens", f"--gptune-max-regression={NO_LIMIT}")
    assert (run.code, run.verdict["outcome"], run.verdict["gate"]) == (0, "pass", "paired")
    assert run.verdict["reason"] in ("within_limit", "improved")
    assert run.verdict["changed"] == ["model: another digest", "golden: another digest"]


def test_less_work_passes_as_improved(tuned: Project) -> None:
    models.mlp(tuned.model, LAYERS // 3, WIDTH, BATCH)
    run = tuned.run("--gptune-update-goldens", *ONE_BUILD)
    assert (run.code, run.said) == (0, ("pass", "improved"))


def test_a_golden_moved_by_ten_times_epsilon(tuned: Project) -> None:
    tuned.move_golden(1e-3)
    run = tuned.run("--gptune-search=fast", "--benchmark-json=rows.json")
    assert (run.code, run.said) == (1, ("fail", "no_route_passes"))
    assert set(run.statuses.values()) == {"inaccurate"}
    needed = run.test["routes"][0]["needed_epsilon"]
    assert needed == pytest.approx(1e-3, rel=1e-2)
    assert f"the smallest epsilon at which one would pass: {needed:.4g}" in run.text
    assert [route["latency"] for route in run.test["routes"]] == [None, None]
    assert not (tuned.path / "rows.json").exists()  # written when the first row is


@pytest.mark.long
def test_a_route_whose_numbers_differ_cannot_win(tuned: Project) -> None:
    """A fast approximation of Gelu, compared with the exact one."""
    test = tuned.path / "tests" / "test_net.py"
    approximate = "-ort:optimization.enable_gelu_approximation=[0|1]"
    test.write_text(test.read_text().replace("-ort:session.disable_prepacking=[0|1]", approximate))
    _gelu(tuned)
    run = tuned.run("--gptune-search=fast", "--gptune-update-goldens", "--gptune-epsilon=1e-6")
    assert run.statuses == {
        "default": "passed",
        "ort:optimization.enable_gelu_approximation=1": "inaccurate",
    }
    assert (run.code, run.test["winner"]) == (0, "default")


def _gelu(project: Project) -> None:
    import numpy as np
    from onnx import TensorProto, helper

    values = (TensorProto.FLOAT, [64, 192])
    weights = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    nodes = [
        helper.make_node("Div", ["x", "root"], ["ratio"]),
        helper.make_node("Erf", ["ratio"], ["error"]),
        helper.make_node("Add", ["error", "one"], ["factor"]),
        helper.make_node("Mul", ["x", "factor"], ["product"]),
        helper.make_node("Mul", ["product", "half"], ["y"]),
    ]
    arrays = {name: np.array(value, np.float32) for name, value in weights.items()}
    models.write(models.build(nodes, {"x": values}, {"y": values}, arrays), project.model)


@pytest.mark.long
def test_over_two_processes(tuned: Project) -> None:
    slow_down(tuned, extra=2 * LAYERS)
    run = tuned.run("-n2", "--gptune-search=fast", "-p", "no:cacheprovider")
    assert (run.code, run.said) == (1, ("fail", "slower"))
    assert len(run.statuses) == 2


@pytest.mark.long
def test_without_the_old_model_the_absolute_gate_is_calibrated(tuned: Project) -> None:
    slow_down(tuned)
    run = tuned.run("--gptune-gate=absolute", f"--gptune-max-regression={NO_LIMIT}")
    assert (run.code, run.verdict["outcome"], run.verdict["gate"]) == (0, "pass", "absolute")
    assert "the calibration engine takes" in run.text


def test_a_shallow_clone_says_so_and_what_mends_it(tuned: Project, pytester: pytest.Pytester) -> None:
    slow_down(tuned)
    tuned.commit("slower")
    clone = pytester.path.parent / "clone"
    tuned.git("clone", "--quiet", "--depth", "1", tuned.path.as_uri(), str(clone))
    pytester.chdir()
    shallow = Project(clone, pytester)
    run = shallow.run_outside(f"--gptune-max-regression={NO_LIMIT}", *ONE_BUILD)
    assert (run.code, run.verdict["gate"]) == (0, "absolute")
    assert "no paired gate" in run.text
    assert "git fetch --unshallow" in run.text


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_ctrl_c_during_the_search(tuned: Project) -> None:
    """The terminal sends the signal to all processes of the run, workers included."""
    test = tuned.path / "tests" / "test_net.py"
    routes = (
        "-ort:intra_op_num_threads=1 -ort:session.disable_prepacking=[0|1] -ort:enable_mem_pattern=[on|off]"
    )
    test.write_text(test.read_text().replace("routes=", f'routes="{routes}" or '))
    output = tuned.path / "output.txt"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            tuned.command("-v", "--gptune-search=full"),
            cwd=tuned.path,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heed_ctrl_c,
        )
        # Once the second route has begun, the first is on record.
        deadline = time.monotonic() + 60
        while output.read_text().count("test_net[") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(timeout=60)
    run = tuned.finished(code, output.read_text())
    assert (run.code, run.said) == (2, ("incomparable", "partial_run")), run.out
    assert "the run was interrupted" in run.text
    assert "INTERNALERROR" not in run.out
    assert "Traceback" not in run.out
