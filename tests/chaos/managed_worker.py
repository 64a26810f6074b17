"""A managed worker process for the chaos tests: the real one, which kills itself at the named step."""

import os
import signal
import sys

from filmgate.providers import open_provider
from filmgate.providers.invocations import SqlInvocations
from filmgate.scheduling.queue import SqlQueue
from filmgate.settings import load_settings
from filmgate.worker.pattern_runner import MODEL
from filmgate.worker_process import run_managed_worker


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(owner, verb):
    """kill -9 as soon as the verb has done its work, before anyone hears of it."""
    work = getattr(owner, verb)

    def wrapped(*arguments, **options):
        answer = work(*arguments, **options)
        die()
        return answer

    setattr(owner, verb, wrapped)


def die_instead(owner, verb):
    setattr(owner, verb, die)


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
        "id": lambda: die_after(SqlInvocations, "note"),
        "wait": lambda: die_after(type(provider), "poll"),
        "download": lambda: die_while_downloading(type(provider)),
        "publish": lambda: die_instead(SqlQueue, "complete"),
        "acknowledge": lambda: die_after(SqlQueue, "complete"),
    }
    steps[step]()
    run_managed_worker(settings, (MODEL,), provider)


if __name__ == "__main__":
    main(sys.argv[1])
