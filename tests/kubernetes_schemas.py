"""What the published schemas allow, for a server that ignores unknown fields."""

import re

KINDS = {
    "Secret": "V1Secret",
    "Service": "V1Service",
    "NetworkPolicy": "V1NetworkPolicy",
    "Job": "V1Job",
}


def problems(value, kind, where=""):
    """Returns what is wrong with a value, by the types of the official client.

    Args:
        value: The value.
        kind: A type of the client, as it writes them, or one of Python.
        where: The path to the value.
    """
    if isinstance(kind, str):
        return _of_client(value, kind, where)
    if isinstance(kind, set):
        return [] if value in kind else [f"{where}: {value!r} is not in {kind}"]
    if isinstance(kind, type):
        return [] if type(value) is kind else [f"{where}: {value!r} is no {kind}"]
    if isinstance(kind, list):
        return [
            p
            for i, one in enumerate(value)
            for p in problems(one, kind[0], f"{where}[{i}]")
        ]
    found = [f"{where}: there is no {name}" for name in value if name not in kind]
    for name in value.keys() & kind.keys():
        found += problems(value[name], kind[name], f"{where}.{name}")
    return found


def _of_client(value, kind, where):
    from kubernetes import client

    simple = {
        "str": str,
        "bytes": str,
        "int": int,
        "bool": bool,
        "float": float,
        "object": object,
    }
    if kind == "object":
        return []
    if kind in simple:
        return problems(value, simple[kind], where)
    if match := re.fullmatch(r"[Ll]ist\[(.*)\]", kind):
        return problems(value, [match[1]], where)
    if match := re.fullmatch(r"[Dd]ict[\[(]str, (.*)[\])]", kind):
        return [
            p
            for name, one in value.items()
            for p in problems(one, match[1], f"{where}.{name}")
        ]
    model = getattr(client, kind)
    names = {their: ours for ours, their in model.attribute_map.items()}
    found = [f"{where}: {kind} has no {name}" for name in value if name not in names]
    required = {
        name
        for name, field in getattr(model, "model_fields", {}).items()
        if field.is_required()
    }
    found += [
        f"{where}: {kind} needs {model.attribute_map[name]}"
        for name in required
        if model.attribute_map[name] not in value
    ]
    for name, one in value.items():
        if name in names:
            found += problems(one, model.openapi_types[names[name]], f"{where}.{name}")
    return found
