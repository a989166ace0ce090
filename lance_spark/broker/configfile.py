"""The configuration file: TOML with the names of `BrokerConfig`.

listen = "0.0.0.0:1992"
data_dir = "/var/lib/lance"

[tls]                       # The table of LWP §7.1; each key is a `tls_` setting.
enabled = true
cert_path = "/etc/lance/server.crt"

[topics.events.auth]        # LWP §7.2, written to the topic's metadata.
mtls_enabled = true
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from lance_spark.broker.config import BrokerConfig
from lance_spark.errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TLS = "tls_"
NAMES = tuple(setting.name for setting in fields(BrokerConfig))


def read_settings(path: Path) -> dict[str, Any]:
    """Read a configuration file as settings of a `BrokerConfig`.

    Raises:
        OptionError: if it can't be read, or has a key that there is not.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path}: could not be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: is not TOML: {error}") from error
    return parse_settings(document, where=str(path))


def parse_settings(document: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Turn a document into settings; see `read_settings`."""
    settings = dict(document)
    table = settings.pop("tls", {})
    if not isinstance(table, Mapping):
        raise OptionError(f"{where}: tls = {table!r}: must be a table, [tls]")
    settings.update({f"{_TLS}{key}": value for key, value in table.items()})
    for key in settings:
        check_name(key, where=where, spell=_spell)
    return settings


def check_name(key: str, *, where: str, spell: Callable[[str], str] = str) -> None:
    """Refuse the name of a setting that there is not, with the nearest that there is.

    Args:
        key: the name.
        where: who was given it.
        spell: says how names are written there.

    Raises:
        OptionError: if there is none of that name.
    """
    if key in NAMES:
        return
    near = difflib.get_close_matches(key, NAMES, n=1)
    hint = f"did you mean {spell(near[0])}?" if near else "see docs/broker.md"
    raise OptionError(f"{where}: there is no setting {spell(key)}; {hint}")


def _spell(name: str) -> str:
    return f"[tls] {name[len(_TLS) :]}" if name.startswith(_TLS) else name
