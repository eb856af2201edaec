"""Models as exporters really write them: int64, open dimensions, If, Loop, states, wrong declarations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from projects import MODEL, Project

from pytest_gptune.accuracy import load_golden

UPDATE = "--gptune-update-goldens"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(0)
MEASURED = ("--gptune-search", "fast")


def body(arguments: str, before: str = "") -> str:
    return (
        f"import numpy as np\n{before}\n"
        f'@pytest.mark.gptune(model="{MODEL}", epsilon=1e-5, routes="-ort:enable_mem_pattern=[on|off]", '
        f"{arguments})\n"
        "def test_model(gptune):\n"
        "    gptune.check()\n"
    )


def put(project: Project, model: onnx.ModelProto) -> None:
    project.write(MODEL, model.SerializeToString())


def check_runs(project: Project, cases: int) -> None:
    """Make the golden, then search: two routes are built, checked and timed."""
    made = project.run(UPDATE, "--gptune-gate=off")
    assert made.ret == 0, made.outlines
    assert len(load_golden(project.golden_path()).cases) == cases
    searched = project.run(*MEASURED)
    assert searched.ret == 0, searched.outlines
    assert searched.parseoutcomes()["passed"] == 2


def embedding() -> onnx.ModelProto:
    """``ids`` int64 [batch, length] -> mean of their vectors [batch, 4], by a Loop over the positions."""
    loop_body = helper.make_graph(
        [
            helper.make_node("Gather", ["vectors", "i"], ["here"], axis=1),
            helper.make_node("Add", ["sum_in", "here"], ["sum_out"]),
            helper.make_node("Identity", ["go_in"], ["go_out"]),
        ],
        "add",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum_in", FLOAT, ["batch", 4]),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum_out", FLOAT, ["batch", 4]),
        ],
    )
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["vectors"]),
        helper.make_node("Shape", ["ids"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["length"]),
        helper.make_node("Gather", ["vectors", "zero"], ["first"], axis=1),
        helper.make_node("Sub", ["first", "first"], ["start"]),
        helper.make_node("Loop", ["length", "", "start"], ["pooled"], body=loop_body),
    ]
    weights = {
        "table": RNG.standard_normal((10, 4)).astype(np.float32),
        "one": np.array(1, np.int64),
        "zero": np.array(0, np.int64),
    }
    return models.build(
        nodes, {"ids": (INT64, ["batch", "length"])}, {"pooled": (FLOAT, ["batch", 4])}, weights
    )


def recurrent() -> onnx.ModelProto:
    """A step of a detector: ``x`` [1, 8], ``state`` [1, 8], ``rate`` int64 scalar, which an If looks at."""

    def branch(name: str, factor: float) -> onnx.GraphProto:
        value = helper.make_tensor_value_info("scaled", FLOAT, [1, 8])
        constant = onnx.numpy_helper.from_array(np.array(factor, np.float32), f"{name}_factor")
        node = helper.make_node("Mul", ["x", f"{name}_factor"], ["scaled"])
        return helper.make_graph([node], name, [], [value], [constant])

    nodes = [
        helper.make_node("Equal", ["rate", "wide"], ["is_wide"]),
        helper.make_node(
            "If", ["is_wide"], ["scaled"], then_branch=branch("w", 1.0), else_branch=branch("n", 2.0)
        ),
        helper.make_node("Add", ["scaled", "state"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["state_out"]),
        helper.make_node("ReduceMean", ["state_out"], ["mean"], keepdims=0),
        helper.make_node("Sigmoid", ["mean"], ["speech"]),
    ]
    values: tuple[int, Any] = (FLOAT, [1, 8])
    return models.build(
        nodes,
        {"x": values, "state": values, "rate": (INT64, [])},
        {"speech": (FLOAT, []), "state_out": values},
        {"wide": np.array(16000, np.int64)},
    )


def test_int64_and_a_loop_from_the_signature_with_a_seed(project: Project) -> None:
    put(project, embedding())
    project.tests(body('shapes=[{"ids": (2, 5)}, {"ids": (1, 9)}], options={"seed": 3}'), golden=None)
    check_runs(project, 2)
    case = load_golden(project.golden_path()).cases[0]
    assert case.inputs["ids"].dtype == np.int64
    assert case.inputs["ids"].shape == (2, 5)


def test_int64_from_lists_of_a_generator(project: Project) -> None:
    put(project, embedding())
    texts = (
        "def texts():\n    for text in ('317', '40771'):\n        yield {'ids': [[int(c) for c in text]]}\n"
    )
    project.tests(body("inputs=texts", texts), golden=None)
    check_runs(project, 2)
    shapes = [case.inputs["ids"].shape for case in load_golden(project.golden_path()).cases]
    assert shapes == [(1, 3), (1, 5)]


def test_a_state_a_scalar_and_an_if_from_an_npz(project: Project) -> None:
    put(project, recurrent())
    arrays: dict[str, Any] = {}
    for number, rate in enumerate((16000, 8000)):
        arrays[f"step{number}/x"] = RNG.standard_normal((1, 8))
        arrays[f"step{number}/state"] = RNG.standard_normal((1, 8))
        arrays[f"step{number}/rate"] = rate
    np.savez(project.path / "steps.npz", **arrays)
    project.tests(body('inputs="steps.npz"'), golden=None)
    check_runs(project, 2)
    golden = load_golden(project.golden_path())
    assert [case.name for case in golden.cases] == ["step0", "step1"]
    # The If was taken one way and the other.
    for case, factor in zip(golden.cases, (1.0, 2.0), strict=True):
        expected = np.tanh(case.inputs["x"] * np.float32(factor) + case.inputs["state"])
        np.testing.assert_allclose(case.outputs["state_out"], expected, atol=1e-6)


def test_a_sequence_of_states_by_a_function_of_the_user(project: Project) -> None:
    """A generator may hand each case what it made of the one before."""
    put(project, recurrent())
    steps = (
        "def steps(rng):\n"
        "    state = np.zeros((1, 8))\n"
        "    for _ in range(3):\n"
        "        x = rng.standard_normal((1, 8))\n"
        "        yield {'x': x, 'state': state, 'rate': 16000}\n"
        "        state = np.tanh(x + state)\n"
    )
    project.tests(body("inputs=steps", steps), golden=None)
    check_runs(project, 3)


def test_an_output_of_another_rank_than_declared(project: Project) -> None:
    node = helper.make_node("Unsqueeze", ["x", "axes"], ["y"])
    model = models.build(
        [node], {"x": (FLOAT, ["n", 4])}, {"y": (FLOAT, [1, "n"])}, {"axes": np.array([0], np.int64)}
    )
    put(project, model)
    project.tests(body('shapes={"x": (3, 4)}'), golden=None)
    check_runs(project, 1)
    golden = load_golden(project.golden_path())
    assert golden.cases[0].outputs["y"].shape == (1, 3, 4)
    assert golden.provenance.undeclared_shapes == ("y",)


def test_outputs_as_declared_leave_no_note(project: Project) -> None:
    put(project, embedding())
    project.tests(body('shapes={"ids": (2, 5)}'), golden=None)
    check_runs(project, 1)
    assert load_golden(project.golden_path()).provenance.extra == {}


def test_a_reference_of_another_shape_is_still_a_mistake(project: Project, tmp_path: Path) -> None:
    put(project, embedding())
    wrong = "def wrong(ids):\n    return {'pooled': np.zeros((1, 7), np.float32)}\n"
    project.tests(body('shapes={"ids": (1, 5)}, reference=wrong', wrong), golden=None)
    result = project.run(UPDATE)
    result.stdout.fnmatch_lines(["*output 'pooled': shape [[]1, 7[]] does not fit*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ("shapes={'x': (2, 3)}", (2, 3)),
        ("shapes={'x': ()}", ()),
        ("inputs={'x': np.ones((2, 3, 4), 'f')}", (2, 3, 4)),
        ("shapes={'x': (2, 3)}, reference=lambda inputs: {'y': inputs['x']}", (2, 3)),
    ],
    ids=["shapes", "scalar", "inputs", "function"],
)
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_tensors_of_unknown_rank(
    project: Project, isolation: str, arguments: str, shape: tuple[int, ...]
) -> None:
    project.ini(gptune_isolation=isolation)
    models.identity(project.path / MODEL, "float32", None)
    project.tests(body(arguments), golden=None)

    check_runs(project, cases=1)

    (case,) = load_golden(project.golden_path()).cases
    assert (case.inputs["x"].shape, case.outputs["y"].shape) == (shape, shape)


def test_no_inputs_are_made_of_an_unknown_rank(project: Project) -> None:
    models.identity(project.path / MODEL, "float32", None)
    project.tests(body(""), golden=None)

    result = project.run(UPDATE)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "random inputs cannot be made",
            "*- input 'x' has a shape of unknown rank",
            "  in: test_model.py::test_model*",
            "  do: write shapes={'x': (1,)} in the gptune marker, with the dimensions you want and as many "
            "of them, or give inputs=",
        ]
    )
    assert not project.golden_path().exists()
