"""Errors that this package raises on purpose.

Each is one message in three parts: what is wrong, where, and what to do about it. The text of the
exception is the whole message a user sees; no traceback is needed to understand it.
"""

from __future__ import annotations


class GptuneError(Exception):
    """Base of all errors of pytest-gptune.

    Args:
        what: what is wrong, one sentence without a full stop at its end.
        where: the file, test, option or token concerned; empty if ``what`` says it.
        mend: what to write or run instead; empty if nothing can be recommended.
        log: last lines of what a backend logged before it failed.
    """

    def __init__(self, what: str, *, where: str = "", mend: str = "", log: tuple[str, ...] = ()) -> None:
        self.what = what
        self.where = where
        self.mend = mend
        self.log = log
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  in: {self.where}")
        if self.mend:
            lines.append(f"  do: {self.mend}")
        lines += [f"  log: {line}" for line in self.log]
        return "\n".join(lines)

    def located(self, where: str) -> GptuneError:
        """The same error with ``where`` put before what is already known of its place."""
        place = f"{where}, {self.where}" if self.where else where
        error = type(self)(self.what, where=place, mend=self.mend, log=self.log)
        return error.with_traceback(self.__traceback__)


class SettingsError(GptuneError):
    """An option, ini key or marker argument has a value that cannot be used."""


class ModelError(GptuneError):
    """The model file is missing, damaged, or not what the test says it is."""


class StorageError(GptuneError):
    """A file of ours cannot be read or written."""
