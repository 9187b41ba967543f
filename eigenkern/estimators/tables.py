"""Tables as they come: categories, gaps and columns in any units become numbers."""

from contextlib import suppress
from dataclasses import replace
from numbers import Integral

import numpy as np
from sklearn import config_context
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)
from sklearn.utils import check_array

from ..arrays.array import location_of, move, to_numpy
from ..fitting.outcome import warn_of_cutoffs
from ..fitting.validation import warn_user
from ..rows.frames import (
    CATEGORIES,
    DATES,
    NUMBERS,
    TEXTS,
    FrameRows,
    as_levels,
    columns_at,
    columns_of,
    first_row,
    infinite_column,
    is_frame,
    kinds_of_columns,
    kinds_of_levels,
)

# Levels up to which a category becomes a column for each. Errors with 30 and 300, means
# of three draws of 1500 rows: taxis (200 zones) .451 and .445, adult 15.7 and 15.9 %.
_NARROW = 30
# Text of which more than this part are numbers is probably a column of numbers.
_MOSTLY = 0.9
# Outputs up to which a category is encoded by the targets of each.
_MOST_OUTPUTS = 10
# Folds to encode the levels of the others by targets of other rows.
_FOLDS = 5
# Rows of the mean of all targets that are added to those of each level: a level that
# was seen once says little.
_SMOOTH = 10.0
# Entries so many times as far from the median as nine of ten others are fill values,
# which have no part in means and deviations.
_FAR = 10.0
# Most standard deviations that a number counts as outside the range of a column.
_FARTHEST = 1e3
# Size of the entries that smooth clipping approaches, in usual sizes.
_CLIP = 3.0
# Columns have long tails if their deviation is more than this many times that of their
# middle half, in the median over columns: 1 for normal columns, 2 for log-normal ones.
# cpusmall has 2.0, ijcnn1 1.7, the other tables of benchmarks/tabular.py up to 1.4.
_LONG_TAILS = 1.5


def as_numbers(X):
    """Return columns of numbers as an array of floats, with NaN for gaps."""
    name = infinite_column(X) if is_frame(X) else None
    if name is not None:
        raise ValueError(f"Input X contains infinity, in column {name!r}")
    if is_frame(X) and not hasattr(X, "iloc"):  # polars
        columns = [column.to_numpy() for column in columns_of(X)]
        floats = {column.dtype for column in columns} == {np.dtype(np.float32)}
        dtype = np.float32 if floats else np.float64
        return np.column_stack([column.astype(dtype) for column in columns])
    return check_array(X, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan")


def smoothly_clipped(Z):
    """Return z / (1 + (z / 3)^2)^1/2, which is between -3 and 3."""
    return Z / np.hypot(1.0, Z / _CLIP, dtype=Z.dtype)


class Columns:
    """Which columns of a table are categories, and what the others hold."""

    def __init__(self, X, categorical_features):
        self.of_frame = is_frame(X)
        shape = np.shape(X) if self.of_frame or hasattr(X, "shape") else ()
        self._names, kinds, self.head = None, [], None
        if self.of_frame:
            self._names, kinds = list(X.columns), kinds_of_columns(X)
            self.head = first_row(X)
        if isinstance(categorical_features, str) or categorical_features is None:
            _check_word(categorical_features)
            found = []
            if categorical_features is not None:
                found = [j for j, kind in enumerate(kinds) if kind in _CATEGORICAL]
        else:
            d = shape[1] if len(shape) == 2 else len(X[0])
            found = _indices(categorical_features, self._names, d)
        self.categories = found
        self.texts = [j for j in found if kinds and kinds[j] == TEXTS]
        self._of_levels = []
        for j, kind in enumerate(kinds):
            if kind != NUMBERS and j not in found:
                raise ValueError(self._refused(j, kind))

    def _refused(self, j, kind):
        advice = (
            "name it in categorical_features, with all other categories, or make it "
            "text (X[column].astype(str)), if it is a category; convert it with "
            "pandas.to_numeric, or drop it, if not"
        )
        if kind == DATES:
            advice = (
                "derive numbers from it, such as the year, the month, the day of the "
                "week, the hour, the days since a date or the seconds of a duration "
                "(X[column].dt.total_seconds()), and drop it"
            )
        return f"column {self.name_of(j)} of X holds {kind}: {advice}"

    def name_of(self, j):
        """Return the name of a column, or its number if it has none."""
        return repr(self._names[j]) if self._names else str(j)

    def rows_of(self, X):
        """Return the rows of a DataFrame if some columns are categories, else None."""
        if not (self.of_frame and self.categories):
            return None
        if not is_frame(X):
            name = self._names[self.categories[0]]
            raise ValueError(
                "X must be a DataFrame with the columns of that in fit, of which "
                f"{name!r} is a category; got {type(X).__name__}"
            )
        return FrameRows(X)

    def as_text(self, levels):
        """Return which categories become text in all rows, by the levels in fit."""
        self._of_levels = kinds_of_levels(levels)
        return [kind != NUMBERS for kind in self._of_levels]

    def check(self, frame):
        """Raise a ValueError if a column that held numbers or text does so no more.

        Text and numbers may have become categories, or gaps alone.
        """
        as_they_are = [False] * len(self.categories)
        levels = as_levels(columns_at(frame, self.categories), as_they_are)
        of_levels = dict(zip(self.categories, self._of_levels, strict=True))
        now = dict(zip(self.categories, kinds_of_levels(levels), strict=True))
        for j, kind in enumerate(kinds_of_columns(frame)):
            right, found = of_levels.get(j, NUMBERS), now.get(j, kind)
            if right in (TEXTS, NUMBERS) and found not in (right, None):
                raise ValueError(
                    f"column {self.name_of(j)} of X must hold {right}, as in fit; "
                    f"got {found if kind == CATEGORIES else kind}"
                )


_CATEGORICAL = TEXTS, CATEGORIES


def _warn_of_levels(columns, levels, n_rows):
    """Warn of numbers as text, and of categories with a level for every other row."""
    for j, found in zip(columns.categories, levels, strict=True):
        n = len(found)
        n_numbers = sum(map(_is_number, found)) if j in columns.texts else 0
        if n > _NARROW and n_numbers > _MOSTLY * n:
            warn_user(
                f"column {columns.name_of(j)} of X is text, but {n_numbers} of its {n} "
                "values are numbers: convert it with pandas.to_numeric(column, "
                "errors='coerce'), or with column.astype('category') if it is a "
                "category",
                UserWarning,
            )
        elif n > max(n_rows / 2, _NARROW):
            warn_user(
                f"column {columns.name_of(j)} of X is a category with {n} levels in "
                f"{n_rows} rows, too many to learn from: drop it, or derive columns "
                "from it (of dates, with pandas.to_datetime; of numbers as text, with "
                "pandas.to_numeric)",
                UserWarning,
            )


def _is_number(level):
    with suppress(ValueError):
        return isinstance(level, str) and np.isfinite(float(level))
    return False


def _check_word(categorical_features):
    if categorical_features not in ("from_dtype", None):
        raise ValueError(_wrong_categories(categorical_features))


def _wrong_categories(given):
    return (
        "categorical_features must be 'from_dtype', None, or names or indices of "
        f"columns, or a boolean mask of them; got {given!r}"
        f"{f': write [{given!r}]' if isinstance(given, str) else ''}"
    )


def _indices(given, names, d):
    """Return the indices of columns by names, indices or a mask."""
    found = np.asarray(given)
    if found.ndim != 1:
        raise ValueError(_wrong_categories(given))
    if found.dtype == bool:
        if len(found) != d:
            raise ValueError(
                f"categorical_features must have a value for each of the {d} columns "
                f"of X if it is a mask; got {len(found)}"
            )
        return np.flatnonzero(found).tolist()
    indices = []
    for one in found.tolist():
        if isinstance(one, Integral) and -d <= one < d:
            indices.append(one % d)
        elif isinstance(one, str) and names is not None and one in names:
            indices.append(names.index(one))
        else:
            raise ValueError(
                f"categorical_features must name columns of X, of which there are {d}"
                f"{'' if names is None else f': {names}'}; got {one!r}"
                f"{', and integers are positions' * isinstance(one, Integral)}"
            )
    return sorted(set(indices))


class Preparation:
    """What becomes of the columns of a table: numbers, marks of gaps, levels.

    A column of numbers keeps its place among them, with its median for gaps, and gets a
    mark if there are gaps. A category becomes a column for each of its levels, or, if
    it has many, their mean targets, from other rows. The scaling of the numbers is left
    open. Everything is fitted to the distinct rows with weight, whatever their weights,
    except for mean targets.

    Attributes
    ----------
    sources : ndarray of shape (p,)
        The user's column that each prepared one comes from.
    n_numbers : int
        How many of these are numbers; they come first.
    has_long_tails : bool
        Whether these have long tails (`_LONG_TAILS`); known if "robust" is a scaling.
    """

    has_long_tails = False

    @config_context(transform_output="default")
    def fit(self, columns, data, scalings):
        """Fit everything to the data; return their rows as numbers, not scaled."""
        X, used = data.X, data.rows_with_weight()
        rows = X.frame if isinstance(X, FrameRows) else to_numpy(X)
        d = self._d = X.shape[1]
        self._parts = []
        categories = columns.categories
        numbers = [j for j in range(d) if j not in categories]
        head, columns.head = columns.head, None
        head = rows[:1] if head is None else head
        N = np.empty((X.shape[0], 0))
        if numbers:
            N = as_numbers(columns_at(rows, numbers))
        gaps = np.isnan(N)
        held = ~gaps[used].all(axis=0)
        numbers = np.compress(held, numbers).tolist()
        N, gaps = N[:, held], gaps[:, held]
        L, as_text = N[:, :0], []
        if categories:
            L = as_levels(columns_at(rows, categories), [False] * len(categories))
            as_text = columns.as_text(L[used])
            L = as_levels(L, as_text)
        codes = np.zeros((X.shape[0], 0))
        if categories:
            ordinal = OrdinalEncoder(
                handle_unknown="use_encoded_value", unknown_value=-1
            ).fit(L[used])
            codes = np.nan_to_num(ordinal.transform(L), nan=-2.0)
        n_levels = [len(levels) for levels in ordinal.categories_] if categories else []
        if categories:
            _warn_of_levels(columns, ordinal.categories_, len(used))
        raw = data
        if categories or gaps.any():
            raw = replace(data, X=np.hstack([np.where(gaps, 0.0, N), gaps, codes]))
        first = used[raw.distinct(used)[0]]
        self.n_numbers, sources = len(numbers), list(numbers)
        self._scalers = {}
        if numbers:
            fill = SimpleImputer(strategy="median").fit(N[first])
            self._add("numbers", as_numbers, [("fill", fill)], head, numbers)
            self._fit_scalers(N[first], scalings)
        if gaps[used].any():
            mark = MissingIndicator(error_on_new=False).fit(N[first])
            self._add("gaps", as_numbers, [("mark", mark)], head, numbers)
            sources += [numbers[j] for j in mark.features_]
        narrow = [j for j, n in enumerate(n_levels) if n <= _NARROW]
        wide = [j for j, n in enumerate(n_levels) if n > _NARROW]
        outputs = range(1 if data.groups is not None else data.targets.shape[1])
        if len(outputs) > _MOST_OUTPUTS:
            narrow, wide = narrow + wide, []
        if narrow:
            encoder = OneHotEncoder(
                handle_unknown="infrequent_if_exist",
                max_categories=_NARROW,
                sparse_output=False,
                dtype=np.float32,
            ).fit(L[first][:, narrow])
            places = [categories[j] for j in narrow]
            own = {"as_text": [as_text[j] for j in narrow]}
            self._add("levels", as_levels, [("encode", encoder)], head, places, own)
            for name in encoder.get_feature_names_out(
                [str(categories[j]) for j in narrow]
            ):
                sources.append(int(name.partition("_")[0]))
        found, places = [], [categories[j] for j in wide]
        for output in outputs if wide else ():
            encoder, encodings = _by_targets(
                raw, used, L[:, wide], codes[:, wide], output
            )
            deviations = StandardScaler().fit(encoder.transform(L[first][:, wide]))
            found.append(deviations.transform(encodings))
            steps = [("encode", encoder), ("scale", deviations)]
            name = "wide" if len(outputs) == 1 else f"wide{output}"
            own = {"as_text": [as_text[j] for j in wide]}
            self._add(name, as_levels, steps, head, places, own)
            sources += np.repeat(places, encodings.shape[1] // len(places)).tolist()
        encodings = np.hstack(found) if found else None
        self.sources = np.array(sources, dtype=np.int64)
        if not len(sources):
            raise ValueError(
                "X must have a column with values; got gaps only, in rows with weight"
            )
        # Fitted here, because files of skops hold no DataFrame to fit them to later.
        self._unscaled = self._with_scaling(None).fit(head)
        self._preprocessors = {
            name: self._with_scaling(name).fit(head) for name in self._scalers
        }
        if self.n_numbers < d or gaps.any() or categories:
            X = self.encoded(X, encodings)
        return X

    def _add(self, name, function, steps, head, columns, options=None):
        """Add a part of the preprocessor, of transformers that are fitted."""
        convert = FunctionTransformer(
            function, kw_args=options, feature_names_out="one-to-one"
        )
        convert.fit(columns_at(head, columns))
        steps = Pipeline([("convert", convert), *steps])
        self._parts.append((name, steps, columns))

    def _fit_scalers(self, N, scalings):
        """Fit scalings to columns of numbers."""
        if scalings != (None,):
            with np.errstate(over="ignore"):
                away = np.abs(N - np.nanmedian(N, axis=0))
            usual = [_quantile_of_positive(column) for column in away.T]
            near = np.where(away > _FAR * np.array(usual), np.nan, N)
            standard = self._scalers["standard"] = StandardScaler().fit(near)
            self._range = np.nanmin(N, axis=0), np.nanmax(N, axis=0)
        if "robust" in scalings:
            scale = RobustScaler(unit_variance=True).fit(N)
            low, high = np.nanquantile(N, [0.25, 0.75], axis=0)
            tails = standard.scale_[low < high] / scale.scale_[low < high]
            self.has_long_tails = bool(len(tails) and np.median(tails) > _LONG_TAILS)
            scale.scale_[low == high] = standard.scale_[low == high]
            clip = FunctionTransformer(
                smoothly_clipped, feature_names_out="one-to-one"
            ).fit(N)
            self._scalers["robust"] = Pipeline([("scale", scale), ("clip", clip)])
        if "normal" in scalings:
            self._scalers["normal"] = QuantileTransformer(
                n_quantiles=min(1000, len(N)),
                output_distribution="normal",
                random_state=0,
            ).fit(N)

    def preprocessor(self, scaling):
        """Return the fitted `ColumnTransformer` with a scaling of the numbers."""
        return self._preprocessors.get(scaling, self._unscaled)

    def _with_scaling(self, scaling):
        parts = []
        for name, steps, columns in self._parts:
            scaler = self._scalers.get(scaling)
            if name == "numbers" and scaler is not None:
                steps = Pipeline([*steps.steps, ("scale", scaler)])
            parts.append((name, FrozenEstimator(steps), columns))
        return ColumnTransformer(parts)

    def encoded(self, X, encodings=None):
        """Return rows as numbers, not scaled; `encodings` are those of fit."""
        Z = prepared(self.preprocessor(None), X)
        if encodings is not None:
            Z[:, Z.shape[1] - encodings.shape[1] :] = encodings
        return move(Z, *location_of(X))

    @config_context(transform_output="default")
    def scaled(self, X, scaling):
        """Return encoded rows with their numbers scaled."""
        scaler, k = self._scalers.get(scaling), self.n_numbers
        if scaler is None:
            return X
        Z = to_numpy(X)
        numbers = scaler.transform(Z[:, :k]).astype(Z.dtype, copy=False)
        Z = numbers if k == Z.shape[1] else np.hstack([numbers, Z[:, k:]])
        return move(Z, *location_of(X))

    def beyond(self, X, scaling):
        """Return how far numbers are outside those of fit, in standard deviations.

        The array has a column for each prepared one. It is zero if the scaling does not
        hide this.
        """
        out = np.zeros((X.shape[0], len(self.sources)))
        if scaling in ("normal", "robust") and self.n_numbers:
            N = to_numpy(self.encoded(X))[:, : self.n_numbers].astype(np.float64)
            away = (N - np.clip(N, *self._range)) / self._scalers["standard"].scale_
            out[:, : self.n_numbers] = np.clip(away, -_FARTHEST, _FARTHEST)
        return out

    def warn_of_cutoffs(self, model, X):
        """Warn of entries of encoded rows that a model cuts off, in units of X."""
        k = self.n_numbers
        if k == 0 or model.scaling_ in ("normal", "robust"):
            return  # nothing is far away
        offset, limits = (to_numpy(v)[:k] for v in (model._offset, model._limits))
        scaler = self._scalers.get(model.scaling_)
        if scaler is not None:
            offset, limits = (
                scaler.mean_ + scaler.scale_ * offset,
                scaler.scale_ * limits,
            )
        warn_of_cutoffs(model, X[:, :k], offset, limits, self.sources[:k])

    def gradients(self, of_prepared, X, scaling):
        """Return gradients in the user's columns, all of numbers, at rows X."""
        return _UsersGradient(self, of_prepared, X, scaling)

    @config_context(transform_output="default")
    def slopes(self, X, scaling):
        """Return the derivatives of scaled columns of numbers, (n, k), on the host."""
        N = to_numpy(self.encoded(X))[:, : self.n_numbers].astype(np.float64)
        scaler = self._scalers.get(scaling)
        if scaling == "normal":
            return _slopes_of_normal(scaler, N)
        if scaling == "robust":
            Z = scaler.named_steps["scale"].transform(N)
            return (1.0 + (Z / _CLIP) ** 2) ** -1.5 / scaler.named_steps["scale"].scale_
        return np.ones_like(N) / (1.0 if scaler is None else scaler.scale_)

    def summed(self, values):
        """Return values of the prepared columns, summed over each of the user's."""
        return np.bincount(self.sources, values, minlength=self._d)


class _UsersGradient:
    """Gradients in the user's columns of numbers, from those in the prepared ones.

    A gap counts as the median that fills it; marks of gaps have no gradient.
    """

    def __init__(self, preparation, of_prepared, X, scaling):
        self._preparation, self._inner = preparation, of_prepared
        self._X, self._scaling, self.xp = X, scaling, of_prepared.xp
        n, _, n_outputs = of_prepared.shape
        self.shape = n, X.shape[1], n_outputs

    def block(self, start, stop, mix=None):
        """Return the gradients at rows [start:stop], shape (m, d, l)."""
        G, k = self._inner.block(start, stop, mix), self._preparation.n_numbers
        slopes = self._preparation.slopes(self._X[start:stop, :], self._scaling)
        slopes = move(slopes.astype(to_numpy(G[:0, ...]).dtype), *location_of(G))
        G = G[:, :k, :] * slopes[:, :, None]
        sources, d = self._preparation.sources[:k], self.shape[1]
        if k == d:
            return G
        zero = self.xp.zeros_like(G[:, :1, :])  # of columns of gaps only
        place = dict(zip(sources.tolist(), range(k)))
        columns = [
            G[:, place[j] : place[j] + 1, :] if j in place else zero for j in range(d)
        ]
        return self.xp.concat(columns, axis=1)


def _slopes_of_normal(scaler, N):
    """Return the derivatives of a `QuantileTransformer`: linear between quantiles."""
    Z, slopes = scaler.transform(N), np.zeros_like(N)
    with np.errstate(divide="ignore"):
        for j, quantiles in enumerate(scaler.quantiles_.T):
            inside = (N[:, j] >= quantiles[0]) & (N[:, j] < quantiles[-1])
            i = np.searchsorted(quantiles, N[inside, j], side="right")
            step = scaler.references_[i] - scaler.references_[i - 1]
            rise = step / (quantiles[i] - quantiles[i - 1])
            slopes[inside, j] = rise * np.exp(0.5 * Z[inside, j] ** 2)
    return slopes * (2.0 * np.pi) ** 0.5


def _quantile_of_positive(values):
    values = values[values > 0]
    return np.quantile(values, 0.9) if len(values) else np.inf


@config_context(transform_output="default")
def prepared(preprocessor, X):
    """Return rows of a DataFrame or an array as prepared numbers, on the host."""
    dtype = np.dtype(str(X.dtype).rpartition(".")[2])
    X = X.frame if isinstance(X, FrameRows) else to_numpy(X)
    with np.errstate(over="ignore"):
        Z = preprocessor.transform(X)
    return np.ascontiguousarray(Z, dtype=dtype)


def _by_targets(data, used, L, codes, output=0):
    """Return an encoder of levels by their mean targets, and those of all rows.

    For labels the targets are the classes, whatever the output. `codes` are those of
    the levels in their order, -2 for gaps, which come last. Those of a row come from
    other rows; equal rows are in the same of five folds.
    """
    y, target_type = data.targets[used, output], "continuous"
    if data.groups is not None:
        y = data.groups[used]
        target_type = "multiclass" if len(np.unique(y)) > 2 else "binary"
    encoder = TargetEncoder(target_type=target_type, smooth=_SMOOTH).fit(L[used], y)
    # The encoder has no weights; these are its values with them.
    Y, w = y[:, None], data.weights_of(used)
    if data.groups is not None:
        Y = y[:, None] == np.unique(y)[-1 if target_type == "binary" else 0 :]
    smooth = _SMOOTH * _weight_of_a_row(data, used) / w.mean()
    w = w / w.mean()
    fold = data.distinct(used)[1] % _FOLDS
    own, encoder.encodings_ = [], []
    for levels, code in zip(encoder.categories_, codes[used].T, strict=True):
        code = np.where(code < 0, len(levels) - 1, code).astype(np.int64)
        means, mean = _mean_targets(code, len(levels), Y, w, smooth)
        encoder.encodings_ += list(means.T)
        encoder.target_mean_ = mean if target_type == "multiclass" else mean[0]
        of_others = np.empty((len(used), Y.shape[1]))
        for one in range(_FOLDS):
            inside = fold == one
            others = code[~inside], len(levels), Y[~inside], w[~inside]
            of_others[inside] = _mean_targets(*others, smooth)[0][code[inside]]
        own.append(of_others)
    encodings = encoder.transform(L)
    encodings[used] = np.hstack(own)
    return encoder, encodings


def _mean_targets(code, n_levels, Y, w, smooth):
    """Return the mean targets of levels, (n_levels, l), and of all rows, (l,)."""
    mean = np.average(Y, weights=w, axis=0)
    sums = [np.bincount(code, w * y, minlength=n_levels) for y in Y.T]
    total = np.bincount(code, w, minlength=n_levels)[:, None]
    return (np.stack(sums, axis=1) + smooth * mean) / (total + smooth), mean


def _weight_of_a_row(data, rows):
    """Return the weight that counts as one row.

    Weights may be numbers of rows, times a constant: it is the largest number of which
    all are multiples. If that is tiny, they are not, and it is their mean. Weights of
    classes say nothing of the number of rows.
    """
    pair = data.distinct_with_targets(rows)[1]
    w, own = (
        np.bincount(pair, weights)
        for weights in (data.weights_of(rows), data.own_weights_of(rows))
    )
    unit = own.min()
    while unit > own.mean() / 1e3:
        rest = np.abs(own / unit - np.rint(own / unit))
        if rest.max() < 1e-3:
            break
        unit *= rest[rest >= 1e-3].min()
    else:
        unit = own.mean()
    return unit * w.sum() / own.sum()
