"""The chart of deploy/helm, rendered without Helm."""

import copy
import os

import yaml

from deploy_files import ROOT, read
from go_template import Template

CHART = os.path.join("deploy", "helm", "ovq-server")


def default_values():
    return yaml.safe_load(read(CHART, "values.yaml"))


def with_changes(values, changes):
    """Returns `values` with `changes` applied as Helm does it: objects are merged, all else is
    replaced."""
    merged = copy.deepcopy(values)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = with_changes(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def render(changes=None, release="ovq-server"):
    """Renders the chart's templates: {file: text} of those that are not empty."""
    folder = os.path.join(ROOT, CHART, "templates")
    template = Template({name: read(CHART, "templates", name) for name in sorted(os.listdir(folder))})
    context = {"Values": with_changes(default_values(), changes or {}),
               "Release": {"Name": release, "Namespace": "default"}}
    texts = {name: template.render(name, context).lstrip("\n") for name in sorted(os.listdir(folder))}
    return {name: text for name, text in texts.items() if text.strip()}


def objects_of(texts):
    """Parses the texts of `render`: {(kind, name): object}."""
    return {(item["kind"], item["metadata"]["name"]): item for name, text in texts.items()
            if name.endswith(".yaml") for item in yaml.safe_load_all(text)}
