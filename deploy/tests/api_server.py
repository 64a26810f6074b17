"""A real Kubernetes API server, from the binaries in $KUBEBUILDER_ASSETS (`setup-envtest use -p path`)."""

import json
import os
import secrets
import ssl
import subprocess
import urllib.request
from contextlib import ExitStack, contextmanager

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.server_process import free_port
from tests.waiting import wait_until

ASSETS = os.environ.get("KUBEBUILDER_ASSETS", "")


@contextmanager
def api_server(folder, assets=ASSETS):
    """Starts etcd and kube-apiserver on loopback; yields a function that runs kubectl."""
    etcd, peer, port, token = free_port(), free_port(), free_port(), secrets.token_hex(16)
    _write_account_keys(folder)
    (folder / "tokens").write_text(f"{token},admin,admin,system:masters\n")
    store, peers = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
    programs = {
        "etcd": [
            f"--data-dir={folder}/etcd", f"--listen-client-urls={store}", f"--advertise-client-urls={store}",
            f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}", "--unsafe-no-fsync",
        ],
        "kube-apiserver": [
            f"--etcd-servers={store}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--secure-port={port}", f"--cert-dir={folder}", f"--token-auth-file={folder}/tokens",
            f"--service-account-key-file={folder}/account.pub", "--authorization-mode=RBAC",
            f"--service-account-signing-key-file={folder}/account.key",
            "--service-account-issuer=https://kubernetes.default.svc", "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
        ],
    }  # fmt: skip
    with ExitStack() as stack:
        running = {
            folder / f"{name}.log": _start(stack, folder / f"{name}.log", [f"{assets}/{name}", *arguments])
            for name, arguments in programs.items()
        }
        _wait_until_ready(port, token, running)
        config = folder / "kubeconfig"
        config.write_text(json.dumps(_kubeconfig(port, token)))

        def kubectl(*arguments):
            command = [f"{assets}/kubectl", f"--kubeconfig={config}", *map(str, arguments)]
            return subprocess.run(command, capture_output=True, text=True, check=False)

        yield kubectl


def _write_account_keys(folder):
    key = rsa.generate_private_key(65537, 2048)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "account.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    (folder / "account.pub").write_bytes(key.public_key().public_bytes(pem, public))


def _start(stack, log, command):
    output = stack.enter_context(log.open("w"))
    process = subprocess.Popen(command, stdout=output, stderr=output)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    return process


def _wait_until_ready(port, token, running):
    context = ssl._create_unverified_context()  # the server makes its own certificate
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}/readyz", headers={"Authorization": f"Bearer {token}"}
    )

    def is_ready():
        for log, process in running.items():
            assert process.poll() is None, f"{log.stem} ended:\n{log.read_text()[-2000:]}"
        try:
            return urllib.request.urlopen(request, context=context, timeout=5).status == 200
        except OSError:
            return False

    wait_until(is_ready, 120, 0.1, describe=lambda: "\n".join(log.read_text()[-2000:] for log in running))


def _kubeconfig(port, token):
    cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "admin"}}],
        "current-context": "local",
    }
