"""``--gptune-routes``, ``--gptune-route-file``, their ini keys, and the marker's ``routes``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from projects import MODEL, Project

PATTERN = "-ort:enable_mem_pattern=[on|off]"
REUSE = "-ort:enable_mem_reuse=[on|off]"
UNNAMED = f"""
    @pytest.mark.gptune(model="{MODEL}")
    def test_model(gptune_engine):
        pass
"""
OFF = ["test_model[default]", "test_model[ort:enable_mem_pattern=off]"]
REUSE_OFF = ["test_model[default]", "test_model[ort:enable_mem_reuse=off]"]


def named(routes: str) -> str:
    return UNNAMED.replace(")", f", routes={routes})", 1)


def test_routes_are_for_tests_that_name_none(project: Project) -> None:
    project.tests(UNNAMED)

    assert project.collect("--gptune-search=fast", f"--gptune-routes={PATTERN}") == OFF


def test_a_markers_own_routes_win(project: Project) -> None:
    project.tests(named(repr(PATTERN)))

    assert project.collect("--gptune-search=fast", f"--gptune-routes={REUSE}") == OFF


def test_a_mapping_names_the_routes_of_each_backend(project: Project) -> None:
    project.tests(named(repr({"tensorrt": "-copy_ppg=[on|off]", "onnxruntime": PATTERN})))

    assert project.collect("--gptune-search=fast", f"--gptune-routes={REUSE}") == OFF


def test_a_mapping_without_the_backend_names_no_routes(project: Project) -> None:
    project.tests(named(repr({"tensorrt": "-copy_ppg=[on|off]"})))

    assert project.collect("--gptune-search=fast", f"--gptune-routes={REUSE}") == REUSE_OFF


@pytest.mark.parametrize(
    ("routes", "name", "mend"),
    [
        ({"onnxruntim": PATTERN}, "onnxruntim", "write onnxruntime"),
        ({"tensorrt": PATTERN, "onnx-runtime": PATTERN}, "onnx-runtime", "write onnxruntime"),
        ({"xyz": PATTERN}, "xyz", "use one of: onnxruntime, tensorrt, tensorrt_rtx"),
        ({7: PATTERN}, "7", "use one of: onnxruntime, tensorrt, tensorrt_rtx"),
    ],
)
def test_a_mapping_with_a_name_of_no_backend(
    project: Project, routes: dict[object, str], name: str, mend: str
) -> None:
    project.tests(named(repr(routes)) + "\n    def test_other():\n        pass\n")

    result = project.run("--gptune-search=fast")

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            f"unknown backend '{name}'",
            "  in: test_model.py::test_model, @pytest.mark.gptune(...), routes=",
            f"  do: {mend}",
        ],
        consecutive=True,
    )


@pytest.mark.parametrize("installed", [True, False])
def test_a_mapping_may_name_a_backend_of_another_package(
    project: Project, add_toy_backend: Callable[..., None], installed: bool
) -> None:
    """Where that package is not installed its routes are nobody's, and those of this backend are there."""
    if installed:
        add_toy_backend()
    project.tests(named(repr({"onnxruntime": PATTERN, "toy": "-toy0=[on|off]"})))

    assert project.collect("--gptune-search=fast") == OFF


def test_command_line_over_ini(project: Project) -> None:
    project.tests(UNNAMED)
    project.ini(gptune_routes=PATTERN)
    assert project.collect("--gptune-search=fast") == OFF

    assert project.collect("--gptune-search=fast", f"--gptune-routes={REUSE}") == REUSE_OFF
    project.write("reuse.txt", REUSE)
    assert project.collect("--gptune-search=fast", "--gptune-route-file=reuse.txt") == REUSE_OFF


def test_a_route_file_has_comments_and_lines(project: Project) -> None:
    project.tests(UNNAMED)
    project.write(
        "routes.txt",
        """\
        # memory
        -ort:enable_mem_pattern=[on|off]   # -ort:enable_mem_reuse=[on|off]

            -ort:execution_mode=sequential
        """,
    )

    assert project.collect("--gptune-search=fast", "--gptune-route-file", "routes.txt") == OFF


def test_a_route_file_on_the_command_line_is_sought_in_the_current_folder(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.tests(UNNAMED)
    project.write("below/routes.txt", PATTERN)
    monkeypatch.chdir(project.path / "below")

    assert project.collect("..", "--gptune-search=fast", "--gptune-route-file=routes.txt") == OFF


def test_a_route_file_of_the_ini_file_is_sought_in_the_root_folder(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.tests(UNNAMED)
    project.write("routes.txt", PATTERN)
    project.ini(gptune_route_file="routes.txt")
    (project.path / "below").mkdir()
    monkeypatch.chdir(project.path / "below")

    assert project.collect("..", "--gptune-search=fast") == OFF


def test_both_at_once_are_refused_before_anything_runs(project: Project) -> None:
    project.tests(UNNAMED)
    project.write("routes.txt", PATTERN)

    result = project.run(f"--gptune-routes={PATTERN}", "--gptune-route-file=routes.txt")

    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["ERROR: --gptune-routes and --gptune-route-file exclude each other", "  do: give one of them"]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-ort:enable_mem_patern=[on|off]", "unknown knob '-ort:enable_mem_patern' at character 1"),
        ("-ort:enable_mem_pattern=[on|of]", "value 'of' at character 29 is not allowed for *pattern"),
        (f"{PATTERN} {PATTERN}", "knob '*' is named twice, at character 1 and at character 34"),
    ],
)
def test_a_mistake_in_the_expression_names_the_option_and_the_place(
    project: Project, text: str, message: str
) -> None:
    project.tests(UNNAMED + "\n    def test_other():\n        pass\n")

    result = project.run(f"--gptune-routes={text}")

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([message, "  in: --gptune-routes", "  do: *"])


MALFORMED = [
    ("", "the route expression is empty", "name at least one knob, as -knob=[[]a|b], or give no routes *"),
    ("xx", "knob 'xx' at character 1 has no '=' and value", "write -xx=[[]a|b]"),
    (f"{PATTERN} -b", "knob '-b' at character 34 has no '=' and value", "write -b=[[]a|b]"),
    ("-b[on]", "knob '-b[[]on]' at character 1 has no '=' and value", "write -b=[[]a|b]"),
    ("-b=", "knob '-b=' has no value at character 4", "write -b=[[]a|b]"),
    ("b=[on|off]", "knob 'b' at character 1 has no leading dash", "write -b=[[]a|b]"),
    ("-b=[on", "'[[]' at character 4 is not closed before the next *: '-b=[[]on'", "write -b=[[]a|b]"),
    ("-b=on[off]", "text 'on' at character 4 stands before '[[]' in '-b=on[[]off]'", "write -b=[[]a|b]"),
    ("-b=[on]-c=1", "text '-c=1' at character 8 stands after ']' *", "write -b=[[]a|b]; put white space *"),
]
"""Expression, message, and what to do; ``[[]`` is a bracket to ``fnmatch``."""


@pytest.mark.parametrize(("text", "what", "mend"), MALFORMED)
@pytest.mark.parametrize("body", [UNNAMED, named(repr(PATTERN))], ids=["unnamed", "named"])
def test_a_malformed_expression_is_refused_though_all_tests_have_their_own(
    project: Project, body: str, text: str, what: str, mend: str
) -> None:
    project.tests(body)

    result = project.run(f"--gptune-routes={text}")

    assert result.ret == 4
    result.stderr.fnmatch_lines(
        [f"ERROR: {what}", "  in: --gptune-routes", f"  do: {mend}"], consecutive=True
    )


def test_a_malformed_expression_of_a_route_file_or_the_ini_file(project: Project) -> None:
    project.tests(named(repr(PATTERN)))
    project.write("routes.txt", f"{PATTERN}  # memory\n-b\n")

    result = project.run("--gptune-route-file=routes.txt")
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["ERROR: knob '-b' at character 44 (line 2) *", "  in: --gptune-route-file routes.txt"],
        consecutive=True,
    )

    project.ini(gptune_routes="-b")
    result = project.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["ERROR: knob '-b' at character 1 *", "  in: ini gptune_routes"], consecutive=True
    )


def test_a_mistake_in_a_route_file_names_file_and_line(project: Project) -> None:
    project.tests(UNNAMED)
    project.write("routes.txt", f"# comment\n{PATTERN}\n-ort:nonsense=[a|b]\n")

    result = project.run("--gptune-route-file=routes.txt")

    result.stdout.fnmatch_lines(
        [
            "unknown knob '-ort:nonsense' at character 44 (line 3)",
            "  in: --gptune-route-file routes.txt",
            "  do: *--gptune-knobs*",
        ]
    )


def test_a_mistake_in_a_marker_names_the_test(project: Project) -> None:
    project.tests(named("'-ort:enable_mem_patern=[on|off]'"))

    result = project.run()

    result.stdout.fnmatch_lines(
        [
            "unknown knob '-ort:enable_mem_patern' at character 1",
            "  in: test_model.py::test_model, @pytest.mark.gptune(...), routes=",
            "  do: write -ort:enable_mem_pattern, the nearest known knob, or see --gptune-knobs",
        ]
    )


def test_a_route_file_that_is_not_there(project: Project) -> None:
    project.tests(named(repr(PATTERN)))

    result = project.run("--gptune-route-file=absent.txt")

    assert result.ret == 4
    result.stderr.fnmatch_lines(
        [
            "ERROR: cannot read the route file: No such file or directory",
            "  in: --gptune-route-file absent.txt",
            "  do: correct the path",
        ]
    )


@pytest.mark.parametrize("given", ["17", "['-ort:enable_mem_pattern=[on|off]']", "{'onnxruntime': 17}"])
def test_routes_of_another_type_are_refused(project: Project, given: str) -> None:
    project.tests(named(given))

    result = project.run()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["routes is *, not a route expression", "  do: write routes=*"])


def test_a_value_that_this_machine_lacks_is_pruned_and_said(project: Project) -> None:
    project.tests(UNNAMED)

    result = project.run(
        "--gptune-search=fast", "--gptune-routes=-ort:intra_op_num_threads=[1|60000]", "--gptune-dry-run"
    )

    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["  pruned: -ort:intra_op_num_threads=60000: this process may use * core*", "     1  *"]
    )
    result.stdout.no_fnmatch_line("  *[0-9]  *=60000*")


def test_a_fixed_value_that_this_machine_lacks_skips_the_test(project: Project) -> None:
    project.tests(named("'-ort:intra_op_num_threads=60000'"))

    result = project.run("-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * -ort:intra_op_num_threads=60000: this process may use*"])
