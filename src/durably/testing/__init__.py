"""What tests of an application can use; the parts that need more are modules of their own."""

from durably.testing.clock import ManualClock
from durably.testing.crash import Report, Scenario, crash_everywhere

__all__ = ["ManualClock", "Report", "Scenario", "crash_everywhere"]
