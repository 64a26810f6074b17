"""Evaluates policies by AWS's rules, for the operators that Filmgate's documents use."""

import re


def is_allowed(policy, action, resource, **context):
    """True if allowed, False if no statement allows it, "denied" if a statement denies it."""
    matching = [s for s in policy["Statement"] if _applies(s, action, resource, context)]
    if any(statement["Effect"] == "Deny" for statement in matching):
        return "denied"
    return bool(matching)


def _applies(statement, action, resource, context):
    conditions = statement.get("Condition", {}).items()
    return (
        any(_matches(pattern, action) for pattern in _many(statement["Action"]))
        and any(_matches(pattern, resource) for pattern in _many(statement["Resource"]))
        and all(_holds(operator, key, _many(values), context) for operator, rules in conditions
                for key, values in rules.items())
    )  # fmt: skip


def _holds(operator, key, wanted, context):
    given = context.get(key)
    match operator:
        case "Null":
            return (given is None) is (wanted == ["true"])
        case "StringEquals":
            return given is not None and given in wanted
        case "StringNotEquals" | "Bool" if given is None:
            return operator == "StringNotEquals"  # a missing key is unequal to every value
        case "StringNotEquals":
            return given not in wanted
        case "Bool":
            return given in wanted
        case "StringLike":
            return given is not None and any(_matches(pattern, given) for pattern in wanted)
        case "ForAnyValue:StringLike":
            return any(_matches(pattern, value) for pattern in wanted for value in _many(given or []))
    raise AssertionError(f"unsupported operator {operator}")


def _many(value):
    return [value] if isinstance(value, str) else list(value)


def _matches(pattern, text):
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), text) is not None
