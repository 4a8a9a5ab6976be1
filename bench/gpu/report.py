#!/usr/bin/env python3
"""What a run of check_gpu.py has shown, for people.

usage: python3 bench/gpu/report.py OUT...

Keeps the results of the runs in the folders OUT as last-run.json and last-run.md beside this file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent

Result = dict[str, Any]


def text_of(result: Result) -> str:
    """Lines for a terminal."""
    lines = [_machine(result)]
    for entry in result["configurations"]:
        lines += ["", f"{entry['name']}: {entry['status']}, {entry.get('seconds', 0)} s"]
        lines += [f"  {name:<12} {status:<7} {what}" for name, status, what in _rows(entry)]
    return "\n".join(lines)


def markdown_of(results: list[Result]) -> str:
    lines = ["# Last run on a GPU", "", "Made by `report.py`; what each check shows is told in README.md."]
    for result in results:
        lines += ["", _machine(result)]
        for entry in result["configurations"]:
            lines += ["", f"## {entry['name']}: {entry['status']}, {entry.get('seconds', 0)} s", ""]
            lines += ["| check | result | figures |", "| --- | --- | --- |"]
            lines += [f"| `{name}` | {status} | {what.replace('|', '/')} |" for name, status, what in _rows(entry)]
    return "\n".join(lines) + "\n"


def _machine(result: Result) -> str:
    return ", ".join(f"{name} {value}" for name, value in result["machine"].items() if value is not None)


def _rows(entry: Result) -> list[tuple[str, str, str]]:
    return [(check["check"], "ok" if check["passed"] else "FAILED", _figures(check)) for check in entry["checks"]]


def _figures(check: Result) -> str:
    if not check["passed"]:
        return str(check["error"]).splitlines()[0][:200]
    figures = check["figures"]
    if check["check"] == "speed":
        return "; ".join(
            f"{name}: on {figures[name]['onTokensPerSecond']}, off {figures[name]['offTokensPerSecond']} tokens/s, "
            f"ratio {figures[name]['ratio']} (until read {figures[name]['untilReadRatio']}), "
            f"chunk to last byte {figures[name]['chunkEndToLastByteMs']['median']} ms, "
            f"slowest {figures[name]['chunkEndToLastByteMs']['slowest']} ms"
            for name in ("one", "four")
        )
    plain = {name: value for name, value in figures.items() if not isinstance(value, dict | list)}
    return ", ".join(f"{name} {value}" for name, value in plain.items())


def main(folders: list[str]) -> int:
    if not folders:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    results = [json.loads((Path(folder) / "result.json").read_text("utf-8")) for folder in folders]
    (_HERE / "last-run.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    (_HERE / "last-run.md").write_text(markdown_of(results), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
