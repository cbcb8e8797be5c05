"""Lets Milepost see where a rank's Python programs are, should the job fail or hang.

Python imports this module when it starts, because PYTHONPATH has its folder. It does nothing but
in a rank of a job (MILEPOST_POSITION_FOLDER is set there). There every Python process

- writes the stacks of its threads to <pid>.stacks when it gets a signal (faulthandler), and the
  stack of the exception that ends it;
- writes what torch.distributed has recorded of its collective calls to <pid>.collectives: when
  somebody opens the FIFO <pid>.ask, and when an exception ends it. That needs a thread, which
  begins when torch.distributed is imported, and never otherwise.

worker/script/rank_position.h reads these files. A failure in here never reaches the program.
"""
import os
import sys

_C10D = "torch.distributed.distributed_c10d"


class _Positions:
    def __init__(self, folder):
        import atexit
        import faulthandler
        import signal

        self.owner = os.getpid()
        self.path = os.path.join(folder, str(self.owner))
        self.stacks = open(self.path + ".stacks", "a")
        # Of the real-time signals, which no program gets by chance. kStacksSignal is the same.
        faulthandler.register(signal.SIGRTMAX - 2, file=self.stacks, all_threads=True)
        atexit.register(self.end)
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        """An importer that finds nothing: it only learns that torch.distributed is wanted."""
        if name == _C10D:
            sys.meta_path.remove(self)
            self.begin_answers()
        return None

    def begin_answers(self):
        import threading

        try:
            os.mkfifo(self.path + ".ask", 0o600)
            threading.Thread(target=self.answer, name="milepost", daemon=True).start()
        except (OSError, RuntimeError):
            pass

    def answer(self):
        try:
            while True:
                with open(self.path + ".ask", "rb") as asked:  # waits for somebody to open it
                    asked.read()
                self.write_collectives(ended=False)
        except OSError:  # the folder has gone
            pass

    def write_collectives(self, ended):
        c10d = getattr(sys.modules.get(_C10D), "__dict__", {})
        if "_world" not in c10d:  # it is still being imported
            return
        import time

        records = [b'{"time_ns":%d,"ended":%s' % (time.time_ns(), b"true" if ended else b"false")]
        for backend in ("gloo", "nccl"):
            record = _record(backend)
            if record:
                records.append(b'"%s":%s' % (backend.encode(), record))
        part = self.path + ".part"
        with open(part, "wb") as file:
            file.write(b",".join(records) + b"}")
        os.rename(part, self.path + ".collectives")

    def end(self):
        """At the end of the process: what is of use when an exception has ended it."""
        if os.getpid() != self.owner:  # a fork
            return
        try:
            trace = getattr(sys, "last_traceback", None)
            if trace is None:
                for kind in (".stacks", ".ask", ".collectives"):
                    if os.path.exists(self.path + kind):
                        os.remove(self.path + kind)
                return
            self.write_exception(trace)
            if _C10D in sys.modules:
                self.write_collectives(ended=True)
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
