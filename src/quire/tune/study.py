"""Measurements on disk, as an Optuna study. A killed search loses only the load in progress.

Optuna stores the journal, and `optuna-dashboard` shows it. `search` decides which configuration is
next. A measurement is one line of the journal, synced when it is written.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from quire.core.errors import ConfigError, QuireError
from quire.core.extras import require
from quire.tune.objective import Measure, Measurement
from quire.tune.search import Bench, Trial
from quire.tune.space import Configuration, Space, key

if TYPE_CHECKING:
    import optuna

_JOURNAL = "study.log"
_RUN = "run "
_CONFIGURATION = "configuration"
_FAILURE = "failure"
FREE = {"gpu_memory_utilization"}
"""Fields whose values are found, not chosen from a list."""


class _Stored:
    """A trial in the journal."""

    def __init__(self, trial: optuna.trial.FrozenTrial) -> None:
        attributes = trial.user_attrs
        found = [value for name, value in attributes.items() if name.startswith(_RUN)]
        runs = [msgspec.convert(value, Measurement) for value in found]
        self.runs = {run.rate: run for run in runs}
        self.failure: str | None = attributes.get(_FAILURE)
        self.is_finished = trial.state.is_finished()
        self.number = trial.number
        self.trial_id = trial._trial_id


class Study:
    """The measurements of one objective on one workload, model and space.

    Args:
        folder: created if it does not exist.
        settings: what the measurements depend on, other than the configuration. A folder with other
            settings is refused.
        space: the fields and all their values.

    Raises:
        ConfigError: Optuna is not installed, or the folder cannot be created, is in use or has
            other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], space: Space) -> None:
        optuna = _import_optuna()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("w")
        except OSError as error:
            raise ConfigError(
                f"--study {folder} cannot be written: {error.strerror}.", param="--study"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._load(optuna, folder, settings, space)
        except BlockingIOError:
            self.close()
            raise ConfigError(
                f"Another `quire tune` is using {folder}.",
                fix="Wait until it ends, or name another folder with --study.",
                param="--study",
            ) from None
        except BaseException:
            self.close()
            raise

    def _load(self, optuna: Any, folder: Path, settings: Mapping[str, Any], space: Space) -> None:
        """Open the journal, or create it."""
        journal = folder / _JOURNAL
        _drop_torn_line(journal)
        backend = optuna.storages.journal.JournalFileBackend(str(journal))
        self._study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            sampler=optuna.samplers.RandomSampler(),
            study_name="quire tune",
            direction="maximize",
            load_if_exists=True,
        )
        self._distributions = {
            name: optuna.distributions.FloatDistribution(0.0, 1.0)
            if name in FREE
            else optuna.distributions.CategoricalDistribution(values)
            for name, values in space.items()
        }
        self._check(folder, {**settings, "space": space})
        self._stored = {
            trial.user_attrs[_CONFIGURATION]: _Stored(trial)
            for trial in self._study.get_trials(deepcopy=False)
        }
        self.resumed = sum(len(stored.runs) for stored in self._stored.values())
        """Number of earlier measurements."""

    def close(self) -> None:
        """Release the folder for others."""
        self._lock.close()

    def note(self, name: str) -> Any:
        """Return a value stored with `set_note`; None if there is none."""
        return self._study.user_attrs.get(name)

    def set_note(self, name: str, value: Any) -> None:
        """Store a JSON value with the measurements."""
        self._study.set_user_attr(name, value)

    def bench(self, real: Bench) -> Bench:
        """Wrap `real`: return earlier measurements and failures without a server."""

        @contextmanager
        def remembered(configuration: Configuration) -> Iterator[Measure]:
            stored = self._open(configuration)
            with ExitStack() as stack:
                server: list[Measure] = []

                def measure(rate: float) -> Measurement:
                    if rate in stored.runs:
                        return stored.runs[rate]
                    if stored.failure is not None:
                        raise QuireError(stored.failure)
                    try:
                        if not server:
                            server.append(stack.enter_context(real(configuration)))
                        found = server[0](rate)
                    except QuireError as error:
                        stored.failure = str(error)
                        self._set(stored, _FAILURE, stored.failure)
                        raise
                    self._set(stored, f"{_RUN}{len(stored.runs)}", msgspec.to_builtins(found))
                    stored.runs[rate] = found
                    return found

                yield measure

        return remembered

    def finish(self, trial: Trial) -> None:
        """Store a trial's result, unless it has one."""
        from optuna.trial import TrialState

        stored = self._open(trial.configuration)
        if stored.is_finished:
            return
        if trial.best is not None:
            self._study.tell(stored.number, trial.goodput)
        else:
            state = TrialState.PRUNED if trial.runs else TrialState.FAIL
            self._study.tell(stored.number, state=state)
        stored.is_finished = True

    def _open(self, configuration: Configuration) -> _Stored:
        """Return the configuration's trial, creating it if needed."""
        import optuna

        name = key(configuration)
        if name not in self._stored:
            self._study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState.RUNNING,
                    params=configuration,
                    distributions=self._distributions,
                    user_attrs={_CONFIGURATION: name},
                )
            )
            self._stored[name] = _Stored(self._study.get_trials(deepcopy=False)[-1])
        return self._stored[name]

    def _set(self, stored: _Stored, name: str, value: Any) -> None:
        import optuna

        optuna.trial.Trial(self._study, stored.trial_id).set_user_attr(name, value)

    def _check(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Store the settings of a new study; refuse one with other settings."""
        plain = msgspec.json.decode(msgspec.json.encode(_spelled(settings)))
        known = self._study.user_attrs.get("settings")
        if known is None:
            self._study.set_user_attr("settings", plain)
        elif known != plain:
            changed = sorted(n for n in {*known, *plain} if known.get(n) != plain.get(n))
            raise ConfigError(
                f"The study in {folder} has another {', '.join(changed)}, so its measurements do "
                "not apply.",
                fix="Name another folder with --study, or delete this one.",
                param="--study",
            )


def _spelled(value: Any) -> Any:
    """Return infinity as text, because JSON has no number for it."""
    if isinstance(value, Mapping):
        return {name: _spelled(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    return "inf" if value == float("inf") else value


def _drop_torn_line(journal: Path) -> None:
    """Remove an incomplete last line from a journal."""
    if not journal.exists():
        return
    data = journal.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with journal.open("r+b") as file:
            file.truncate(whole)


def _import_optuna() -> Any:
    require("optuna", "`quire tune`")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
