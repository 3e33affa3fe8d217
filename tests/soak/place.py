"""Where a process of the soak finds the store, the ledger and the brake."""

from __future__ import annotations

import os
from pathlib import Path

STORE = os.environ["SOAK_STORE"]
LEDGER = Path(os.environ["SOAK_LEDGER"])
BRAKE = LEDGER.parent / "brake"
"""While this file exists, producers pause: the workers are behind."""
