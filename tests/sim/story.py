"""One seed as a short story: what the world did, and each decision once. `python -m tests.sim.story SEED`."""

from __future__ import annotations

import sys

from tests.sim.scenario import SOFT, Scenario

DULL = (" offer:", " answer:", " rebuild:", " rebuilt:", ": follows", " void:")


def main() -> None:
    scenario = Scenario(int(sys.argv[1]), sys.argv[2].split(",") if len(sys.argv) > 2 else SOFT)
    told: set[str] = set()

    def tell(line: str) -> None:
        if " <- " in line[:40] or " -> " in line[:40] or any(word in line for word in DULL):
            return
        text = line.split(" view: ")[-1]
        if text not in told:
            told.add(text)
            print(line[:240])

    scenario.world.log = tell
    print(scenario.run().report().split("\n")[0])


if __name__ == "__main__":
    main()
