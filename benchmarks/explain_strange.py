"""Code of others inside a server's processes: the faults that nobody wrote a rule for."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

HERE = {"PYTHONPATH": "."}
"""The server's folder, from which Python takes `sitecustomize`."""
_HEAD = """
    import gc, importlib.abc, importlib.util, logging, os, sys, threading, time

    command = " ".join(sys.orig_argv)
    core = "quire.engine.process" in command and "stand-by" not in command
    api = " serve " in command

    def around(module, path, before):
        '''Call `before` before each call of a method.'''
        class Finder(importlib.abc.MetaPathFinder):
            def find_spec(self, name, paths, target=None):
                if name != module or self not in sys.meta_path:
                    return None
                sys.meta_path.remove(self)
                spec = importlib.util.find_spec(name)
                execute = spec.loader.exec_module
                def exec_module(loaded):
                    execute(loaded)
                    kind, name = path.split(".")
                    owner = getattr(loaded, kind)
                    method = getattr(owner, name)
                    def call(*args, **kwargs):
                        before()
                        return method(*args, **kwargs)
                    setattr(owner, name, call)
                spec.loader.exec_module = exec_module
                return spec
        sys.meta_path.insert(0, Finder())

    def spin(seconds):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
"""
CODES = {
    "sleeps": """
        if core:
            update = "quire.scheduler.scheduler", "Scheduler.update"
            around(*update, lambda: time.sleep(0.004))
    """,
    "computes": """
        if core:
            around("quire.scheduler.scheduler", "Scheduler.update", lambda: spin(0.004))
    """,
    "delays_streams": """
        if api:
            process = "quire.frontend.output.output_processor", "OutputProcessor.process"
            around(*process, lambda: time.sleep(0.01))
    """,
    "telemetry": """
        def loop():
            while True:
                pass
        if core:
            threading.Thread(target=loop, name="telemetry", daemon=True).start()
    """,
    "collects": """
        def loop():
            while True:
                gc.collect()
                time.sleep(0.05)
        if core:
            kept = [[n] for n in range(600_000)]
            threading.Thread(target=loop, daemon=True).start()
    """,
    "tokenizer_sleeps": """
        if "tokenizer_worker" in command:
            import quire.text.chat as chat
            render = chat.chat_to_token_ids
            chat.chat_to_token_ids = lambda *a, **k: (time.sleep(0.08), render(*a, **k))[1]
    """,
}


def customized(name: str) -> Callable[[Path], tuple[str, ...]]:
    """Return what writes this code as `sitecustomize.py`."""

    def prepare(folder: Path) -> tuple[str, ...]:
        code = textwrap.dedent(_HEAD) + textwrap.dedent(CODES[name])
        (folder / "sitecustomize.py").write_text(code)
        return ()

    return prepare
