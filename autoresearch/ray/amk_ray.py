#!/usr/bin/env python3
"""A worker of `amk autoresearch` that hands each request to a Ray cluster.

amk starts this program once for every request, writes the request to its standard input as one line and reads the reply
from its standard output, exactly as with `amk evaluate - --json`. The request becomes one Ray task, which runs that very
command on whatever node has room; nothing is kept from one request to the next, and nothing here reads or writes a journal:
the amk that asks does that alone.

    ray start --head
    amk autoresearch MODEL --minutes 60 --worker "python3 amk_ray.py --amk /usr/local/bin/amk --gpus 1" --devices 8

If amk ends this program, Ray ends its tasks, and the amk in a task ends with its standard input.
"""

import argparse
import json
import subprocess
import sys


def evaluate(amk, line, seconds):
    """Runs in a task: one request in, what `amk evaluate` printed out."""
    import os

    environment = dict(os.environ, AMK_SEARCH_CHILD="1")
    child = subprocess.Popen(
        [amk, "evaluate", "-", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    try:
        # The pipe stays open: its end would end the child.
        child.stdin.write(line.encode() + b"\n")
        child.stdin.flush()
        out, err = _drain(child, seconds)
    finally:
        child.kill()
        child.wait()
    return out, err


def _drain(child, seconds):
    """Reads both pipes to their ends, within a time limit."""
    import threading

    kept = {}

    def read(name, pipe):
        kept[name] = pipe.read()

    threads = [
        threading.Thread(target=read, args=pair, daemon=True)
        for pair in (("out", child.stdout), ("err", child.stderr))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    if any(thread.is_alive() for thread in threads):
        child.kill()
        return b"", f"not over after {seconds} s".encode()
    return kept["out"], kept["err"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--amk", default="amk", help="the program, as every node finds it")
    parser.add_argument("--address", default="auto", help="the cluster's address")
    parser.add_argument("--gpus", type=float, default=0.0, help="GPUs of one task: 1 where candidates are measured")
    parser.add_argument("--cpus", type=float, default=1.0, help="CPUs of one task")
    parser.add_argument("--seconds", type=float, default=900.0, help="longest time of one task")
    arguments = parser.parse_args()

    line = sys.stdin.readline()
    try:
        request = json.loads(line)
    except ValueError as error:
        print(f"the request is no JSON: {error}", file=sys.stderr)
        return 2

    import ray

    # Standard output is the reply's alone.
    ray.init(address=arguments.address, log_to_driver=False, logging_level="ERROR")
    task = ray.remote(evaluate).options(
        num_cpus=arguments.cpus,
        num_gpus=arguments.gpus if request.get("task", {}).get("task") in GPU_TASKS else 0,
        # A crash is the candidate's answer, not a reason to try again.
        max_retries=0,
    )
    out, err = ray.get(task.remote(arguments.amk, line.strip(), arguments.seconds))
    sys.stderr.buffer.write(err)
    sys.stdout.buffer.write(out)
    sys.stdout.flush()
    return 0 if out.strip() else 1


# Tasks that need the device; the others lower and compile.
GPU_TASKS = ("device", "measure", "evaluate")

if __name__ == "__main__":
    sys.exit(main())
