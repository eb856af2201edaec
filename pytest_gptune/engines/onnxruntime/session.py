"""An ONNX Runtime session as an engine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.base import EngineFailedError, EngineInfo, SampleBlock
from pytest_gptune.engines.disturbance import HostClock
from pytest_gptune.engines.onnxruntime.tensors import from_ort_value, to_ort_value
from pytest_gptune.engines.undisturbed import undisturbed

if TYPE_CHECKING:
    import numpy as np


# Some exporters declare wrong shapes of outputs. ONNX Runtime only warns of it, but refuses to write a second
# run into what the first one allocated.
_NOT_AS_DECLARED = re.compile(r"(Invalid rank|invalid dimensions) for output", re.IGNORECASE)


class SessionEngine:
    """A session on the CPU: inputs bound once, outputs allocated by the first run with them.

    Where outputs have other shapes than the model declares, each run allocates them.
    """

    def __init__(
        self, session: Any, info: EngineInfo, serialise: Callable[[], bytes | None] = lambda: None
    ) -> None:
        self._session = session
        self._info = info
        self._serialise = serialise
        self._inputs = [item.name for item in session.get_inputs()]
        self._outputs = [item.name for item in session.get_outputs()]
        self._binding: Any = None
        self._bound: list[Any] = []
        self._allocates = False

    @property
    def info(self) -> EngineInfo:
        """Facts about it."""
        return self._info

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One inference: every output by its name."""
        binding, _bound = self._bind(inputs)
        self._run_once(binding)
        values = binding.get_outputs()
        return {name: from_ort_value(value, name) for name, value in zip(self._outputs, values, strict=True)}

    def load(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Copy the inputs into values of the session's own; samples read those."""
        self._binding, self._bound = self._bind(inputs)

    def sample(self, seconds: float, at_most: int, batch: int = 1) -> SampleBlock:
        """Time inferences on the loaded inputs with the monotonic clock."""
        if self._binding is None:
            raise EngineFailedError("sample() before load(): no inputs are bound")
        binding, clock = self._binding, time.perf_counter_ns
        run = self._run_and_allocate if self._allocates else self._session.run_with_iobinding
        samples: list[float] = []
        scale = 1e-9 / batch
        try:
            before = HostClock.now()
            with undisturbed():
                deadline = clock() + int(seconds * 1e9)
                while True:
                    start = clock()
                    for _ in range(batch):
                        run(binding)
                    end = clock()
                    samples.append((end - start) * scale)
                    if end >= deadline or len(samples) >= at_most:
                        break
        except Exception as error:  # ONNX Runtime's errors derive from Exception alone
            if not self._allocates and is_of_another_shape(error):
                self._allocates = True
                return self.sample(seconds, at_most, batch)
            raise failed(error) from error
        return before.describe(SampleBlock(tuple(samples)), HostClock.now())

    def layer_times(self) -> dict[str, float]:
        """Empty: ONNX Runtime profiles a session for all its life or not at all."""
        return {}

    def serialize(self) -> bytes | None:
        """The optimised model; None where ONNX Runtime cannot write it."""
        return self._serialise()

    def close(self) -> None:
        """Drop the session and with it its threads."""
        self._binding = None
        self._bound = []
        self._session = None

    def _bind(self, inputs: Mapping[str, np.ndarray]) -> tuple[Any, list[Any]]:
        """A binding of the inputs, and the values it reads: older versions do not keep them alive."""
        check_names(self._inputs, inputs)
        binding, bound = self._session.io_binding(), []
        for name in self._inputs:
            try:
                bound.append(to_ort_value(inputs[name]))
                binding.bind_ortvalue_input(name, bound[-1])
            except Exception as error:
                raise failed(error) from error
        for name in self._outputs:
            binding.bind_output(name)
        return binding, bound

    def _run_and_allocate(self, binding: Any) -> None:
        binding.clear_binding_outputs()
        for name in self._outputs:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)

    def _run_once(self, binding: Any) -> None:
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise failed(error) from error


def check_names(wanted: Sequence[str], inputs: Mapping[str, np.ndarray]) -> None:
    """Refuse inputs that are not exactly the model's; raises EngineFailedError."""
    missing = [name for name in wanted if name not in inputs]
    extra = [name for name in inputs if name not in wanted]
    if missing or extra:
        raise EngineFailedError(
            f"inputs do not match the model's: missing {missing}, unknown {extra}",
            mend=f"give exactly {list(wanted)}",
        )


def is_of_another_shape(error: Exception) -> bool:
    """Whether ONNX Runtime refuses to write an output where it is bound, since another shape is declared."""
    return bool(_NOT_AS_DECLARED.search(str(error)))


def failed(error: Exception) -> EngineFailedError:
    """What ONNX Runtime raised, as a failure of the engine."""
    return EngineFailedError(f"ONNX Runtime raised {type(error).__name__}: {' '.join(str(error).split())}")
