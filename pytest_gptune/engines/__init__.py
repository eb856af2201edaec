"""Engines: what a backend builds from a model and a route. The only layer that imports a backend."""
