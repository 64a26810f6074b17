"""`--screening CATEGORY=ACTION` of `filmgate tenant`."""

import pytest

from filmgate.cli.tenant import describe_screening
from filmgate.cli.tenant_options import read_screening
from filmgate.errors import UsageError
from filmgate.jobs import ScreeningAction, TenantId
from filmgate.tenants.base import Tenant


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("minors=allow", "minors has a fixed action; a tenant cannot change it"),
        ("gossip=flag", "no category is named 'gossip'; choose from contact_data, "),
        ("sexual=maybe", "'maybe' is not an action; choose from allow, flag, reject, default"),
        ("sexual", "'' is not an action"),
    ],
)
def test_a_wrong_choice_names_the_option_and_the_remedy(choice, message):
    with pytest.raises(UsageError, match=message) as caught:
        read_screening({}, [choice])
    assert caught.value.option == "--screening"


def test_a_choice_replaces_one_category_and_default_removes_it():
    present = {"sexual": ScreeningAction.FLAG, "violence": ScreeningAction.REJECT}
    changed = read_screening(present, ["sexual=default", "obfuscation=reject"])
    assert changed == {"violence": "reject", "obfuscation": "reject"}
    text = describe_screening(Tenant(TenantId("acme"), screening=changed))
    assert text == "obfuscation=reject, violence=reject"
