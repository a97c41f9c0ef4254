"""Makes random scripts for the oracle and keeps what torch's allocator did with them.

    python generate.py TORCH-VERSION ORACLE OUTPUT-FOLDER [FIRST-SEED LAST-SEED [STEPS]]

ORACLE is the program built from oracle.cpp. Each file holds the settings, the script and torch's answers.
"""

import os
import random
import subprocess
import sys

MIB = 1 << 20
SIZES = [1, 512, 4096, 200_000, MIB, MIB + 1, 3 * MIB, 8 * MIB, 10 * MIB - 512, 10 * MIB, 11 * MIB, 20 * MIB, 64 * MIB]


def size(rng):
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(SIZES)
    if kind < 0.5:
        return rng.randrange(1, 4096)
    if kind < 0.65:
        return rng.randrange(1, MIB + 1024)
    if kind < 0.85:
        return rng.randrange(MIB, 10 * MIB)
    return rng.randrange(9 * MIB, 90 * MIB)


def settings(rng, kind):
    parts = []
    if kind.get("max_split") and rng.random() < 0.8:
        parts.append(f"max_split_size_mb:{rng.choice([20, 25, 40, 64])}")
        if rng.random() < 0.4:
            parts.append(f"max_non_split_rounding_mb:{rng.choice([20, 30, 60])}")
    if kind.get("gc"):
        parts.append(f"garbage_collection_threshold:{rng.choice([0.3, 0.5, 0.7, 0.9])}")
    if kind.get("fraction"):
        parts.append(f"per_process_memory_fraction:{rng.choice([0.4, 0.6, 0.8])}")
    if kind.get("reject"):
        parts.append("throw_on_cudamalloc_oom:True")
    if kind.get("divisions"):
        parts.append(f"roundup_power2_divisions:{rng.choice([2, 4, 8])}")
    if kind.get("segment") and rng.random() < 0.5:
        parts.append(f"large_segment_size_mb:{rng.choice([12, 20])}")
    if kind.get("expandable"):
        parts.append("expandable_segments:True")
    return parts


# The minor version of torch 2 that a part of a script needs.
SINCE = {"segment": 11, "reject": 12, "options": 10}


def minor(version):
    return int(version.split(".")[1])


# What a run is made of; the letters name the file.
KINDS = {
    "plain": {},
    "limits": {"max_split": 1, "divisions": 1, "segment": 1, "small_device": 1},
    "collect": {"gc": 1, "fraction": 1, "max_split": 1, "small_device": 1},
    "streams": {"streams": 1, "record": 1, "small_device": 1},
    "expandable": {"expandable": 1, "streams": 1, "small_device": 1, "segment": 1},
    "graphs": {"pools": 1, "capture": 1, "streams": 1, "small_device": 1},
    "options": {"pools": 1, "options": 1, "small_device": 1, "max_split": 1},
    "switch": {"switch": 1, "streams": 1, "small_device": 1, "max_split": 1},
    "reject": {"reject": 1, "small_device": 1, "max_split": 1},
    "deferred": {"pools": 1, "capture": 1, "streams": 1, "record": 1, "small_device": 1},
    "all": {
        "capture": 1, "max_split": 1, "gc": 1, "fraction": 1, "divisions": 1, "streams": 1, "record": 1, "pools": 1, "switch": 1,
        "small_device": 1, "expandable": 1,
    },
}


def script(rng, kind, steps):
    lines, live, next_id = [], [], 0
    streams = 3 if kind.get("streams") else 1
    routes, users, captures = [], {}, []
    for _ in range(steps):
        roll = rng.random()
        if roll < 0.53 or not live:
            lines.append(f"a {next_id} {size(rng)} {rng.randrange(streams) if rng.random() < 0.3 else 0}")
            live.append(next_id)
            next_id += 1
        elif roll < 0.93:
            # Oldest, newest or any.
            at = rng.choice([0, len(live) - 1, rng.randrange(len(live))])
            lines.append(f"f {live.pop(at)}")
        elif roll < 0.96 and kind.get("record"):
            lines.append(f"r {rng.choice(live)} 5")
        elif roll < 0.97 and kind.get("record"):
            lines.append("done")
        elif roll < 0.985 and kind.get("pools"):
            pool = rng.randrange(1, 4)
            what = rng.random()
            if routes and what < 0.5:
                if captures and captures[-1] == routes[-1]:
                    lines.append(f"ce {captures.pop()}")
                lines.append(f"n {routes.pop()}")
            elif what < 0.8 and pool not in routes and users.get(pool, -1) != 0:
                if pool not in users and kind.get("options"):
                    lines.append(f"b {pool}")
                    lines.append(f"o {pool} {rng.randrange(2)} {rng.randrange(2)}")
                else:
                    lines.append(f"b {pool}")
                users[pool] = users.get(pool, 0) + 1
                routes.append(pool)
                if kind.get("capture") and not captures and rng.random() < 0.5:
                    lines.append(f"cb {pool}")
                    captures.append(pool)
            elif users.get(pool, 0) > 0 and pool not in routes:
                lines.append(f"l {pool}")
                users[pool] -= 1
        elif roll < 0.988 and kind.get("switch"):
            parts = settings(rng, {**kind, "expandable": rng.randrange(2)})
            lines.append("conf " + ",".join(parts) if parts else "conf expandable_segments:False")
        elif roll < 0.992:
            lines.append("e")
        elif roll < 0.994:
            lines.append("peaks")
    return lines


def main():
    version, oracle, folder = sys.argv[1:4]
    first, last = (int(n) for n in sys.argv[4:6]) if len(sys.argv) > 5 else (0, 1)
    steps = int(sys.argv[6]) if len(sys.argv) > 6 else 300
    os.makedirs(folder, exist_ok=True)
    for seed in range(first, last):
        for name, kind in KINDS.items():
            rng = random.Random(f"{name} {seed}")
            capacity = rng.randrange(200, 900) * MIB if kind.get("small_device") else 80 << 30
            kind = {key: value for key, value in kind.items() if minor(version) >= SINCE.get(key, 0)}
            conf = ",".join(settings(rng, kind))
            text = f"torch {version}\ncapacity {capacity}\nset {conf}\n" + "\n".join(script(rng, kind, steps)) + "\n"
            env = {**os.environ, "PYTORCH_ALLOC_CONF": conf}
            run = subprocess.run([oracle, str(capacity)], input=text, env=env, capture_output=True, text=True)
            if run.returncode != 0:
                print(f"{name}-{seed}: torch failed: {run.stderr.splitlines()[:2]}", file=sys.stderr)
                continue
            with open(f"{folder}/{name}-{seed}.txt", "w") as out:
                out.write(run.stdout)


main()
