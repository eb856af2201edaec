"""The winner against the default, measured in turns over several builds, with nothing of the plugin's code.

python verify_winner.py MODEL WINNERS_MODEL INPUTS.npz --route "-ort:KEY=VALUE ..." [--default "..."]

On a CUDA device with PyTorch's streams and events: many inferences behind one another, no transfers. Each
build is in a process of its own there, since what one of them runs may slow down others.
"""

import argparse
import collections
import itertools
import json
import math
import multiprocessing
import os
import random
import statistics
import time

import numpy as np
import onnxruntime as ort


def build(path, route, provider, stream):
    options, given = ort.SessionOptions(), {}
    options.log_severity_level = 3  # a model that declares a wrong shape has a warning in each run
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for name, _, value in (token.removeprefix("-ort:").partition("=") for token in route.split()):
        if name.startswith("pass:"):
            options.add_session_config_entry("optimization.disable_specified_optimizers", name[5:])
        elif name == "graph_optimization_level":
            level = {"disable": "ORT_DISABLE_ALL"}.get(value, f"ORT_ENABLE_{value.upper()}")
            options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        elif hasattr(options, name):
            setattr(options, name, int({"on": 1, "off": 0}.get(value, value)))
        elif "." in name:
            options.add_session_config_entry(name, value)
        else:
            given[name] = value.upper() if name == "cudnn_conv_algo_search" else value
    if stream is not None:
        given["user_compute_stream"] = str(stream.cuda_stream)
    providers = [(f"{provider.upper()}ExecutionProvider", given), "CPUExecutionProvider"]
    return ort.InferenceSession(path, options, providers=providers[: 1 + (provider != "cpu")])


def run_options(**entries):
    options = ort.RunOptions()
    for name, value in entries.items():
        options.add_run_config_entry(name, value)
    return options


def bind(session, feed):
    """Inputs and outputs as values where the session has them; and outputs that each run has to allocate."""
    io, given, again = session.io_binding(), session.get_inputs(), []
    arrays = session.run(None, feed, run_options(gpu_graph_id="-1"))
    for put, items, places, values in (
        (io.bind_ortvalue_input, given, session.get_input_memory_infos(), [feed[i.name] for i in given]),
        (io.bind_ortvalue_output, session.get_outputs(), session.get_output_memory_infos(), arrays),
    ):
        for item, place, value in zip(items, places, values, strict=True):
            where = "cuda" if place.name.lower() == "cuda" else "cpu"
            if len(item.shape) != np.ndim(value):  # declared wrongly, so that a value would be refused
                again.append((item.name, where))
                continue
            put(item.name, ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value), where, 0))
    return io, again


def timer(session, feed, stream):
    """A function that gives a block's samples, in seconds."""
    if stream is None:
        return lambda: block(session, feed)
    # The id of a graph is told in all runs, with a graph or without: ONNX Runtime 1.31's wrapper looks for
    # it, and where it is not there that takes an exception.
    told = {"gpu_graph_id": "1"}
    io, again = bind(session, feed)
    at_once = run_options(disable_synchronize_execution_providers="1", **told)

    def enqueue(options=at_once):
        for name, where in again:
            io.bind_output(name, where)
        session.run_with_iobinding(io, options)

    # What is captured must have run before, and nothing else may be under way while it is.
    for first in (run_options(gpu_graph_id="-1"), run_options(**told)):
        enqueue(first)
    for _ in range(20):
        enqueue()
    stream.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        enqueue()
    stream.synchronize()
    pace = (time.perf_counter() - start) / 20
    return lambda: block_on_device(enqueue, stream, pace)


def block(session, feed, seconds=0.1):
    samples, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < 5:
        start = time.perf_counter()
        session.run(None, feed)
        samples.append(time.perf_counter() - start)
    return samples[1:]


def block_on_device(enqueue, stream, pace, seconds=0.05):
    """Samples of about 1 ms; in those before the first event, device and host find their pace."""
    import torch

    # By the device's time, not the host's: a graph is enqueued in a hundredth of what it takes.
    each = max(1, math.ceil(1e-3 / pace))
    count = max(6, round(0.75 * seconds / pace / each))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    for event in events:  # it is made by its first record, which would be timed
        event.record(stream)
    for _ in range(each * max(3, count // 3)):
        enqueue()
    events[0].record(stream)
    for event in events[1:]:
        for _ in range(each):
            enqueue()
        event.record(stream)
    events[-1].synchronize()
    return [start.elapsed_time(end) / 1e3 / each for start, end in itertools.pairwise(events)]


def time_on(core):
    os.sched_setaffinity(0, {core})
    start = time.perf_counter()
    sum(range(20000))
    return time.perf_counter() - start


class Engine:
    """One of the two; ``ask`` it to be built anew, or for a block's samples."""

    def __init__(self, path, route, given):
        self.path, self.route, self.given = path, route, given
        self.feed, self.stream, self.take = dict(np.load(given.inputs)), None, None
        self.cores = sorted(os.sched_getaffinity(0))

    def ask(self, what):
        if what == "time":
            if self.stream is not None:  # a core is slow for seconds where others use its sibling
                asked = random.sample(self.cores, min(4, len(self.cores)))
                os.sched_setaffinity(0, {min(asked, key=time_on)})
                os.sched_setaffinity(0, self.cores)  # it stays there while nothing else wants that core
            return self.take()
        if self.given.provider == "cuda" and self.stream is None:
            import torch

            self.stream = torch.cuda.Stream()
        session = build(self.path, self.route, self.given.provider, self.stream)
        self.take = timer(session, self.feed, self.stream)
        return collections.Counter(
            node.op_type
            for part in session.get_provider_graph_assignment_info()
            if part.ep_name == "CPUExecutionProvider"
            for node in part.get_nodes()
        )


class InItsProcess:
    """An engine whose every build is in a process of its own, which is ended and releases nothing."""

    def __init__(self, *whose):
        self.whose, self.waiting, self.process = whose, [], None

    def start(self):
        """Starts the process of a further build."""
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, *self.whose), daemon=True)
        process.start()
        theirs.close()
        self.waiting.append((process, pipe))

    def ready(self):
        """Waits until all have imported what they need, since that takes longer than a build."""
        for _, pipe in self.waiting:
            pipe.recv()

    def ask(self, what):
        if what == "build":
            if self.process is not None:
                self.process.kill()
                self.process.join()
            self.process, self.pipe = self.waiting.pop()
        self.pipe.send(what)
        return self.pipe.recv()


def serve(pipe, *whose):
    import torch  # noqa: F401

    pipe.send("ready")
    engine = Engine(*whose)
    while True:
        pipe.send(engine.ask(pipe.recv()))


def quietest(blocks, quantile):
    """The least, over blocks, of a block's quantile: other work of the host comes in bursts."""
    return float(min(np.quantile(block, quantile) for block in blocks))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for positional in ("model", "winners_model", "inputs"):
        parser.add_argument(positional)
    for option, default in (("route", ""), ("default", ""), ("provider", "cpu")):
        parser.add_argument(f"--{option}", default=default)
    parser.add_argument("--builds", type=int, default=7)
    given = parser.parse_args()
    on_device, ratios, latencies = given.provider == "cuda", [], []
    kind = InItsProcess if on_device else Engine
    default = kind(given.model, given.default, given)
    winner = kind(given.winners_model, given.route, given)
    if on_device:
        for number in range(given.builds):  # each goes first in turn
            for engine in (default, winner) if number % 2 else (winner, default):
                engine.start()
        default.ready()
        winner.ready()
    for _ in range(given.builds):
        on_cpu = default.ask("build")
        winner.ask("build")
        blocks = [(default.ask("time"), winner.ask("time")) for _ in range(20 if on_device else 10)]
        pair = [quietest(samples, 0.5 if on_device else 0.1) for samples in zip(*blocks, strict=True)]
        latencies.append(pair)
        ratios.append(pair[0] / pair[1])
    print(
        json.dumps(
            {
                "speedup": statistics.median(ratios),
                "builds": sorted(ratios),
                "latencies_s": [statistics.median(pair) for pair in zip(*latencies, strict=True)],
                **({"default_cpu_nodes": dict(on_cpu)} if on_device else {}),
            }
        )
    )


if __name__ == "__main__":
    main()
