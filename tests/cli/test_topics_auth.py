"""`lance-spark topics auth`."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from lance_spark.columnar.scan import scan
from lance_spark.store import Store
from tests.cli.conftest import Run

NO_RULE = "topic events, id 1\nno rule: everybody who may connect may use it\n"


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    return path


def _stored(path: Path) -> object:
    with Store(path, framing=scan) as store:
        return store.topic(1).metadata.auth


def test_set_show_change_clear(run: Run, store_path: Path, authority: Path) -> None:
    command = ("topics", "auth", "--data-dir", store_path, "events")
    assert run(*command) == (0, NO_RULE, "")
    names = ("--allow", "b.example", "--allow", "a.example")
    done = run(*command, "--mtls", *names, "--client-ca", authority)
    assert (done.code, done.err) == (0, "")
    assert done.lines == [
        "topic events, id 1",
        "certificate     required",
        f"client CA       {authority}",
        "allowed names   a.example, b.example",
        "allowed topics  any",
    ]
    assert _stored(store_path) == {
        "mtls_enabled": True,
        "client_ca_path": str(authority),
        "allowed_cns": ["a.example", "b.example"],
        "allowed_topics": [],
    }
    assert run(*command) == done
    # What is not given stays.
    done = run(*command, "--allow-topic", 1, "--allow-topic", 7, "--allow", "c")
    assert done.lines[1:] == [
        "certificate     required",
        f"client CA       {authority}",
        "allowed names   c",
        "allowed topics  1, 7",
    ]
    done = run(*command, "--no-mtls")
    assert done.lines[1] == "certificate     not required"
    assert done.lines[3] == "allowed names   c"
    assert run(*command, "--clear") == (0, NO_RULE, "")
    assert _stored(store_path) is None


def test_path_of_the_authority_is_absolute(
    run: Run, store_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(authority.parent)
    command = ("topics", "auth", "--data-dir", store_path, "events", "--mtls")
    assert str(authority) in run(*command, "--client-ca", "ca.pem").out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["events", "--allow", "x"], 2, "say --mtls or --no-mtls too"),
        (["events", "--clear", "--mtls"], 2, "--clear goes with no other change"),
        (["events", "--mtls", "--client-ca", "missing.pem"], 1, "missing.pem"),
        (["events", "--mtls", "--allow", ""], 1, "not empty"),
        (["events", "--mtls", "--allow-topic", "x"], 2, "--allow-topic"),
        (["nowhere", "--mtls"], 1, "topic 'nowhere' not found"),
        (["id:99", "--mtls"], 1, "topic 99 not found"),
    ],
)
def test_mistakes_change_nothing(
    run: Run, store_path: Path, arguments: list[str], code: int, text: str
) -> None:
    done = run("topics", "auth", "--data-dir", store_path, *arguments)
    assert (done.code, done.out) == (code, "")
    assert text in done.err
    assert code == 2 or done.err.count("\n") == 1
    assert _stored(store_path) is None


def test_default_topic(run: Run, store_path: Path) -> None:
    done = run("topics", "auth", "--data-dir", store_path, "id:0")
    assert done.lines[0] == "the default topic (id 0)"


def test_broker_has_the_directory(run: Run, store_path: Path) -> None:
    with Store(store_path, framing=scan):
        done = run("topics", "auth", "--data-dir", store_path, "events", "--mtls")
    assert (done.code, done.out) == (1, "")
    assert "already in use by process" in done.err and done.err.count("\n") == 1


def test_no_directory_is_made(run: Run, tmp_path: Path) -> None:
    done = run("topics", "auth", "--data-dir", tmp_path / "typo", "events")
    assert (done.code, done.out) == (1, "")
    assert "no such directory" in done.err
    assert list(tmp_path.iterdir()) == []
