"""Random HTTP requests as bytes: valid ones, and valid ones with random damage."""

import json

BOUNDARY = "fuzz"
TOKENS = (
    b"\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b":", b";", b",", b"[", b"]", b"%", b"%00", b"%ff", b"..",
    b"/", b"?", b"0", b"-1", b"99999999999999999999", b"1e999", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800",
    b"{", b"}", b'"', b"chunked", b"identity", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Host: [\r\n", b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n",
    b"Connection: close\r\n", b"Range: bytes=-\r\n", b"Range: bytes=0-0,5-\r\n", b"Origin: http://[\r\n",
    b"charset=undefined", b"HTTP/1.0", b"HTTP/2.0", b"CONNECT", b"OPTIONS", b"--fuzz", b"filename=",
    b"name=", b"NaN", b"[[[[[[", b"Cookie: a\r\n",
)  # fmt: skip


def valid_requests(key, video_id):
    """One request of every kind."""
    create = json.dumps({"prompt": "a red ball", "seconds": "2"}).encode()
    reference = {"prompt": "x", "input_reference": {"image_url": "http://127.0.0.1/a.png"}}
    multipart = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nx\r\n--{BOUNDARY}\r\n'
        'Content-Disposition: form-data; name="input_reference"; filename="a.png"\r\n'
        f"Content-Type: image/png\r\n\r\nno image\r\n--{BOUNDARY}--\r\n"
    ).encode()
    form = f"multipart/form-data; boundary={BOUNDARY}"
    posts = [
        _post("/v1/videos", "application/json", create, key),
        _post("/v1/videos", "application/json", json.dumps(reference).encode(), key),
        _post("/v1/videos", form, multipart, key),
        _post("/v1/videos", "application/x-www-form-urlencoded", b"prompt=x&seconds=2&a[b]=1", key),
        _post(f"/v1/videos/{video_id}/remix", "application/json", b'{"prompt": "y"}', key),
        _post("/v1/videos", "application/json", create, key, is_chunked=True),
    ]
    paths = (
        "/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/models", "/v1/videos?limit=2&order=asc",
        f"/v1/videos/{video_id}", f"/v1/videos/{video_id}/content?variant=video", "/objects/abc",
        f"/v1/videos/{video_id}/stream?link=abc", f"/v1/videos/{video_id}/events", "/v1/videos/characters/x",
    )  # fmt: skip
    return posts + [_head("GET", path, key) + b"\r\n" for path in paths]


def damaged(random, request):
    """The request with one to four random changes."""
    data = bytearray(request)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(data) + 1)
        match random.randrange(6):
            case 0:
                data[at:at] = random.choice(TOKENS)
            case 1:
                data[at : at + random.randint(1, 12)] = b""
            case 2:
                data[at : at + 1] = bytes([random.randrange(256)])
            case 3:
                data[at:at] = data[at : at + random.randint(1, 60)]
            case 4:
                line = data.find(b"\r\n") + 2
                data[line:line] = random.choice(TOKENS)
            case _:
                data[at:at] = random.choice(TOKENS) * random.randint(1, 300)
    return bytes(data)


def _head(method, path, key):
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n".encode()


def _post(path, kind, body, key, *, is_chunked=False):
    head = _head("POST", path, key) + f"Content-Type: {kind}\r\n".encode()
    if is_chunked:
        half = len(body) // 2
        parts = (body[:half], body[half:], b"")
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    return head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
