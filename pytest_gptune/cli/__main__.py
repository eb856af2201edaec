"""``python -m pytest_gptune.cli`` is ``gptune``."""

from __future__ import annotations

import sys

from pytest_gptune.cli import main

if __name__ == "__main__":
    sys.exit(main())
