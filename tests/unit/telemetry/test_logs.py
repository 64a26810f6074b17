"""A log line contains ids and locations and never text of the request."""

import io
import json
import logging
import sys
import warnings

import pytest

from filmgate.errors import KeyringForbidden, OutOfMemory, StoreForbidden
from filmgate.telemetry.logs import Log, adopt_loggers, configure_logs
from filmgate.telemetry.trace_context import TraceContext, within_trace

PROMPT = "a red ball bounces on the grass"


@pytest.fixture
def lines():
    root, stream = logging.getLogger(), io.StringIO()
    before = (root.handlers[:], root.level)
    configure_logs(stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:], root.level = before
    logging.captureWarnings(capture=False)


def test_a_line_within_a_trace_names_it_unless_it_names_another(lines):
    with within_trace(TraceContext("a" * 32)):
        Log("store").info("stored")
        Log("worker", trace_id="b" * 32).info("job leased")
    Log("store").info("idle")
    assert [line.get("trace_id") for line in lines()] == ["a" * 32, "b" * 32, None]


def test_a_line_is_one_json_object_with_its_bound_fields(lines):
    Log("worker", worker_id="w1").bind(trace_id="t1").info("job leased", job_id="video_1", attempt=2)
    [line] = lines()
    assert {
        k: line[k] for k in ("level", "logger", "message", "worker_id", "trace_id", "job_id", "attempt")
    } == {
        "level": "info",
        "logger": "filmgate.worker",
        "message": "job leased",
        "worker_id": "w1",
        "trace_id": "t1",
        "job_id": "video_1",
        "attempt": 2,
    }


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_on_a_terminal_is_plain_text_with_the_same_fields(lines):
    terminal = Terminal()
    configure_logs(terminal)
    Log("worker", worker_id="w1").info("job leased", attempt=2)
    Log("worker").error("attempt failed", error=OutOfMemory(PROMPT))
    first, second = terminal.getvalue().splitlines()
    assert first[8:] == " info    worker: job leased  worker_id=w1 attempt=2"
    assert second[8:] == " error   worker: attempt failed  error=OutOfMemory code=out_of_memory"


def test_a_field_that_is_not_listed_is_an_error():
    with pytest.raises(ValueError, match="prompt"):
        Log("worker").info("oops", prompt=PROMPT)


def test_the_class_and_location_of_an_error_are_logged_without_its_message(lines):
    for error in (OutOfMemory(PROMPT), KeyError(PROMPT)):
        try:
            raise error
        except (OutOfMemory, KeyError) as exc:
            Log("worker").error("attempt failed", error=exc)
    first, second = lines()
    assert (first["error"], first["code"], second["error"]) == ("OutOfMemory", "out_of_memory", "KeyError")
    assert first["at"][0].partition(":")[0].endswith("test_logs.py")
    assert PROMPT not in json.dumps([first, second])


@pytest.mark.parametrize("kind", [StoreForbidden, KeyringForbidden])
def test_a_missing_permission_is_named(lines, kind):
    Log("worker").error("could not store the clip", error=kind(PROMPT, permission="s3:PutObject"))
    [line] = lines()
    assert (line["permission"], PROMPT in json.dumps(line)) == ("s3:PutObject", False)


def test_messages_of_libraries_are_not_logged(lines, capsys):
    library = logging.getLogger("chatty")
    library.propagate = False
    library.addHandler(logging.StreamHandler(sys.stderr))
    adopt_loggers()
    library.warning("truncated: %s", PROMPT)
    warnings.showwarning(UserWarning(PROMPT), UserWarning, "library.py", 1)
    assert [(line["logger"], line["level"], "message" in line) for line in lines()] == [
        ("chatty", "warning", False),
        ("py.warnings", "warning", False),
    ]
    assert PROMPT not in capsys.readouterr().err


def test_a_logger_that_another_thread_creates_does_not_stop_the_adoption(monkeypatch):
    """A worker loads a model while it encodes a clip, and libraries create loggers on first use."""

    class Handlers(list):
        def clear(self):
            logging.getLogger("created.meanwhile")
            super().clear()

    monkeypatch.setattr(logging.root.manager, "loggerDict", {})
    chatty = logging.getLogger("chatty")
    chatty.handlers = Handlers([logging.NullHandler()])
    adopt_loggers()
    assert chatty.handlers == []
