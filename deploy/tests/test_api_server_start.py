"""How the tests start an API server, with stand-ins for its programs: the real ones are not on PyPI."""

import sys
from pathlib import Path

import psutil
import pytest

from deploy.tests.api_server import api_server
from tests.integration.test_auth import Authority

# Answers /readyz with TLS when the token is that of the file, as kube-apiserver does.
SERVER = """
import http.server, pathlib, ssl, sys
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:])
folder = pathlib.Path(options["cert-dir"])
token = pathlib.Path(options["token-auth-file"]).read_text().split(",")[0]
assert "PRIVATE KEY" in pathlib.Path(options["service-account-signing-key-file"]).read_text()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_admin = self.headers["Authorization"] == f"Bearer {token}"
        self.send_response(200 if is_admin and self.path == "/readyz" else 401)
        self.end_headers()

server = http.server.HTTPServer((options["bind-address"], int(options["secure-port"])), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(folder / "server.pem", folder / "server.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
STORE = "import signal\nsignal.pause()"
ECHO = "import sys\nprint(*sys.argv[1:])"


@pytest.fixture
def make_assets(tmp_path):
    def make(**programs):
        folder = tmp_path / "assets"
        folder.mkdir()
        for name, text in programs.items():
            path = folder / name.replace("_", "-")
            path.write_text(f"#!{sys.executable}\n{text}")
            path.chmod(0o755)
        return folder

    return make


def count_processes(folder):
    """Processes with a command line that names the folder."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return sum(any(str(folder) in word for word in line) for line in lines)


def test_kubectl_runs_against_the_server_and_both_programs_end(tmp_path, make_assets):
    assets = make_assets(etcd=STORE, kube_apiserver=SERVER, kubectl=ECHO)
    Authority(tmp_path).issue("server", "localhost")
    with api_server(tmp_path, assets) as kubectl:
        done = kubectl("get", Path("pods"))
        assert count_processes(assets) == 2
    assert done.stdout == f"--kubeconfig={tmp_path}/kubeconfig get pods\n"
    assert count_processes(assets) == 0


def test_a_program_that_ends_is_an_error_with_its_log(tmp_path, make_assets):
    assets = make_assets(etcd=STORE, kube_apiserver="raise SystemExit('unknown flag: --secure-port')")
    with (
        pytest.raises(AssertionError, match="kube-apiserver ended:\nunknown flag"),
        api_server(tmp_path, assets),
    ):
        pass
    assert count_processes(assets) == 0
