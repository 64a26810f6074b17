"""Checks custom resources as an API server does: strict schema and CEL rules; also the triggers of KEDA."""

import copy
import json
import re
from functools import cache

import celpy
import yaml
from celpy import celtypes
from jsonschema import Draft202012Validator

from deploy.tests.charts import LOADER

# The functions that Kubernetes adds to CEL and these CRDs use.
FUNCTIONS = {
    "find": lambda text, pattern: celtypes.StringType((re.search(str(pattern), str(text)) or [""])[0]),
    "split": lambda text, by: celtypes.ListType([celtypes.StringType(x) for x in str(text).split(str(by))]),
}


class CustomResources:
    """The CRDs in a folder."""

    def __init__(self, folder):
        self._schemas = {}
        for path in sorted(folder.glob("*.yaml")):
            for crd in filter(None, yaml.load_all(path.read_text(), LOADER)):
                for version in crd["spec"]["versions"]:
                    key = f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]
                    self._schemas[key] = version["schema"]["openAPIV3Schema"]
        scalers = json.loads((folder / "keda-scalers-schema.json").read_text())["scalers"]
        self._scalers = {scaler["type"]: scaler["parameters"] for scaler in scalers}
        self._strict = cache(lambda *key: _strict_validator(self._schemas[key]))

    def faults(self, resource):
        """One line per fault of a resource."""
        key = resource["apiVersion"], resource["kind"]
        if key not in self._schemas:
            return [f"no CRD for {key}"]
        body = {name: value for name, value in resource.items() if name != "metadata"}
        found = [f"{_path(error)}: {error.message}" for error in self._strict(*key).iter_errors(body)]
        full = copy.deepcopy(body)
        _set_defaults(self._schemas[key], full)
        found += _broken_rules(self._schemas[key], full, "")
        return found + (self._trigger_faults(resource) if resource["kind"] == "ScaledObject" else [])

    def _trigger_faults(self, resource):
        found = []
        for trigger in resource["spec"]["triggers"]:
            parameters = self._scalers.get(trigger["type"])
            if parameters is None:
                found.append(f"no scaler {trigger['type']}")
                continue
            names = {name for parameter in parameters for name in _names(parameter)}
            found += [
                f"{trigger['type']} has no {given}"
                for given in trigger["metadata"]
                if given.removesuffix("FromEnv") not in names
            ]
            found += [
                f"{trigger['type']} needs {parameter['name']}"
                for parameter in parameters
                if _is_required(parameter) and not _is_given(parameter, trigger)
            ]
        return found


def _names(parameter):
    return [name.strip() for name in re.split(r"[,;]", parameter["name"])]


def _is_required(parameter):
    return (
        not parameter.get("optional")
        and "default" not in parameter
        and parameter.get("metadataVariableReadable", False)
    )


def _is_given(parameter, trigger):
    given = trigger["metadata"]
    by_secret = parameter.get("triggerAuthenticationVariableReadable") and trigger.get("authenticationRef")
    return bool(by_secret) or any(name in given or f"{name}FromEnv" in given for name in _names(parameter))


def _path(error):
    return "." + ".".join(map(str, error.absolute_path))


def _strict_validator(schema):
    strict = _strict(schema)
    strict["properties"].pop("metadata", None)
    return Draft202012Validator(strict)


def _strict(node):
    """A structural schema as JSON schema: unknown fields are faults, as with server-side validation."""
    if not isinstance(node, dict):
        return node
    found = {k: v for k, v in node.items() if not k.startswith("x-kubernetes") and k != "description"}
    if found.get("format") == "date-time":
        del found["format"]
    if node.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    if "properties" in found:
        found["properties"] = {name: _strict(value) for name, value in found["properties"].items()}
    for name in ("items", "additionalProperties", "not"):
        if isinstance(found.get(name), dict):
            found[name] = _strict(found[name])
    is_closed = found.get("type") == "object" and "properties" in found
    if is_closed and not node.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    if node.get("nullable") and isinstance(found.get("type"), str):
        found["type"] = [found["type"], "null"]
    return found


def _set_defaults(schema, value):
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name not in value and "default" in part:
                value[name] = copy.deepcopy(part["default"])
            if name in value:
                _set_defaults(part, value[name])
        for name, part in value.items():
            if isinstance(schema.get("additionalProperties"), dict) and name not in schema.get(
                "properties", {}
            ):
                _set_defaults(schema["additionalProperties"], part)
    elif isinstance(value, list):
        for part in value:
            _set_defaults(schema.get("items", {}), part)


@cache
def _program(rule):
    environment = celpy.Environment()
    return environment.program(environment.compile(rule), functions=FUNCTIONS)


def _broken_rules(schema, value, path):
    found = []
    for rule in schema.get("x-kubernetes-validations", []):
        if "oldSelf" in rule["rule"] and not rule.get("optionalOldSelf"):
            continue  # runs for changes only
        try:
            holds = bool(_program(rule["rule"]).evaluate({"self": celpy.json_to_cel(value)}))
        except celpy.CELEvalError as exc:
            found.append(f"{path or '.'}: {rule['rule']} did not evaluate: {exc}")
            continue
        if not holds:
            found.append(f"{path or '.'}: {rule.get('message') or rule['rule']}")
    if isinstance(value, dict):
        other = schema.get("additionalProperties")
        for name, part in value.items():
            inner = schema.get("properties", {}).get(name, other)
            if isinstance(inner, dict):
                found += _broken_rules(inner, part, f"{path}.{name}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            found += _broken_rules(schema.get("items", {}), part, f"{path}[{number}]")
    return found
