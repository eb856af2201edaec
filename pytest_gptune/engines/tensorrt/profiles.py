"""Optimisation profiles: what shapes an engine is built for, checked before TensorRT sees them.

TensorRT takes a profile with a wrong name or order without a word, drops it, and then says there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gptune.engines.base import BuildRejectedError, ShapeRange
from pytest_gptune.errors import SettingsError

_WHERE = "shapes= of the marker"


@dataclass(frozen=True)
class NetworkInput:
    """An input of a parsed network.

    Attributes:
        dims: -1 for each dynamic dimension.
        holds_shape: its values decide shapes, so that a profile gives values rather than dimensions.
    """

    name: str
    dims: tuple[int, ...]
    holds_shape: bool = False

    @property
    def dynamic(self) -> bool:
        """Whether its shape is not fixed by the model."""
        return any(dim < 0 for dim in self.dims)


@dataclass(frozen=True)
class Profile:
    """What a profile has to say, by input.

    Attributes:
        shapes: dimensions of each dynamic input.
        values: values of each input that holds a shape.
    """

    shapes: Mapping[str, ShapeRange]
    values: Mapping[str, ShapeRange]


def make_profile(
    inputs: Sequence[NetworkInput], shapes: Mapping[str, ShapeRange], values: Mapping[str, ShapeRange]
) -> Profile:
    """The profile for a network.

    Args:
        inputs: of the network.
        shapes: of the marker; those of inputs that the model fixes have to agree with it.
        values: of the option ``shape_values``.

    Raises:
        SettingsError: names, ranks, fixed dimensions or the order of min, opt and max are wrong, or a
            dynamic input has no shape; all that is wrong is listed.
    """
    known = {item.name: item for item in inputs}
    found = [f"there is no input '{name}'" for name in (*shapes, *values) if name not in known]
    for item in inputs:
        if item.name in shapes:
            found += _wrong_shapes(item, shapes[item.name])
        elif item.dynamic:
            found.append(f"input '{item.name}' {list(item.dims)} is dynamic and has no shape")
        if item.holds_shape and item.name not in values:
            found.append(f"input '{item.name}' holds a shape, and its values are not declared")
        elif item.name in values:
            found += _wrong_order(f"values of '{item.name}'", values[item.name])
            if not item.holds_shape:
                found.append(f"input '{item.name}' has shape_values and does not hold a shape")
    if found:
        raise SettingsError(
            f"the shapes do not fit the model: {'; '.join(found)}", where=_WHERE, mend=_mend(inputs)
        )
    return Profile(
        {item.name: shapes[item.name] for item in inputs if item.dynamic},
        {item.name: values[item.name] for item in inputs if item.holds_shape},
    )


def add_profile(builder: Any, config: Any, wanted: Profile) -> None:
    """Give the builder's configuration the profile; nothing for a network that is fixed.

    Raises:
        BuildRejectedError: TensorRT does not take it.
    """
    if not wanted.shapes and not wanted.values:
        return
    profile = builder.create_optimization_profile()
    if profile is None:
        raise BuildRejectedError("TensorRT makes no optimisation profile")
    try:
        for name, shape in wanted.shapes.items():
            profile.set_shape(name, shape.min, shape.opt, shape.max)
        for name, value in wanted.values.items():
            profile.set_shape_input(name, value.min, value.opt, value.max)
        index = config.add_optimization_profile(profile)
    except (TypeError, ValueError) as error:
        raise BuildRejectedError(f"TensorRT does not take the optimisation profile: {error}") from error
    if index < 0:
        names = ", ".join({**wanted.shapes, **wanted.values})
        raise BuildRejectedError(f"TensorRT does not take the optimisation profile of {names}")


def network_inputs(network: Any) -> list[NetworkInput]:
    """The inputs of a parsed network."""
    found = []
    for index in range(network.num_inputs):
        network_input = network.get_input(index)
        holds_shape = bool(network_input.is_shape_tensor)
        found.append(NetworkInput(network_input.name, tuple(network_input.shape), holds_shape))
    return found


def _wrong_shapes(item: NetworkInput, given: ShapeRange) -> list[str]:
    label = f"input '{item.name}'"
    for dims in (given.min, given.opt, given.max):
        if len(dims) != len(item.dims):
            return [f"{label} has {len(item.dims)} dimensions, {list(dims)} has {len(dims)}"]
    for axis, dim in enumerate(item.dims):
        chosen = {given.min[axis], given.opt[axis], given.max[axis]}
        if dim >= 0 and chosen != {dim}:
            return [f"dimension {axis} of {label} is {dim} in the model, not {min(chosen - {dim})}"]
        if min(chosen) < 0:
            return [f"dimension {axis} of {label} is {min(chosen)}"]
    return _wrong_order(label, given)


def _wrong_order(label: str, given: ShapeRange) -> list[str]:
    if len({len(given.min), len(given.opt), len(given.max)}) > 1:
        return [f"{label}: min, opt and max differ in length"]
    for axis, (least, opt, most) in enumerate(zip(given.min, given.opt, given.max, strict=True)):
        if not least <= opt <= most:
            return [f"{label}: min {least}, opt {opt}, max {most} at position {axis} are not in order"]
    return []


def _mend(inputs: Sequence[NetworkInput]) -> str:
    dynamic = [item for item in inputs if item.dynamic]
    held = [item.name for item in inputs if item.holds_shape]
    parts = []
    if dynamic:
        example = {item.name: tuple(1 if dim < 0 else dim for dim in item.dims) for item in dynamic}
        parts.append(f"write shapes={example}, with the dimensions you want, or min, opt and max for each")
    if held:
        parts.append(f"give options={{'shape_values': {{'{held[0]}': [...]}}}}")
    return "; ".join(parts) or "leave shapes= out: the model fixes the shape of every input"
