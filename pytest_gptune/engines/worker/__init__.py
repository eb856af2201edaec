"""Engines in a process of their own: what breaks a builder costs one route, not the run."""

from pytest_gptune.engines.worker.proxy import WorkerBackend

__all__ = ["WorkerBackend"]
