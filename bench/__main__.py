"""`python -m bench [NAMES...]`: run the benchmarks and show the table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click
import msgspec
from rich.console import Console

from bench import archive, batch, bulk, console, fanout, jetstream, lake, latency, matching, memory, publish, replay
from bench.machine import Bench
from bench.table import Row, show

BENCHES: dict[str, Callable[[Bench, bool], list[Row]]] = {
    "publish": publish.run,
    "batch": batch.run,
    "fanout": fanout.run,
    "match": matching.run,
    "replay": replay.run,
    "memory": memory.run,
    "latency": latency.run,
    "jetstream": jetstream.run,
    "archive": archive.run,
    "lake": lake.run,
    "load": bulk.run,
    "console": console.run,
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHES)))
@click.option("--quick", is_flag=True, help="Small and short: shows that everything runs, not how fast.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON instead of a table.")
def main(names: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Measure the server against rivals in the same run; all benchmarks, or those named."""
    rows: list[Row] = []
    failed: dict[str, str] = {}
    generator = ""
    for name in names or BENCHES:
        began = time.monotonic()
        try:
            with Bench() as bench:
                generator = bench.generator
                rows += BENCHES[name](bench, quick)
        except Exception as error:  # the results of the others are worth keeping
            failed[name] = f"{type(error).__name__}: {error}"
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    if as_json:
        found = {"quick": quick, "load_generator": generator, "rows": rows, "failed": failed}
        print(msgspec.json.encode(found).decode())
    else:
        show(rows, Console(width=None if sys.stdout.isatty() else 160))
        print(f"\nLoad generator: {generator}.{' Quick run: the numbers mean little.' if quick else ''}")
    for name, reason in failed.items():
        print(f"{name} failed: {reason}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
