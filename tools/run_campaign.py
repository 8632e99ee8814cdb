"""Run a campaign with scripted models for real: killed, resumed, replayed, and ended by --usd.

    python tools/run_campaign.py [--problems 12] [--keep DIR]

`kmem bench --author both -m ...` runs as a process over tiny problems: real compiler, real judge
(in the interpreter), real memory, and a local server behind the real SDKs of both wires in place of
the models. It is killed (-9, with everything under it) while a question is being answered, and
again while a kernel is judged; resumed; and every run is replayed. A second bench is ended by
--usd. No GPU and no key is needed; twelve problems take some minutes. Exit code 0: every answer was
paid for once, every problem has its row and winner, every replay is identical, and the budget held;
1: what does not hold is said.
"""

import argparse
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from real_campaign import (
    OPERATORS,
    Campaign,
    Models,
    kill_all,
    role_of,
    wait_until_held,
    write_problems,
)
from scripted_server import ScriptedServer

#: Dollars of the second bench: they pay for about two of its problems.
USD = 0.06


def killed_and_resumed(home: Path, number: int) -> list[str]:
    """The first bench; what did not hold."""
    names = list(OPERATORS)[:number]
    write_problems(home / "problems", names)
    models = Models(held_at=(names[number // 2], "optimiser"))
    faults, started = [], time.monotonic()
    with ScriptedServer(models.play) as server:
        campaign = Campaign(home, server)
        bench = campaign.start()
        wait_until_held(bench, models)
        print(
            f"killed {kill_all(bench)} processes at {names[number // 2]}'s optimiser, with "
            f"{len(campaign.rows())} rows",
            flush=True,
        )
        bench = campaign.start()
        after = len(server.requests)
        while len(server.requests) < after + 4 and bench.poll() is None:
            time.sleep(0.1)
        time.sleep(2)  # its kernel is now being compiled or judged
        print(
            f"killed {kill_all(bench)} processes at work, with {len(campaign.rows())} rows",
            flush=True,
        )
        code = campaign.start().wait()
        if code != 0:
            faults.append(f"the resumed bench ended with {code}: {campaign.log()[-2000:]}")
        asked, roles = (
            campaign.asked(),
            Counter((turn.wire, role_of(turn)) for turn in server.requests),
        )
    twice = sorted(asked.values())[-2:]
    if twice != [1, 2]:
        faults.append(f"only the question in flight may be put twice; put most often: {twice}")
    faults += row_faults(campaign, names)
    seconds = time.monotonic() - started
    replays = campaign.replay()
    faults += [f"the replay of {name} differs: {what}" for name, what in replays.items() if what]
    print(
        f"{len(campaign.rows())} rows in {seconds:.0f} s, {sum(asked.values())} answers, "
        f"{len(replays)} replays in {time.monotonic() - started - seconds:.0f} s"
    )
    print(
        "asked:",
        ", ".join(f"{wire} {role} {count}" for (wire, role), count in sorted(roles.items())),
    )
    for row in campaign.rows():
        result = row["result"] or {}
        print(f"  {row['problem']:16} {row['status']:16} {result.get('speedup')}")
    return faults


def row_faults(campaign: Campaign, names: list[str]) -> list[str]:
    """What is wrong with the rows of a whole bench."""
    rows = campaign.rows()
    wanted = [f"{place}_{name}" for place, name in enumerate(names, 1)]
    faults = []
    if [row["problem"] for row in rows] != wanted:
        faults.append(f"rows of {[row['problem'] for row in rows]}, not of {wanted}")
    faults += [f"{row['problem']}: {row['status']}" for row in rows if row["status"] != "passed"]
    if missing := [name for name in wanted if name not in campaign.winners()]:
        faults.append(f"no best_kernel.py of {missing}")
    return faults


def ended_by_dollars(home: Path, number: int) -> list[str]:
    """The second bench; what did not hold."""
    write_problems(home / "problems", list(OPERATORS)[:number])
    with ScriptedServer(Models().play) as server:
        campaign = Campaign(home, server)
        code = campaign.start("--no-stream", "--usd", str(USD)).wait()
        streamed = [turn for turn in server.requests if turn.stream]
    spent = campaign.spent_usd()
    told = campaign.log().splitlines()[-1]
    print(f"--usd {USD}: {len(campaign.rows())} of {number} rows, {spent:.4f} USD; {told}")
    faults = [f"the bench ended with {code}"] if code != 0 else []
    if not 0 < len(campaign.rows()) < number:
        faults.append("the dollars did not end the bench in its midst")
    if spent > USD:
        faults.append(f"{spent} USD were spent")
    if streamed:
        faults.append("answers were streamed in spite of --no-stream")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=12, choices=range(2, len(OPERATORS) + 1))
    parser.add_argument("--keep", type=Path, help="Directory for what is made, which stays.")
    asked = parser.parse_args()
    with nullcontext(str(asked.keep)) if asked.keep else TemporaryDirectory() as place:
        home = Path(place).resolve()
        faults = killed_and_resumed(home / "killed", asked.problems)
        faults += ended_by_dollars(home / "dollars", min(4, asked.problems))
    for fault in faults:
        print("FAULT:", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
