"""Validates objects against Kubernetes' published API, from the models of python3-kubernetes (22.6,
of 1.22)."""

import re

SCALARS = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}


def faults_of(value, kind, place):
    """Returns the unknown, mistyped and missing fields of an object of `kind`, by path."""
    from kubernetes.client import models  # imported here because it takes seconds

    inner = re.fullmatch(r"(list\[|dict\(str, )(.*)[\])]", kind)
    if inner and inner[1] == "list[":
        return [fault for i, item in enumerate(value) for fault in faults_of(item, inner[2], f"{place}[{i}]")]
    if inner:
        return [fault for key, item in value.items() for fault in faults_of(item, inner[2], f"{place}.{key}")]
    if kind in SCALARS:
        fits = isinstance(value, SCALARS[kind]) and (kind != "int" or not isinstance(value, bool))
        return [] if fits else [f"{place}: expected {kind}, got {value!r}"]
    model = getattr(models, kind)
    names = {field: name for name, field in model.attribute_map.items()}
    faults = []
    for field, item in value.items():
        if field not in names:
            faults.append(f"{place}.{field}: {kind} has no such field")
        else:
            faults += faults_of(item, model.openapi_types[names[field]], f"{place}.{field}")
    try:
        model(**{names[field]: item for field, item in value.items() if field in names})
    except ValueError as error:  # a required field
        faults.append(f"{place}: {error}")
    return faults
