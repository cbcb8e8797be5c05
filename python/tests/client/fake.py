"""A coordinator whose answers a test gives."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from milepost._client import schema

PATIENCE = 30


class Fake(grpc.GenericRpcHandler):
    """`answers` has a function of request and context for each method, or a list of them, one for
    each call; the last one answers all further calls. `calls` has what was asked."""

    def __init__(self, **answers):
        self.answers = {name.replace("_", "Service/", 1): one for name, one in answers.items()}
        self.calls = []
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.stop(0).wait()

    def requests(self, name):
        return [request for method, request in self.calls if method == name]

    def service(self, details):
        name = details.method.replace("/milepost.v1.", "")
        method = schema.METHODS[name]
        kind = (grpc.unary_stream_rpc_method_handler if method.streams
                else grpc.unary_unary_rpc_method_handler)
        return kind(lambda request, context: self._answer(name, request, context),
                    request_deserializer=method.request.FromString,
                    response_serializer=method.response.SerializeToString)

    def _answer(self, name, request, context):
        with self._lock:
            self.calls.append((name, request))
            answer = self.answers[name]
            if isinstance(answer, list):
                answer = answer.pop(0) if len(answer) > 1 else answer[0]
        return answer(request, context)


def refuse(code, text, /, **details):
    """An answer: details by type, such as ErrorInfo={...}."""
    def answer(_, context):
        status = schema.message("RpcStatus", code=grpc.StatusCode[code].value[0], message=text)
        for name, fields in details.items():
            detail = status.details.add()
            detail.type_url = "type.googleapis.com/google.rpc." + name
            detail.value = schema.message(name, **fields).SerializeToString()
        if details:
            context.set_trailing_metadata(
                (("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(grpc.StatusCode[code], text)
    return answer


def say(name, /, **fields):
    """An answer: a message."""
    return lambda request, context: schema.message(name, **fields)


def stream(*messages, then=None):
    """An answer: messages, and how the stream ends."""
    def answer(request, context):
        yield from messages
        if then is not None:
            then(request, context)
    return answer


def job(state="RUNNING", step=0, **fields):
    kind = schema.message("Job").DESCRIPTOR.fields_by_name["state"].enum_type
    made = schema.message("Job", state=schema.enum_numbers(kind)[state],
                          **{"name": "jobs/7", **fields})
    if step:
        made.progress.step = step
    return made


def line(sequence, seconds=1000, rank=0, text=None, dropped=0):
    made = schema.message("LogLine", job="jobs/7", sequence=sequence, rank=rank,
                          text=text or f"line {sequence}", dropped_lines=dropped)
    made.time.seconds = seconds
    return made


SPEC = {"name": "one", "script": {"command": ["true"]}}
GONE = refuse("UNAVAILABLE", "going away")
