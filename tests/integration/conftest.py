"""What several of the system tests use: certificates, and the contract's servers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lance_spark.client import LanceClient
from tests.integration.certificate import Certificates, issue_certificates
from tests.integration.contract import KINDS, Target, run_target
from tests.integration.kit import make_client

NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Give certificates of several clients, good and bad."""
    return issue_certificates(tmp_path_factory.mktemp("certificates"))


# The contract. Its servers stay for all of its tests; other files have their own.


@pytest.fixture(scope="session", params=KINDS)
def target(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    certificates: Certificates,
) -> Iterator[Target]:
    """Run a server of each kind."""
    directory = tmp_path_factory.mktemp(f"contract-{request.param}")
    with run_target(request.param, directory, certificates) as running:
        yield running


@pytest.fixture
def client(target: Target) -> Iterator[LanceClient]:
    """Make a client of the contract's server."""
    with make_client(target.address, **target.options) as client:
        yield client


@pytest.fixture
def name() -> str:
    """Give a name that no topic has yet, of the kind that every server takes."""
    return f"topic-{next(NUMBERS)}"


@pytest.fixture
def topic(client: LanceClient, name: str) -> str:
    """Create a topic on the contract's server."""
    client.create_topic(name)
    return name
