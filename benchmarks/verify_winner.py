"""The winner against the default, measured in turns over several builds, with nothing of the plugin's code.

python verify_winner.py MODEL WINNERS_MODEL INPUTS.npz --route "-ort:KEY=VALUE ..." [--default "..."]
"""

import argparse
import json
import statistics
import time

import numpy as np
import onnxruntime as ort


def build(path, route, provider):
    options = ort.SessionOptions()
    for name, _, value in (token.removeprefix("-ort:").partition("=") for token in route.split()):
        if name.startswith("pass:"):
            options.add_session_config_entry("optimization.disable_specified_optimizers", name[5:])
        elif name == "graph_optimization_level":
            level = {"disable": "ORT_DISABLE_ALL"}.get(value, f"ORT_ENABLE_{value.upper()}")
            options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        elif hasattr(options, name):
            setattr(options, name, int({"on": 1, "off": 0}.get(value, value)))
        else:
            options.add_session_config_entry(name, value)
    return ort.InferenceSession(path, options, providers=[f"{provider.upper()}ExecutionProvider"])


def block(session, feed, seconds=0.1):
    samples, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < 5:
        start = time.perf_counter()
        session.run(None, feed)
        samples.append(time.perf_counter() - start)
    return samples[1:]


parser = argparse.ArgumentParser(description=__doc__)
for positional in ("model", "winners_model", "inputs"):
    parser.add_argument(positional)
for option, default in (("route", ""), ("default", ""), ("provider", "cpu")):
    parser.add_argument(f"--{option}", default=default)
given = parser.parse_args()
feed, ratios = dict(np.load(given.inputs)), []
for _ in range(7):
    default = build(given.model, given.default, given.provider)
    winner = build(given.winners_model, given.route, given.provider)
    blocks = [(block(default, feed), block(winner, feed)) for _ in range(10)]
    # A low quantile: on a machine with other work to do, the longer inference is interrupted more often.
    first, second = (np.quantile(np.concatenate(samples), 0.1) for samples in zip(*blocks, strict=True))
    ratios.append(float(first / second))
print(json.dumps({"speedup": statistics.median(ratios), "builds": sorted(ratios)}))
