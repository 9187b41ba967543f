"""Checkpoints: a fit that was stopped continues, bit for bit.

A checkpoint is a folder with the arrays of the last state, ``state-<n>.npz`` after n
epochs, and ``manifest.json``: the estimator, its parameters, hashes of the data, the
random state at the start, what was chosen, and the state, in which a name stands for
each array. What is chosen and measured before the first epoch is computed again, from
the same random state.

A file is written under another name, flushed to disk and renamed. The manifest comes
last; then the previous state is removed: there is always one complete state.

scikit-learn's callbacks cannot do this: they get the fitted attributes of an iteration,
but not the state of the solver, and cannot restore it.
"""

import hashlib
import json
import math
import os
import pickle
import re
import sys
import time
import types
import zipfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path

import joblib
import numpy as np
import scipy.sparse
from array_api_compat import is_array_api_obj, is_numpy_array

from ..arrays.array import location_of, plain, to_numpy
from ..methods.descent import Walk
from ..methods.projected import Iterate
from ..methods.state import State
from ..methods.step_search import StepTrials
from ..methods.stochastic import Expansion
from ..plan.parameters import is_auto
from ..rows.lazy_rows import StoredRows, in_memory, is_lazy
from .planning import plan_of
from .validation import check_flag, check_number, replaced_parameters, warn_user

_MANIFEST = "manifest.json"
# Classes that occur in states, besides numbers, lists, dicts and arrays.
_CLASSES = {cls.__name__: cls for cls in (Expansion, Iterate, State, StepTrials, Walk)}
# Names of states, entries of a manifest, and errors of those that have another form.
_STATE = r"state-[0-9]{1,15}\.npz"
_KINDS = {"eigenkern": str, "estimator": str, "parameters": dict, "data": dict}
_KINDS |= {"rng": dict, "chosen": dict, "state": None}
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_MALFORMED += (RecursionError, StopIteration)
# Bytes for what is saved of an epoch, or of a block of random features, besides its
# numbers: a block of one frequency took 0.8 kB in both files.
_PART_BYTES = 4096
# Entry of the manifest if the rows of a file were not held in memory.
_READ_AT_ONCE = "the number of rows of X read at once"


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a fit writes what it needs to continue.

    Parameters
    ----------
    folder : str or path
        A folder of its own for each fit; created if it does not exist.
    seconds : float, default=60
        Minimum time between two checkpoints. They are written after an epoch, and
        always after the last one.
    epochs : int, default=None
        Number of epochs after which to write one even if less time has passed.

    See Also
    --------
    EigenProRegressor.fit : Takes it, or only a folder, as `checkpoint`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from sklearn.datasets import load_diabetes
    >>> from eigenkern import Checkpoint, EigenProRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = EigenProRegressor(algorithm="eigenpro2", random_state=0)
    >>> with TemporaryDirectory() as folder:
    ...     checkpoint = Checkpoint(folder, epochs=5)
    ...     model = model.fit(X, y, checkpoint=checkpoint, resume=True)
    """

    folder: str | os.PathLike
    seconds: float = 60
    epochs: int | None = None

    def __post_init__(self):
        if not isinstance(self.folder, str | os.PathLike):
            raise ValueError(f"folder must be a path of a folder; got {self.folder!r}")
        check_number("seconds", self.seconds, 0)
        if self.epochs is not None:
            check_number("epochs", self.epochs, 1, integer=True)


def open_keeper(checkpoint, resume, estimator, data):
    """Return the `Keeper` of a fit, or None if it has no checkpoints."""
    check_flag("resume", resume)
    if checkpoint is None:
        if resume:
            raise ValueError(
                "resume=True needs a checkpoint to continue from; got None"
            )
        return None
    if isinstance(checkpoint, str | os.PathLike):
        checkpoint = Checkpoint(checkpoint)
    if not isinstance(checkpoint, Checkpoint):
        raise ValueError(
            "checkpoint must be None, the path of a folder or an "
            f"eigenkern.Checkpoint; got {checkpoint!r}"
        )
    return Keeper(checkpoint, resume, estimator, data)


class Keeper:
    """Writes the checkpoints of a fit, and reads the one to continue from.

    The estimator has checked parameters and is not yet fitted. The attribute `data` is
    what was given, but with the random state of the fit to continue; rows of a file are
    in memory if they were then.

    Raises a ValueError if the folder holds a checkpoint but `resume` is False, one of
    another fit, or anything else, and an OSError if it cannot be written.
    """

    def __init__(self, checkpoint, resume, estimator, data):
        self._checkpoint, self._folder = checkpoint, Path(checkpoint.folder)
        self._most_bytes = _most_bytes(estimator, data) if resume else 0
        found = self._found(resume)
        if found is not None:
            with self._reading(_MANIFEST):
                data = replace(data, X=_rows_as_in(found["data"], data.X))
        made_of = {
            "eigenkern": sys.modules[__package__.partition(".")[0]].__version__,
            "estimator": type(estimator).__name__,
            "parameters": {
                name: _text_of(value)
                for name, value in estimator.get_params(deep=False).items()
                if name != "verbose"
            },
            "data": _texts_of_data(estimator, data),
        }
        self._chosen, self._state, self._arrays = {}, None, {}
        if found is None:
            self._manifest = made_of | {"rng": data.rng.get_state(legacy=False)}
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._write_manifest(None)
            except OSError as error:
                raise self._unusable("write", error) from error
        else:
            self._check(found, made_of)
            self._manifest = made_of | {"rng": found["rng"]}
            self._chosen, self._state = found["chosen"], found["state"]
            if self._state is not None:
                self._arrays = self._read_arrays()
            if estimator.random_state is None:  # leave NumPy's global state alone
                data = replace(data, rng=np.random.RandomState())
            with self._reading(_MANIFEST):
                _set_random_state(data.rng, found["rng"])
        self.data = data
        self._n_epochs, self._seconds = 0, time.monotonic()
        self._continues = self._state is not None

    def _found(self, resume):
        """Return the manifest of the checkpoint in the folder, or None."""
        where = f"checkpoint={str(self._folder)!r}"
        try:
            names = sorted(os.listdir(self._folder))
            if _MANIFEST not in names:
                foreign = [name for name in names if name != _MANIFEST + ".tmp"]
                if not foreign:
                    return None
                raise ValueError(
                    f"{where} must be a new or empty folder, or one with a whole "
                    f"checkpoint; got {foreign[0]!r} in it and no {_MANIFEST}"
                )
            if not resume:
                raise ValueError(
                    f"{where} holds a checkpoint already: pass resume=True to continue "
                    "from it, or another folder; nothing in it was changed"
                )
            with self._reading(_MANIFEST):
                found = json.loads(self._path(_MANIFEST).read_bytes())
                if found.pop("checksum") == joblib.hash(_json(found)):
                    kinds = {name: type(value) for name, value in found.items()}
                    if kinds | {"state": None} == _KINDS:
                        return found
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable("read", error) from error
        raise self._damaged(_MANIFEST)

    def _path(self, name):
        """Return the path of a file: no device, no link, and no larger than a state."""
        path = self._folder / name
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise self._damaged(name)
        if path.exists() and path.stat().st_size > self._most_bytes:
            raise self._damaged(name)
        return path

    @contextmanager
    def _reading(self, name):
        """Return a context in which content that has another form is damage."""
        try:
            yield
        except _MALFORMED as error:
            raise self._damaged(name) from error

    @contextmanager
    def continuing(self):
        """Return a context of a step of the fit, which fails if the state is damaged.

        A state is not checked value by value.
        """
        try:
            yield
        except ValueError:  # it may be of the data
            raise
        except _MALFORMED as error:
            if not self._continues:
                raise
            raise self._damaged(_MANIFEST) from error

    def _check(self, found, made_of):
        """Raise a ValueError unless a checkpoint belongs to this fit."""
        there, here = (
            {
                "the version of eigenkern": one["eigenkern"],
                "the estimator": one["estimator"],
                **one["parameters"],
                **one["data"],
            }
            for one in (found, made_of)
        )
        for name in there | here:
            if there.get(name) != here.get(name):
                raise ValueError(
                    f"checkpoint={str(self._folder)!r} is of another fit: {name} is "
                    f"{there.get(name)} there and {here.get(name)} here; pass what it "
                    "was made with, or another folder"
                )

    def _read_arrays(self):
        """Return the arrays of the state by name."""
        with self._reading(_MANIFEST):
            name, checksum = self._state["file"], self._state["checksum"]
            name = re.fullmatch(_STATE, name)[0]
        path = self._path(name)
        try:
            if _hash_of_file(path) != checksum:
                raise self._damaged(name)
            with self._reading(name):
                _check_members(path, self._most_bytes)
                with np.load(path, allow_pickle=False) as arrays:
                    return dict(arrays)
        except (OSError, EOFError, zipfile.BadZipFile) as error:
            raise self._damaged(name) from error

    def _damaged(self, name):
        return ValueError(
            f"checkpoint={str(self._folder)!r} is damaged: {name} is missing or not as "
            "it was written; pass another folder to begin anew. Nothing in it was "
            "changed"
        )

    def _unusable(self, verb, error):
        reason = error.strerror or str(error)
        text = f"checkpoint={str(self._folder)!r}: cannot {verb} this folder: {reason}"
        return OSError(text) if error.errno is None else OSError(error.errno, text)

    def within(self, name):
        """Return the `Checkpoint` of a fit within this one, in a folder inside."""
        return replace(self._checkpoint, folder=self._folder / name)

    def prepare(self, estimator, data):
        """Return ``estimator._prepare(data)`` with the sizes that the checkpoint has.

        Warns if another choice differs from that in the checkpoint.
        """
        # These may depend on the machine's cores and memory.
        sizes = {
            name: self._chosen[f"{name}_"]
            for name in ("batch_size", "block_size")
            if self._chosen.get(f"{name}_") is not None
            and is_auto(getattr(estimator, name, None))
        }
        with self._reading(_MANIFEST):
            for name, size in sizes.items():
                check_number(name, size, 1, integer=True)
        with replaced_parameters(estimator, sizes):
            prepared = estimator._prepare(data)
        chosen = {
            name: plain(value)
            for name, value in prepared[2].items()
            if isinstance(plain(value), float | int | str) and name != "max_batch_size_"
        }
        before = self._chosen
        # As texts, because NaN is not equal to itself.
        others = sorted(k for k in chosen if repr(chosen[k]) != repr(before.get(k)))
        if before and others:
            warn_user(
                f"{type(estimator).__name__} continues from a checkpoint, but not bit "
                f"for bit: this machine chose another {', '.join(others)}",
            )
        self._problem, self._chosen = prepared[0], chosen
        return prepared

    def set_aside(self, name):
        """Warn if a closed form, which needs no keeper, leaves a checkpoint unused."""
        if self._state is not None:
            warn_user(
                f"{name} does not continue from the checkpoint: this machine now "
                "solves the problem in closed form, without iterations"
            )

    def resume(self, solver, rule):
        """Bring solver and rule to the state of the checkpoint.

        Returns the number of epochs done; `max_iter` if the fit was finished.
        """
        state, arrays, problem = self._state, self._arrays, self._problem
        if state is None:
            return 0
        for name in arrays:
            if name.startswith("device"):
                arrays[name] = problem.xp.asarray(arrays[name], device=problem.device)
        with self._reading(_MANIFEST):
            saved = _from_tree(state["tree"], arrays)
            rule.load(saved["rule"])
            for values in (rule.losses, rule.scores or rule.losses):
                if np.asarray(values, dtype=float).shape != (len(rule.losses),):
                    raise ValueError("not a number for each epoch")
            if not state["over"]:
                solver.load(saved["solver"])
            _set_random_state(self.data.rng, saved["rng"])
        self._state = self._arrays = None
        self._n_epochs = len(rule.losses)
        return rule.max_iter if state["over"] else self._n_epochs

    def keep(self, solver, rule, over):
        """Write a checkpoint after an epoch, if one is due or it was the last epoch."""
        every, n = self._checkpoint.epochs, len(rule.losses)
        due = every is not None and n - self._n_epochs >= every
        waited = time.monotonic() - self._seconds
        if not (over or due or waited >= self._checkpoint.seconds):
            return
        try:
            self._write_state(solver, rule, over)
        except OSError as error:
            warn_user(
                f"{self._unusable('write', error)}; the fit continues, and "
                "the last whole checkpoint is kept",
                RuntimeWarning,
            )
        self._n_epochs, self._seconds = n, time.monotonic()

    def _write_state(self, solver, rule, over):
        saved = {
            "rule": rule.save(),
            "solver": None if over else solver.save(),
            "rng": self.data.rng.get_state(legacy=False),
        }
        tree, arrays = _to_tree(saved)
        arrays = {key: to_numpy(array) for key, array in arrays.items()}
        self._remove_others()  # perhaps one that a full disk left without a manifest
        n = len(rule.losses)
        name = f"state-{n}.npz"
        self._write(name, lambda file: np.savez(file, **arrays))
        state = {"file": name, "n_epochs": n, "over": over, "tree": tree}
        state["checksum"] = _hash_of_file(self._folder / name)
        self._write_manifest(state)
        self._remove_others()

    def _remove_others(self):
        """Remove states that the manifest does not name."""
        with suppress(OSError):
            state = json.loads((self._folder / _MANIFEST).read_bytes())["state"]
            for path in self._folder.glob("state-*"):
                if state is None or path.name != state["file"]:
                    path.unlink()

    def _write_manifest(self, state):
        content = self._manifest | {"chosen": self._chosen, "state": state}
        text = _json(content | {"checksum": joblib.hash(_json(content))})
        self._write(_MANIFEST, lambda file: file.write(text.encode()))

    def _write(self, name, write):
        """Write a file of the folder completely, or not at all."""
        temporary = self._folder / f"{name}.tmp"
        try:
            with open(temporary, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._folder / name)
        finally:
            with suppress(OSError):
                os.remove(temporary)
        if os.name == "posix":  # flush the name to disk too
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _most_bytes(estimator, data):
    """Return more bytes than a file takes, by the plan, and for epochs and blocks."""
    try:
        plan = plan_of(estimator, data.X, data.targets.shape[1])
    except ValueError:  # of impossible sizes, which the fit will name
        return float("inf")
    n_parts = plan.n_epochs + plan.chosen.get("most_blocks", 0)
    return 2.0 * plan.needed + _PART_BYTES * n_parts


def _check_members(path, most_bytes):
    """Raise a ValueError unless the arrays of an archive are as large as they say.

    `savez` compresses nothing, and NumPy allocates what the header of an array says.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(one.compress_type for one in members):
            raise ValueError("compressed")
        if sum(one.file_size for one in members) > most_bytes:
            raise ValueError("too large")
        for one in members:
            with archive.open(one) as file:
                major, _ = np.lib.format.read_magic(file)
                read = getattr(np.lib.format, f"read_array_header_{major}_0")
                shape, _, dtype = read(file)
                if file.tell() + math.prod(shape) * dtype.itemsize != one.file_size:
                    raise ValueError("another size")


def _text_of(value):
    """Return a text that identifies the value of a parameter.

    Functions are known by their names, defaults and enclosed variables.
    """
    if isinstance(value, np.random.RandomState):
        return "a RandomState"
    if is_array_api_obj(value):
        return _text_of_array(value)
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        inside = [value.__defaults__, value.__kwdefaults__, *cells]
        return f"{value.__module__}.{value.__qualname__} of {_text_of(inside)}"
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    if value is not None and not isinstance(value, str | bool | int | float):
        with suppress(pickle.PicklingError, AttributeError, TypeError):
            text += f", {joblib.hash(value)}"
    return text


def _texts_of_data(estimator, data):
    """Return texts that identify the data of a fit."""
    arrays = {"X": data.X, "y": data.targets, "sample_weight": data.weights}
    if data.validation is not None:
        names = "X_val", "y_val", "labels of y_val", "sample_weight_val"
        arrays |= zip(names, data.validation, strict=True)
    if getattr(estimator, "warm_start", False):
        coef = getattr(estimator, estimator._coef_attribute, None)
        arrays["the model of warm_start=True"] = coef
    texts = {name: _text_of_array(a) for name, a in arrays.items() if a is not None}
    if isinstance(data.X, StoredRows):
        texts[_READ_AT_ONCE] = str(data.X.block_size)
    if hasattr(estimator, "classes_"):
        texts["classes"] = _text_of(estimator.classes_.tolist())
    return texts


def _rows_as_in(texts, X):
    """Return rows of a file, in memory or not as in the fit of the checkpoint.

    That depended on the free memory then, and determines the order of rows in an epoch.
    """
    if _READ_AT_ONCE in texts:
        if is_numpy_array(X):
            X = StoredRows(X, X.dtype, block_size=max(int(texts[_READ_AT_ONCE]), 1))
        return X
    return in_memory(X) if isinstance(X, StoredRows) else X


def _text_of_array(X):
    """Return type, shape, library, device and a hash of an array."""
    xp, device = location_of(X)
    text = f"{X.dtype} {tuple(X.shape)} of {xp.__name__} on {device}"
    if is_lazy(X):  # hashed where the rows are
        return f"{type(X).__name__} {text}, {joblib.hash(X.by_rows(_hashes_of_rows))}"
    content = X if scipy.sparse.issparse(X) else np.ascontiguousarray(to_numpy(X))
    return f"{text}, {joblib.hash(content, coerce_mmap=True)}"


def _hashes_of_rows(rows):
    rows = np.ascontiguousarray(to_numpy(rows))
    digests = [hashlib.blake2b(row, digest_size=8).digest() for row in rows]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def _set_random_state(rng, state):
    """Set the state of a RandomState; raise a ValueError if it is none.

    NumPy does not check the position, and reads whatever memory is there.
    """
    mt = state["state"]
    if not (len(mt["key"]) == 624 and mt["pos"] in range(625)):
        raise ValueError("no state of a Mersenne Twister")
    rng.set_state(state)


def _hash_of_file(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _json(content):
    return json.dumps(content, default=np.ndarray.tolist)


def _to_tree(value):
    """Return a value as JSON allows it, with names for arrays; and these, each once."""
    names, arrays = {}, {}

    def encoded(value):
        if isinstance(value, np.generic):
            return value.item()
        name = type(value).__name__
        if name in _CLASSES:
            return {"class": name, "of": vars(value)}
        place = "host" if is_numpy_array(value) else "device"
        name = names.setdefault(id(value), f"{place}{len(names)}")
        arrays[name] = value
        return {"array": name}

    return json.loads(json.dumps(value, default=encoded)), arrays


def _from_tree(tree, arrays):
    """Return the value of which `_to_tree` returned tree and arrays."""

    def decoded(found):
        if "array" in found:
            return arrays[found["array"]]
        if "class" in found:
            cls, attributes = _CLASSES[found["class"]], found["of"]
            for field in fields(cls) if is_dataclass(cls) else ():
                if field.type in (int, float) and field.name in attributes:
                    float(attributes[field.name])  # a number, or an error
            value = object.__new__(cls)
            vars(value).update(attributes)
            return value
        # JSON has numbers as keys of a dict only in the form of text.
        return {int(k) if k.isdigit() else k: v for k, v in found.items()}

    return json.loads(json.dumps(tree), object_hook=decoded)
