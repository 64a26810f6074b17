"""Identifies the caller: by API key, by client certificate, or on an open loopback server without either."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from filmgate.api.services import Services, services_of
from filmgate.audit.records import Actor, ActorKind
from filmgate.errors import InvalidField, InvalidKey, ScopeMissing
from filmgate.tenants.base import LOCAL_TENANT, Scope, Tenant, key_id_of

CERTIFICATE_SUBJECT = "certificate_subject"
USER_HEADER = "Filmgate-User"
MAX_USER_CHARS = 256
_LINK = Actor(ActorKind.LINK)

# For the OpenAPI document; `identify` reads the header.
_bearer = HTTPBearer(auto_error=False, description="An API key, created by `filmgate tenant add`.")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


async def identify(request: Request, scope: Scope) -> Tenant:
    """The tenant of a request, if it has the scope. Raises InvalidKey, ScopeMissing and RateLimited.

    Afterwards `actor_of` says who it is, for the audit log.
    """
    services = services_of(request)
    find, actor, credential = _to_lookup(request, services)
    tenant = await services.edge.login(request.scope, credential, partial(services.call, find))
    if not tenant.may(scope):
        raise ScopeMissing(f"this tenant does not have the {scope} scope")
    request.state.actor = replace(actor, user=_user_of(request))
    return tenant


def _secret_of(request: Request) -> str | None:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return (secret.strip() if scheme.lower() == "bearer" else "") or None


def _to_lookup(request: Request, services: Services) -> tuple[Callable[[], Tenant], Actor, str | None]:
    """How to find the tenant of the credential in a request, whom it names once it is verified, and what
    `Edge.login` knows it by.

    That begins with the kind of the caller, so that no key can be taken for a certificate.
    """
    tenants, secret = services.tenants, _secret_of(request)
    subject = getattr(request.state, CERTIFICATE_SUBJECT, None)
    if secret is not None and secret.isascii():
        actor = Actor(ActorKind.KEY, key_id_of(secret))
        return partial(tenants.authenticate, secret), actor, f"{actor.kind}:{secret}"
    if subject:
        actor = Actor(ActorKind.CERTIFICATE, subject)
        return partial(tenants.authenticate_certificate, subject), actor, f"{actor.kind}:{subject}"
    is_open = services.settings.open and secret is None and is_local_request(request)

    def find_local() -> Tenant:
        if not is_open:
            raise InvalidKey("send an API key as `Authorization: Bearer KEY`")
        return tenants.find(LOCAL_TENANT)

    return find_local, Actor(ActorKind.OPEN), f"{ActorKind.OPEN}:" if is_open else None


def actor_of(request: Request) -> Actor:
    """Who sends the request: the identified caller, or the holder of a link."""
    actor: Actor = getattr(request.state, "actor", _LINK)
    return actor


def _user_of(request: Request) -> str | None:
    """The end user as the client names it. Raises InvalidField."""
    user = request.headers.get(USER_HEADER)
    if user is not None and not (0 < len(user) <= MAX_USER_CHARS and user.isascii() and user.isprintable()):
        raise InvalidField(
            f"{USER_HEADER} must have 1 to {MAX_USER_CHARS} printable ASCII characters", option=USER_HEADER
        )
    return user


@dataclass(frozen=True, slots=True)
class Require:
    """A dependency: the tenant of the request, if it has the scope of the route."""

    scope: Scope

    async def __call__(self, request: Request, _documented: Bearer) -> Tenant:
        return await identify(request, self.scope)


Reader = Annotated[Tenant, Depends(Require(Scope.READ))]
Creator = Annotated[Tenant, Depends(Require(Scope.GENERATE))]
Operator = Annotated[Tenant, Depends(Require(Scope.ADMIN))]


def is_local_request(request: Request) -> bool:
    """Whether the request was made to a loopback name, and not by a page of another site.

    On an open server, local requests need no key. Pages of other sites in a local browser must not use this:
    their requests have a foreign Origin or, with DNS rebinding, a foreign Host.
    """
    origin = request.headers.get("origin")
    is_local_origin = origin is None or is_loopback(_host_of(origin))
    return is_loopback(_host_of(f"//{request.headers.get('host', '')}")) and is_local_origin


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def is_loopback(host: str | None) -> bool:
    """Whether a name or address never leaves this machine."""
    if host == "localhost":
        return True
    try:
        return host is not None and ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
