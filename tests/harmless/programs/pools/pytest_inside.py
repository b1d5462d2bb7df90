# how: rank
# slow
# needs: pytest
import pathlib

import pytest

pathlib.Path("test_x.py").write_text(
    "import logging, os, sys, torch, warnings, pytest\n"
    "def test_a(capsys):\n    print('hi'); assert capsys.readouterr().out == 'hi\\n'\n"
    "def test_b(caplog):\n    logging.warning('w'); assert caplog.records[0].filename == 'test_x.py'\n"
    "def test_c():\n    torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()\n"
    "def test_d(capfd):\n    os.system('echo x'); assert capfd.readouterr().out == 'x\\n'\n"
    "def test_e(monkeypatch):\n    monkeypatch.setattr(torch, 'save', lambda *a: 5); assert torch.save() == 5\n"
    "def test_f():\n    with pytest.warns(UserWarning): warnings.warn('x')\n"
    "def test_g():\n    with pytest.raises(SystemExit) as left: sys.exit(3)\n    assert left.value.code == 3\n"
    "def test_h():\n    assert sys.argv is None\n"
)
print(
    int(
        pytest.main(
            [
                "-q",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "-p",
                "no:randomly",
                "--no-header",
                "-W",
                "ignore",
                "-rN",
                "test_x.py",
                "--no-summary",
            ]
        )
    )
)
