"""What the backend touches of TensorRT is there, in every version it claims and in both modules."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from recorded import VERSIONS, Recorded
from touched import CLASS_OF, FUNCTIONS, MODULE, PLAIN, touched, untyped_words

from pytest_gptune.engines.tensorrt.knobs import offered
from pytest_gptune.engines.tensorrt.library import features_of

# What is touched only where a version has the feature.
OF_FEATURE = {
    "build_routes": {"IBuilderConfig.build_route", "IBuilderConfig.all_build_routes"},
    "weak_types": {"BuilderFlag.FP16"},
    "tells_weights": {"EngineStat", "EngineStat.TOTAL_WEIGHTS_SIZE", "ICudaEngine.get_engine_stat"},
    "just_in_time": {"IRuntimeCache"},
    "targets": {
        "ComputeCapability",
        "IBuilderConfig.num_compute_capabilities",
        "IBuilderConfig.set_compute_capability",
    },
}

# Looked for as such, and used only where it is found.
LOOKED_FOR = {"10.0": {"ICudaEngine.device_memory_size_v2", "TilingOptimizationLevel"}}


@cache
def recorded(version: str) -> Recorded:
    return Recorded(version)


def rtx() -> Any:
    return pytest.importorskip("tensorrt_rtx", reason="TensorRT RTX is not installed", exc_type=ImportError)


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_touched_is_in_the_recorded_interface(version: str) -> None:
    interface = recorded(version)
    features = features_of(interface.skeleton)
    optional = set().union(
        *(names for feature, names in OF_FEATURE.items() if not getattr(features, feature))
    )
    missing = {name for name in touched() if not interface.has(name)}
    assert missing <= optional | LOOKED_FOR.get(version, set())
    assert interface.has(f"ICudaEngine.{features.context_bytes}")


def test_everything_touched_is_in_the_real_module() -> None:
    trt = rtx()
    features = features_of(trt)
    optional = set().union(
        *(names for feature, names in OF_FEATURE.items() if not getattr(features, feature))
    )
    missing = set()
    for name in touched():
        cls, _, member = name.partition(".")
        if not hasattr(trt, cls) or (member and not hasattr(getattr(trt, cls), member)):
            missing.add(name)
    assert missing <= optional
    assert all(hasattr(trt, name) for name in FUNCTIONS)


def test_each_feature_is_found_in_some_version_and_missing_in_another() -> None:
    """A feature that all versions have, or none, would be told apart by nothing here."""
    features = [features_of(recorded(version).skeleton) for version in VERSIONS]
    assert [found.build_routes for found in features] == [False, False, True, True]
    assert [found.weak_types for found in features] == [True, True, False, False]
    assert [found.tells_weights for found in features] == [False, True, True, True]
    assert [found.just_in_time for found in features] == [False, False, False, False]
    assert [found.targets for found in features] == [(), (), (), ()]
    real = features_of(rtx())
    assert real.build_routes
    assert not real.weak_types
    assert real.just_in_time
    assert {"8.9", "12.0"} <= set(real.targets)


def test_the_source_reading_sees_what_is_known_to_be_touched() -> None:
    known = {
        "IBuilderConfig.build_route",
        "OnnxParser.parse_from_file",
        "ParserError.node_operator",
        "ITensor.is_shape_tensor",
        "IExecutionContext.execute_async_v3",
        "ICudaEngine.get_tensor_location",
        "TensorIOMode.INPUT",
        "ProfilingVerbosity.NONE",
        "IOutputAllocator",
        "IBuilderConfig.set_compute_capability",
    }
    assert known <= touched()
    assert len(touched()) > 60


def test_no_object_of_tensorrt_has_a_name_of_its_own() -> None:
    """An argument of type Any whose word is in no table would be looked at by nobody."""
    assert untyped_words() <= {*CLASS_OF, MODULE, *PLAIN}


@pytest.mark.parametrize("version", VERSIONS)
def test_builder_knobs_are_of_the_version(version: str) -> None:
    trt = recorded(version).skeleton
    weak = features_of(trt).weak_types
    names = [knob.name for knob in offered(trt, typed=not weak)]
    assert ("FP16" in names) is weak
    assert {"optimization_level", "max_aux_streams", "TF32"} <= set(names)
    assert ("tiling_optimization_level" in names) is (version != "10.0")
    sources = {name.partition(":")[2] for name in names if name.startswith("tactic_source:")}
    assert sources == set(trt.TacticSource.__members__)
    assert "FP16" not in [knob.name for knob in offered(trt, typed=True)]


STUBS = """
void* createInferBuilder_INTERNAL(void*l,int v){return 0;}
void* createInferRuntime_INTERNAL(void*l,int v){return 0;}
void* createInferRefitter_INTERNAL(void*e,void*l,int v){return 0;}
void* getPluginRegistry(void){return 0;}
void* getBuilderPluginRegistry(int c){return 0;}
int getInferLibVersion(void){return 0;}
void* getLogger(void){return 0;}
int initLibNvInferPlugins(void*l,const char*n){return 1;}
void* createNvOnnxParser_INTERNAL(void*n,void*l,int v){return 0;}
void* createNvOnnxParserRefitter_INTERNAL(void*r,void*l,int v){return 0;}
int getNvOnnxParserVersion(void){return 0;}
"""

READ = """
import ctypes, sys
for name in sys.argv[2:]:
    ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
sys.path.insert(0, sys.argv[1])
import tensorrt
names = sys.stdin.read().split()
missing = []
for name in names:
    cls, _, member = name.partition(".")
    if not hasattr(tensorrt, cls) or (member and not hasattr(getattr(tensorrt, cls), member)):
        missing.append(name)
print(*missing)
"""


def test_the_real_bindings_over_empty_libraries_have_it_too(tmp_path: Path) -> None:
    """The bindings of TensorRT alone, where they are installed and a C compiler is there."""
    package = Path(sysconfig.get_paths()["platlib"]) / "tensorrt_bindings" / "tensorrt.so"
    compiler = shutil.which("cc")
    if not package.exists() or compiler is None:
        pytest.skip("needs tensorrt-cu13-bindings and a C compiler")
    (tmp_path / "stubs.c").write_text(STUBS)
    libraries = []
    for name in ("nvinfer", "nvinfer_plugin", "nvonnxparser"):
        library = tmp_path / f"lib{name}.so.{_major(package)}"
        subprocess.run(
            [
                compiler,
                "-shared",
                "-fPIC",
                "-w",
                f"-Wl,-soname,{library.name}",
                "-o",
                library,
                tmp_path / "stubs.c",
            ],
            check=True,
        )
        libraries.append(str(library))
    alone = tmp_path / "site" / "tensorrt"
    alone.mkdir(parents=True)
    (alone / "tensorrt.so").symlink_to(package)
    (alone / "__init__.py").write_text("from .tensorrt import *\n")
    done = subprocess.run(
        [sys.executable, "-c", READ, str(alone.parent), *libraries],
        input=" ".join(touched()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The bindings asked for are of 11.1 or later, with build routes and without weak types.
    optional = OF_FEATURE["weak_types"] | OF_FEATURE["just_in_time"] | OF_FEATURE["targets"]
    assert set(done.stdout.split()) <= optional


def _major(library: Path) -> str:
    """Of the libraries that the bindings ask for."""
    found = re.search(rb"libnvinfer\.so\.(\d+)", library.read_bytes())
    assert found is not None
    return found[1].decode()
