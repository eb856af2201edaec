"""``--gptune-backend``, ``gptune_require_backend``, and backends of the entry point group."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from projects import CHECK, MODEL, Project

ToyBackend = Callable[..., None]
TOY = f"""
    @pytest.mark.gptune(model="{MODEL}", routes={{"onnxruntime": "-ort:enable_mem_pattern=[on|off]"}})
    def test_model(gptune_engine):
        pass
"""


def test_a_registered_backend_gives_its_knobs(project: Project, add_toy_backend: ToyBackend) -> None:
    add_toy_backend(knobs=2)
    project.tests(TOY)

    assert project.collect("--gptune-backend=toy", "--gptune-search=fast") == [
        "test_model[default]",
        "test_model[toy1=off]",
        "test_model[toy0=off]",
    ]


def test_command_line_over_marker_over_ini(project: Project, add_toy_backend: ToyBackend) -> None:
    add_toy_backend(knobs=1)
    project.tests(TOY)
    project.ini(gptune_backend="toy")
    assert project.collect("--gptune-search=fast")[1:] == ["test_model[toy0=off]"]

    project.tests(TOY.replace("model=", "backend='onnxruntime', model="))
    assert project.collect("--gptune-search=fast")[1:] == ["test_model[ort:enable_mem_pattern=off]"]
    assert project.collect("--gptune-search=fast", "--gptune-backend=toy")[1:] == ["test_model[toy0=off]"]


def test_routes_that_a_backend_rejects_are_xfailed_and_the_run_fails(
    project: Project, add_toy_backend: ToyBackend
) -> None:
    add_toy_backend(knobs=2)
    project.tests(TOY)

    result = project.run("--gptune-backend=toy", "--gptune-search=fast", "-rx")

    result.assert_outcomes(xfailed=3, failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["XFAIL *rejected: toys cannot be built*"])
    result.stdout.fnmatch_lines(["*fail, every_route_failed*"])


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_device_that_is_not_there_skips_the_test(
    project: Project, add_toy_backend: ToyBackend, isolation: str
) -> None:
    add_toy_backend(missing=True)
    project.ini(gptune_isolation=isolation)
    project.tests(TOY + "\n    def test_other():\n        pass\n")

    result = project.run("--gptune-backend=toy", "-rs")

    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["SKIPPED * no toy device is there*"])


def test_with_a_search_a_device_that_is_not_there_is_an_error(
    project: Project, add_toy_backend: ToyBackend
) -> None:
    add_toy_backend(missing=True)
    project.tests(TOY)

    result = project.run("--gptune-backend=toy", "--gptune-search=fast")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["no toy device is there", "  do: plug one in"])


def test_the_ini_key_makes_it_an_error_too(project: Project, add_toy_backend: ToyBackend) -> None:
    add_toy_backend(missing=True)
    project.ini(gptune_require_backend="true", gptune_backend="toy")
    project.tests(TOY + "\n    def test_other():\n        pass\n")

    result = project.run()

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["no toy device is there", "  do: plug one in"])


def test_the_fixture_of_knobs_skips_and_errs_alike(project: Project, add_toy_backend: ToyBackend) -> None:
    add_toy_backend(missing=True)
    project.tests("def test_space(gptune_knobs):\n    pass\n")

    project.run("--gptune-backend=toy").assert_outcomes(skipped=1)
    project.run("--gptune-backend=toy", "--gptune-search=fast").assert_outcomes(errors=1)


def test_an_unknown_backend_names_the_nearest(project: Project) -> None:
    project.tests(CHECK + "\n    def test_other():\n        pass\n")

    result = project.run("--gptune-backend=onnxruntim")

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["unknown backend 'onnxruntim'", "  do: write onnxruntime"])


def test_an_unknown_backend_names_the_known(project: Project, add_toy_backend: ToyBackend) -> None:
    add_toy_backend()
    project.tests(CHECK)

    result = project.run("--gptune-backend=xyz")

    result.stdout.fnmatch_lines(["unknown backend 'xyz'", "  do: use one of: onnxruntime, *toy"])


def test_a_backend_that_cannot_be_imported(project: Project, add_toy_backend: ToyBackend) -> None:
    add_toy_backend()
    project.write("toy_backend.py", "import a_module_that_nobody_has\n")
    project.tests(TOY)

    result = project.run("--gptune-backend=toy", "--gptune-search=fast")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "backend 'toy' cannot be imported: No module named 'a_module_that_nobody_has'",
            "  in: entry point toy_backend:Backend",
            "  do: install the package that provides it again",
        ]
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"providers": "cpu"}, "backend 'onnxruntime' has no option 'providers'"),
        ({"provider": 3}, "option 'provider' is 3"),
        ({"log_severity": 9}, "option 'log_severity' is 9"),
        ({"seed": -1}, "option 'seed' is -1"),
        ({"allow_nonfinite": 1}, "option 'allow_nonfinite' is 1"),
        ("cpu", "options is 'cpu'"),
    ],
)
def test_options_of_the_backend_are_checked(project: Project, options: object, what: str) -> None:
    body = CHECK.replace("epsilon", f"options={options!r}, epsilon")
    project.tests(body + "\n    def test_other():\n        pass\n")

    result = project.run()

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([what, "  in: test_model.py::test_model, *options=*", "  do: *"])


def test_a_provider_that_this_build_lacks_skips_the_test(project: Project) -> None:
    project.tests(CHECK.replace("epsilon", "options={'provider': 'SnpeExecutionProvider'}, epsilon"))

    result = project.run("-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *has no SnpeExecutionProvider; it has *CPUExecutionProvider*"])
