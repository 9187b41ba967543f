"""Checkpoints: a fit that was stopped continues, bit for bit.

A checkpoint is a folder with ``manifest.json`` and the arrays of the last state,
``state-<n>.npz``. The manifest holds the estimator, its parameters, hashes of the data,
the random state at the start, what was chosen, and the state, in which a number stands
for each array. What is chosen and measured before the first epoch is computed again,
from the same random state.

A file is written under another name, flushed to disk and renamed. The manifest comes
last; then the previous state is removed: there is always one complete state.

scikit-learn's callbacks cannot do this: they get the fitted attributes of an iteration,
but not the state of the solver, and cannot restore it.
"""

import hashlib
import json
import os
import pickle
import re
import sys
import time
import types
import zipfile
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import joblib
import numpy as np
import scipy.sparse
from array_api_compat import is_array_api_obj, is_numpy_array

from ..arrays.array import location_of, to_numpy
from ..methods.descent import Walk
from ..methods.projected import Iterate
from ..methods.state import State
from ..methods.step_search import StepTrials
from ..methods.stochastic import Expansion
from ..plan.parameters import is_auto
from ..rows.lazy_rows import StoredRows, in_memory, is_lazy
from .validation import check_flag, check_number, warn_user

# Version of the layout of both files, and of the state of solvers and rules.
_FORMAT = 4
_MANIFEST = "manifest.json"
# Parameters that do not change the model.
_FREE_PARAMETERS = ("verbose",)
# Sizes that may depend on the machine's measured speed or free memory.
_SIZES = {"batch_size": "batch_size_", "block_size": "block_size_"}
# Attributes that only describe the machine.
_OF_MACHINE = ("max_batch_size_",)
# Classes that occur in states, besides numbers, lists, dicts and arrays.
_CLASSES = {cls.__name__: cls for cls in (Expansion, Iterate, State, StepTrials, Walk)}
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
    if checkpoint is not None:
        return Keeper(checkpoint, resume, estimator, data)
    if resume:
        raise ValueError("resume=True needs a checkpoint to continue from; got None")
    return None


class Keeper:
    """Writes the checkpoints of a fit, and reads the one to continue from.

    Parameters
    ----------
    checkpoint : Checkpoint, str or path
    resume : bool
    estimator : Model
        With checked parameters, not yet fitted.
    data : Data
        Validated.

    Attributes
    ----------
    data : Data
        The same, but with the random state of the fit to continue; rows of a file are
        in memory if they were then.

    Raises
    ------
    ValueError
        If the folder holds a checkpoint but `resume` is False, one of another fit, or
        anything else.
    OSError
        If the folder cannot be written.
    """

    def __init__(self, checkpoint, resume, estimator, data):
        if not isinstance(checkpoint, Checkpoint):
            if not isinstance(checkpoint, str | os.PathLike):
                raise ValueError(
                    "checkpoint must be None, the path of a folder or an "
                    f"eigenkern.Checkpoint; got {checkpoint!r}"
                )
            checkpoint = Checkpoint(checkpoint)
        self._checkpoint, self._folder = checkpoint, Path(checkpoint.folder)
        self._chosen = {}
        self._state = self._arrays = self._problem = None
        found = self._found(resume)
        if found is not None:
            data = replace(data, X=_rows_as_in(found["data"], data.X))
        made_of = {
            "format": _FORMAT,
            "eigenkern": sys.modules[__package__.partition(".")[0]].__version__,
            "estimator": type(estimator).__name__,
            "parameters": {
                name: _text_of(value)
                for name, value in estimator.get_params(deep=False).items()
                if name not in _FREE_PARAMETERS
            },
            "data": _texts_of_data(estimator, data),
        }
        if found is None:
            self._manifest = made_of | {"rng": data.rng.get_state(legacy=False)}
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._write_manifest({}, None)
            except OSError as error:
                raise _unusable(self._folder, "write", error) from error
        else:
            self._check(found, made_of)
            self._manifest = {name: found[name] for name in (*made_of, "rng")}
            self._state, self._chosen = found["state"], found["chosen"]
            if self._state is not None:
                self._arrays = self._read_arrays()
            if estimator.random_state is None:  # leave NumPy's global state alone
                data = replace(data, rng=np.random.RandomState())
            data.rng.set_state(found["rng"])
        self.data, self._rng = data, data.rng
        self._n_epochs, self._seconds = 0, time.monotonic()

    def _found(self, resume):
        """Return the manifest of the checkpoint in the folder, or None."""
        folder = self._folder
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(folder, "read", error) from error
        if _MANIFEST in names:
            if not resume:
                raise ValueError(
                    f"checkpoint={str(folder)!r} holds a checkpoint already: pass "
                    "resume=True to continue from it, or another folder; nothing in it "
                    "was changed"
                )
            return self._read_manifest()
        foreign = [name for name in names if name != _MANIFEST + ".tmp"]
        if foreign:
            raise ValueError(
                f"checkpoint={str(folder)!r} must be a new or empty folder, or one "
                f"with a whole checkpoint; got {foreign[0]!r} in it and no {_MANIFEST}"
            )
        return None

    def _read_manifest(self):
        try:
            found = json.loads((self._folder / _MANIFEST).read_bytes())
            checksum = found.pop("checksum")
        except OSError as error:
            raise _unusable(self._folder, "read", error) from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise self._damaged(_MANIFEST) from error
        if checksum != _hash(_canonical(found)):
            raise self._damaged(_MANIFEST)
        return found

    def _check(self, found, made_of):
        """Raise a ValueError unless a checkpoint belongs to this fit."""

        def check_same(name, there, here):
            if there != here:
                raise ValueError(
                    f"checkpoint={str(self._folder)!r} is of another fit: {name} is "
                    f"{there} there and {here} here; pass what it was made with, or "
                    "another folder"
                )

        check_same("the format of its files", found["format"], made_of["format"])
        check_same("the version of eigenkern", found["eigenkern"], made_of["eigenkern"])
        check_same("the estimator", found["estimator"], made_of["estimator"])
        for kind in ("parameters", "data"):
            there, here = found[kind], made_of[kind]
            for name in sorted({*there, *here}):
                check_same(name, there.get(name), here.get(name))

    def _read_arrays(self):
        """Return the arrays of the state."""
        name = self._state["file"]
        try:
            path = self._folder / name
            if _hash_of_file(path) != self._state["checksum"]:
                raise self._damaged(name)
            with np.load(path, allow_pickle=False) as arrays:
                return [arrays[f"a{i}"] for i in range(len(arrays.files))]
        except (OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise self._damaged(name) from error

    def _damaged(self, name):
        return ValueError(
            f"checkpoint={str(self._folder)!r} is damaged: {name} is missing or not as "
            "it was written; pass another folder to begin anew. Nothing in it was "
            "changed"
        )

    def prepare(self, estimator, data):
        """Return ``estimator._prepare(data)`` with the sizes that the checkpoint has.

        Warns if another choice differs from that in the checkpoint.
        """
        given = {
            name: getattr(estimator, name)
            for name in _SIZES
            if self._chosen.get(_SIZES[name]) is not None
            and is_auto(getattr(estimator, name, None))
        }
        vars(estimator).update({name: self._chosen[_SIZES[name]] for name in given})
        try:
            prepared = estimator._prepare(data)
        finally:
            vars(estimator).update(given)
        chosen = {
            name: _Encoder().encode(value)
            for name, value in prepared[2].items()
            if isinstance(value, float | int | str | np.generic)
            and name not in _OF_MACHINE
        }
        if self._chosen not in ({}, chosen):
            names = sorted(n for n in chosen if chosen[n] != self._chosen.get(n))
            warn_user(
                f"{type(estimator).__name__} continues from a checkpoint, but not bit "
                f"for bit: this machine chose another {', '.join(names)}",
            )
        self._problem, self._chosen = prepared[0], chosen
        return prepared

    def set_aside(self, name):
        """Return None: closed forms need no keeper. Warn of an unused checkpoint."""
        if self._state is not None:
            warn_user(
                f"{name} does not continue from the checkpoint: this machine now "
                "solves the problem in closed form, without iterations"
            )

    def resume(self, solver, rule):
        """Bring solver and rule to the state of the checkpoint.

        Returns
        -------
        n_done : int
            Number of epochs done; `max_iter` if the fit was finished.
        """
        state, problem = self._state, self._problem
        if state is None:
            return 0
        decoder = _Decoder(self._arrays, problem.xp, problem.device)
        saved = decoder.decode(state["tree"])
        rule.load(saved["rule"])
        if not state["over"]:
            solver.load(saved["solver"])
        self._rng.set_state(saved["rng"])
        self._state = self._arrays = None
        self._n_epochs = len(rule.losses)
        return rule.max_iter if state["over"] else self._n_epochs

    def keep(self, solver, rule, over):
        """Write a checkpoint after an epoch, if one is due or it was the last epoch."""
        seconds, epochs = self._checkpoint.seconds, self._checkpoint.epochs
        n, now = len(rule.losses), time.monotonic()
        due = epochs is not None and n - self._n_epochs >= epochs
        if not (over or due or now - self._seconds >= seconds):
            return
        try:
            self._write_state(solver, rule, over)
        except OSError as error:
            warn_user(
                f"{_unusable(self._folder, 'write', error)}; the fit continues, and "
                "the last whole checkpoint is kept",
                RuntimeWarning,
            )
        self._n_epochs, self._seconds = n, time.monotonic()

    def _write_state(self, solver, rule, over):
        encoder = _Encoder()
        tree = encoder.encode(
            {
                "rule": rule.save(),
                "solver": None if over else solver.save(),
                "rng": self._rng.get_state(legacy=False),
            }
        )
        arrays = {f"a{i}": to_numpy(a) for i, a in enumerate(encoder.arrays)}
        numbers = [int(n) for n in re.findall(r"\d+", " ".join(self._state_files()))]
        name = f"state-{max(numbers, default=0) + 1}.npz"
        state = {"file": name, "n_epochs": len(rule.losses), "over": over, "tree": tree}
        self._write(name, lambda file: np.savez(file, **arrays))
        state["checksum"] = _hash_of_file(self._folder / name)
        self._write_manifest(self._chosen, state)
        for other in self._state_files():
            if other != name:
                with suppress(OSError):
                    os.remove(self._folder / other)

    def _state_files(self):
        return [name for name in os.listdir(self._folder) if name.startswith("state-")]

    def _write_manifest(self, chosen, state):
        content = self._manifest | {"chosen": chosen, "state": state}
        content["checksum"] = _hash(_canonical(content))
        text = _canonical(content)
        self._write(_MANIFEST, lambda file: file.write(text))

    def _write(self, name, write):
        """Write a file of the folder completely, or not at all."""
        path = self._folder / name
        temporary = self._folder / f"{name}.tmp"
        try:
            with open(temporary, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with suppress(OSError):
                os.remove(temporary)
        if os.name == "posix":  # flush the name to disk too
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _unusable(folder, verb, error):
    reason = error.strerror or str(error)
    text = f"checkpoint={str(folder)!r}: cannot {verb} this folder: {reason}"
    return OSError(text) if error.errno is None else OSError(error.errno, text)


def _text_of(value):
    """Return a text that identifies the value of a parameter.

    Functions are known by their names, defaults and enclosed variables.
    """
    if isinstance(value, np.random.RandomState):
        return "a RandomState"
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return repr(value)
    if is_array_api_obj(value):
        return _text_of_array(value)
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        inside = [value.__defaults__, value.__kwdefaults__, *cells]
        return f"{value.__module__}.{value.__qualname__} of {_text_of(inside)}"
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    with suppress(pickle.PicklingError, AttributeError, TypeError):
        text += f", {joblib.hash(value)}"
    return text


def _texts_of_data(estimator, data):
    """Return texts that identify the data of a fit."""
    texts = {"X": _text_of_array(data.X), "y": _text_of_array(data.targets)}
    if isinstance(data.X, StoredRows):
        texts[_READ_AT_ONCE] = str(data.X.block_size)
    if hasattr(estimator, "classes_"):
        texts["classes"] = _text_of(estimator.classes_.tolist())
    if data.weights is not None:
        texts["sample_weight"] = _text_of_array(data.weights)
    if data.validation is not None:
        names = "X_val", "y_val", "sample_weight_val"
        parts = zip(names, data.validation, strict=True)
        texts |= {name: _text_of_array(a) for name, a in parts if a is not None}
    coef = getattr(estimator, estimator._coef_attribute, None)
    if getattr(estimator, "warm_start", False) and coef is not None:
        texts["the model of warm_start=True"] = _text_of_array(coef)
    return texts


def _rows_as_in(texts, X):
    """Return rows of a file, in memory or not as in the fit of the checkpoint.

    That depended on the free memory then, and determines the order of rows in an epoch.
    """
    if _READ_AT_ONCE in texts:
        if is_numpy_array(X):
            X = StoredRows(X, X.dtype, block_size=int(texts[_READ_AT_ONCE]))
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


def _canonical(content):
    """Return JSON that is the same for equal content; arrays become lists."""
    to_list = np.ndarray.tolist
    text = json.dumps(content, sort_keys=True, allow_nan=False, default=to_list)
    return text.encode()


def _hash(content):
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _hash_of_file(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


class _Encoder:
    """Encodes numbers, lists, dicts and known classes as JSON; arrays go to a list.

    An array that occurs several times is written once.

    Attributes
    ----------
    arrays : list
    """

    def __init__(self):
        self.arrays, self._numbers = [], {}

    def encode(self, value):
        """Return what `_Decoder.decode` turns back into the value."""
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if np.isfinite(value) else {"float": repr(value)}
        if isinstance(value, list | tuple):
            return [self.encode(one) for one in value]
        if isinstance(value, dict):
            pairs = value.items()
            return {"dict": [[self.encode(k), self.encode(v)] for k, v in pairs]}
        if type(value).__name__ in _CLASSES:
            name = type(value).__name__
            return {"class": [name, self.encode(vars(value))]}
        number = self._numbers.setdefault(id(value), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(value)
        kind = "array" if is_numpy_array(value) else "device_array"
        return {kind: number}


class _Decoder:
    """Decodes what an `_Encoder` returned, on the device that computes."""

    def __init__(self, arrays, xp, device):
        self._arrays = arrays
        # An array that occurs several times is moved once.
        self._moved = cache(lambda i: xp.asarray(arrays[i], device=device))

    def decode(self, tree):
        """Return the value."""
        if isinstance(tree, list):
            return [self.decode(one) for one in tree]
        if not isinstance(tree, dict):
            return tree
        ((kind, content),) = tree.items()
        if kind == "float":
            return float(content)
        if kind == "dict":
            return {self.decode(k): self.decode(v) for k, v in content}
        if kind == "class":
            name, attributes = content
            value = object.__new__(_CLASSES[name])
            vars(value).update(self.decode(attributes))
            return value
        return self._moved(content) if kind == "device_array" else self._arrays[content]
