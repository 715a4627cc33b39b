"""A PostgreSQL that is stopped and started, its standby, and one address in front of both."""

import socket
import threading
from contextlib import suppress
from pathlib import Path

import psycopg

from tests.services import servers


class OwnPostgres:
    """A server that can be stopped in the middle of everything, and started again."""

    def __init__(self, folder: Path, tools: Path, *, name: str = "db") -> None:
        self.port = servers.free_port()
        self.folder, self.data, self.tools = folder, folder / name, tools

    @property
    def url(self) -> str:
        return address_of(self.port)

    def create(self) -> None:
        initdb = [str(self.tools / "initdb"), "--pgdata", str(self.data), "--no-sync"]
        initdb += ["--username=coalmine", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        servers.run_once(initdb, cwd=self.folder)

    def start(self) -> None:
        # Without fsync a killed server still keeps what it committed, as long as the host lives.
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._tell("start", "-o", options, "-l", str(self.folder / f"{self.data.name}.log"))

    def stop_at_once(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self._tell("stop", "-m", "immediate")

    def standby(self) -> "OwnPostgres":
        """Start a copy that follows this server; what is committed from now on is on both."""
        other = OwnPostgres(self.folder, self.tools, name="standby")
        copy = [str(self.tools / "pg_basebackup"), "--pgdata", str(other.data), "--no-sync"]
        copy += ["--host=127.0.0.1", f"--port={self.port}", "--username=coalmine"]
        copy += ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast"]
        servers.run_once(copy, cwd=self.folder)
        other.start()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
        return other

    def promote(self) -> None:
        self._tell("promote")

    def _tell(self, *words: str) -> None:
        servers.run_once(
            [str(self.tools / "pg_ctl"), "-D", str(self.data), "-w", *words], cwd=self.folder
        )


def address_of(port: int) -> str:
    return f"postgres://coalmine@127.0.0.1:{port}/postgres"


class Address:
    """One port of this host, behind which now one server stands and then another."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def move_to(self, target: int) -> None:
        """Send whoever comes from now on to another server; cut who is connected."""
        self.target = target
        for pair in self.pairs:
            _end(*pair)

    def close(self) -> None:
        self.listener.close()
        self.move_to(self.target)

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                client, _ = self.listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        self.pairs.append((client, server))
        for here, there in ((client, server), (server, client)):
            threading.Thread(target=_pump, args=(here, there), daemon=True).start()


def _pump(here: socket.socket, there: socket.socket) -> None:
    with suppress(OSError):
        while data := here.recv(65_536):
            there.sendall(data)
    _end(here, there)


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
