"""Quantize a checkpoint, one decoder layer in memory at a time."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from quire import __version__
from quire.checkpoint.weight_files import weight_files
from quire.core.dtypes import HostArray, converted, dtype_of
from quire.core.errors import ConfigError, UnsupportedModelError
from quire.models.layout import Layout
from quire.models.specs import linears
from quire.ops.providers import load_ops
from quire.quantize.calibration import Calibration, InputStatistics, Statistics
from quire.quantize.layer import fold_scales, linear_names, quantize_weight
from quire.quantize.recipe import Recipe, matches
from quire.quantize.samples import SELF, file_samples, own_samples
from quire.quantize.source import Part, Source
from quire.quantize.targets import Quantized, Target, target_of
from quire.quantize.work import Content, WorkFolder
from quire.quantize.write_compressed import write_compressed
from quire.quantize.write_gguf import gguf_metadata, write_gguf
from quire.system.blas import blas_threads
from quire.system.records import dataclass
from quire.text.tokenizers.tokenizer import load_tokenizer

Progress = Callable[[str, int, int], None]
"""Called with the current activity, the finished units and their total."""
_HEAD = "lm_head.weight"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of `quire quantize`.

    Attributes:
        output: the folder or .gguf file to write.
        calibration: a file of texts, or "self".
        num_samples: calibration texts.
        seqlen: maximum tokens of a text.
        max_shard_bytes: of a .safetensors file.
        num_threads: threads of the model's operations, of numpy's BLAS and of the engine that
            writes calibration texts. A job must be continued with the same number.
    """

    model: str
    output: Path
    recipe: Recipe
    calibration: str = SELF
    num_samples: int = 128
    seqlen: int = 512
    max_shard_bytes: int = 5 * 10**9
    num_threads: int = 1
    revision: str | None = None
    download_dir: str | None = None


def quantize(job: Job, progress: Progress) -> Path:
    """Do the job or continue it; the output appears only when it is complete.

    Raises:
        ConfigError: the flags do not fit the model or the existing files.
        CheckpointError, ModelNotFoundError: the model's files are damaged or missing.
    """
    _check_output(job)
    source = Source(job.model, job.revision, job.download_dir)
    run = _Run(job, source)
    run.check()
    work = WorkFolder(job.output, _identity(job, source))
    done = False
    try:
        with blas_threads(job.num_threads):
            run.layers(work, progress)
            run.write(work)
        done = True
    finally:
        work.close(done=done)
    progress("done", len(run.units), len(run.units))
    return job.output


class _Run:
    """Quantize the layers of one job, then the output projection.

    Attributes:
        units: names of the parts that are saved one by one, in order.
    """

    def __init__(self, job: Job, source: Source) -> None:
        self._recipe = job.recipe
        self._job = job
        self._source = source
        self._target: Target = target_of(job.recipe, dtype_of(source.config.dtype))
        self._num_layers = source.config.num_hidden_layers
        self.units = [unit_name(i) for i in range(self._num_layers)]
        if source.pieces(_HEAD) and not (job.recipe.is_gguf or job.recipe.ignores("lm_head")):
            self.units.append("head")

    def check(self) -> None:
        """Check before any work that the result can be written.

        Raises:
            ConfigError, UnsupportedModelError: it cannot; the message names the reason.
        """
        recipe, source = self._recipe, self._source
        if source.config.latent is not None and recipe.needs_calibration:
            raise UnsupportedModelError(
                f"{self._job.model} has latent attention, which cannot be calibrated yet.",
                fix="Round to nearest: --method rtn.",
                param="MODEL",
            )
        if source.config.qkv_by_head and recipe.method == "awq":
            raise UnsupportedModelError(
                f"{self._job.model} stores q, k and v head by head, which AWQ cannot change yet.",
                fix="Use --method gptq.",
                param="MODEL",
            )
        if recipe.is_gguf:
            gguf_metadata(source, recipe)
            self._check_stacks()
        elif source.found.kind == "gguf":
            raise ConfigError(
                f"{self._job.model} is GGUF, whose tokenizer safetensors cannot hold.",
                fix="Begin with the model's Hugging Face folder.",
                param="MODEL",
            )
        modules = {
            part.name.removesuffix(".weight"): part
            for index in range(self._num_layers)
            for name in linear_names(source.config, index)
            for part in source.pieces(name)
        }
        for word in recipe.ignore:
            if word != "lm_head" and not any(matches(word, module) for module in modules):
                raise ConfigError(f"--ignore {word} names no layer of it.", param="--ignore")
        for module, part in modules.items():
            if part.name == part.source and part.piece.transposed and not recipe.is_gguf:
                raise UnsupportedModelError(
                    f"{module} is stored transposed (Conv1D), which compressed-tensors cannot say.",
                    fix="Write a .gguf file.",
                )
            if not recipe.ignores(module):
                self._target.check(module, part.columns)

    def _check_stacks(self) -> None:
        """Check that the experts of each layer can be one tensor, as GGUF has them."""
        layers = Layout(self._source.config).layers
        for spec in (linear for layer in layers for linear in linears(layer)):
            parts = self._source.pieces(spec.name)
            kinds = len(parts) // spec.experts if spec.experts > 1 else 0
            for i in range(kinds):
                if len({self._ignores(part) for part in parts[i::kinds]}) > 1:
                    raise ConfigError(
                        f"--ignore names some experts of {spec.stem}, but GGUF stores all of them "
                        "in one tensor.",
                        fix="Name all or none.",
                        param="--ignore",
                    )

    def _ignores(self, part: Part) -> bool:
        return self._recipe.ignores(part.name.removesuffix(".weight"))

    def layers(self, work: WorkFolder, progress: Progress) -> None:
        """Quantize the units that `work` does not have yet, in order."""
        missing = [unit for unit in self.units if not work.has(unit)]
        if not missing:
            return
        calibration = self._calibration(work, progress)
        for index in range(self._num_layers):
            unit = unit_name(index)
            progress(f"layer {index}", index, len(self.units))
            if not work.has(unit):
                work.save(unit, *self._layer(index, calibration))
            if calibration is not None and unit != missing[-1]:
                calibration.advance(index, self._source.assemble(index, work.load(unit)))
        if "head" in missing:
            progress("lm_head", self._num_layers, len(self.units))
            work.save("head", self._head(calibration))

    def write(self, work: WorkFolder) -> None:
        """Write the checkpoint from the finished units in `work`."""
        content: Content = {}
        for unit in self.units:
            content |= work.load(unit)
            if unseen := work.unseen(unit):
                experts = ", ".join(map(str, unseen))
                _log.warning(
                    "%s: no calibration row reached experts %s; their weights are rounded to "
                    "nearest. More texts (--num-samples, --seqlen) may reach them.", unit, experts
                )  # fmt: skip
        output = self._job.output
        if self._recipe.is_gguf:
            path = work.path / output.name
            write_gguf(self._source, self._recipe, content, path)
            path.rename(output)
            return
        folder = work.clear_result()
        write_compressed(self._source, self._recipe, content, folder, self._job.max_shard_bytes)
        folder.rename(output)

    def _calibration(self, work: WorkFolder, progress: Progress) -> Calibration | None:
        if not self._recipe.needs_calibration:
            return None
        samples = work.samples()
        if samples is None:
            progress("calibration texts", 0, len(self.units))
            samples = _samples(self._job, self._source)
            work.keep_samples(samples)
        ops = load_ops(num_threads=self._job.num_threads)
        return Calibration(self._source.config, samples, self._source.embedding(), ops)

    def _layer(self, index: int, calibration: Calibration | None) -> tuple[Content, list[int]]:
        """Return a layer's tensors, and its experts that no calibration row reached."""
        source = self._source
        parameters = source.layer(index)
        statistics: Statistics = {}
        if calibration is not None:
            statistics = calibration.watch(index, parameters)
        if self._recipe.method == "awq":
            dtypes = {name: source.dtype(name) for name in parameters}
            fold_scales(source.config, index, parameters, statistics, self._target, dtypes)
        linear = {spec.name: spec for spec in linears(Layout(source.config).layers[index])}
        content: Content = {}
        for name, value in parameters.items():
            experts = max(1, linear[name].experts) if name in linear else 0
            content |= self._pieces(name, value, statistics.get(name, ()), experts)
        seen = max(statistics.values(), key=len, default=())
        return content, [i for i, inputs in enumerate(seen) if not inputs.tokens]

    def _head(self, calibration: Calibration | None) -> Content:
        source = self._source
        statistics: Sequence[InputStatistics] = ()
        if calibration is not None:
            norm = {name: source.read(name) for name in source.names() if name.startswith("norm.")}
            statistics = [calibration.watch_head(norm)]
        return self._pieces(_HEAD, source.read(_HEAD), statistics, 1)

    def _pieces(
        self, name: str, value: HostArray, statistics: Sequence[InputStatistics], experts: int
    ) -> Content:
        """Return the tensors of a parameter, quantized unless `ignore` names them.

        Args:
            statistics: of each expert's inputs; empty without calibration.
            experts: 1 of a linear layer; 0 of what is not quantized.
        """
        source, recipe = self._source, self._recipe
        content: Content = {}
        found: dict[int, Quantized] = {}
        height = len(value) // max(1, experts)
        for part in source.pieces(name):
            if not experts or self._ignores(part):
                rows = value[part.row : part.row + part.rows]
                content[part.name] = converted(rows, source.dtype(name))
                continue
            expert, row = divmod(part.row, height)
            if expert not in found:
                weight = value[expert * height : (expert + 1) * height]
                seen = statistics[expert] if statistics else None
                found[expert] = quantize_weight(weight, seen, self._target, recipe)
            content[part.name] = found[expert].rows(row, part.rows)
        return content


def unit_name(index: int) -> str:
    """Return the name of a decoder layer's file."""
    return f"layer-{index:05d}"


def _samples(job: Job, source: Source) -> list[list[int]]:
    length = min(job.seqlen, source.config.max_position_embeddings)
    if job.calibration == SELF:
        return own_samples(
            job.model, job.num_samples, length, num_threads=job.num_threads,
            revision=job.revision, download_dir=job.download_dir,
        )  # fmt: skip
    tokenizer = load_tokenizer(source.found.tokenizer_path, vocab_size=source.config.vocab_size)
    return file_samples(Path(job.calibration), tokenizer, job.num_samples, length)


def _check_output(job: Job) -> None:
    """Raises ConfigError unless the output can be created and does not exist yet."""
    output, scheme = job.output, job.recipe.scheme
    if (output.suffix == ".gguf") != job.recipe.is_gguf:
        wanted = "a .gguf file" if job.recipe.is_gguf else "a folder, which no .gguf file is"
        raise ConfigError(
            f"--scheme {scheme} writes {wanted}; --output is {output.name}.", param="--output"
        )
    if output.exists():
        raise ConfigError(
            f"{output} is there already.", fix="Remove it or name another.", param="--output"
        )
    if not output.absolute().parent.is_dir():
        raise ConfigError(
            f"{output.parent} is no folder.", fix="Make it, or name another.", param="--output"
        )


def _identity(job: Job, source: Source) -> dict[str, object]:
    """Return what identifies a job; errors use the keys."""
    own = asdict(job.recipe)
    ignored = own.pop("ignore")
    calibration: dict[str, object] = {}
    if job.recipe.needs_calibration:
        calibration = {
            "calibration": job.calibration,
            "num_samples": job.num_samples,
            "seqlen": job.seqlen,
            "num_threads": job.num_threads,
        }
    return {
        "version": __version__,
        "model": _fingerprint(source),
        "ignore": list(ignored),
        **own,
        **calibration,
    }


def _fingerprint(source: Source) -> str:
    """Hash the names, sizes and times of the model's files, and its configuration."""
    path = source.found.path
    assert path is not None, "a source has weights"
    files = [path] if path.is_file() else weight_files(path)
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    text = json.dumps([facts, source.found.config], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
