"""TensorRT's knobs: the build routes of its tuner, and the builder's own settings under ``-builder:``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pytest_gptune.engines.base import BuildRejectedError, RoutePairs
from pytest_gptune.engines.tensorrt.library import Features
from pytest_gptune.errors import GptuneError
from pytest_gptune.routes import KnobSpace, RouteError

PREFIX = "-builder:"

_OVERRIDDEN = (
    "A build route is a request: reading it back finds one that is ignored or refused, but not what the "
    "compiler overrides later."
)


@dataclass(frozen=True)
class BuilderKnob:
    """One setting of ``IBuilderConfig``.

    Attributes:
        name: as it is written in a route, after ``-builder:``.
        kind: ``number`` and ``member`` are attributes; ``flag`` is in BuilderFlag, ``source`` in
            TacticSource.
        target: the attribute, or the member of the enumeration.
        values: as they are written in a route; ``auto`` is -1, the builder's own choice.
        on_request: tried only where an expression names it.
    """

    name: str
    kind: Literal["number", "member", "flag", "source"]
    target: str
    values: tuple[str, ...]
    help: str
    on_request: bool = False


_SWITCH = ("on", "off")

_SETTINGS = (
    BuilderKnob(
        "optimization_level",
        "number",
        "builder_optimization_level",
        ("0", "1", "2", "3", "4", "5"),
        "How long the builder looks for faster tactics. May change numbers.",
    ),
    BuilderKnob(
        "tiling_optimization_level",
        "member",
        "tiling_optimization_level",
        ("none", "fast", "moderate", "full"),
        "How long the builder looks for ways to keep data on the chip between layers.",
    ),
    BuilderKnob(
        "max_aux_streams",
        "number",
        "max_aux_streams",
        ("auto", "0", "1", "2", "4"),
        "Streams beside the main one that independent layers may run on.",
    ),
    BuilderKnob(
        "avg_timing_iterations",
        "number",
        "avg_timing_iterations",
        ("1", "2", "4", "8"),
        "Timings of a tactic that the builder averages.",
        on_request=True,
    ),
    BuilderKnob(
        "max_num_tactics",
        "number",
        "max_num_tactics",
        ("auto", "1", "4", "16", "64"),
        "The most tactics that are timed for a layer.",
        on_request=True,
    ),
)

_FLAGS = (
    BuilderKnob("TF32", "flag", "TF32", _SWITCH, "Float32 products in TF32. Changes numbers."),
    BuilderKnob(
        "SPARSE_WEIGHTS", "flag", "SPARSE_WEIGHTS", _SWITCH, "Kernels for weights of a 2:4 sparsity."
    ),
    BuilderKnob(
        "STRICT_NANS",
        "flag",
        "STRICT_NANS",
        _SWITCH,
        "Keep NaN where a fusion would lose it.",
        on_request=True,
    ),
    BuilderKnob(
        "DISTRIBUTIVE_INDEPENDENCE",
        "flag",
        "DISTRIBUTIVE_INDEPENDENCE",
        _SWITCH,
        "Equal results along an axis whatever its length.",
        on_request=True,
    ),
)

_PRECISIONS = (
    BuilderKnob("FP16", "flag", "FP16", _SWITCH, "Layers may run in float16. Changes numbers."),
    BuilderKnob("BF16", "flag", "BF16", _SWITCH, "Layers may run in bfloat16. Changes numbers."),
    BuilderKnob(
        "INT8",
        "flag",
        "INT8",
        _SWITCH,
        "Layers may run in int8, where the model is quantised. Changes numbers.",
    ),
)


def knob_space(trt: Any, config: Any, features: Features, *, typed: bool, quantised: bool | None) -> str:
    """The knob space as JSON in the form of ``IBuilderConfig.getAllBuildRoutes()``.

    Args:
        trt: the module.
        config: a configuration that nothing was set on: its values are the defaults.
        features: what the version has.
        typed: networks are strongly typed, so that no precision can be chosen.
        quantised: whether the model has QuantizeLinear or DequantizeLinear; None without a model.

    Raises:
        GptuneError: TensorRT's own list cannot be read.
    """
    text = config.all_build_routes if features.build_routes else ""
    document: dict[str, Any] = {"tuner_version": features.version, "tuner_options": []}
    if text:
        try:
            document = json.loads(text)
            listed, unread = _readable(document["tuner_options"])
        except (ValueError, KeyError, TypeError) as error:
            raise GptuneError(
                f"TensorRT {features.version} lists build routes in a form that cannot be read: {error!r}",
                mend="use another version of TensorRT, or report this",
            ) from error
        notes = [_OVERRIDDEN, *unread]
    else:
        listed = []
        notes = [_why_no_routes(features)]
    for knob in offered(trt, typed=typed):
        option = _option(trt, config, knob)
        # Without Q/DQ the flag needs a calibrator, which is no property of a model.
        if knob.on_request or (knob.name == "INT8" and not quantised):
            option["on_request"] = True
        listed.append(option)
    return json.dumps({**document, "tuner_options": listed, "notes": notes})


def _readable(options: list[Any]) -> tuple[list[Any], list[str]]:
    """The tuner's knobs that can stand in a route, and a note on those that cannot.

    One knob of a later version that is written in another way must not take the others with it.
    """
    readable, unread = [], []
    for option in options:
        try:
            KnobSpace.from_json(json.dumps({"tuner_version": "", "tuner_options": [option]}))
        except RouteError as error:
            name = option.get("option") if isinstance(option, dict) else option
            unread.append(f"{name} ({error.what})")
        else:
            readable.append(option)
    return readable, [f"Left out, since they cannot be read: {', '.join(unread)}."] if unread else []


def offered(trt: Any, *, typed: bool) -> list[BuilderKnob]:
    """The builder knobs that this version has."""
    found = [knob for knob in _SETTINGS if hasattr(trt.IBuilderConfig, knob.target)]
    flags = _FLAGS if typed else (*_FLAGS, *_PRECISIONS)
    found += [knob for knob in flags if hasattr(trt.BuilderFlag, knob.target)]
    found += [
        BuilderKnob(
            f"tactic_source:{name}",
            "source",
            name,
            _SWITCH,
            f"Tactics of {name}.",
            on_request=True,
        )
        for name in trt.TacticSource.__members__
    ]
    return found


def split_route(route: RoutePairs) -> tuple[RoutePairs, RoutePairs]:
    """The builder's tokens without their prefix, and those of the tuner, which knows no others."""
    builder = tuple((k.removeprefix(PREFIX), v) for k, v in route if k.startswith(PREFIX))
    return builder, tuple((k, v) for k, v in route if not k.startswith(PREFIX))


def set_route(trt: Any, config: Any, route: RoutePairs, features: Features, *, typed: bool) -> None:
    """Set the knobs of a route, and read every one back; the default route sets nothing.

    Raises:
        BuildRejectedError: a knob is unknown, or it was ignored or refused: it does not read back as set.
    """
    builder_pairs, tuner_pairs = split_route(route)
    known = {knob.name: knob for knob in offered(trt, typed=typed)}
    for name, value in builder_pairs:
        knob = known.get(name)
        if knob is None or value not in _values_of(trt, config, knob):
            raise BuildRejectedError(
                f"TensorRT {features.version} has no knob {PREFIX}{name} with value '{value}'"
            )
        _set(trt, config, knob, value)
        read = _read(trt, config, knob)
        if read != value:
            raise _ignored(f"{PREFIX}{name}={value}", f"{PREFIX}{name}={read}")
    if tuner_pairs:
        _set_build_route(config, tuner_pairs, features)


def _set_build_route(config: Any, pairs: RoutePairs, features: Features) -> None:
    asked = " ".join(f"{knob}={value}" for knob, value in pairs)
    if not features.build_routes:
        raise BuildRejectedError(f"TensorRT {features.version} has no build routes; asked for '{asked}'")
    try:
        config.build_route = asked
    except Exception as error:  # of the bindings: which types they raise is not written down
        raise BuildRejectedError(
            f"TensorRT {features.version} refuses the build route '{asked}': {' '.join(str(error).split())}"
        ) from error
    # The setter drops the bool that C++ returns.
    read = str(config.build_route)
    if not set(asked.split()) <= set(read.split()):
        raise _ignored(asked, read)


def _ignored(asked: str, read: str) -> BuildRejectedError:
    return BuildRejectedError(
        f"the route was not taken: asked for '{asked}', read back '{read}'",
        mend="use a version of TensorRT that has the knob (--gptune-knobs lists them)",
    )


def _why_no_routes(features: Features) -> str:
    if not features.build_routes:
        why = "build routes came with TensorRT 11.1"
    elif features.just_in_time:
        why = "TensorRT RTX has no tuner: it chooses kernels when an engine is loaded"
    else:
        why = "this build of TensorRT has no tuner, as on Windows"
    return f"No build routes: {why}. The builder's own knobs remain."


def _option(trt: Any, config: Any, knob: BuilderKnob) -> dict[str, Any]:
    name = PREFIX + knob.name
    return {
        "option": name,
        "allowed_values": f"{name}=[{'|'.join(_values_of(trt, config, knob))}]",
        "default_value": _read(trt, config, knob),
        "help": knob.help,
    }


def _values_of(trt: Any, config: Any, knob: BuilderKnob) -> Sequence[str]:
    """The values this version takes; a default that is not among ours is one of them."""
    values = list(knob.values)
    if knob.kind == "member":
        values = [value for value in values if value.upper() in trt.TilingOptimizationLevel.__members__]
    default = _read(trt, config, knob)
    return values if default in values else [default, *values]


def _set(trt: Any, config: Any, knob: BuilderKnob, value: str) -> None:
    if knob.kind == "number":
        setattr(config, knob.target, -1 if value == "auto" else int(value))
    elif knob.kind == "member":
        setattr(config, knob.target, trt.TilingOptimizationLevel.__members__[value.upper()])
    elif knob.kind == "flag":
        flag = trt.BuilderFlag.__members__[knob.target]
        if value == "on":
            config.set_flag(flag)
        else:
            config.clear_flag(flag)
    else:
        bit = 1 << int(trt.TacticSource.__members__[knob.target])
        mask = config.get_tactic_sources()
        if not config.set_tactic_sources(mask | bit if value == "on" else mask & ~bit):
            raise BuildRejectedError(f"TensorRT refuses {PREFIX}{knob.name}={value}")


def _read(trt: Any, config: Any, knob: BuilderKnob) -> str:
    """The value that the configuration has now, as it is written in a route."""
    if knob.kind == "number":
        number = int(getattr(config, knob.target))
        return "auto" if number < 0 else str(number)
    if knob.kind == "member":
        return str(getattr(config, knob.target).name).lower()
    if knob.kind == "flag":
        return "on" if config.get_flag(trt.BuilderFlag.__members__[knob.target]) else "off"
    bit = 1 << int(trt.TacticSource.__members__[knob.target])
    return "on" if config.get_tactic_sources() & bit else "off"
