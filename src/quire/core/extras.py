"""Packages that `pip install quire` leaves out, and the extras that install them."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError

_EXTRAS = {
    "PIL": "images",
    "matplotlib": "plot",
    "opentelemetry.exporter.otlp.proto.http": "otel",
    "optuna": "tune",
    "ray": "ray",
    "torch": "torch",
    "triton": "gpu",
    "xxhash": "xxhash",
    "zmq": "zmq",
}
"""Module → extra."""


def require(module: str, user: str, param: str | None = None) -> None:
    """Check that the module of an extra is installed; import at most its parents.

    Args:
        user: what needs it, for example "--ops reference".
        param: the field to blame.

    Raises:
        ConfigError: it is not installed.
    """
    if not installed(module):
        raise ConfigError(
            f"{user} needs {module.partition('.')[0]}, which is not installed.",
            fix=f"Install it: pip install 'quire[{_EXTRAS[module]}]'.",
            param=param,
        )


def installed(module: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent is missing
        return False


def version_of(package: str) -> str | None:
    """Return a package's version, without importing it; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_output(path: Path | None, flag: str) -> None:
    """Check before long work that a result can be written; create its folder. None is no file.

    Raises:
        ConfigError: it cannot.
    """
    if path is None:
        return
    why = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"its folder cannot be created ({error.strerror})"
    else:
        if path.is_dir():
            why = "it is a folder"
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            why = "no permission"
    if why is not None:
        raise ConfigError(f"{flag} {path} cannot be written: {why}.", param=flag)


def check_picture(path: Path | None, flag: str) -> None:
    """Check before long work that a picture can be drawn; see `check_output`.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    if path is not None:
        require("matplotlib", flag)
        check_output(path, flag)


def log_axis(axes: Any) -> None:
    """Make the horizontal axis logarithmic, labelled with plain numbers."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):  # LogFormatter itself writes 0.56 and 0.57 as 6e-01
        def __call__(self, x: float, pos: Any = None) -> str:
            return f"{x:.3g}" if super().__call__(x, pos) else ""

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(Plain())
    axes.xaxis.set_minor_formatter(Plain(labelOnlyBase=False))


def new_figure(flag: str, width: float, height: float, title: str) -> Any:
    """Return an empty figure; sizes in inches.

    Args:
        flag: what asks for it.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    require("matplotlib", flag)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=10)
    return figure


def write_figure(path: Path, figure: Any) -> Path:
    """Write a PNG.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        figure.savefig(path, format="png", dpi=110)
    except OSError as error:
        raise ConfigError(f"The picture {path} cannot be written: {error.strerror}.") from None
    return path
