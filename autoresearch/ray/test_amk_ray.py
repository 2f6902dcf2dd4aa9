"""Requests and a campaign through a local Ray cluster, on CPU.

    AMK=target/release/amk python3 autoresearch/ray/test_amk_ray.py
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AMK = str(Path(os.environ.get("AMK", "target/release/amk")).resolve())
ADAPTER = str(Path(__file__).with_name("amk_ray.py"))
WORKERS = 4


def ask(command, request, folder):
    line = json.dumps(request) + "\n"
    done = subprocess.run(command, input=line, capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.stdout.strip(), f"{command} said nothing: {done.stderr}"
    return json.loads(done.stdout)


def main():
    import ray

    with tempfile.TemporaryDirectory() as folder:
        os.environ["AMK_CACHE_DIR"] = os.path.join(folder, "cache")
        context = ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
        address = context.address_info["address"]
        adapter = [sys.executable, ADAPTER, "--amk", AMK, "--address", address]
        direct = [AMK, "evaluate", "-", "--json"]

        requests = [
            {"target": "h200", "compile": False, "task": {"task": "evaluate", "candidate": {"knobs": knobs}}}
            for knobs in ({"rotation": 3}, {"ring_slots": 2}, {"rotation": "fast"}, {"consumer_warps": 4})
        ]
        with ThreadPoolExecutor(WORKERS) as pool:
            through = list(pool.map(lambda r: ask(adapter, r, folder), requests))
        for request, reply in zip(requests, through):
            plain = ask(direct, request, folder)
            assert reply == plain, f"{request}: {reply} through Ray, {plain} without"
        print(f"{len(requests)} requests give the same replies through Ray")

        campaign = [
            AMK, "autoresearch", "--predict", "--target", "h200", "--iters", "12", "--batch", "4",
            "--jobs", str(WORKERS), "--no-store", "--journal", "ray.jsonl", "--json",
            "--worker", " ".join(adapter),
        ]
        done = subprocess.run(campaign, capture_output=True, text=True, cwd=folder, timeout=900)
        assert done.returncode == 0, done.stderr
        verify = subprocess.run(
            [AMK, "journal", "verify", "ray.jsonl", "--json"], capture_output=True, text=True, cwd=folder
        )
        document = json.loads(verify.stdout)
        assert document["ok"] and document["trials"] >= 12, document
        print(f"a campaign of {document['trials']} trials through Ray; its journal holds together")
        ray.shutdown()


if __name__ == "__main__":
    main()
