"""``--gptune-knobs``: print the knob space and exit."""

from __future__ import annotations

from collections.abc import Callable

import models
import numpy as np
import pytest
from onnx import TensorProto, helper
from projects import CHECK, MODEL, Project


def knob_names(lines: list[str]) -> list[str]:
    return [line.split()[0].rstrip(":") for line in lines if line.startswith("-")]


def test_it_prints_every_knob_and_exits(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    project.tests(CHECK + "\n    raise AssertionError('collected')\n")

    result = project.run("--gptune-knobs")

    assert result.ret == 0
    names = knob_names(result.outlines)
    assert {"-ort:intra_op_num_threads", "-ort:graph_optimization_level"} <= set(names)
    assert len(names) == len(set(names))
    result.stdout.fnmatch_lines(
        [
            f"onnxruntime *: {len(names)} knobs",
            "knob *values *default *help",
            "-ort:graph_optimization_level *basic*extended* all *How far the graph is optimised*",
            "A fast search over every knob that is not on request has * routes, a full one *.",
        ]
    )
    result.stdout.no_fnmatch_line("*test session starts*")
    assert result.errlines == []


def test_a_narrow_terminal_cuts_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    wide = project.run("--gptune-knobs")
    monkeypatch.setenv("COLUMNS", "80")

    narrow = project.run("--gptune-knobs")

    assert max(map(len, narrow.outlines[:-1])) <= 80
    assert knob_names(narrow.outlines) == knob_names(wide.outlines)
    rows = [line for line in wide.outlines if line.startswith("-")]
    words = {word for row in rows for word in row.split()}
    assert {word for word in words if word not in " ".join(narrow.outlines)} == set()


@pytest.mark.parametrize("given", ["mem_pattern", "MEM_Pattern"])
def test_a_filter_matches_names_in_either_case(project: Project, given: str) -> None:
    result = project.run(f"--gptune-knobs={given}")

    assert result.ret == 0
    assert knob_names(result.outlines) == ["-ort:enable_mem_pattern"]
    result.stdout.fnmatch_lines([f"onnxruntime *: * knobs, 1 with '{given}'"])


def test_a_filter_matches_help(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    result = project.run("--gptune-knobs", "denormal numbers")

    assert knob_names(result.outlines) == ["-ort:session.set_denormal_as_zero"]


def test_a_filter_that_matches_nothing(project: Project) -> None:
    result = project.run("--gptune-knobs=nonsense")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["onnxruntime *: * knobs, 0 with 'nonsense'"])


def test_a_path_taken_for_the_filter_shows_all(project: Project) -> None:
    project.tests(CHECK)

    result = project.run("--gptune-knobs", "test_model.py")

    assert len(knob_names(result.outlines)) > 20


def test_it_turns_xdist_off(project: Project) -> None:
    project.tests(CHECK)

    result = project.run_apart("--gptune-knobs", "-n", "2")

    assert result.ret == 0
    assert len(knob_names(result.outlines)) > 20
    result.stdout.no_fnmatch_line("*workers*")


def test_the_knobs_of_another_backend(project: Project, add_toy_backend: Callable[..., None]) -> None:
    add_toy_backend(knobs=2)

    result = project.run("--gptune-knobs", "--gptune-backend=toy")

    assert knob_names(result.outlines) == ["-toy0", "-toy1"]
    result.stdout.fnmatch_lines(["*has 3 routes, a full one 4."])


def test_a_backend_whose_device_is_not_there(project: Project, add_toy_backend: Callable[..., None]) -> None:
    add_toy_backend(missing=True)

    result = project.run("--gptune-knobs", "--gptune-backend=toy")

    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: no toy device is there", "  do: plug one in"])


def test_an_unknown_backend(project: Project) -> None:
    result = project.run("--gptune-knobs", "--gptune-backend=onxruntime")

    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: unknown backend 'onxruntime'", "  do: write onnxruntime"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_the_fixture_gives_the_space_without_routes(project: Project) -> None:
    project.tests(
        """
        def test_space(gptune_knobs):
            knob = gptune_knobs.get("-ort:graph_optimization_level")
            assert knob.default == "all"
            assert "basic" in knob.values
            assert gptune_knobs.tuner_version
        """
    )

    assert project.collect() == ["test_space"]
    project.run().assert_outcomes(passed=1)


def test_the_fixture_gives_the_space_of_the_tests_own_backend(
    project: Project, add_toy_backend: Callable[..., None]
) -> None:
    add_toy_backend(knobs=1)
    project.tests(
        """
        @pytest.mark.gptune(backend="toy")
        def test_space(gptune_knobs):
            assert [knob.name for knob in gptune_knobs] == ["-toy0"]
        """
    )

    project.run().assert_outcomes(passed=1)


def test_the_fixture_gives_the_space_for_the_tests_own_model(project: Project) -> None:
    values = (TensorProto.FLOAT, [2, 8])
    scales = {"scale": np.array(0.1, np.float32), "zero": np.array(0, np.int8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    models.write(models.build(nodes, {"x": values}, {"y": values}, scales), project.path / "quantised.onnx")
    project.tests(
        f"""
        def searched(space):
            return "-ort:session.disable_quant_qdq" in str(space.expression())

        @pytest.mark.gptune(model="quantised.onnx", options={{"seed": 3}})
        def test_quantised(gptune_knobs):
            assert searched(gptune_knobs)

        @pytest.mark.gptune(model="{MODEL}")
        def test_plain(gptune_knobs):
            assert not searched(gptune_knobs)
        """
    )

    project.run().assert_outcomes(passed=2)


def test_the_fixture_finds_mistakes_in_the_marker(project: Project) -> None:
    project.tests(
        """
        @pytest.mark.gptune(model="absent.onnx")
        def test_model(gptune_knobs):
            pass

        @pytest.mark.gptune(options={"providers": "cpu"})
        def test_options(gptune_knobs):
            pass
        """
    )

    result = project.run()

    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["model 'absent.onnx' does not exist*", "*has no option 'providers'"])
