"""Watch a job until it ends, and tell what came; started by tests that stop or kill it."""

from __future__ import annotations

import json
import sys

import trackside


def main(endpoint, name):
    with trackside.attach(endpoint, to=name) as viewer:
        viewer.wait(30)
        print("ready", flush=True)
        numbers = [event.fields["number"] for event in viewer if isinstance(event, trackside.UnknownEvent)]
        print(
            json.dumps(
                {
                    "count": len(numbers),
                    "lost": viewer.lost,
                    "in_order": numbers == sorted(set(numbers)),
                    "last": numbers[-1] if numbers else None,
                    "reasons": sorted({gap.reason for gap in viewer.gaps}),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
