"""Each script of repro/ promises a verdict that can be read, checked and run."""

import re
from pathlib import Path

import pytest
from support.documents.pages import sight
from support.promises import (
    CLASSES,
    KEYS,
    OUTCOMES,
    Promise,
    code_lines,
    promised_fields,
    promises,
    read_promise,
)

from nsadiag.commands.faults import read_fault, scripts

SCRIPTS = scripts()
LAUNCHERS = (("python",), *(("torchrun", "--standalone", "--nproc-per-node", n) for n in "234"))
# What would give the answer away to a tool that reads the source or the stacks.
TELLTALES = ("fault(?!handler)", "hang", "deadlock", "stuck", "repro", "straggler", "culprit", "guilty")

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
every_promise = pytest.mark.parametrize("promise", promises(), ids=lambda promise: promise.name)


@every_script
def test_a_script_is_short_compiles_and_says_what_one_sees_but_not_its_answer(script: Path) -> None:
    assert set(promised_fields(script)) <= set(KEYS)
    assert sight(read_fault(script))
    source = script.read_text()
    assert len(source.splitlines()) < 80
    compile(source, script, "exec")
    code = "\n".join(code_lines(script)).lower()
    assert re.findall(rf"\b(?:{'|'.join(TELLTALES)})", code) == []


@every_promise
def test_a_promise_speaks_the_words_of_the_verdict_and_names_ranks_and_lines_that_exist(
    promise: Promise,
) -> None:
    assert promise.needs in (None, "gpu")
    assert promise.launch in LAUNCHERS
    assert promise.outcomes and set(promise.outcomes) <= set(OUTCOMES)
    assert promise.classes and set(promise.classes) <= set(CLASSES)
    assert all(isinstance(option, str) for option in promise.options)
    assert set(promise.guilty_ranks) <= set(range(promise.world_size))
    blameless = set(promise.classes) <= {"healthy", "unknown"}
    assert blameless == (not promise.guilty_ranks)
    lines = code_lines(promise.script)
    for code in promise.codes:
        assert sum(code in line for line in lines) == 1, code
    assert promise.script.parent.name == promise.classes[0]


def test_a_script_without_a_promise_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "silent.py"
    script.write_text('"""Says nothing."""\n')
    with pytest.raises(ValueError, match=r"silent\.py has no line `Promise:`"):
        read_promise(script)
