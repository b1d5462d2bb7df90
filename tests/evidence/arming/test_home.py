"""Where the ranks of a user meet on a node: one folder, private, also where many come at once, and no other user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsadiag.evidence.arming import home as homes
from nsadiag.evidence.arming.home import Home, found

ASK = """
import sys
from pathlib import Path
from nsadiag.evidence.arming import home
home.MEMORY = Path(sys.argv[1])
home._named = lambda: iter(())
sys.stdin.readline()
print(home.found(create=True).path)
"""


def test_of_many_that_come_at_once_all_take_the_same(tmp_path: Path) -> None:
    pipes = subprocess.PIPE
    line = [sys.executable, "-c", ASK, str(tmp_path)]
    asking = [subprocess.Popen(line, stdin=pipes, stdout=pipes, text=True) for _ in range(8)]
    for each in asking:
        assert each.stdin
        each.stdin.write("go\n")
        each.stdin.flush()
    answers = {each.communicate(timeout=60)[0].strip() for each in asking}
    assert len(answers) == 1
    (chosen,) = (Path(answer) for answer in answers)
    assert chosen.stat().st_mode & 0o777 == 0o700
    assert [path for path in tmp_path.iterdir() if (path / homes.SETTLED).exists()] == [chosen]


@pytest.mark.skipif(os.geteuid() != 0, reason="makes another user's folder")
@pytest.mark.parametrize("how", ["another user's", "open to all", "a link"])
def test_a_folder_that_is_not_ours_alone_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(homes, "MEMORY", tmp_path)
    monkeypatch.setattr(homes, "_named", lambda: iter(()))
    planted = tmp_path / f"{homes.PREFIX}aaaaaaaa"
    if how == "a link":
        (tmp_path / "elsewhere").mkdir()
        planted.symlink_to(tmp_path / "elsewhere")
    else:
        planted.mkdir()
        (planted / homes.SETTLED).touch()
        planted.chmod(0o777 if how == "open to all" else 0o700)
        os.chown(planted, 1 if how == "another user's" else 0, -1)
    chosen = found(create=True)
    assert chosen is not None and chosen.path != planted
    assert found() is not None and found().path == chosen.path  # type: ignore[union-attr]


def test_the_folder_that_is_named_is_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(homes.RUNTIME_DIR, str(tmp_path / "named"))
    assert (chosen := found(create=True)) is not None
    assert chosen.path == tmp_path / "named"


def test_one_watches_and_nothing_is_cleared_while_somebody_enters(tmp_path: Path) -> None:
    home = Home(tmp_path)
    handle = home.take_watch()
    assert handle is not None and home.take_watch() is None and home.is_watched()
    os.close(handle)
    assert not home.is_watched()
    with home.entering(), home.clearing() as nobody_enters:
        assert not nobody_enters
    with home.clearing() as nobody_enters:
        assert nobody_enters
        home.remove()
    assert not tmp_path.exists()
    with pytest.raises(OSError), home.entering():
        pass
