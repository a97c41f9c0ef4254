"""Makes the recordings beside this file: python record.py PROGRAM LIBRARY MODEL, see record.cpp."""

import pathlib
import random
import subprocess
import sys

MIB = 1 << 20
# Name, settings, seed, whether the arena is shrunk now and then.
RECORDINGS = [
    ("default", {"max_mem": 0, "arena_extend_strategy": 0}, 1, False),
    ("same-as-requested", {"max_mem": 0, "arena_extend_strategy": 1}, 2, False),
    ("small-start", {"max_mem": 0, "arena_extend_strategy": 0, "initial_chunk_size_bytes": 256}, 3, False),
    ("large-start", {"max_mem": 0, "arena_extend_strategy": 0, "initial_chunk_size_bytes": 64 * MIB,
                     "initial_growth_chunk_size_bytes": 16 * MIB}, 4, True),
    ("dead-bytes", {"max_mem": 0, "arena_extend_strategy": 0, "max_dead_bytes_per_chunk": 4096}, 5, False),
    ("dead-bytes-same", {"max_mem": 0, "arena_extend_strategy": 1, "max_dead_bytes_per_chunk": 512}, 6, True),
    ("capped-doubling", {"max_mem": 0, "arena_extend_strategy": 0, "max_power_of_two_extend_bytes": 4 * MIB}, 7, True),
    ("limit", {"max_mem": 40 * MIB + 100, "arena_extend_strategy": 0}, 8, True),
    ("limit-same", {"max_mem": 40 * MIB, "arena_extend_strategy": 1}, 9, True),
    # The growth after a shrink must be a multiple of 256: the arena fails where it is not.
    ("odd-start", {"max_mem": 0, "arena_extend_strategy": 0, "initial_chunk_size_bytes": 1_000_003,
                   "initial_growth_chunk_size_bytes": 300_032}, 10, True),
    ("shrink", {"max_mem": 0, "arena_extend_strategy": 0}, 11, True),
    ("shrink-same", {"max_mem": 0, "arena_extend_strategy": 1}, 12, True),
]
SIZES = [256, 4096, 100_000, MIB, 3 * MIB, 5_000_000, 8 * MIB]


def operations(name, seed, shrink):
    dice, live, made, found = random.Random(seed), [], 0, []
    # Reservations are not checked against the limit by this arena, and leave it without one.
    reserves = not name.startswith("limit")
    for i in range(220):
        roll = dice.random()
        if roll < 0.55 or not live:
            size = dice.choice(SIZES) if dice.random() < 0.5 else int(2 ** dice.uniform(0, 24))
            found.append(("r" if dice.random() < 0.06 and reserves else "a", size))
            live.append(made)
            made += 1
        elif roll < 0.97 or not shrink:
            found.append(("f", live.pop(dice.randrange(len(live)))))
        else:
            found.append(("s", 0))
        if shrink and i % 70 == 69:
            found += [("f", n) for n in reversed(live)] + [("s", 0)]
            live.clear()
    if name.startswith("limit"):
        found.append(("a", 41 * MIB))
    return found


program, library, model = sys.argv[1:]
for name, settings, seed, shrink in RECORDINGS:
    words = [f"{key}={value}" for key, value in settings.items()]
    lines = "".join(f"{op} {n}\n" for op, n in operations(name, seed, shrink))
    answers = subprocess.run([program, library, model, *words], input=lines, capture_output=True, text=True, check=True)
    rows = [line.split() for line in answers.stdout.splitlines()]
    lowest = min(int(row[2]) for row in rows if row[2] != "0")
    with open(pathlib.Path(__file__).with_name(f"{name}.txt"), "w") as out:
        print("config", *words, file=out)
        for op, n, address, *figures in rows:
            place = "-" if op not in "ar" else "null" if address == "0" else int(address) - lowest
            print(op, n, place, *figures, file=out)
