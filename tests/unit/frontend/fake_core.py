"""The core's process with the echo model; the model's name may ask for a fault at the start."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from quire.core.config import EngineConfig
from quire.core.errors import CheckpointError
from quire.core.messages import Ready
from quire.engine.core import EngineCore
from quire.engine.process import main
from tests.unit.engine.echo import load_echo


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
    return load_echo(config)


sys.exit(main(sys.argv[1:], load, prepare=lambda: None, begin=lambda: None))
