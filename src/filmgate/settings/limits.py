"""The limits of the HTTP edge: how much of the service one caller can use."""

from pydantic import Field

from filmgate.settings.sections import Section


class LimitSettings(Section):
    """Limits per connection, address and tenant. 0 means no limit for rates and counts."""

    max_connections: int = Field(
        default=2000,
        ge=16,
        le=1_000_000,
        description="open connections; at the limit, the connection that has been idle longest is closed",
    )
    max_connections_per_address: int = Field(
        default=500, ge=0, description="open connections of one client address"
    )
    header_seconds: float = Field(
        default=10.0, gt=0, le=600, description="time limit for the headers of a request"
    )
    body_seconds: float = Field(
        default=120.0, gt=0, le=3600, description="time limit for the body of a request"
    )
    send_seconds: float = Field(
        default=60.0, gt=0, le=3600, description="how long a client may leave response bytes unread"
    )
    max_form_bytes: int = Field(
        default=128 << 10,
        ge=1024,
        description="largest JSON or URL-encoded body, and most text in a multipart body",
    )
    tenant_requests_per_second: float = Field(
        default=100.0, ge=0, description="requests of one tenant, on average"
    )
    tenant_request_burst: int = Field(default=500, ge=1, description="burst of requests of one tenant")
    address_requests_per_second: float = Field(
        default=200.0, ge=0, description="requests of one client address, on average"
    )
    address_request_burst: int = Field(
        default=1000, ge=1, description="burst of requests of one client address"
    )
    failed_logins_per_minute: float = Field(
        default=30.0, ge=0, description="requests of one client address with an invalid API key"
    )
    max_watchers_per_tenant: int = Field(default=500, ge=0, description="open event streams of one tenant")
    max_streams_per_tenant: int = Field(default=50, ge=0, description="open live streams of one tenant")
    max_uploads: int = Field(
        default=64, ge=0, description="reference images that are received, fetched or decoded at a time"
    )
    max_uploads_per_tenant: int = Field(default=16, ge=0, description="max_uploads for one tenant")
    trusted_proxies: str = Field(
        default="",
        description="comma-separated addresses and networks (10.0.0.0/8) of proxies whose X-Forwarded-For "
        "names the client. If empty, the client is the peer of the connection",
    )
