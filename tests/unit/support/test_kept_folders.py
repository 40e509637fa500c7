"""The folder of a long check is kept if the check fails, because the error may name a log in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from tests.support.kept_folders import kept_on_failure


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def check(end: BaseException) -> None:
    """A check that writes a log and then ends with an error."""
    with kept_on_failure("check-") as folder:
        (folder / "server.log").write_text("why")
        raise end


@pytest.mark.parametrize(
    "failure",
    [RuntimeError("The server has ended, see server.log."), typer.Exit(1)],
)
def test_the_logs_are_kept_after_a_failure(
    failure: Exception,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(type(failure)):
        check(failure)
    (folder,) = tmp_path.iterdir()
    assert (folder / "server.log").read_text() == "why"
    assert f"The logs are kept in {folder}." in capsys.readouterr().err


def test_nothing_is_left_after_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    with kept_on_failure("check-") as folder:
        (folder / "server.log").touch()
    assert not folder.exists()
    assert capsys.readouterr().err == ""


def test_nothing_is_left_after_an_interruption(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        check(KeyboardInterrupt())
    assert [*tmp_path.iterdir()] == []
