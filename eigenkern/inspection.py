"""What a fitted model looks at: its gradients, and the shares of columns in a value."""

from .estimators.gradients import average_gradient_outer_product, gradient
from .estimators.shapley import shapley_values

__all__ = ["average_gradient_outer_product", "gradient", "shapley_values"]
