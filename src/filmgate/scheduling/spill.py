"""The spill: looks at what waits, again and again, and sends away what would be late, while that still helps.

Every replica may run it. A look reads, decides and moves; a job that changed meanwhile is left alone, and two
looks at the same queue decide alike.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from filmgate.errors import FilmgateError
from filmgate.jobs import JobState, ManagedPolicy, Route, RouteReason, Routing, TenantId
from filmgate.providers.circuit import Phase
from filmgate.scheduling.base import Backlog, JobBook, JobQueue
from filmgate.scheduling.rehearsal import rehearse
from filmgate.scheduling.router import Router, count_managed
from filmgate.scheduling.routes import Case, Choice, Home, choose, find_wish
from filmgate.scheduling.waiting import Line, Move, Waiting
from filmgate.telemetry.logs import Log
from filmgate.tenants.base import TenantRegistry

log = Log("routing")

# One transaction each: nobody who enqueues or leases waits for a whole spill.
_MOVES_A_BATCH = 2000
_STOP_SECONDS = 10.0
_NOTHING = ManagedPolicy()


class Spiller:
    """Moves waiting jobs between routes."""

    def __init__(self, router: Router, queue: JobQueue, book: JobBook, tenants: TenantRegistry) -> None:
        self._router = router
        self._queue = queue
        self._book = book
        self._tenants = tenants

    def look(self) -> int:
        """One look at everything that waits; how many jobs changed their route."""
        self._router.refresh(self._queue.backlog())
        moved = self._move(self._recall())
        policies = {tenant.id: tenant.managed for tenant in self._tenants.tenants()}
        if any(policy.is_allowed for policy in policies.values()):
            moved += self._move(self._spill(policies))
        return moved

    def _recall(self) -> Sequence[Move]:
        """Home with what waits for a provider that is not well, or for nobody; one may stay to try it."""
        health, is_manned = self._router.health, self._router.is_manned
        if health.phase is Phase.CLOSED and is_manned:
            return ()
        line = self._book.waiting(Route.MANAGED)
        words = f"the provider is {health.phase}" if is_manned else "no worker of the managed route is alive"
        why = Routing(RouteReason.PROVIDER_UNHEALTHY, words, decided_at=line.now)
        scouts = 1 if health.can_probe and is_manned else 0
        return [Move(job.tenant_id, job.job_id, Route.GPU, why) for job in line.jobs[scouts:]]

    def _spill(self, policies: Mapping[TenantId, ManagedPolicy]) -> Sequence[Move]:
        # The line before the backlog: what another replica moves between the two is counted, not missed.
        if self._is_calm(self._book.waiting(Route.GPU, limit=1), self._queue.backlog()):
            return ()
        line = self._book.waiting(Route.GPU)
        return _Look(self._router, line, self._queue.backlog(), policies).decide()

    def _is_calm(self, line: Line, backlog: Backlog) -> bool:
        """Everything that waits will be done before the first deadline: there is no need to look closer."""
        if not line.jobs:
            return True
        first, settings = line.jobs[0], self._router.settings
        models = {load.model for load in backlog.loads if load.route is Route.GPU} | {first.spec.model}
        gpus = min(self._router.count_gpus(backlog, model) for model in models)
        if gpus == 0:
            return False
        work = backlog.queued_gpu_seconds(Route.GPU) + _running_seconds(backlog) + first.predicted.upload
        oldest = backlog.oldest_queued_at or line.now
        is_young = line.now - min(oldest, first.created_at) < settings.spill_after_seconds
        return is_young and line.now + work / gpus * settings.safety_factor <= first.deadline_at

    def _move(self, moves: Sequence[Move]) -> int:
        moved = 0
        for start in range(0, len(moves), _MOVES_A_BATCH):
            moved += self._queue.reroute(moves[start : start + _MOVES_A_BATCH])
        for (route, reason), jobs in Counter((move.route, move.routing.reason) for move in moves).items():
            log.info("waiting jobs decided", route=route, reason=reason, jobs=jobs)
        return moved


class _Look:
    """One pass over the line, as values: what moves, and whose reason to stay has changed."""

    def __init__(
        self, router: Router, line: Line, backlog: Backlog, policies: Mapping[TenantId, ManagedPolicy]
    ) -> None:
        self._router = router
        self._line = line
        self._backlog = backlog
        self._policies = policies
        self._ahead = count_managed(backlog)
        models = {job.spec.model for job in line.jobs}
        self._gpus = {model: router.count_gpus(backlog, model) for model in models}
        self._may_probe = not any(
            load.route is Route.MANAGED and load.state is JobState.QUEUED for load in backlog.loads
        )
        self._moves: list[Move] = []

    def decide(self) -> Sequence[Move]:
        gpus = max(self._gpus.values(), default=0)
        rehearse(self._line, gpus, _running_seconds(self._backlog), self._takes_turn)
        return self._moves

    def _takes_turn(self, job: Waiting, wait_seconds: float) -> bool:
        if job.reason is RouteReason.RETURNED:
            return True
        choice = self._choose(job, wait_seconds if self._gpus[job.spec.model] else float("inf"))
        if choice.route is Route.MANAGED or choice.routing.reason is not job.reason:
            self._moves.append(Move(job.tenant_id, job.job_id, choice.route, choice.routing))
        if choice.route is Route.MANAGED:
            self._ahead += 1
            self._may_probe = False
            return False
        # What no worker serves waits, but holds nobody up.
        return self._gpus[job.spec.model] > 0

    def _choose(self, job: Waiting, wait_seconds: float) -> Choice:
        case = Case(
            now=self._line.now,
            deadline_at=job.deadline_at,
            home=Home(wait_seconds, job.predicted.gpu_seconds + job.predicted.upload),
            policy=self._policies.get(job.tenant_id, _NOTHING),
            spec=job.spec,
            waited_seconds=self._line.now - job.created_at,
            may_probe=self._may_probe,
        )
        if find_wish(case, self._router.settings) is None:
            return choose(case, (), self._router.settings)
        option = self._router.survey(job.spec, case.policy, self._ahead)
        return choose(case, (option,), self._router.settings)


def _running_seconds(backlog: Backlog) -> float:
    """What running jobs still take: half of each, on average."""
    running = (load for load in backlog.loads if load.state is JobState.RUNNING and load.route is Route.GPU)
    return sum(load.gpu_seconds for load in running) / 2


@contextmanager
def spilling(spiller: Spiller, seconds: float) -> Iterator[None]:
    """Look every few seconds, for as long as the block runs."""
    is_over = threading.Event()

    def keep_looking() -> None:
        while not is_over.is_set():
            try:
                spiller.look()
            except FilmgateError as exc:
                log.warning(
                    "waiting jobs were not looked at; it is tried again", code=exc.code, seconds=seconds
                )
            except Exception as exc:  # noqa: BLE001 - a thread's edge: the next look is another try
                log.error("a look at waiting jobs broke off", error=exc)  # noqa: TRY400 - it says where
            is_over.wait(seconds)

    thread = threading.Thread(target=keep_looking, name="spill", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(_STOP_SECONDS)
