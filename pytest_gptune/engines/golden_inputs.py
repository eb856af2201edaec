"""The inputs of a golden's cases, for backends that calibrate on them.

The file is the one ``--gptune-update-goldens`` writes; a worker may run an interpreter that has NumPy and the
backend alone, so the arrays are read here, and outputs and provenance are left aside.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gptune.engines.base import BuildRejectedError

if TYPE_CHECKING:
    import numpy as np

_ENTRY = "__gptune__"


def read_golden_inputs(path: str) -> list[dict[str, np.ndarray]]:
    """Inputs of each case by their names, at least one case.

    Raises:
        BuildRejectedError: there is no golden, it cannot be read, or an input is of a type NumPy lacks.
    """
    import numpy as np

    if not path or not Path(path).is_file():
        raise BuildRejectedError(
            "the route is calibrated on the golden's inputs, and there is no golden",
            where=path,
            mend="run pytest <test> --gptune-update-goldens",
        )
    try:
        with zipfile.ZipFile(path) as archive:
            # A golden is written so; what its members expand to is then no more than the file.
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("its members are compressed")
        with np.load(path, allow_pickle=False) as arrays:
            cases = json.loads(arrays[_ENTRY].tobytes())["cases"]
            found = [
                {
                    item["name"]: arrays[f"c{number}.i{position}"].astype(np.dtype(item["dtype"]))
                    for position, item in enumerate(case["inputs"])
                }
                for number, case in enumerate(cases)
            ]
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise BuildRejectedError(
            f"the golden's inputs cannot be read for calibration: {type(error).__name__}: {error}",
            where=path,
            mend="run pytest <test> --gptune-update-goldens to make it again",
        ) from error
    if not found:
        raise BuildRejectedError("the golden has no case to calibrate on", where=path)
    return found
