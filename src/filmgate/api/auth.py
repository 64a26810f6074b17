"""Who is calling: an API key, a client certificate, or anyone on an open loopback server."""

import ipaddress
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from filmgate.api.stations import Stations, stations_of
from filmgate.errors import InvalidKey, ScopeMissing
from filmgate.tenants.base import LOCAL_TENANT, Scope, Tenant

CERTIFICATE_EXTENSION = "filmgate.certificate"

_bearer = HTTPBearer(auto_error=False, description="An API key of `filmgate tenant add`.")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


@dataclass(frozen=True, slots=True)
class Require:
    """A dependency: the tenant of this request, if it may do what the route does."""

    scope: Scope

    async def __call__(self, request: Request, bearer: Bearer) -> Tenant:
        stations = stations_of(request)
        tenant = await stations.call(_identify, stations, request, bearer)
        if not tenant.may(self.scope):
            raise ScopeMissing(f"this key lacks the scope {self.scope}")
        return tenant


Reader = Annotated[Tenant, Depends(Require(Scope.READ))]
Maker = Annotated[Tenant, Depends(Require(Scope.GENERATE))]
Operator = Annotated[Tenant, Depends(Require(Scope.ADMIN))]


def _identify(stations: Stations, request: Request, bearer: HTTPAuthorizationCredentials | None) -> Tenant:
    if bearer is not None and bearer.credentials.isascii():
        return stations.tenants.authenticate(bearer.credentials)
    subject = request.scope.get("extensions", {}).get(CERTIFICATE_EXTENSION)
    if subject:
        return stations.tenants.authenticate_certificate(subject)
    if stations.settings.open and bearer is None and is_local_request(request):
        return stations.tenants.find(LOCAL_TENANT)
    raise InvalidKey("send an API key as `Authorization: Bearer KEY`")


def is_local_request(request: Request) -> bool:
    """Made to loopback by name, and not by another site's page in the same browser.

    An open server trusts the machine, not every page its browser shows: a foreign Origin is cross-site
    scripting, a foreign Host is a name rebound to 127.0.0.1.
    """
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname
    origin = request.headers.get("origin")
    return is_loopback(host) and (origin is None or is_loopback(urlsplit(origin).hostname))


def is_loopback(host: str | None) -> bool:
    """A name or address that never leaves this machine."""
    if host == "localhost":
        return True
    try:
        return host is not None and ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
