"""The managed worker process of the chaos tests: it kills itself at the step in its argument."""

import os
import signal
import sys

from filmgate.providers import open_provider
from filmgate.providers.invocations import SqlInvocations
from filmgate.scheduling.queue import SqlQueue
from filmgate.settings import load_settings
from filmgate.worker_process import run_managed_worker
from tests.pattern_runner import MODEL


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(owner, method):
    """kill -9 after the method has done its work and before its caller gets the result."""
    work = getattr(owner, method)

    def wrapped(*arguments, **options):
        work(*arguments, **options)
        die()

    setattr(owner, method, wrapped)


def die_instead(owner, method):
    setattr(owner, method, die)


def die_while_downloading(owner):
    fetch = owner.fetch

    def wrapped(self, invocation_id):
        for chunk in fetch(self, invocation_id):
            yield chunk
            die()

    owner.fetch = wrapped


def main(step):
    settings = load_settings()
    provider = open_provider(settings.provider)
    steps = {
        "": lambda: None,
        "intent": lambda: die_after(SqlInvocations, "begin"),
        "start": lambda: die_after(type(provider), "start"),
        "id": lambda: die_after(SqlInvocations, "set_invocation"),
        "wait": lambda: die_after(type(provider), "poll"),
        "download": lambda: die_while_downloading(type(provider)),
        "publish": lambda: die_instead(SqlQueue, "complete"),
        "acknowledge": lambda: die_after(SqlQueue, "complete"),
    }
    steps[step]()
    run_managed_worker(settings, (MODEL,), provider)


if __name__ == "__main__":
    main(sys.argv[1])
