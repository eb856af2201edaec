"""Goldens, made by ``--gptune-update-goldens`` from the reference."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gptune.accuracy import (
    Case,
    Golden,
    GoldenError,
    InputsError,
    Provenance,
    load_golden,
    normalise_inputs,
    reference_outputs_from,
    save_golden,
)
from pytest_gptune.accuracy.goldens import UNDECLARED_SHAPES, golden_to_bytes
from pytest_gptune.accuracy.tensors import bullets, by_name, differences, shape_fits
from pytest_gptune.engines.base import BackendMissingError, BuildRequest, ModelInfo, ShapeRange
from pytest_gptune.errors import GptuneError, SettingsError
from pytest_gptune.plugin.plan import Plan, find_file
from pytest_gptune.plugin.settings import MARKER_WHERE
from pytest_gptune.plugin.state import State

if TYPE_CHECKING:
    import numpy as np

# One thread, nothing fused: the plainest arithmetic the reference backend has.
_REFERENCE_ROUTE = (("-ort:graph_optimization_level", "disable"), ("-ort:intra_op_num_threads", "1"))


def make_golden(plan: Plan, state: State) -> Golden:
    """Inputs and reference outputs of every case of a test.

    Raises:
        GptuneError: inputs or reference cannot be used.
    """
    settings, where = plan.settings, plan.where
    root = state.config.rootpath
    inputs = _located(settings.inputs, plan, root, "inputs")
    reference = _located(settings.reference, plan, root, "reference")
    if inputs is None and isinstance(reference, Path) and reference.is_dir():
        inputs = reference  # a folder of ONNX test data has both sides
    if inputs is None and isinstance(reference, Path) and reference.suffix == ".npz":
        raise SettingsError(
            "reference= is an .npz of outputs, and nothing says which inputs they belong to",
            where=f"{where}, {MARKER_WHERE}",
            mend="give the inputs as well: inputs='inputs.npz'",
        )
    names, shapes = shape_cases(settings.shapes, f"{where}, {MARKER_WHERE}, shapes=")
    cases = normalise_inputs(inputs, plan.model.inputs, shapes, plan.seed, where)
    if inputs is None and names:
        cases = tuple((name, tensors) for name, (_, tensors) in zip(names, cases, strict=True))
    outputs, described, version = _reference_outputs(plan, state, reference, cases)
    if reference is not None:
        _check_outputs(plan, reference, [name for name, _ in cases], outputs)
    return Golden(
        tuple(Case(name, tensors, out) for (name, tensors), out in zip(cases, outputs, strict=True)),
        Provenance(
            model_sha256=plan.model.sha256,
            reference=described,
            reference_version=version,
            seed=plan.seed if inputs is None or callable(inputs) else None,
            allows_nonfinite=plan.allow_nonfinite,
            extra={} if reference is not None else _undeclared(plan.model, outputs),
        ),
    )


def _check_outputs(
    plan: Plan, reference: Any, names: Sequence[str], outputs: Sequence[Mapping[str, np.ndarray]]
) -> None:
    """Refuse what no golden of the model can hold before it takes the place of one that is good.

    The model's own outputs may contradict its declaration, as those of some exporters do; a reference's not.
    """
    specs = by_name(plan.model.outputs)
    found: dict[str, None] = {}
    for name, arrays in zip(names, outputs, strict=True):
        for text in differences("output", arrays, specs):
            found[f"{text} (case {name!r})" if len(names) > 1 else text] = None
    if found:
        wanted = ", ".join(map(str, plan.model.outputs))
        raise GoldenError(
            f"the outputs of {_reference_text(reference)} do not fit the model{bullets(found)}",
            where=f"{plan.where}, {MARKER_WHERE}, reference=",
            mend=f"correct the reference, which has to give {wanted}; no golden was written",
        )


def _reference_text(reference: Any) -> str:
    if isinstance(reference, Path):
        kind = "model " if reference.suffix == ".onnx" else ""
        return f"the reference {kind}{reference.name}"
    if callable(reference):
        return f"the reference function {getattr(reference, '__name__', repr(reference))}"
    return "the mapping in reference="


def _undeclared(model: ModelInfo, outputs: Sequence[Mapping[str, np.ndarray]]) -> dict[str, str]:
    """What the provenance tells of outputs that have another shape than the model itself declares."""
    names = [
        item.name
        for item in model.outputs
        if not all(shape_fits(case[item.name].shape, item.shape) for case in outputs if item.name in case)
    ]
    return {UNDECLARED_SHAPES: json.dumps(names)} if names else {}


def replace_golden(path: Path, golden: Golden) -> None:
    """Write ``golden`` unless the one that is there differs in its date alone.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        old = load_golden(path)
    except GptuneError:
        old = None
    if old is not None:
        provenance = replace(golden.provenance, date=old.provenance.date)
        if golden_to_bytes(replace(golden, provenance=provenance)) == golden_to_bytes(old):
            return
    save_golden(path, golden)


def shape_cases(shapes: Any, where: str) -> tuple[tuple[str, ...], list[Mapping[str, Sequence[int]]]]:
    """The marker's ``shapes`` as names and shapes of cases.

    ``shapes`` is a mapping of input to shape; a list of such mappings, a case each; or a mapping of input to
    ``{"min": shape, "opt": shape, "max": shape}``, which gives the cases opt (the timed one), min and max.

    Raises:
        SettingsError: it is none of these.
    """
    mend = (
        "write shapes={'x': (1, 3, 224, 224)}, a list of these, or {'x': {'min': .., 'opt': .., 'max': ..}}"
    )
    if shapes is None:
        return (), []
    for given in shapes if isinstance(shapes, (list, tuple)) else [shapes]:
        for value in given.values() if isinstance(given, Mapping) else ():
            for dims in value.values() if isinstance(value, Mapping) else [value]:
                if not isinstance(dims, (list, tuple)):
                    raise SettingsError(f"shapes has {dims!r} where a shape belongs", where=where, mend=mend)
    if isinstance(shapes, Mapping):
        profiles = [value for value in shapes.values() if isinstance(value, Mapping)]
        if not profiles:
            return (), [shapes]
        if len(profiles) != len(shapes) or any(set(p) != {"min", "opt", "max"} for p in profiles):
            raise SettingsError(
                f"shapes is {shapes!r}: a profile needs min, opt and max", where=where, mend=mend
            )
        names = ("opt", "min", "max")
        return names, [{name: shapes[name][which] for name in shapes} for which in names]
    if isinstance(shapes, (list, tuple)) and all(isinstance(item, Mapping) for item in shapes):
        return (), list(shapes)
    raise SettingsError(f"shapes is {shapes!r}", where=where, mend=mend)


def declared_shapes(shapes: Any, where: str) -> dict[str, ShapeRange]:
    """The marker's ``shapes`` as what an engine is built for: all cases, the first of them fast.

    Raises:
        SettingsError: as ``shape_cases``, or the cases of an input differ in rank.
    """
    names, cases = shape_cases(shapes, where)
    if not cases:
        return {}
    if names:  # a profile is taken as it is given: an order that is wrong is for the backend to say
        return {
            name: ShapeRange(**{which: tuple(dims) for which, dims in profile.items()})
            for name, profile in shapes.items()
        }
    return _ranges(cases, where)


def golden_shapes(golden: Golden, first: Case) -> dict[str, ShapeRange]:
    """What an engine is built for that runs every case of the golden and is timed on ``first``."""
    cases = [first, *golden.cases]
    return _ranges([{name: array.shape for name, array in case.inputs.items()} for case in cases], "")


def _ranges(cases: Sequence[Mapping[str, Sequence[int]]], where: str) -> dict[str, ShapeRange]:
    found = {}
    for name in cases[0]:
        shapes = [case[name] for case in cases if name in case]
        if len({len(dims) for dims in shapes}) > 1:
            raise SettingsError(
                f"shapes of '{name}' differ in rank: {', '.join(str(tuple(dims)) for dims in shapes)}",
                where=where,
                mend="give all cases of an input the same number of dimensions",
            )
        found[name] = ShapeRange.over(shapes)
    return found


def _reference_outputs(
    plan: Plan,
    state: State,
    reference: Any,
    cases: Sequence[tuple[str, Mapping[str, np.ndarray]]],
) -> tuple[Sequence[Mapping[str, np.ndarray]], str, str]:
    names = [item.name for item in plan.model.outputs]
    if reference is None:
        return _run_model(plan, state, plan.model, cases)
    if isinstance(reference, Path) and reference.suffix == ".onnx":
        model = state.model(reference)
        outputs, described, version = _run_model(plan, state, model, cases)
        missing = [name for name in names if name not in outputs[0]]
        if missing:
            raise SettingsError(
                f"the reference model has no output {', '.join(map(repr, missing))}; "
                f"it has {', '.join(sorted(outputs[0]))}",
                where=f"{plan.where}, {MARKER_WHERE}, reference={reference.name}",
                mend="give a model whose outputs have the same names",
            )
        kept = [{name: case[name] for name in names} for case in outputs]
        return kept, f"{described}, model {reference.name} {model.sha256[:12]}", version
    given = reference_outputs_from(reference, cases, names, plan.where)
    described = reference.name if isinstance(reference, Path) else getattr(reference, "__name__", "given")
    return given, str(described), ""


def _run_model(
    plan: Plan, state: State, model: ModelInfo, cases: Sequence[tuple[str, Mapping[str, np.ndarray]]]
) -> tuple[list[Mapping[str, np.ndarray]], str, str]:
    """Outputs of a model under the reference backend, with optimisations off."""
    backend = state.backend("onnxruntime")
    try:
        backend.check_available({})
    except BackendMissingError as error:
        raise GptuneError(
            "goldens are made by ONNX Runtime, which is not installed",
            where=plan.where,
            mend=f"{error.mend}; or give reference= an .npz or a callable",
        ) from None
    engine = backend.build(BuildRequest(model.path, model.sha256, _REFERENCE_ROUTE))
    try:
        outputs: list[Mapping[str, np.ndarray]] = []
        for name, tensors in cases:
            fitted = _widened(tensors, model, f"{plan.where}, case '{name}'")
            outputs.append(engine.run(fitted))
    finally:
        engine.close()
    version = backend.environment({}).tuner_version
    return outputs, "onnxruntime CPU, optimisations off", version


def _widened(tensors: Mapping[str, np.ndarray], model: ModelInfo, where: str) -> Mapping[str, np.ndarray]:
    """Inputs in the widths of the reference model: the original of a quantised model may be wider."""
    from pytest_gptune.accuracy import fit_inputs

    try:
        return fit_inputs(tensors, model.inputs, where)
    except InputsError as error:
        raise InputsError(
            f"the reference model takes other inputs: {error.what}", where=error.where, mend=error.mend
        ) from None


def _located(value: Any, plan: Plan, root: Path, argument: str) -> Any:
    """``value`` with paths looked up as the model's is."""
    where = f"{plan.where}, {MARKER_WHERE}, {argument}="
    if isinstance(value, (str, Path)):
        return find_file(Path(value), plan.test_file, root, where, argument)
    if isinstance(value, (list, tuple)):
        return [_located(item, plan, root, argument) for item in value]
    return value
