"""`filmgate` for which one more host is public: `python -m tests.serve_with_public_host PORT serve ...`.

http://public.example/ is a server on ADDRESS:PORT. All other names and addresses are treated as always.
"""

import ipaddress
import sys

from filmgate.admission.uploads import urls
from filmgate.cli import main

HOST = "public.example"
# No other server of a test listens here.
ADDRESS = "127.7.7.7"


def make_public(port):
    resolve_host, is_public, own = urls.resolve_host, urls.is_public, ipaddress.ip_address(ADDRESS)
    urls.resolve_host = lambda host, port: [own] if host == HOST else resolve_host(host, port)
    urls.is_public = lambda address: address == own or is_public(address)
    urls._PORTS["http"] = port


if __name__ == "__main__":
    make_public(int(sys.argv.pop(1)))
    main()
