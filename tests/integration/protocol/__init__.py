"""The protocols besides LWP: each joins the suites of faults by an entry here.

Those are `test_protocol_network`, `test_protocol_restart` and `test_protocol_hostile`,
and the crowd at its limits of `test_hostile_load`.
"""

from __future__ import annotations

from tests.integration.protocol.entry import MIB, GroupTeller, Protocol, Teller
from tests.integration.protocol.fluvio import FLUVIO
from tests.integration.protocol.kimberlite import KIMBERLITE
from tests.integration.protocol.rustlog import RUSTLOG
from tests.integration.protocol.tank import TANK

__all__ = ["LISTENERS", "MIB", "PROTOCOLS", "GroupTeller", "Protocol", "Teller"]

PROTOCOLS = {one.name: one for one in (RUSTLOG, KIMBERLITE, FLUVIO, TANK)}
# Where a broker listens for all of them; the SPU of Fluvio is where it was, too, when
# the broker is started again.
LISTENERS = dict.fromkeys([*PROTOCOLS, "fluvio_spu"], "127.0.0.1:0")
