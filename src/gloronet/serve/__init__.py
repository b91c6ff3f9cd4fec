"""A certified classifier behind HTTP, with a page to try it: `gloronet serve RUN | zoo:NAME | model.onnx`.

An `Engine` answers batches (onnxruntime on the exported graph, or torch); the `Batcher` puts requests that arrive
together into one batch; `application` is the HTTP face of both. What a request gets wrong is answered with a problem
document, and the service lives on. Importing this needs the extra `[serve]`.
"""

from gloronet.serve.app import application
from gloronet.serve.engine import About, Answer, Engine, OnnxEngine, TorchEngine
from gloronet.serve.limits import Limits
from gloronet.serve.server import Service, listening
from gloronet.serve.source import Served, open_served

__all__ = [
    "About",
    "Answer",
    "Engine",
    "Limits",
    "OnnxEngine",
    "Served",
    "Service",
    "TorchEngine",
    "application",
    "listening",
    "open_served",
]
