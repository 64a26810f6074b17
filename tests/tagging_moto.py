"""A moto server whose IAM knows session tags and conditions. Prints its port; ends when stdin is closed.

moto enforces identity policies, but it drops the tags of AssumeRole, does not expand policy variables and
ignores conditions. For sessions with tags, the evaluator of tests/iam.py decides with AWS's rules.
"""

import json
import sys
from urllib.parse import parse_qs, urlsplit

from moto.iam import access_control
from moto.server import ThreadedMotoServer
from moto.sts.responses import TokenResponse

from tests.iam import is_allowed

TAGS = {}  # by access key
_assume, _check = TokenResponse.assume_role, access_control.IAMRequestBase.check_action_permitted


def assume_role(response):
    answer = _assume(response)
    newest = response.backend.assumed_roles[-1]
    for tag in response._get_param("Tags", []):
        TAGS[newest.access_key_id] = {f"aws:PrincipalTag/{tag['Key']}": tag["Value"]}
    return answer


def check_action_permitted(request, resource):
    tags = TAGS.get(request._access_key._access_key_id)
    if tags is None:
        _check(request, resource)
        return
    for text in request._access_key.collect_policies():
        [(name, value)] = tags.items()
        policy = json.loads(text.replace(f"${{{name}}}", value))
        if is_allowed(policy, request._action, _resource(request, resource), **_context(request)) is True:
            return
    request._raise_access_denied()


def _resource(request, resource):
    return f"arn:aws:kms:{request._region}:123456789012:key/1" if request._service == "kms" else resource


def _context(request):
    """The condition keys of the request: the prefix of a listing, the context and the alias of a key."""
    if request._service == "s3":
        prefix = parse_qs(urlsplit(request._path).query).get("prefix", [""])[0]
        return {"s3:prefix": prefix}
    given = json.loads(request._body or b"{}")
    context = {f"kms:EncryptionContext:{k}": v for k, v in given.get("EncryptionContext", {}).items()}
    return context | {"kms:ResourceAliases": given.get("KeyId", "")}


if __name__ == "__main__":
    TokenResponse.assume_role = assume_role
    access_control.IAMRequestBase.check_action_permitted = check_action_permitted
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    sys.stdout.write(f"{server.get_host_and_port()[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()
