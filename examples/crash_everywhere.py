"""Ask what a crash at any moment would do: one handler charges twice, the other one gives the peer its task's id."""

from durably import Durably, Unique, current
from durably.testing import Scenario, crash_everywhere


class Bank:
    """A peer that books every charge, unless it has seen the idempotency key before."""

    def __init__(self) -> None:
        self.booked: list[int] = []
        self._seen: set[str] = set()

    def charge(self, cents: int, idempotency_key: str | None = None) -> None:
        if idempotency_key is None or idempotency_key not in self._seen:
            self.booked.append(cents)
        self._seen.add(idempotency_key or "")


class Careless(Scenario):
    def __init__(self) -> None:
        self.bank = Bank()

    def declare(self, app: Durably) -> None:
        @app.task
        def charge(order: str, cents: int) -> None:
            self.bank.charge(cents)

    def act(self, app: Durably) -> None:
        # Whoever got no answer asks again: the unique key makes one task of it.
        app.definitions["charge"].using(unique=Unique("order-1", scope="forever")).enqueue("order-1", 1250)

    def observe(self, app: Durably) -> list[int]:
        return self.bank.booked


class Careful(Careless):
    def declare(self, app: Durably) -> None:
        @app.task
        def charge(order: str, cents: int) -> None:
            self.bank.charge(cents, idempotency_key=current().id)


def main() -> None:
    for scenario in (Careless, Careful):
        print(f"{scenario.__name__}: {crash_everywhere(scenario)}")


if __name__ == "__main__":
    main()
