"""
A classifier in three lines
===========================

With its defaults, ``EigenProClassifier`` misclassifies fewer than 2 % of new
handwritten digits. It chooses bandwidth, algorithm and penalty itself.
"""

# %%
# The data: 1797 images of 8 x 8 pixels. A quarter of them is kept for testing.
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from eigenkern import EigenProClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

# %%
# The model.
model = EigenProClassifier(random_state=0)
model.fit(X_train, y_train)
error = 1 - model.score(X_test, y_test)
print(f"{100 * error:.2f} % of {len(y_test)} test images are wrong")
assert error < 0.02

# %%
# Attributes whose names end with an underscore say what was chosen.
print(f"kernel:    {model.kernel_}")
print(f"bandwidth: {model.bandwidth_:.1f}")
print(f"algorithm: {model.algorithm_}")

# %%
# The test images that the model is least sure of, measured by the probability of the
# predicted class. Wrong predictions have a red title.
probability = model.predict_proba(X_test).max(axis=1)
predicted = model.predict(X_test)
figure, axes = plt.subplots(2, 5, figsize=(7, 3.6), layout="constrained")
for ax, row in zip(axes.flat, probability.argsort()):
    ax.imshow(X_test[row].reshape(8, 8), cmap="Greys")
    ax.set(xticks=[], yticks=[])
    ax.set_title(
        f"{predicted[row]}, {100 * probability[row]:.0f} %",
        color="black" if predicted[row] == y_test[row] else "red",
    )
    ax.set_xlabel(f"is a {y_test[row]}")
plt.show()
