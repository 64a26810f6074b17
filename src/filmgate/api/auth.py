"""Who is calling: an API key, a client certificate, or anyone on an open loopback server."""

import ipaddress
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from filmgate.api.services import Stations, stations_of
from filmgate.errors import InvalidKey, ScopeMissing
from filmgate.tenants.base import LOCAL_TENANT, Scope, Tenant

CERTIFICATE_EXTENSION = "filmgate.certificate"

# For the OpenAPI document; the header itself is read by `applicant_of`.
_bearer = HTTPBearer(auto_error=False, description="An API key of `filmgate tenant add`.")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


@dataclass(frozen=True, slots=True)
class Applicant:
    """What a request shows of its caller; nothing of it is believed before `identify`."""

    stations: Stations
    secret: str | None
    subject: str | None
    is_local: bool

    def identify(self, scope: Scope) -> Tenant:
        """The caller's tenant, if it may do this. Blocks. Raises InvalidKey and ScopeMissing."""
        tenant = self._authenticate()
        if not tenant.may(scope):
            raise ScopeMissing(f"this key lacks the scope {scope}")
        return tenant

    def _authenticate(self) -> Tenant:
        tenants = self.stations.tenants
        if self.secret is not None and self.secret.isascii():
            return tenants.authenticate(self.secret)
        if self.subject:
            return tenants.authenticate_certificate(self.subject)
        if self.stations.settings.open and self.secret is None and self.is_local:
            return tenants.find(LOCAL_TENANT)
        raise InvalidKey("send an API key as `Authorization: Bearer KEY`")


def applicant_of(request: Request) -> Applicant:
    """Who says they are calling."""
    subject = request.scope.get("extensions", {}).get(CERTIFICATE_EXTENSION)
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    shown = secret.strip() if scheme.lower() == "bearer" else ""
    stations = stations_of(request)
    return Applicant(stations, shown or None, subject, stations.settings.open and is_local_request(request))


@dataclass(frozen=True, slots=True)
class Require:
    """A dependency: the tenant of this request, if it may do what the route does."""

    scope: Scope

    async def __call__(self, request: Request, _documented: Bearer) -> Tenant:
        applicant = applicant_of(request)
        return await applicant.stations.call(applicant.identify, self.scope)


Reader = Annotated[Tenant, Depends(Require(Scope.READ))]
Maker = Annotated[Tenant, Depends(Require(Scope.GENERATE))]
Operator = Annotated[Tenant, Depends(Require(Scope.ADMIN))]


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
