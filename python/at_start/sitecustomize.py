"""Lets Milepost see where a rank's Python programs are, should the job fail or hang.

Python imports this module when it starts, because PYTHONPATH begins with its folder. It does
nothing but in a rank of a job (MILEPOST_POSITION_FOLDER is set there). There every Python process

- writes the stacks of its threads to <pid>.stacks when it gets a signal (faulthandler), and the
  stack of the exception that ends it;
- writes what torch.distributed has recorded of its collective calls to <pid>.collectives: when
  somebody opens the FIFO <pid>.ask, and at its end. The first needs a thread, which begins when
  torch.distributed is imported, and never otherwise.

worker/script/position reads these files. A failure in here never reaches the program.
"""
import os
import sys

_C10D = "torch.distributed.distributed_c10d"


class _Positions:
    def __init__(self, folder):
        import atexit
        import faulthandler
        import signal

        # Of the real-time signals, which no program gets by chance. StacksSignal() is the same.
        number = signal.SIGRTMAX - 2
        signal.signal(number, signal.SIG_DFL)  # raises in sub-interpreters: they have no part
        self.owner = os.getpid()
        self.answers = False
        self.path = os.path.join(folder, str(self.owner))
        self.stacks = open(self.path + ".stacks", "a", encoding="utf-8", errors="backslashreplace")
        faulthandler.register(number, file=self.stacks, all_threads=True)
        atexit.register(self.end)
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        """An importer that finds nothing: it only learns that torch.distributed is wanted.

        It stays: who removes an importer meanwhile has Python skip the next one.
        """
        if name == _C10D and not self.answers and os.getpid() == self.owner:
            self.answers = True
            try:
                self.begin_answers()
            except Exception:
                pass
        return None

    def begin_answers(self):
        import threading

        if os.path.exists(self.path + ".ask"):  # of this process before it ran another program
            os.remove(self.path + ".ask")
        os.mkfifo(self.path + ".ask", 0o600)
        threading.Thread(target=self.answer, name="milepost", daemon=True).start()

    def answer(self):
        while True:
            try:
                with open(self.path + ".ask", "rb") as asked:  # waits for somebody to open it
                    asked.read()
            except OSError:  # the folder has gone
                return
            try:
                self.write_collectives(failed=False)
            except Exception:
                pass

    def write_collectives(self, failed):
        c10d = getattr(sys.modules.get(_C10D), "__dict__", {})
        if "_world" not in c10d:  # it is still being imported
            return
        import time

        flag = b"true" if failed else b"false"
        records = [b'{"time_ns":%d,"failed":%s' % (time.time_ns(), flag)]
        for backend in ("gloo", "nccl"):
            record = _record(backend)
            if record:
                records.append(b'"%s":%s' % (backend.encode(), record))
        part = self.path + ".part"
        with open(part, "wb") as file:
            file.write(b",".join(records) + b"}")
        os.rename(part, self.path + ".collectives")

    def end(self):
        """At the end of the process. What it leaves is read only if the rank has failed."""
        if os.getpid() != self.owner:  # a fork
            return
        trace = getattr(sys, "last_traceback", None)
        try:
            if trace is not None:
                self.write_exception(trace)
            else:
                os.remove(self.path + ".stacks")
        except Exception:
            pass
        try:
            if _C10D in sys.modules:
                self.write_collectives(failed=trace is not None and _is_in_a_call(trace))
                os.remove(self.path + ".ask")
        except Exception:
            pass

    def write_exception(self, trace):
        import traceback

        self.stacks.write("Thread 0x0 (most recent call first):\n")
        for frame, line in reversed(list(traceback.walk_tb(trace))):
            code = frame.f_code
            self.stacks.write(
                '  File "%s", line %d in %s\n' % (code.co_filename, line, code.co_name))
        self.stacks.flush()


def _is_in_a_call(trace):
    """Whether the exception came out of a collective call, or a backward pass that makes some."""
    import traceback

    for frame, _ in traceback.walk_tb(trace):
        code = frame.f_code
        if "torch/distributed/" in code.co_filename or code.co_name == "_engine_run_backward":
            return True
    return False


def _record(backend):
    """What PyTorch's flight recorder has, as JSON. None: this PyTorch has none for the backend."""
    try:
        from torch._C import _distributed_c10d as c10d

        if hasattr(c10d, "_dump_fr_trace_json"):
            return c10d._dump_fr_trace_json(True, False, backend)
        return c10d._dump_nccl_trace_json(True, False) if backend == "nccl" else None
    except (AttributeError, ImportError, RuntimeError, TypeError):
        return None


def _next_sitecustomize():
    """Runs the one that Python would have found without this one."""
    import importlib.machinery
    import importlib.util

    own = os.path.dirname(os.path.abspath(__file__))
    places = [place for place in sys.path if os.path.abspath(place) != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("MILEPOST_POSITION_FOLDER"):
    try:
        _Positions(os.environ["MILEPOST_POSITION_FOLDER"])
    except Exception:
        pass
_next_sitecustomize()
