"""Authentication: API keys, scopes, certificates, an open server on loopback, signed links."""

import datetime as dt
import ipaddress
import ssl

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from prometheus_client import CollectorRegistry

from filmgate.api.http_server import check_exposure, export_expiry
from filmgate.client import Filmgate
from filmgate.errors import SettingsError
from filmgate.jobs import TenantId
from filmgate.settings import ApiSettings
from filmgate.store.base import ObjectName
from filmgate.telemetry.metrics import CERTIFICATE_EXPIRY
from filmgate.tenants.base import Scope, Tenant
from tests.service import CLIP, running, settings_for


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer x"}, {"Authorization": "Bearer fg_a_b"}, {"Authorization": "Basic eDp5"}],
)
def test_a_request_without_a_valid_key_is_a_401(service, headers):
    for path in ("/v1/videos", "/v1/models", "/metrics", "/v1/videos/video_1/events"):
        response = httpx.get(service.url + path, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"


def test_a_scope_allows_its_operations_and_no_others(service):
    reader = service.add_tenant("reader", scopes=frozenset({Scope.READ}))
    maker = service.add_tenant("maker", scopes=frozenset({Scope.GENERATE}))
    with service.client(reader) as client:
        assert client.get("/v1/videos").status_code == 200
        assert client.post("/v1/videos", json={"prompt": "x"}).status_code == 403
        assert client.get("/metrics").json()["error"]["code"] == "insufficient_scope"
    with service.client(maker) as client:
        assert client.post("/v1/videos", json={"prompt": "x"}).status_code == 200
        assert client.get("/v1/videos").status_code == 403


def test_a_rotated_key_and_a_disabled_tenant_are_rejected_at_once(service):
    key = service.add_tenant("rotating")
    second = service.services.tenants.rotate("rotating").secret
    with service.client(key) as old, service.client(second) as new:
        assert old.get("/v1/videos").status_code == 401
        assert new.get("/v1/videos").status_code == 200
        service.services.tenants.disable("rotating")
        assert new.get("/v1/videos").status_code == 401


def test_health_needs_no_key_and_metrics_need_the_scope_admin(service, client):
    assert httpx.get(f"{service.url}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{service.url}/readyz").json()["is_ready"] is True
    text = client.get("/metrics").text
    assert 'filmgate_http_requests_total{method="GET",route="/healthz",status="200"} 1.0' in text
    assert "filmgate_queue_up 1.0" in text


def test_readiness_names_the_component_that_is_not_ready(service, monkeypatch):
    monkeypatch.setattr(service.services.store, "_min_free_bytes", 1 << 60)
    response = httpx.get(f"{service.url}/readyz")
    assert (response.status_code, response.json()["parts"]) == (503, {"queue": "ok", "store": "storage_full"})


def test_an_open_server_accepts_local_requests_and_no_cross_site_ones(tmp_path):
    with running(settings_for(tmp_path, api__open=True)) as service:
        create = {"url": f"{service.url}/v1/videos", "json": {"prompt": "x"}}
        assert httpx.post(**create).status_code == 200
        assert httpx.post(**create, headers={"Origin": service.url}).status_code == 200
        assert httpx.post(**create, headers={"Origin": "https://evil.example"}).status_code == 401
        assert httpx.post(**create, headers={"Host": "rebinding.example"}).status_code == 401
        assert httpx.post(**create, headers={"Authorization": "Bearer wrong"}).status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "filmgate.example"])
def test_an_open_server_must_listen_on_loopback(host):
    with pytest.raises(SettingsError, match="loopback"):
        check_exposure(ApiSettings(host=host, open=True))


def test_a_signed_link_gives_access_to_one_object_without_a_key(tmp_path):
    with running(settings_for(tmp_path, api__content="redirect")) as service, service.client() as client:
        video = client.post("/v1/videos", json={"prompt": "x"}).json()
        service.hand().make()
        response = client.get(f"/v1/videos/{video['id']}/content")
        assert response.status_code == 302
        link = service.url + response.headers["location"]
        assert httpx.get(link).content == CLIP
        part = httpx.get(link, headers={"Range": "bytes=1-3"})
        assert (part.status_code, part.content) == (206, CLIP[1:4])
        assert httpx.head(link).headers["content-length"] == str(len(CLIP))
        altered = link[:-8] + ("A" if link[-8] != "A" else "B") + link[-7:]
        assert httpx.get(altered).json()["error"]["code"] == "link_invalid"
        client.delete(f"/v1/videos/{video['id']}")
        assert httpx.get(link).status_code == 404


def test_head_of_redirected_content_is_answered_without_a_link(tmp_path):
    """A link is presigned for GET. If nobody follows it, its record in the audit log is wrong."""
    with running(settings_for(tmp_path, api__content="redirect")) as service, service.client() as client:
        video = client.post("/v1/videos", json={"prompt": "x"}).json()
        service.hand().make()
        path = f"/v1/videos/{video['id']}/content"
        head = client.head(path)
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(CLIP)))
        assert client.head(path, headers={"If-None-Match": head.headers["etag"]}).status_code == 304
        assert client.get(path).status_code == 302
        records = client.get(f"/v1/videos/{video['id']}/audit").json()["data"]
        assert [record["action"] for record in records].count("linked") == 1


def test_a_signed_link_expires(tmp_path):
    with running(settings_for(tmp_path, api__content="redirect")) as service, service.client() as client:
        video = client.post("/v1/videos", json={"prompt": "x"}).json()
        job = service.hand().make()
        link = client.get(f"/v1/videos/{video['id']}/content").headers["location"]
        expired = service.services.store.link(_name(job), -1.0)
        assert client.get(link).status_code == 200
        response = client.get(expired)
        assert (response.status_code, response.json()["error"]["code"]) == (403, "link_invalid")


def _name(job):
    return ObjectName(job.tenant_id, job.id, job.clip.part)


def test_a_client_certificate_identifies_the_tenant(tmp_path):
    authority = Authority(tmp_path)
    paths = authority.issue("server", "127.0.0.1")
    given = {"tls_certificate": paths[0], "tls_key": paths[1], "tls_client_ca": authority.path}
    settings = settings_for(tmp_path / "data", **{f"api__{k}": str(v) for k, v in given.items()})
    with running(settings) as service:
        service.services.tenants.add(Tenant(TenantId("bank"), certificate="CN=bank-client"))
        trusted = ssl.create_default_context(cafile=authority.path)
        trusted.load_cert_chain(*authority.issue("client", "bank-client"))
        response = httpx.post(f"{service.url}/v1/videos", json={"prompt": "x"}, verify=trusted)
        assert response.status_code == 200
        job = service.services.reader.find(TenantId("bank"), response.json()["id"])
        assert job.tenant_id == "bank"
        with Filmgate(service.url, verify=trusted) as sdk:
            assert [video.id for video in sdk.list().videos] == [job.id]
        unknown = ssl.create_default_context(cafile=authority.path)
        unknown.load_cert_chain(*authority.issue("other", "unknown"))
        assert httpx.get(f"{service.url}/v1/videos", verify=unknown).status_code == 401
        bare = ssl.create_default_context(cafile=authority.path)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{service.url}/healthz", verify=bare)


def test_the_exported_expiry_is_that_of_the_certificate_in_use(tmp_path):
    """A file that is renewed before the alert fires must not hide a server that was never restarted."""
    certificate, _key = Authority(tmp_path).issue("server", "127.0.0.1")
    [used] = x509.load_pem_x509_certificates(certificate.read_bytes())
    registry = CollectorRegistry()
    export_expiry(certificate, registry)
    certificate.write_text("renewed")
    assert registry.get_sample_value(CERTIFICATE_EXPIRY.name) == used.not_valid_after_utc.timestamp()


@pytest.mark.parametrize("broken", ["tls_certificate", "tls_key", "tls_client_ca"])
def test_a_tls_file_that_cannot_be_used_is_named(tmp_path, broken):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "127.0.0.1")
    good = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": authority.path}
    check_exposure(ApiSettings(**{name: str(path) for name, path in good.items()}))
    good[broken] = tmp_path / "other.pem"
    good[broken].write_text("not PEM")
    with pytest.raises(SettingsError, match="cannot be used: n") as caught:
        check_exposure(ApiSettings(**{name: str(path) for name, path in good.items()}))
    assert broken.replace("_", "-") in caught.value.option


def test_a_key_of_another_certificate_and_one_with_a_password_are_refused(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "127.0.0.1")
    _, other = authority.issue("other", "127.0.0.1")
    secret = serialization.load_pem_private_key(key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "secret.pem").write_bytes(secret)
    for path, reason in ((other, "key values mismatch"), (tmp_path / "secret.pem", "a key with a password")):
        with pytest.raises(SettingsError, match=reason):
            check_exposure(ApiSettings(tls_certificate=str(certificate), tls_key=str(path)))


def test_a_client_certificate_works_while_others_guess_keys_from_its_address(tmp_path):
    authority = Authority(tmp_path)
    paths = authority.issue("server", "127.0.0.1")
    given = {"tls_certificate": paths[0], "tls_key": paths[1], "tls_client_ca": authority.path}
    tls = {f"api__{name}": str(path) for name, path in given.items()}
    settings = settings_for(tmp_path / "data", limits__failed_logins_per_minute=2, **tls)
    with running(settings) as service:
        tenants, contexts = service.services.tenants, {}
        tenants.add(Tenant(TenantId("bank"), certificate="CN=bank"))
        for name in ("bank", "stranger"):
            contexts[name] = ssl.create_default_context(cafile=authority.path)
            contexts[name].load_cert_chain(*authority.issue(name, name))

        def status(name, key=None):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return httpx.get(f"{service.url}/v1/videos", verify=contexts[name], headers=headers).status_code

        # The bucket does not refill, however slow the machine is.
        service.edge._logins._failures._clock = lambda: 1000.0
        assert status("bank") == 200
        assert [status("stranger", "fg_guess") for _ in range(3)] == [401, 401, 429]
        assert status("bank") == 200
        assert [status("stranger"), status("stranger", "certificate:CN=bank")] == [429, 429]
        assert [status("stranger", "CN=bank"), status("stranger", "key:CN=bank")] == [429, 429]
        tenants.disable("bank")
        assert [status("bank"), status("bank")] == [401, 429]


def test_local_callers_of_an_open_server_work_while_others_guess_keys(tmp_path):
    settings = settings_for(tmp_path, api__open=True, limits__failed_logins_per_minute=2)
    with running(settings) as service:
        service.edge._logins._failures._clock = lambda: 1000.0

        def status(**headers):
            return httpx.get(f"{service.url}/v1/videos", headers=headers).status_code

        assert status() == 200
        assert [status(Authorization="Bearer fg_guess") for _ in range(3)] == [401, 401, 429]
        assert status() == 200
        # Requests of other sites come from the same browser.
        assert [status(Origin="https://evil.example"), status(Authorization="Bearer open:")] == [429, 429]
        assert status() == 200


class Authority:
    """A certificate authority for one test."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.folder, self.path = folder, folder / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self._certificate = self._build(self._name, self._key.public_key(), is_authority=True)
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, file, common_name):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = self._build(name, key.public_key())
        paths = self.folder / f"{file}.pem", self.folder / f"{file}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return paths

    def _build(self, name, public_key, *, is_authority=False):
        now = dt.datetime.now(dt.UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())
