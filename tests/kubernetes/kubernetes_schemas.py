"""What the published schemas allow, for a server that ignores unknown fields."""

import re

KINDS = {
    "Secret": "V1Secret",
    "Service": "V1Service",
    "NetworkPolicy": "V1NetworkPolicy",
    "Job": "V1Job",
}


SIMPLE = {
    "str": str,
    "bytes": str,
    "int": int,
    "bool": bool,
    "float": float,
}


def problems(value, kind, where=""):
    """Returns what is wrong with a value, by the types of the official client.

    Args:
        value: The value.
        kind: A type of the client, as it writes them.
        where: The path to the value.
    """
    from kubernetes import client

    if kind == "object":
        return []
    if kind in SIMPLE:
        is_one = type(value) is SIMPLE[kind]
        return [] if is_one else [f"{where}: {value!r} is no {kind}"]
    if match := re.fullmatch(r"[Ll]ist\[(.*)\]", kind):
        parts = [(f"{where}[{i}]", one, match[1]) for i, one in enumerate(value)]
    elif match := re.fullmatch(r"[Dd]ict[\[(]str, (.*)[\])]", kind):
        parts = [(f"{where}.{name}", one, match[1]) for name, one in value.items()]
    else:
        model = getattr(client, kind)
        types = {
            theirs: model.openapi_types[ours]
            for ours, theirs in model.attribute_map.items()
        }
        required = {
            model.attribute_map[name]
            for name, field in getattr(model, "model_fields", {}).items()
            if field.is_required()
        }
        return [
            *(f"{where}: {kind} has no {name}" for name in value if name not in types),
            *(f"{where}: {kind} needs {name}" for name in required - value.keys()),
            *(
                problem
                for name in value.keys() & types.keys()
                for problem in problems(value[name], types[name], f"{where}.{name}")
            ),
        ]
    return [problem for at, one, of in parts for problem in problems(one, of, at)]
