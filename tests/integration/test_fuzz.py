"""Fuzzing by our own OpenAPI document: no 5xx, no leak, and every response matches its schema."""

from collections import Counter
from importlib import import_module
from pkgutil import iter_modules

import pytest
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import run_state_machine_as_test
from hypothesis.strategies import booleans

from filmgate import api
from tests.conftest import FUZZ
from tests.service import running, settings_for

EXAMPLES = 20 * FUZZ
WORKFLOWS = 4 * FUZZ
SECRET = "the prompt of another tenant"


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    # The stream of a queued job waits for the first frame; do not wait that long.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("filmgate.api.live.FIRST_FRAGMENT_SECONDS", 0.2)
        folder = tmp_path_factory.mktemp("fuzz")
        given = {"admission__promise_seconds": 1e9, "admission__fetch": False}
        with running(settings_for(folder, **given)) as service, service.client() as client:
            known = client.post("/v1/videos", json={"prompt": "x"}).json()["id"]
            service.hand().make()
            other = service.add_tenant("other")
            with service.client(other) as theirs:
                theirs.post("/v1/videos", json={"prompt": SECRET})
            yield service, {"video_id": known, "model": "flipbook", "tenant_id": "other"}


# Imported here and not above: every worker of a run imports this module, and one of them runs it.
@pytest.fixture(scope="module")
def checks():
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    return [
        not_a_server_error,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.status_code_conformance,
    ]


@pytest.fixture(scope="module")
def modes():
    from schemathesis import GenerationMode

    return GenerationMode


@pytest.fixture(scope="module")
def document(fuzzed):
    import schemathesis

    return schemathesis.openapi.from_url(f"{fuzzed[0].url}/openapi.json")


def operations():
    """(path, method) of every route that a module of the API has in the document."""
    modules = [import_module(f"{api.__name__}.{info.name}") for info in iter_modules(api.__path__)]
    routers = [module.router for module in modules if hasattr(module, "router")]
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    return sorted((r.path_format, m) for r in routes if r.include_in_schema for m in r.methods)


def test_the_document_contains_every_operation(document):
    found = {(path, method.upper()) for path, methods in document.items() for method in methods}
    assert found == set(operations())


@pytest.mark.parametrize(("path", "method"), operations())
def test_no_request_breaks_the_contract(fuzzed, document, checks, modes, path, method):
    operation = document[path][method]

    service, known = fuzzed
    seen = set()

    @given(is_known=booleans(), case=operation.as_strategy() | operation.as_strategy(modes.NEGATIVE))
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def fuzz(is_known, case):
        if is_known and method != "DELETE":
            case.path_parameters |= {n: known[n] for n in case.path_parameters if n in known}
        key = {"Authorization": f"Bearer {service.key}"}
        response = case.call_and_validate(headers=key, checks=checks, timeout=60)
        assert SECRET.encode() not in response.content
        assert b"Traceback" not in response.content

        seen.add(response.status_code // 100)

    fuzz()
    is_rejected = method == "DELETE" or path.endswith(
        ("/edits", "/extensions", "/{token}", "/plan", "/drain")
    )
    is_rejected |= path.startswith("/v1/tenants/{tenant_id}/videos")  # of the other tenant
    is_rejected |= path in {
        "/v1/usage/videos",
        "/v1/usage/workers",
    }  # most random windows are empty or too long
    assert 2 in seen or is_rejected or "characters" in path


def test_no_sequence_of_linked_requests_breaks_the_contract(fuzzed, document, checks, modes):
    """Follows the links of the document: what is created is read, changed, cancelled and deleted."""
    service, steps = fuzzed[0], Counter()

    linked = document.include(path_regex="^/v1/(videos|tenants)").exclude(
        path_regex="characters|stream|events|prompt-digest"
    )
    linked.config.generation.update(modes=[modes.POSITIVE])

    class Workflow(linked.as_state_machine()):
        def before_call(self, case):
            case.headers["Authorization"] = f"Bearer {service.key}"
            if case.path_parameters.get("tenant_id") == "local":  # the owner of the key
                case.path_parameters["tenant_id"] = "other"

        def get_call_kwargs(self, _case):
            return {"timeout": 60}

        def validate_response(self, response, case, **options):
            case.validate_response(response, checks=checks)
            assert SECRET.encode() not in response.content
            steps[case.operation.label, response.status_code // 100] += 1

    terms = settings(
        max_examples=WORKFLOWS,
        stateful_step_count=12,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=FUZZ == 1,
    )
    run_state_machine_as_test(Workflow, settings=terms)
    followed = {label for label, kind in steps if kind == 2 and "{" in label}
    assert len(followed) > 2, steps
