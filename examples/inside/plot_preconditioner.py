"""
Why EigenPro takes large steps
==============================

The largest eigenvalue of the kernel matrix limits the step of gradient descent.
EigenPro lowers the q largest eigenvalues to the next one: the step becomes more than a
thousand times as long, and after 20 epochs the residual is less than a fiftieth.
"""

# %%
# Data: Friedman's ten-dimensional function with little noise. The models differ only in
# q.
import matplotlib.pyplot as plt
from sklearn.datasets import make_friedman1

from eigenkern import EigenProRegressor

X, y = make_friedman1(n_samples=4000, noise=0.1, random_state=0)
X_train, y_train, X_test, y_test = X[:3000], y[:3000], X[3000:], y[3000:]

# %%
# ``n_components=0`` is plain mini-batch gradient descent.
models = {}
for q in (0, 5, 20, 80, "auto"):
    model = EigenProRegressor(
        "gaussian",
        algorithm="eigenpro2",
        n_components=q,
        max_iter=20,
        tol=0,
        alpha=0.0,
        random_state=0,
    )
    models[q] = model.fit(X_train, y_train)
    print(
        f"q = {q!s:>4}: step {model.step_size_:8.1f}, critical batch "
        f"{model.adapted_critical_batch_size_:6.1f}, "
        f"R^2 on the test rows {model.score(X_test, y_test):.4f}"
    )

# %%
# On the left the leading eigenvalues; a preconditioner with q eigenvectors cuts them
# off at its dotted line. On the right the effect on the residual.
assert models["auto"].step_size_ > 1000 * models[0].step_size_
assert models["auto"].loss_curve_[-1] < models[0].loss_curve_[-1] / 50
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
eigenvalues = models[80].eigenvalues_
left.loglog(range(1, len(eigenvalues) + 1), eigenvalues, color="black")
left.set(xlabel="index j", ylabel="eigenvalue", title="Spectrum of the subsample")
for color, (q, model) in zip(plt.rcParams["axes.prop_cycle"], models.items()):
    color = color["color"]
    label = f"auto: q = {model.n_components_}" if q == "auto" else f"q = {q}"
    epochs = range(1, model.n_iter_ + 1)
    right.semilogy(epochs, model.loss_curve_, color=color, label=label)
    if q not in ("auto", 0):
        left.axhline(model.eigenvalues_[-1], color=color, linestyle=":", label=label)
right.set(xlabel="epoch", ylabel="mean squared residual", title="Training")
right.set(ylim=(2e-2, None), xticks=[1, 5, 10, 15, 20])
right.legend(loc="lower left", ncols=2, fontsize="small")
left.legend(loc="lower left")
plt.show()
