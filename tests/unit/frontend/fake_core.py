"""The core's process with the echo model; the model's name may ask for a fault at the start."""

import ctypes
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from quire.core.batch import ModelOutput, SchedulerOutput
from quire.core.config import EngineConfig
from quire.core.errors import CheckpointError
from quire.core.messages import Ready
from quire.engine.core import EngineCore
from quire.engine.process import main
from tests.unit.engine.echo import EchoExecutor, load_echo


class EndlessExecutor(EchoExecutor):
    """Its steps wait in native code, for a lock that they have; the process is named "in-step"."""

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        library.prctl(15, b"in-step", 0, 0, 0)
        while True:
            library.pthread_mutex_lock(lock)


def load(config: EngineConfig) -> tuple[EngineCore, Ready]:
    match config.model_path:
        case "damaged":
            raise CheckpointError("tensor x is missing.", fix="Download it again.")
        case "bug":
            raise ZeroDivisionError("by zero")
        case "vanish":
            os._exit(3)
        case "hang":
            time.sleep(600)
        case "endless":
            core = EngineCore(config, EndlessExecutor())
            return core, core.ready()
    return load_echo(config)


sys.exit(main(sys.argv[1:], load, prepare=lambda: None, begin=lambda: None))
