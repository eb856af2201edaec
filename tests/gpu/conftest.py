"""Tests on a GPU: skipped with the reason where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_gptune.engines.base import BackendMissingError
from pytest_gptune.engines.cuda import Device, Stream
from pytest_gptune.storage import locked


@pytest.fixture(autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes of one run take turns: engines that run at once measure each other."""
    with locked(tmp_path_factory.getbasetemp().parent / "gpu"):
        yield


@pytest.fixture(scope="session")
def device() -> Device:
    try:
        found = Device.find("0")
    except BackendMissingError as error:
        pytest.skip(error.what)
    found.make_current()
    return found


@pytest.fixture
def stream(device: Device) -> Iterator[Stream]:
    made = Stream()
    yield made
    made.close()
