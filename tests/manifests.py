#!/usr/bin/env python3
"""Checks packaging/kubernetes/*.yaml with the schema of Kubernetes, in which unknown fields are errors.

Each run proves that it finds misspelt fields: every field is misspelt once, and must be refused.
`manifests.py rights` prints the daemon's capabilities, `manifests.py weir.toml` its file, for tests/image.sh.
"""

import copy
import json
import pathlib
import re
import sys

import jsonschema
import yaml

ROOT = pathlib.Path(__file__).parent.parent
SCHEMA = json.loads((ROOT / "tests/kubernetes-1.25.schema.json").read_text())
# Maps whose keys are free to choose.
FREE = {"labels", "matchLabels", "nodeSelector", "annotations", "data", "requests", "limits"}


class Strict(yaml.SafeLoader):
    """YAML in which duplicate keys are errors."""


def mapping(loader, node):
    keys = [key.value for key, _ in node.value]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise yaml.constructor.ConstructorError(None, None, f"given twice: {twice}", node.start_mark)
    return loader.construct_mapping(node, deep=True)


Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)


def fault(document):
    """Why Kubernetes would refuse it, or None."""
    name = f"{document.get('apiVersion')}/{document.get('kind')}"
    if name not in SCHEMA["kinds"]:
        return f"no such kind is known here: {name}"
    schema = {"$ref": f"#/$defs/{SCHEMA['kinds'][name]}", "$defs": SCHEMA["$defs"]}
    for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
        return f"{'.'.join(str(part) for part in error.path)}: {error.message}"
    return None


def misspelt(document):
    """For each field of the document: a copy with that field misspelt, and the field."""

    def walk(part, path):
        if isinstance(part, list):
            for index, item in enumerate(part):
                yield from walk(item, [*path, index])
        elif isinstance(part, dict) and not (path and path[-1] in FREE):
            for key, value in part.items():
                yield [*path, key]
                yield from walk(value, [*path, key])

    for path in walk(document, []):
        changed = copy.deepcopy(document)
        parent = changed
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1] + "s"] = parent.pop(path[-1])
        yield path, changed


def the(kind):
    return next(document for _, document in documents() if document["kind"] == kind)


def documents():
    for file in sorted((ROOT / "packaging/kubernetes").glob("*.yaml")):
        for document in yaml.load_all(file.read_text(), Loader=Strict):
            yield file.name, document


def rights():
    containers = the("DaemonSet")["spec"]["template"]["spec"]["containers"]
    return containers[0]["securityContext"]["capabilities"]["add"]


def check():
    fields = 0
    for file, document in documents():
        where = f"{file}: {document['kind']}"
        reason = fault(document)
        if reason:
            sys.exit(f"error: {where}: {reason}")
        for path, changed in misspelt(document):
            fields += 1
            if fault(changed) is None:
                sys.exit(f"error: {where}: this check would not find a misspelt {path}")
    unit = (ROOT / "packaging/weir.service").read_text()
    ambient = re.search(r"^AmbientCapabilities=(.*)$", unit, re.MULTILINE).group(1).split()
    if sorted(ambient) != sorted(f"CAP_{right}" for right in rights()):
        sys.exit(f"error: the DaemonSet has the rights {rights()}, and packaging/weir.service {ambient}")
    print(f"packaging/kubernetes: {fields} fields, each known to Kubernetes", file=sys.stderr)


match sys.argv[1:]:
    case []:
        check()
    case ["rights"]:
        print("\n".join(rights()))
    case ["weir.toml"]:
        print(the("ConfigMap")["data"]["weir.toml"], end="")
    case _:
        sys.exit("usage: tests/manifests.py [rights|weir.toml]")
