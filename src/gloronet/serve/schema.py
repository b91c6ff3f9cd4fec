"""The shapes of requests and answers, for OpenAPI."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel

from gloronet.serve.engine import About
from gloronet.serve.inputs import IMAGES, JSON, NPY
from gloronet.serve.problems import MEDIA


class Result(BaseModel):
    label: int
    class_: str
    prediction: int
    radius: float
    certified: bool
    logits: list[float | None]

    model_config = {"alias_generator": lambda name: name.rstrip("_")}


class Certified(BaseModel):
    """One result an input: no change smaller than `radius` alters `label`; `prediction` is −1 (⊥) unless radius > ε."""

    results: list[Result]
    epsilon: float
    norm: str
    semantics: str


class Model(BaseModel):
    name: str
    input_shape: list[int]
    input_range: list[float]
    classes: list[str]
    epsilon: float
    norm: str
    semantics: str
    digest: str
    engine: str
    version: str
    attack: bool
    samples: int


class Sample(BaseModel):
    index: int
    count: int
    label: int
    class_: str
    input: list[Any]

    model_config = {"alias_generator": lambda name: name.rstrip("_")}


class Adversary(BaseModel):
    label: int
    class_: str
    distance: float
    input: list[Any]

    model_config = {"alias_generator": lambda name: name.rstrip("_")}


class Attacked(BaseModel):
    """The nearest input found that is answered differently; its distance is never below `radius`."""

    label: int
    class_: str
    radius: float
    adversarial: Adversary | None

    model_config = {"alias_generator": lambda name: name.rstrip("_")}


def request_body(about: About, several: bool) -> dict[str, Any]:
    """What `inputs.parse` takes, with examples for this very net."""
    zeros: Any = 0.0
    for side in reversed(about.input_shape):
        zeros = [zeros] * side
    flat = [0.0] * math.prod(about.input_shape)
    examples = {"one": {"summary": "one input", "value": {"inputs": zeros, "epsilon": about.epsilon}}}
    if several:
        examples["many"] = {"summary": "two inputs, flat", "value": {"inputs": [flat, flat], "epsilon": "36/255"}}
    schema = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "inputs": {"type": "array", "items": {}, "description": f"in [0, 1], shape {list(about.input_shape)} each"},
            "epsilon": {"type": ["number", "string"], "description": f"the radius asked for; default {about.epsilon}"},
        },
    }
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = {JSON: {"schema": schema, "examples": examples}} | dict.fromkeys((*IMAGES, NPY), binary)
    parameters = [
        {"name": "epsilon", "in": "query", "schema": {"type": "string"}, "description": "for images and .npy bodies"},
        {"name": "resize", "in": "query", "schema": {"type": "boolean"}, "description": "fit an image to the net"},
    ]
    return {"requestBody": {"required": True, "content": content}, "parameters": parameters}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    fields = {"type": "string", "title": "string", "status": "integer", "detail": "string"}
    schema = {"type": "object", "properties": {name: {"type": kind} for name, kind in fields.items()}}
    return {status: {"description": "What is wrong.", "content": {MEDIA: {"schema": schema}}} for status in statuses}
