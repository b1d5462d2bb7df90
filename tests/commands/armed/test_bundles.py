"""Bundles: bounded each, bounded together, and nobody else's run is removed for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsadiag.commands.armed import bundles
from nsadiag.evidence.arming.home import Home
from nsadiag.evidence.layout import RunDir


def made(folder: Path, name: str, *, armed: bool, mib: float, day: int) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    about = {"kind": "run", "name": name, "armed": armed, "started_at": f"2026-11-{day:02d}T00:00:00+00:00"}
    (path / "run.json").write_text(json.dumps(about))
    (path / "rest").write_bytes(b"x" * int(mib * bundles.MIB))
    return path


def test_the_oldest_bundles_give_way_and_other_runs_stay(tmp_path: Path) -> None:
    by_hand = made(tmp_path, "20261101-000000-own", armed=False, mib=5, day=1)
    old, middle, new = (
        made(tmp_path, f"202611{d:02d}-000000-x", armed=True, mib=2, day=d) for d in (2, 3, 4)
    )
    bundles.rotate(tmp_path, int(4.5 * bundles.MIB))
    assert [path.exists() for path in (by_hand, old, middle, new)] == [True, False, True, True]


def test_a_bundle_has_no_more_than_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = RunDir(path=made(tmp_path, "live", armed=True, mib=0.5, day=1))
    for number in (1, 2):
        capture = live.rank(0).capture(number).path
        capture.mkdir(parents=True)
        (capture / "py_spy.json").write_text("[" + " " * (9 * bundles.MIB) + f"{number}]")
    (live.path / "s").mkdir()
    (live.path / "stall.json").write_text("{}")
    monkeypatch.setattr(bundles, "MOST_BYTES", 10 * bundles.MIB)
    (tmp_path / "out").mkdir()
    bundle = bundles.write(live, tmp_path / "out", "a job", 200)
    # The newest capture has come along, and the older one is named.
    assert bundle.rank(0).capture(2).py_spy.exists()
    assert json.loads(bundle.run.read_text())["left_out"] == ["ranks/00000/captures/01/py_spy.json"]
    assert not (bundle.path / "s").exists() and not (bundle.path / "stall.json").exists()
    assert bundle.path.stat().st_mode & 0o777 == 0o700


def test_where_nothing_can_be_written_bundles_go_beside_the_recordings(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = Home(tmp_path / "home")
    assert bundles.folder_of(str(tmp_path / "file" / "below"), home) == tmp_path / "home" / "artifacts"
    assert bundles.folder_of(str(tmp_path / "out"), home) == tmp_path / "out"
